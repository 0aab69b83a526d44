"""One training step: gradient, update, refusal of non-finite updates; jit on a mesh, or pmap."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.models.loss import Loss
from gpt_jax.models.trunk import BASE
from gpt_jax.ops.dropout import step_key
from gpt_jax.parallel.mesh import PMAP_AXIS, Rules, partition
from gpt_jax.training.optimizer import Optimizer
from gpt_jax.training.update_rules import trained

FIRST_SCALE = 2.0**15
GROWTH_INTERVAL = 2000  # finite gradients in a row before the loss scale is doubled


class LossScale(NamedTuple):
  """The factor on the loss before it is differentiated, by which the gradient is then divided.

  Without it small gradients vanish in float16 (Micikevicius et al. 2018, Mixed Precision Training,
  section 3.2; the constants are PyTorch's but for the first scale). flax.training.dynamic_scale
  halves without a floor, and its gradient function would be a second path through a step with
  microbatches.
  """

  scale: jax.Array  # float32, a power of 2 of at least 1: no bit of the gradient is rounded
  finite_steps: jax.Array  # int32, finite gradients since the scale changed


class TrainState(NamedTuple):
  """All that a step changes; arrays only."""

  step: jax.Array  # counts batches, skipped updates included
  params: Any
  opt_state: Any
  loss_scale: LossScale | None = None  # of a model in float16; checkpoints leave None out
  # Parameters that no step changes, those that an adapter is added to or a teacher's; None: there
  # are none. Checkpoints leave them out.
  base: Any = None

  @property
  def all_params(self) -> Any:
    """The parameters of the model, with those that no step changes."""
    return with_base(self.params, self.base)


def with_base(params: Any, base: Any) -> Any:
  """Parameters as a model with an adapter or a teacher takes them; without a base as they are."""
  return params if base is None else {**params, BASE: base}


# (state, batch of [M, B / M, ...], seed) -> (state, metrics)
Step = Callable[[TrainState, Any, Any], tuple[TrainState, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class JitStep:
  """A Step on a mesh."""

  compiled: Any
  mesh: Mesh  # its devices need not be there for `lower`

  def __call__(self, state: TrainState, batch: Any, seed: Any) -> tuple[TrainState, dict[str, Any]]:
    with jax.set_mesh(self.mesh):
      # `constrain` and `axis_size` ask for this mesh while the step is traced.
      return self.compiled(state, batch, np.uint32(seed))

  def lower(self, state: TrainState, batch: Any) -> jax.stages.Lowered:
    """The step's program for jax.ShapeDtypeStructs of a state and a batch; see jax.stages."""
    seed = jax.ShapeDtypeStruct((), np.uint32)
    with jax.set_mesh(self.mesh):
      return self.compiled.lower(state, batch, seed)


def make_init(
  init: Callable[[jax.Array], Any],
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  rules: Rules,
  fsdp: bool,
  scales_loss: bool,
) -> tuple[Callable[[np.uint32], TrainState], TrainState]:
  """The compiled function from a seed to the first state, and the shardings of that state.

  The order: (1) parameters from key(seed); (2) the optimizer's moments from the parameters; (3)
  step 0 and, if `scales_loss`, a loss scale, by which make_step scales. As it is compiled with its
  shardings, no host ever holds more than its share.
  """

  def make_state(seed: jax.Array) -> TrainState:
    params = dict(init(jax.random.key(seed)))  # float32, whatever the compute type
    base = params.pop(BASE, None)
    scale = LossScale(jnp.float32(FIRST_SCALE), jnp.int32(0)) if scales_loss else None
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), scale, base)

  # Moments lie under the paths of their parameters, so the same rules partition both.
  shardings = partition(jax.eval_shape(make_state, np.uint32(0)), rules, mesh, fsdp)
  return jax.jit(make_state, out_shardings=shardings), shardings


def make_step(
  loss: Loss,
  optimizer: Optimizer,
  mesh: Mesh,
  state_shardings: Any,
  microbatches: int,
  backend: str,
  compiler_options: Mapping[str, Any],
) -> Step:
  """The compiled step. The memory of the state that it is given is reused for the new one.

  The gradients of M microbatches are accumulated, exactly for any split of the batch. An update
  with an infinite or undefined loss or gradient is skipped: the state stays as it was but for its
  step and loss scale. `backend` is "jit" on the mesh, or "pmap".
  """
  axis = PMAP_AXIS if backend == "pmap" else None
  gradient = _gradient(loss, microbatches, axis)  # of the whole batch

  @jax.named_scope("optimizer")
  def apply(grads, norm, params, opt_state):
    weights = trained(params, opt_state)
    updates, opt_state = optimizer.transformation.update(grads, opt_state, weights, norm=norm)
    return optax.apply_updates(params, updates), opt_state

  def step(state: TrainState, batch: Any, seed: jax.Array) -> tuple[TrainState, dict[str, Any]]:
    # The parameters may be a mean of the weights that train.
    weights = trained(state.params, state.opt_state)
    # Summed over parts and devices.
    grads, metrics = gradient(state._replace(params=weights), batch, seed)
    # Not state.step, which counts skipped updates too: they must not advance the schedule.
    completed_updates = optax.tree.get_all_with_path(state.opt_state, "count")[0][1]
    # Before the norm, or frozen parameters would take part in clipping.
    grads = optimizer.gate(grads, completed_updates)
    with jax.named_scope("gradient_norm"):
      # One norm over all parameters. The optimizer gets it as well, so that clipping takes no
      # second pass.
      norm = optax.tree.norm(grads)
    # A single inf or nan in the gradient makes the norm inf or nan.
    finite = jnp.isfinite(norm) & jnp.isfinite(metrics["loss"].total)
    # A select of every leaf would copy the old moments first: 8 % of a step on a CPU.
    params, opt_state = jax.lax.cond(
      finite,
      lambda params, opt_state: apply(grads, norm, params, opt_state),
      lambda params, opt_state: (params, opt_state),
      state.params,
      state.opt_state,
    )
    metrics = {
      **metrics,
      "gradient_norm": norm,
      "learning_rate": optimizer.schedule(completed_updates),
      "finite": finite,
    }
    loss_scale = state.loss_scale
    if loss_scale is not None:
      metrics["loss_scale"] = loss_scale.scale
      # An overflow halves the scale, so a refused step in float16 is routine.
      loss_scale = adjusted(loss_scale, finite)
    # A skipped update has used its batch all the same: step + 1 reads the next one.
    return TrainState(state.step + 1, params, opt_state, loss_scale, state.base), metrics

  if axis is not None:
    return _with_pmap(step, mesh, axis)
  return _with_jit(step, mesh, state_shardings, compiler_options)


