"""Parameters that train later or more slowly than others."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refused import refused

from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.training.layerwise import Layerwise, below_head, layerwise_optimizer, trained_layers
from gpt_jax.training.optimizer import OptimConfig, make_optimizer

START, STEPS = 3, 8


def params_of(seed):
  rng = np.random.default_rng(seed)
  return {
    name: {"kernel": jnp.asarray(rng.normal(size=(2, 3)), jnp.float32)} for name in ("head", "late")
  }


def options(rule, **changes):
  return OptimConfig(
    optimizer=rule, learning_rate=0.1, schedule="linear", warmup_steps=4, weight_decay=0.5,
    clip_norm=0.0, **changes,
  )  # fmt: skip


def train(optimizer, params, steps=range(STEPS)):
  state, update = optimizer.transformation.init(params), jax.jit(optimizer.transformation.update)
  history = []
  for step in steps:
    updates, state = update(params_of(100 + step), state, params)
    params = optax.apply_updates(params, updates)
    history.append(params)
  return history


def late(path):
  return START if path.startswith("late/") else 0


@pytest.mark.parametrize("rule", ["openai", "adamw"])
def test_a_late_parameter_waits_and_then_trains_as_if_the_rule_began_there(rule):
  config, params = options(rule), params_of(0)
  history = train(layerwise_optimizer(config, STEPS, Layerwise(start=late)), params)
  for n in range(START):
    np.testing.assert_array_equal(history[n]["late"]["kernel"], params["late"]["kernel"])
  # The rule from update 3 on, at the rates that the one schedule has there.
  whole = make_optimizer(config, STEPS)
  constant = OptimConfig(rule, 1.0, "constant", 0, weight_decay=0.5, clip_norm=0.0)
  direction = make_optimizer(constant, STEPS).transformation
  wanted, state = params["late"], jax.jit(direction.init)(params["late"])
  update, rate_of = jax.jit(direction.update), jax.jit(whole.schedule)
  for step in range(START, STEPS):
    updates, state = update(params_of(100 + step)["late"], state, wanted)
    rate = np.asarray(rate_of(step))
    wanted = jax.tree.map(lambda p, u, rate=rate: p + rate * np.asarray(u), wanted, updates)
  np.testing.assert_allclose(history[-1]["late"]["kernel"], wanted["kernel"], rtol=1e-5)
  (*_, want) = train(whole, params)  # the others train as without it
  np.testing.assert_allclose(history[-1]["head"]["kernel"], want["head"]["kernel"], rtol=1e-6)


def test_waiting_gradients_are_not_in_the_norm():
  gate = layerwise_optimizer(options("openai"), STEPS, Layerwise(start=late)).gate
  grads = params_of(0)
  before, after = gate(grads, jnp.int32(START - 1)), gate(grads, jnp.int32(START))
  assert not np.any(before["late"]["kernel"])
  jax.tree.map(np.testing.assert_array_equal, after, grads)
  np.testing.assert_array_equal(before["head"]["kernel"], grads["head"]["kernel"])


@pytest.mark.parametrize("rule", ["openai", "adamw"])
def test_rates_differ_by_path(rule):
  config, params = options(rule), params_of(0)
  layerwise = Layerwise(scale=lambda path: 0.25 if path.startswith("late/") else 1.0)
  grads, found = params_of(1), []
  for optimizer in (layerwise_optimizer(config, STEPS, layerwise), make_optimizer(config, STEPS)):
    init, update = map(jax.jit, optimizer.transformation[:2])
    _, state = update(grads, init(params), params)  # the first update has rate 0
    found.append(update(grads, state, params)[0])
  got, want = found
  np.testing.assert_allclose(got["late"]["kernel"], 0.25 * want["late"]["kernel"], rtol=1e-6)
  np.testing.assert_array_equal(got["head"]["kernel"], want["head"]["kernel"])


@pytest.mark.parametrize(
  "trunk, distances",
  [
    (
      TransformerConfig(vocab_size=9, layers=3),
      {"head/kernel": 0, "trunk/block_2/mlp/in/kernel": 1, "trunk/block_0/x": 3, "trunk/tokens": 4},
    ),
    (LSTMConfig(vocab_size=9), {"tags/bias": 0, "trunk/read/kernel": 1, "trunk/tokens": 2}),
  ],
)
def test_distance_from_the_head(trunk, distances):
  below = below_head(distances, trunk)
  assert {path: below(path) for path in distances} == distances


PATHS = ["head/bias", "trunk/block_1/mlp/in/bias", "trunk/block_0/mlp/in/bias", "trunk/tokens"]
TRUNK = TransformerConfig(vocab_size=9, context=8, layers=2, width=4, heads=2)


@pytest.mark.parametrize("trained, frozen", [(None, 0), (0, 3), (1, 2), (2, 1)])
def test_layers_are_frozen_from_the_bottom(trained, frozen):
  layerwise = trained_layers(PATHS, TRUNK, trained)
  patterns = "|".join(layerwise.frozen) or "nothing"
  assert [path for path in PATHS if re.search(patterns, path)] == PATHS[len(PATHS) - frozen :]
  assert layerwise._replace(frozen=()) == Layerwise()


def test_a_cycle_is_a_run_of_its_own():
  config = OptimConfig("openai", 1.0, "slanted_triangle", warmup_steps=0, warmup_share=0.1)
  of_run = layerwise_optimizer(config, 130, Layerwise(cycles=(10, 30, 200))).schedule
  lengths = (10, 20, 100)  # 200 is after the end
  parts = [
    jax.jit(make_optimizer(config, length).schedule)(np.arange(length)) for length in lengths
  ]
  rates = jax.jit(of_run)(np.arange(130))
  np.testing.assert_allclose(rates, np.concatenate(parts), rtol=1e-6)


def test_without_a_head_the_last_layer_begins():
  layerwise = trained_layers(PATHS[1:], TRUNK, None, steps_per_layer=10)
  assert list(map(layerwise.start, PATHS[1:])) == [0, 10, 20]


def test_rates_and_beginnings_by_layer():
  layerwise = trained_layers(PATHS, TRUNK, 1, decay=0.5, steps_per_layer=10)
  assert layerwise.frozen == ()
  assert list(map(layerwise.scale, PATHS)) == [1, 0.5, 0.25, 0.125]
  assert list(map(layerwise.start, PATHS)) == [0, 0, 10, 20]
  # As fastai's code: the head, the last layer, then all.
  layerwise = trained_layers(PATHS, TRUNK, None, steps_per_layer=10, steps_to_all=20)
  assert list(map(layerwise.start, PATHS)) == [0, 10, 20, 20]


def test_more_layers_than_there_are_and_none_at_all_are_refused():
  refused("train_layers=3: the model has 2 blocks", trained_layers, PATHS, TRUNK, 3)
  fault = "train_layers=0: nothing trains, since the model has no"
  refused(fault, trained_layers, PATHS[1:], TRUNK, 0)
