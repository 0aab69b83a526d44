"""Trainer: model, loss, optimizer and mesh assembled into one compiled training step."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.errors import InputError
from gpt_jax.models.loss import Loss
from gpt_jax.ops.product import compiler_options
from gpt_jax.parallel import memory
from gpt_jax.parallel.memory import Forecast
from gpt_jax.parallel.mesh import Rules
from gpt_jax.parallel.placement import to_device
from gpt_jax.parallel.processes import largest
from gpt_jax.training.hooks import Hook
from gpt_jax.training.loop import fit
from gpt_jax.training.optimizer import Optimizer
from gpt_jax.training.step import JitStep, TrainState, make_init, make_step


@dataclasses.dataclass(frozen=True)
class Trainer:
  """A compiled training step, and what belongs to it. Runs that differ only in seed share one."""

  mesh: Mesh
  microbatches: int
  backend: str
  make_state: Callable[[Any], TrainState]  # of a seed; compiled for the mesh
  shardings: TrainState
  # (state, device batch, seed) -> (state, metrics); the memory of the state is reused.
  step: Callable[[TrainState, Any, int], tuple[TrainState, dict[str, Any]]]

  @classmethod
  def build(
    cls,
    model: nn.Module,
    loss: Loss,
    example: Any,
    optimizer: Optimizer,
    mesh: Mesh,
    *,
    rules: Rules = (),
    fsdp: bool = False,
    backend: str = "jit",
    microbatches: int = 1,
    scales_loss: bool = False,
    products: str = "xla",
  ) -> "Trainer":
    """Assembles a trainer; nothing is computed yet.

    Args:
      model: has `init(key, example)["params"]`.
      example: a host batch for tracing `init`; its values are ignored.
      rules: tensor-parallel rules on parameter paths, such as the trunk's TENSOR_PARALLEL.
      fsdp: whether parameters and moments are sharded along `data` too.
      backend: "jit" or "pmap".
      scales_loss: see LossScale; for models in float16.
      products: library of a CPU's products under jit, "xla" or "onednn".
    """

    # Only `params`: `init` also returns zeros for perturbations, which are no parameters.
    def init(key):
      return model.init(key, example)["params"]

    make_state, shardings = make_init(  # shardings first: the step is compiled for them
      init, optimizer.transformation, mesh, rules, fsdp, scales_loss
    )
    options = compiler_options(products)
    step = make_step(loss, optimizer, mesh, shardings, microbatches, backend, options)
    return cls(mesh, microbatches, backend, make_state, shardings, step)

  def init(self, seed: int) -> TrainState:
    """The first state of a run."""
    # The seed is an argument of the compiled program: runs that differ only in it share one.
    return self.make_state(np.uint32(seed))

  def restore_or_init(self, seed: int, checkpoints: Checkpoints) -> tuple[TrainState, int]:
    """The newest checkpoint's state or, if there is none, the first; and its step."""
    if not checkpoints.steps():
      return self.init(seed), 0
    state, _, step = checkpoints.restore(self.abstract_state()._replace(base=None))
    checkpoints.tidy()  # not before the newest one has been verified
    return state, step

  def abstract_state(self) -> TrainState:
    """The shapes and shardings of a state, as jax.ShapeDtypeStructs."""

    def shape(x, sharding):
      return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(shape, jax.eval_shape(self.make_state, np.uint32(0)), self.shardings)

  def compile(self, batch: Any) -> jax.stages.Compiled:
    """The step's program for a global host batch, whose values are ignored; nothing is run, and the
    devices of the mesh need not be there (jax.experimental.topologies).
    """
    if self.backend == "pmap":
      raise InputError(f"mesh.backend={self.backend}: only jit compiles ahead of time")
    sharding = NamedSharding(self.mesh, P(None, "data"))

    def shape(x):
      # [B, ...] -> [M, B / M, ...], as to_device lays batches out.
      parts = (self.microbatches, len(x) // self.microbatches, *np.shape(x)[1:])
      return jax.ShapeDtypeStruct(parts, np.asarray(x).dtype, sharding=sharding)

    step = cast(JitStep, self.step)
    return step.lower(self.abstract_state(), jax.tree.map(shape, batch)).compile()

  def memory_with(self, compiled: jax.stages.Compiled) -> memory.Needed:
    """Bytes at the peak of a run with this step and what is in use now, of the process that needs
    most. The state must not be on the devices yet, or it would count twice.
    """
    devices = self.mesh.local_devices
    in_use, needed = memory.in_use(devices), memory.needed(compiled, devices)
    return needed._replace(most=largest(in_use + needed.most))

  def to_device(self, batch: Any) -> Any:
    """This process's rows of a host batch, as the arrays that `step` takes."""
    return to_device(batch, self.mesh, self.microbatches, self.backend)

  def fit(
    self,
    state: TrainState,
    batch_at: Callable[[int], Any],
    total_steps: int,
    seed: int,
    hooks: Sequence[Hook],
    forecast: Forecast | None = None,
  ) -> tuple[TrainState, dict[str, float]]:
    """Trains from a state, whose memory is reused, up to `total_steps`; see loop.fit.

    `batch_at`: step -> this process's rows of the host batch; `seed`: of dropout; `forecast`: how
    much memory the run may keep, None: all that malloc keeps.
    """
    forecast = forecast or Forecast()
    freed = memory.FreedMemory(forecast.room, forecast.waits)

    def step(state, batch):
      # On CPUs malloc keeps temporaries of earlier steps; see FreedMemory.
      freed.give_back(lambda: jax.block_until_ready(state))
      return self.step(state, batch, seed)

    # Prefetch calls this lambda on its thread, so copies to the device overlap with steps.
    return fit(state, step, lambda n: self.to_device(batch_at(n)), total_steps, hooks)
