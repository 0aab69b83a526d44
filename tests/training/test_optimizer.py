"""The update rules and schedules against NumPy, optax and OpenAI's formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpt_jax.errors import InputError
from gpt_jax.training import optimizer as optim
from gpt_jax.training.optimizer import make_optimizer

STEPS = 50


@pytest.fixture
def params():
  rng = np.random.default_rng(0)
  shapes = {
    "attention": {"kernel": (4, 3, 2, 2), "bias": (3, 2, 2)},
    "norm": {"scale": (4,)},
    "embedding": (7, 4),
  }
  return jax.tree.map(
    lambda s: jnp.asarray(rng.normal(size=s), jnp.float32), shapes, is_leaf=_is_shape
  )


def _is_shape(x):
  return isinstance(x, tuple)


def gradients(params, step):
  """Of norms between 0.05 and 8, so that some are clipped and some are not."""
  rng = np.random.default_rng(step)
  size = 0.01 if step % 2 else 1.0
  return jax.tree.map(lambda p: jnp.asarray(size * rng.normal(size=p.shape), jnp.float32), params)


def run(optimizer, params):
  state, update = optimizer.init(params), jax.jit(optimizer.update)
  for step in range(STEPS):
    updates, state = update(gradients(params, step), state, params)
    params = optax.apply_updates(params, updates)
  return params


def openai_factor(name, x, w):
  """FACTS of the released opt.py."""
  if name == "cosine":
    return x / w if x <= w else 0.5 * (1 + np.cos(np.pi * x))
  return (x / w if x <= w else 1) * (1 - x if name == "linear" else 1)


def openai_reference(config, w, params):
  leaves, treedef = jax.tree.flatten(jax.tree.map(lambda p: np.asarray(p, np.float64), params))
  decays = [
    path[-1].key in ("kernel", "embedding") for path, _ in jax.tree.leaves_with_path(params)
  ]
  m, v = [[np.zeros_like(p) for p in leaves] for _ in range(2)]
  for t in range(STEPS):
    grads = [np.asarray(g, np.float64) for g in jax.tree.leaves(gradients(params, t))]
    norm = np.sqrt(sum((g * g).sum() for g in grads))
    grads = [g * min(1.0, config.clip_norm / norm) if config.clip_norm else g for g in grads]
    tt = t + 1
    lrt = config.learning_rate * np.sqrt(1 - config.b2**tt) / (1 - config.b1**tt)
    lrt *= openai_factor(config.schedule, t / STEPS, w)
    for i, g in enumerate(grads):
      m[i] = config.b1 * m[i] + (1 - config.b1) * g
      v[i] = config.b2 * v[i] + (1 - config.b2) * g * g
      leaves[i] = leaves[i] - lrt * (
        m[i] / (np.sqrt(v[i]) + config.eps) + config.weight_decay * decays[i] * leaves[i]
      )
  return treedef.unflatten(leaves)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("clip_norm", [1.0, 0.0])
def test_openai_rule_equals_numpy(params, schedule, clip_norm):
  # A large eps and decay, so that where they stand in the formula is seen in the result.
  config = optim.OptimConfig(
    learning_rate=0.02,
    schedule=schedule,
    warmup_steps=10,
    weight_decay=0.3,
    clip_norm=clip_norm,
    eps=1e-3,
  )
  optimizer, _ = make_optimizer(config, STEPS)
  got, want = run(optimizer, params), openai_reference(config, 10 / STEPS, params)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), got, want)


def test_adamw_is_optax_adamw_on_kernels_only(params):
  config = optim.OptimConfig(
    optimizer="adamw", learning_rate=0.02, warmup_steps=10, weight_decay=0.3
  )
  optimizer, schedule = make_optimizer(config, STEPS)
  mask = {"attention": {"kernel": True, "bias": False}, "norm": {"scale": False}, "embedding": True}
  want = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.3, mask=mask)
  )
  got, want = run(optimizer, params), run(want, params)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), got, want)


@pytest.mark.parametrize("limit", [1e-3, 0.7, 1e9])
def test_clipping_is_optaxs_with_the_norm_given_or_not(params, limit):
  grads, empty = gradients(params, 0), optax.EmptyState()
  want, _ = optax.clip_by_global_norm(limit).update(grads, empty)
  for norm in ({}, {"norm": optax.tree.norm(grads)}):
    got, _ = optim.clip_by_global_norm(limit).update(grads, empty, **norm)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("total, share", [(801, 0.002), (231, 0.002), (1000, 0.1)])
def test_schedules_are_openais(schedule, total, share):
  config = optim.OptimConfig(
    learning_rate=1.0, schedule=schedule, warmup_steps=0, warmup_share=share
  )
  _, rate = make_optimizer(config, total)
  got = jax.vmap(rate)(jnp.arange(total))
  np.testing.assert_allclose(
    got, [openai_factor(schedule, t / total, share) for t in range(total)], atol=2e-6
  )


def test_the_first_update_has_learning_rate_zero(params):
  config = optim.OptimConfig(schedule="linear", warmup_steps=0, warmup_share=0.002)
  optimizer, rate = make_optimizer(config, 231)  # a warm-up of 0.46 updates
  updates, state = optimizer.update(gradients(params, 0), optimizer.init(params), params)
  assert all(not np.any(u) for u in jax.tree.leaves(updates))
  updates, _ = optimizer.update(gradients(params, 1), state, params)
  assert all(np.all(u != 0) for u in jax.tree.leaves(updates))
  np.testing.assert_allclose(rate(1), config.learning_rate * 230 / 231, rtol=1e-6)


def test_warmup_lengths():
  _, rate = make_optimizer(
    optim.OptimConfig(learning_rate=1.0, schedule="constant", warmup_steps=0), 100
  )
  assert rate(0) == 1.0  # no warm-up at all is possible
  floor = optim.OptimConfig(
    learning_rate=1.0, schedule="constant", warmup_steps=0, warmup_share=0.002, min_warmup_steps=20
  )
  np.testing.assert_allclose(make_optimizer(floor, 100)[1](5), 0.25)
  _, cosine = make_optimizer(optim.OptimConfig(learning_rate=1.0, warmup_steps=10), 100)
  np.testing.assert_allclose(
    [cosine(100), cosine(150)], 0, atol=1e-6
  )  # stays there if the run goes on


def test_a_vector_of_unknown_name_is_refused():
  optimizers = [
    make_optimizer(optim.OptimConfig(optimizer=rule), 10)[0] for rule in ("openai", "adamw")
  ]
  for optimizer in optimizers:
    with pytest.raises(ValueError, match="head/offset"):
      optimizer.init({"head": {"offset": jnp.zeros(3)}})


@pytest.mark.parametrize(
  "bad",
  [
    {"optimizer": "sgd"},
    {"learning_rate": -1.0},
    {"schedule": "step"},
    {"warmup_steps": 5, "warmup_share": 0.1},
  ],
)
def test_bad_options(bad):
  with pytest.raises(InputError, match="|".join(bad)):
    optim.OptimConfig(**bad)
