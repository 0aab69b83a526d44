"""The update rules against NumPy and optax; schedules; states on meshes and in checkpoints."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from plain_rows import plain_rows

from gpt_jax.batch import Batch, Predictions
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.training.layerwise import Layerwise, layerwise_optimizer
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.trainer import Trainer
from gpt_jax.training.update_rules import clip_by_global_norm, trained

STEPS = 24
RULES = ("bert", "fairseq", "lamb", "adafactor")
D, H, K = 128, 2, 64  # Adafactor factors axes of 128 or more

SHAPES = {
  "trunk": {
    "tokens": (130, D),
    "types": (2, D),
    "attention": {
      "qkv": {"kernel": (D, 3, H, K), "bias": (3, H, K)},
      "out": {"kernel": (H, K, D), "bias": (D,)},
    },
    "norm": {"scale": (D,), "bias": (D,)},
    "pooler": {"kernel": (D, D), "bias": (D,)},
  },
  "head": {"kernel": (D, 3), "bias": (3,)},
}


def random_tree(seed, size=1.0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda shape: (size * rng.normal(size=shape)).astype(np.float32),
    SHAPES,
    is_leaf=lambda x: isinstance(x, tuple),
  )


@functools.cache
def gradients(step):
  """Some are clipped; those of every seventh step are zero."""
  return random_tree(100 + step, (1e-3, 1.0)[step % 2] * (step % 7 != 3))


@functools.cache
def zero_at_first():
  """Parameters; those of the head are zero, so that its trust ratio is 1 at first."""
  params = random_tree(0, 0.5)
  return params | {"head": jax.tree.map(np.zeros_like, params["head"])}


def run(rule, params, gradients, steps=STEPS):
  """The parameters after so many updates, step -> gradients."""

  @jax.jit
  def advance(grads, state, params):
    updates, state = rule.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  state = jax.jit(rule.init)(params)
  for step in range(steps):
    params, state = advance(gradients(step), state, params)
  return params


def trained_with(config):
  return run(make_optimizer(config, STEPS).transformation, zero_at_first(), gradients)


def numpy_rule(config, schedule):
  """The update in NumPy, on a list of (name, parameter); tensors as the released code has them."""
  params = dict(separate(zero_at_first()))
  params = {name: p.astype(np.float64) for name, p in params.items()}
  m, v = ({name: np.zeros_like(p) for name, p in params.items()} for _ in range(2))
  for t in range(STEPS):
    grads = {name: g.astype(np.float64) for name, g in separate(gradients(t))}
    norm = np.sqrt(sum((g * g).sum() for g in grads.values()))
    c = np.sqrt(1 - config.b2 ** (t + 1)) / (1 - config.b1 ** (t + 1))
    for name, p in params.items():
      g = grads[name] * (min(1, config.clip_norm / norm) if norm else 1)
      m[name] = config.b1 * m[name] + (1 - config.b1) * g
      v[name] = config.b2 * v[name] + (1 - config.b2) * g * g
      update = m[name] / (np.sqrt(v[name]) + config.eps)
      plain = any(part in name for part in ("bias", "scale"))
      if config.optimizer == "fairseq":
        p -= schedule(t) * config.weight_decay * p
        p -= schedule(t) * c * update
        continue
      update = update if plain else update + config.weight_decay * p
      if config.optimizer == "openai":
        p -= schedule(t) * c * update
        continue
      lengths = np.linalg.norm(p), np.linalg.norm(update)
      adapts = config.optimizer == "lamb" and not plain and all(lengths)
      p -= schedule(t) * (lengths[0] / lengths[1] if adapts else 1) * update
  return params


def separate(tree):
  """(name, array); q, k and v apart."""
  for path, x in jax.tree.leaves_with_path(tree):
    name, x = jax.tree_util.keystr(path, simple=True, separator="/"), np.asarray(x)
    stacked = {"qkv/kernel": 1, "qkv/bias": 0}
    axis = next((axis for end, axis in stacked.items() if name.endswith(end)), None)
    if axis is None:
      yield name, x
    else:
      yield from ((f"{name}/{i}", part) for i, part in enumerate(np.moveaxis(x, axis, 0)))


@pytest.mark.parametrize("rule", ["openai", "bert", "fairseq", "lamb"])
def test_updates_equal_the_released_codes(rule):
  # Large eps and decay, so that the result depends on their places in the formula.
  config = OptimConfig(rule, 0.02, "bert_linear", 10, weight_decay=0.3, eps=1e-3, b2=0.98)
  got = dict(separate(trained_with(config)))
  want = numpy_rule(config, lambda t: 0.02 * (t / 10 if t < 10 else 1 - t / STEPS))
  assert got.keys() == want.keys()
  for name, p in want.items():
    np.testing.assert_allclose(got[name], p, rtol=1e-4, atol=2e-6, err_msg=name)


def test_adamw_is_optaxs_on_kernels_only():
  config = OptimConfig("adamw", 0.02, warmup_steps=10, weight_decay=0.3)
  schedule = make_optimizer(config, STEPS).schedule
  mask = jax.tree_util.tree_map_with_path(
    lambda path, _: path[-1].key not in ("bias", "scale"), zero_at_first()
  )
  adamw = optax.adamw(schedule, weight_decay=0.3, mask=mask)
  want = run(optax.chain(optax.clip_by_global_norm(1.0), adamw), zero_at_first(), gradients)
  got = trained_with(config)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), got, want)


@pytest.mark.parametrize("limit", [1e-3, 0.7, 1e9])
def test_clipping_is_optaxs_with_the_norm_given_or_not(limit):
  grads, empty = gradients(0), optax.EmptyState()
  want, _ = optax.clip_by_global_norm(limit).update(grads, empty)
  clip = jax.jit(lambda grads, **norm: clip_by_global_norm(limit).update(grads, empty, **norm)[0])
  for norm in ({}, {"norm": optax.tree.norm(grads)}):
    got = clip(grads, **norm)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


def test_adafactor_is_optaxs_on_the_matrices_of_the_released_code():
  config = OptimConfig("adafactor", 0.01, "inverse_sqrt", 10, clip_norm=0.0)
  got = dict(separate(trained_with(config)))

  def matrices(tree):
    """[D, H K] of q, k and v, [H K, D] of the output."""
    shapes = {"qkv/kernel": (D, H * K), "qkv/bias": (-1,), "attention/out/kernel": (H * K, D)}
    found = {}
    for name, x in separate(tree):
      shape = next((shape for part, shape in shapes.items() if part in name), x.shape)
      found[name] = x.reshape(shape)
    return found

  def rate(t):
    return 0.01 * (10 / jnp.maximum(t, 10.0)) ** 0.5

  rule, first = optax.adafactor(rate), matrices(zero_at_first())
  state = jax.eval_shape(rule.init, first)
  factored = {name for name, row in state[0].v_row.items() if row.size > 1}
  assert {"trunk/attention/qkv/kernel/1", "trunk/attention/out/kernel", "trunk/tokens"} <= factored
  params = run(rule, first, lambda step: matrices(gradients(step)))
  for name, p in params.items():
    np.testing.assert_allclose(got[name].ravel(), np.ravel(p), rtol=1e-4, atol=1e-6, err_msg=name)


def test_adagrad_is_tensorflows():
  """Its first sum of squares is eps; there is no other one."""
  config = OptimConfig("adagrad", 0.2, "constant", 0, eps=0.25, clip_norm=0.0)
  got = trained_with(config)
  params, sums = zero_at_first(), jax.tree.map(lambda p: np.full(p.shape, 0.25), zero_at_first())
  for step in range(STEPS):
    sums = jax.tree.map(lambda s, g: s + np.square(g), sums, gradients(step))
    params = jax.tree.map(lambda p, s, g: p - 0.2 * g / np.sqrt(s), params, sums, gradients(step))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, params)


def test_momentum_is_tensorflows_and_the_mean_of_the_weights_follows_them():
  """What trains is `trained`; the parameters are its exponential mean."""
  config = OptimConfig("momentum", 0.2, "constant", 0, clip_norm=0.0, average=0.7)
  rule = make_optimizer(config, STEPS).transformation
  params = mean = zero_at_first()
  state, update = jax.jit(rule.init)(params), jax.jit(rule.update)
  weights, m = zero_at_first(), jax.tree.map(np.zeros_like, zero_at_first())
  for step in range(5):
    updates, state = update(gradients(step), state, jax.jit(trained)(params, state))
    params = jax.jit(optax.apply_updates)(params, updates)
    m = jax.tree.map(lambda m, g: 0.9 * m + g, m, gradients(step))
    weights = jax.tree.map(lambda w, m: w - 0.2 * m, weights, m)
    mean = jax.tree.map(lambda v, w: 0.7 * v + 0.3 * w, mean, weights)
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
  jax.tree.map(close, params, mean)
  jax.tree.map(close, trained(params, state), weights)


# Schedules.


def rates(schedule, total, peak=1.0, **options):
  config = OptimConfig(learning_rate=peak, schedule=schedule, **options)
  rate = jax.jit(jax.vmap(make_optimizer(config, total).schedule))
  return np.asarray(rate(np.arange(total + 5)))


@pytest.mark.parametrize(
  "schedule, total, peak, options, formula",
  [
    # It jumps at the end of its warm-up, from 0.95 to 0.8.
    ("bert_linear", 100, 1.0, {"warmup_steps": 20}, lambda t: t / 20 if t < 20 else 1 - t / 100),
    (
      "fairseq_linear", 100, 1.0, {"warmup_steps": 20},
      lambda t: t / 20 if t <= 20 else 1 - (t - 20) / 80,
    ),
    ("inverse_sqrt", 300, 0.1, {"warmup_steps": 100}, lambda t: 1 / max(t, 100) ** 0.5),
  ],
)  # fmt: skip
def test_schedules_equal_their_formulas(schedule, total, peak, options, formula):
  got = rates(schedule, total, peak, **options)
  np.testing.assert_allclose(got[:total], list(map(formula, range(total))), atol=1e-6)
  np.testing.assert_allclose(got[total:], formula(total), atol=2e-3)  # at most 5 updates later


@pytest.mark.parametrize(
  "schedule, total, peak, options, golden",
  [
    (
      "slanted_triangle", 1000, 0.01, {"warmup_steps": 0, "warmup_share": 0.1},
      {0: 3.125e-4, 50: 5.15625e-3, 100: 1e-2, 550: 5.15625e-3, 999: 3.2326e-4, 1004: 3.125e-4},
    ),
    (
      "cross_view", 200_001, 0.5, {"warmup_steps": 5000},
      {0: 0.0, 100: 0.0095238, 2500: 0.2, 5000: 0.369398, 20_000: 0.292893, 200_000: 0.154509},
    ),
  ],
)  # fmt: skip
def test_rates_of_ulmfit_and_of_cross_view_training(schedule, total, peak, options, golden):
  got = rates(schedule, total, peak, **options)
  np.testing.assert_allclose(got[list(golden)], list(golden.values()), rtol=1e-4)


@pytest.mark.parametrize(
  "schedule", ["bert_linear", "fairseq_linear", "inverse_sqrt", "slanted_triangle", "cross_view"]
)
@pytest.mark.parametrize("warmup", [0, 50])
def test_a_warmup_of_nothing_or_of_the_whole_run_gives_finite_rates(schedule, warmup):
  got = rates(schedule, 50, warmup_steps=warmup)
  assert np.isfinite(got).all() and got.min() >= 0 and got.max() <= 1 + 1e-6
  assert warmup or got[0] == 1


# In a trainer.

NO_DROPOUT = {"residual_dropout": 0, "attention_dropout": 0, "embedding_dropout": 0}
TRUNK = TransformerConfig(60, context=8, layers=1, width=16, heads=2, **NO_DROPOUT)


def batch(step):
  ids = np.random.default_rng(step).integers(60, size=(8, 8)).astype(np.int32)
  predictions = Predictions(np.roll(ids, -1, axis=1), np.ones(ids.shape, np.float32))
  return Batch(plain_rows(ids), predictions=predictions)


@functools.cache
def build(rule, devices=1, mesh=MeshConfig(), microbatches=1, layerwise=Layerwise()):  # noqa: B008
  model = ModelConfig(TRUNK).build()
  optim = OptimConfig(optimizer=rule, learning_rate=0.01, schedule="constant", warmup_steps=0)
  return Trainer.build(
    model,
    model_loss(model),
    batch(0),
    layerwise_optimizer(optim, 10, layerwise),
    make_mesh(mesh, jax.devices()[:devices]),
    rules=TRUNK.TENSOR_PARALLEL,
    fsdp=mesh.fsdp,
    backend=mesh.backend,
    microbatches=microbatches,
  )


def train(trainer, state, steps):
  for step in steps:
    state, metrics = trainer.step(state, trainer.to_device(batch(step)), 0)
    assert metrics["finite"]
  return state


@functools.cache
def on_one_device(rule):
  trainer = build(rule)
  return jax.device_get(train(trainer, trainer.init(0), range(3)).params)


@pytest.mark.parametrize(
  "rule, mesh, devices, microbatches",
  [
    pytest.param("lamb", MeshConfig(data=2, model=2, fsdp=True), 4, 1, marks=pytest.mark.slow),
    ("adafactor", MeshConfig(data=2, model=2, fsdp=True), 4, 2),
    pytest.param("adafactor", MeshConfig(backend="pmap"), 8, 1, marks=pytest.mark.slow),
  ],
  ids=["sharded-lamb", "sharded and in microbatches-adafactor", "pmap-adafactor"],
)
def test_a_mesh_changes_nothing(rule, mesh, devices, microbatches):
  """The rules that read a whole matrix: its norm, or its root mean square.

  tests/training/test_loop.py has the elementwise ones, by OpenAI's, on every mesh.
  """
  trainer = build(rule, devices, mesh, microbatches)
  got = train(trainer, trainer.init(0), range(3)).params
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), got, on_one_device(rule))


@pytest.mark.parametrize("rule", ["lamb", "adafactor"])  # BERT's and fairseq's state is LAMB's
def test_a_run_resumes_with_the_same_bits(rule, tmp_path):
  trainer = build(rule)
  with Checkpoints(str(tmp_path), metric="valid_loss", mode="min") as checkpoints:
    checkpoints.save(2, train(trainer, trainer.init(0), range(2)), {})
    checkpoints.wait()
    state, first = trainer.restore_or_init(0, checkpoints)
  assert first == 2
  got = train(trainer, state, [2]).params
  jax.tree.map(np.testing.assert_array_equal, got, on_one_device(rule))


@pytest.mark.parametrize("rule", ["lamb", "adafactor"])  # split into matrices inside of a group
def test_a_layer_that_begins_later_keeps_its_parameters_until_then(rule):
  late = Layerwise(lambda path: 0.5, lambda path: 2 if "tokens" in path else 0, ("positions$",))
  trainer = build(rule, layerwise=late)
  states = [jax.device_get(trainer.init(0).params)]
  state = trainer.init(0)
  for step in range(3):
    state = train(trainer, state, [step])
    states.append(jax.device_get(state.params))

  def changes(name, i):
    old, new = (params["trunk"] for params in states[i : i + 2])
    return np.abs(new[name] - old[name]).max()

  assert [changes("tokens", i) > 0 for i in range(3)] == [False, False, True]
  assert [changes("positions", i) > 0 for i in range(3)] == [False, False, False]
  qkv = [params["trunk"]["block_0"]["attention"]["qkv"]["kernel"] for params in states]
  assert np.abs(qkv[1] - qkv[0]).max() > 0
