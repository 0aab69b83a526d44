"""One training step: gradient, update, refusal of non-finite updates; under jit on a mesh or under pmap."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.models.losses import Loss
from gpt_jax.ops.dropout import step_key
from gpt_jax.parallel.mesh import PMAP_AXIS
from gpt_jax.parallel.partition import Rules, partition


class TrainState(NamedTuple):
  """All that a step changes; arrays only. `step` counts batches, also those whose update was
  refused.
  """

  step: jax.Array
  params: Any
  opt_state: Any


def init_state(
  init: Callable[[jax.Array], Any], optimizer: optax.GradientTransformation
) -> Callable[[jax.Array], TrainState]:
  """The function from a seed to the first state: jitted with its shardings, no host ever holds more
  than its share.

  The order: (1) parameters from key(seed); (2) the optimizer's moments from the parameters; (3)
    step 0.
  """

  def make(seed: jax.Array) -> TrainState:
    params = init(jax.random.key(seed))
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

  return make


def compile_init(
  make_state: Callable[[jax.Array], TrainState],
  mesh: Mesh,
  rules: Rules,
  fsdp: bool = False,
) -> tuple[Callable[[jax.Array], TrainState], Any]:
  """make_state compiled for the mesh, and the shardings of what it makes."""
  shardings = partition(jax.eval_shape(make_state, np.uint32(0)), rules, mesh, fsdp)
  return jax.jit(make_state, out_shardings=shardings), shardings


def restore_or_init(
  make_state: Callable[[jax.Array], TrainState], shardings: Any, seed: int, checkpoints: Checkpoints
) -> tuple[TrainState, int]:
  """The newest checkpoint's state, or the first state where there is none; and its step. See
  lay_out.
  """
  seed = np.uint32(
    seed
  )  # an argument of the compiled programs: runs that differ in it alone share them
  if not checkpoints.steps():
    return make_state(seed), 0
  abstract = jax.eval_shape(make_state, seed)
  placed = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings
  )
  state, _, step = checkpoints.restore(placed)
  return state, step


def make_step(
  loss: Loss,
  optimizer: optax.GradientTransformation,
  schedule: optax.Schedule,
  mesh: Mesh,
  state_shardings: Any,
  *,
  microbatches: int = 1,
  backend: str = "jit",
) -> Callable[[TrainState, Any, int], tuple[TrainState, dict[str, Any]]]:
  """(state, batch of [M, B / M, ...], seed) -> (state, metrics), compiled; the state's memory is
  given to the new one.

  The gradient is that of the objective's total, summed over microbatches and devices, then divided
  by the summed
  weight: the same for any split of the batch. An update with an infinite or undefined loss or
  gradient is refused: the state stays as it was but for its step.
  """
  axis = PMAP_AXIS if backend == "pmap" else None

  def gradient(params, batch, key):
    def total(params):
      objective, metrics = loss(params, batch, key)
      return objective.total, (objective, metrics)

    grads, (objective, metrics) = jax.grad(total, has_aux=True)(params)
    return grads, objective, metrics

  def step(state: TrainState, batch, seed) -> tuple[TrainState, dict[str, Any]]:
    device, devices = (jax.lax.axis_index(axis), jax.lax.axis_size(axis)) if axis else (0, 1)

    def part(index, batch):
      return gradient(state.params, batch, step_key(seed, state.step, index * devices + device))

    sums = part(0, jax.tree.map(lambda x: x[0], batch))
    if microbatches > 1:

      def add(sums, at):
        index, batch = at
        return jax.tree.map(jnp.add, sums, part(index, batch)), None

      rest = (jnp.arange(1, microbatches), jax.tree.map(lambda x: x[1:], batch))
      sums, _ = jax.lax.scan(add, sums, rest)
    grads, objective, metrics = jax.lax.psum(sums, axis) if axis else sums
    norm = optax.tree.norm(grads) / objective.weight
    finite = jnp.isfinite(norm) & jnp.isfinite(objective.total)

    def update(params, opt_state):
      # In here, and as a product, so that it fuses with the update: dividing before took a pass
      # over all memory more.
      mean = jax.tree.map(lambda g: g * (1 / objective.weight), grads)
      updates, opt_state = optimizer.update(mean, opt_state, params, norm=norm)
      return optax.apply_updates(params, updates), opt_state

    # A select of every leaf instead would copy the old moments first: 8 % of a step on a CPU.
    params, opt_state = jax.lax.cond(
      finite, update, lambda *same: same, state.params, state.opt_state
    )
    metrics = {
      **metrics,
      "gradient_norm": norm,
      "learning_rate": schedule(optax.tree.get_all_with_path(state.opt_state, "count")[0][1]),
      "finite": finite,
    }
    return TrainState(state.step + 1, params, opt_state), metrics

  if axis:
    alone = jax.process_count() == 1
    # With several processes a donated, replicated state is deleted while peers still read it.
    donate = (0,) if alone else ()
    mapped = jax.pmap(
      step, axis_name=axis, in_axes=(None, 0, None), out_axes=(None, None), donate_argnums=donate
    )
    here, everywhere = (
      NamedSharding(Mesh(np.array(jax.local_devices()), axis), P()),
      NamedSharding(mesh, P()),
    )

    def step_on_processes(state, batch, seed):
      # Always the sharding that pmap returns, or it would compile a second time for its own output.
      # Among several processes those arrays are of one process; evaluation and checkpoints need
      # what all share.
      state, metrics = mapped(_relabelled(state, here), batch, np.uint32(seed))
      return state if alone else _relabelled(state, everywhere), metrics

    return step_on_processes
  compiled = jax.jit(
    step,
    in_shardings=(state_shardings, NamedSharding(mesh, P(None, "data")), NamedSharding(mesh, P())),
    out_shardings=(state_shardings, NamedSharding(mesh, P())),
    donate_argnums=0,
  )

  def step_on_mesh(state, batch, seed):
    with jax.set_mesh(mesh):
      return compiled(state, batch, np.uint32(seed))

  return step_on_mesh


def _relabelled(tree: Any, sharding: NamedSharding) -> Any:
  """Replicated arrays under another sharding; nothing is copied."""

  def of_leaf(x: jax.Array) -> jax.Array:
    if x.sharding == sharding:
      return x
    return jax.make_array_from_single_device_arrays(
      x.shape, sharding, [s.data for s in x.addressable_shards]
    )

  return jax.tree.map(of_leaf, tree)