def _gradient(loss: Loss, microbatches: int, axis: str | None):
  """(state, batch [M, ...], seed) -> gradient and metrics of the whole batch."""

  def step_gradient(state: TrainState, batch: Any, seed: jax.Array):
    device: jax.Array | int = 0
    devices: jax.Array | int = 1
    if axis is not None:
      device, devices = jax.lax.axis_index(axis), jax.lax.axis_size(axis)
    # First the denominators of the whole batch, which need no forward pass. With them the loss of a
    # microbatch is its exact share, even if microbatches have different numbers of predictions.
    per_microbatch = jax.vmap(loss.denominators)(batch)
    # [M] -> scalar for each term of the loss.
    denominators = jax.tree.map(lambda x: x.sum(0), per_microbatch)
    if axis is not None:
      denominators = jax.lax.psum(denominators, axis)  # so a device gives its share of the loss

    def microbatch_gradient(index, microbatch):
      # The number of this part among all parts of the batch: a row has the same dropout mask for
      # any split of the batch.
      key = step_key(seed, state.step, index * devices + device)

      def scaled_loss(params):
        total, metrics = loss(with_base(params, state.base), microbatch, key, denominators)
        return total if state.loss_scale is None else total * state.loss_scale.scale, metrics

      return jax.grad(scaled_loss, has_aux=True)(state.params)  # metrics are the auxiliary output

    if microbatches == 1:
      sums = microbatch_gradient(0, jax.tree.map(lambda x: x[0], batch))
    else:

      def add(sums, numbered):
        return jax.tree.map(jnp.add, sums, microbatch_gradient(*numbered)), None

      # From zeros: with the first part outside the loop XLA unrolls what is left of two, and
      # computes both parts at once.
      numbered = (jnp.arange(microbatches), batch)
      first = jax.tree.map(lambda x: x[0], numbered)
      shapes = jax.eval_shape(lambda part: microbatch_gradient(*part), first)
      zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
      sums, _ = jax.lax.scan(add, zeros, numbered)
    if axis is not None:
      # Not pmean: each device's loss was divided by the denominators of all.
      sums = jax.lax.psum(sums, axis)
    if state.loss_scale is not None:
      grads, metrics = sums
      scale = state.loss_scale.scale
      sums = jax.tree.map(lambda g: g / scale, grads), metrics
    return sums

  return step_gradient


def _with_jit(
  step: Callable, mesh: Mesh, state_shardings: Any, compiler_options: Mapping[str, Any]
) -> Step:
  replicated = NamedSharding(mesh, P())
  # A batch is [M, B / M, ...]: microbatches in turn, the rows of each split over the devices. The
  # state is donated: the new one overwrites it, where otherwise two would have to fit into memory.
  compiled = jax.jit(
    step,
    in_shardings=(state_shardings, NamedSharding(mesh, P(None, "data")), replicated),
    out_shardings=(state_shardings, replicated),
    donate_argnums=0,
    compiler_options=dict(compiler_options),
  )
  return JitStep(compiled, mesh)


def _with_pmap(step: Callable, mesh: Mesh, axis: str) -> Step:
  single_process = jax.process_count() == 1
  # With several processes a donated, replicated state is deleted while peers still read it.
  donated = (0,) if single_process else ()
  # None: the same on every device. Only the batch has an axis of devices.
  mapped = jax.pmap(
    step, axis_name=axis, in_axes=(None, 0, None), out_axes=(None, None), donate_argnums=donated
  )
  local = NamedSharding(Mesh(np.array(jax.local_devices()), axis), P())
  shared = NamedSharding(mesh, P())

  def step_on_processes(state, batch, seed):
    # pmap returns arrays of this process. It takes them back under the same sharding, or it would
    # compile a second time; evaluation and checkpoints need arrays that all processes share.
    state, metrics = mapped(_with_sharding(state, local), batch, np.uint32(seed))
    return state if single_process else _with_sharding(state, shared), metrics

  return step_on_processes


def _with_sharding(tree: Any, sharding: NamedSharding) -> Any:
  """Replicated arrays under another sharding; nothing is copied."""

  def relabel(x: jax.Array) -> jax.Array:
    if x.sharding == sharding:
      return x
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, shards)

  return jax.tree.map(relabel, tree)


def adjusted(loss_scale: LossScale, finite: jax.Array) -> LossScale:
  """The loss scale of the next step, given whether this step's loss and gradient were finite."""
  scale, steps = loss_scale
  steps = jnp.where(finite, steps + 1, 0)
  grows = steps == GROWTH_INTERVAL  # and counts anew from there
  grown = jnp.where(grows, scale * 2, scale)
  return LossScale(jnp.where(finite, grown, jnp.maximum(scale / 2, 1)), jnp.where(grows, 0, steps))
