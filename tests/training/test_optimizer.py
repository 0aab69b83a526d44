"""Schedules against OpenAI's formulas; freezing; stacked views."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpt_jax.batch import Mean
from gpt_jax.errors import InputError
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.training.layerwise import Layerwise, layerwise_optimizer
from gpt_jax.training.optimizer import SHAPES, OptimConfig, make_optimizer
from gpt_jax.training.trainer import Trainer
from gpt_jax.training.update_rules import VIEWS, decayed, split_matrices


def openai_factor(name, x, w):
  """`openai/opt.py`."""
  if name == "cosine":
    return x / w if x <= w else 0.5 * (1 + np.cos(np.pi * x))
  return (x / w if x <= w else 1) * (1 - x if name == "linear" else 1)


@pytest.mark.parametrize("schedule", SHAPES)
def test_some_update_of_a_short_run_has_a_rate(schedule):
  """With a warm-up the first has none, which in a run of one update is all of it."""
  with jax.disable_jit():
    for warmup in ({"warmup_steps": 2000}, {"warmup_share": 0.1}, {"min_warmup_steps": 9}):
      config = OptimConfig(learning_rate=0.1, schedule=schedule, **{"warmup_steps": 0, **warmup})
      for total in (1, 2, 3):
        rate = make_optimizer(config, total).schedule
        assert max(float(rate(step)) for step in range(total)) > 0


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("total, share", [(801, 0.002), (231, 0.002), (1000, 0.1)])
def test_schedules_are_openais(schedule, total, share):
  config = OptimConfig(learning_rate=1.0, schedule=schedule, warmup_steps=0, warmup_share=share)
  rate = make_optimizer(config, total).schedule
  got = jax.jit(jax.vmap(rate))(np.arange(total))
  np.testing.assert_allclose(
    got, [openai_factor(schedule, t / total, share) for t in range(total)], atol=2e-6
  )


def test_the_first_update_has_learning_rate_zero():
  config = OptimConfig(schedule="linear", warmup_steps=0, warmup_share=0.002)
  optimizer, rate, _ = make_optimizer(config, 231)  # a warm-up of 0.46 updates
  update, params = jax.jit(optimizer.update), {"kernel": np.ones((4, 3), np.float32)}
  updates, state = update(params, jax.jit(optimizer.init)(params), params)
  assert not updates["kernel"].any()
  updates, _ = update(params, state, params)
  assert (updates["kernel"] != 0).all()
  np.testing.assert_allclose(rate(1), config.learning_rate * 230 / 231, rtol=1e-6)


def rates(steps, **options):
  """The rates of a run of 100 updates at these steps."""
  schedule = make_optimizer(OptimConfig(learning_rate=1.0, **options), 100).schedule
  return jax.jit(jax.vmap(schedule))(np.array(steps))


def test_warmup_lengths():
  constant = {"schedule": "constant", "warmup_steps": 0}
  assert rates([0], **constant) == 1.0
  np.testing.assert_allclose(rates([5], **constant, warmup_share=0.002, min_warmup_steps=20), 0.25)
  np.testing.assert_allclose(rates([100, 150], warmup_steps=10), 0, atol=1e-6)  # after the end


@pytest.mark.parametrize(
  "options, advice",
  [
    ({"warmup_steps": 100}, "warmup_steps=10"),
    ({"warmup_steps": 0, "min_warmup_steps": 300}, "min_warmup_steps=10"),
    ({"warmup_steps": 0, "warmup_share": 1.0}, "warmup_share=0.1"),
    ({"warmup_steps": 99}, ""),
    ({"warmup_steps": 1000, "schedule": "inverse_sqrt"}, ""),
  ],
)
def test_a_warm_up_that_does_not_end_within_the_run(options, advice):
  assert "nothing trains" in OptimConfig(learning_rate=0.0).warnings(10**4)[0]
  warnings = OptimConfig(**options).warnings(100)
  assert [text.rpartition("; ")[2] for text in warnings] == (
    [f"a tenth of the run is config.optim.{advice}"] if advice else []
  )


def test_a_mean_that_is_still_made_of_the_first_weights():
  (warning,) = OptimConfig(average=0.9999, warmup_steps=0).warnings(200)
  share, decay = 0.9999**200, float(warning.partition("optim.average=")[2].split()[0])
  assert f"still {share:.0%} the initial ones" in warning
  assert decay**200 == pytest.approx(0.01, rel=0.2)
  assert not OptimConfig(average=decay, warmup_steps=0).warnings(200)
  assert not OptimConfig(average=0.9999).warnings(10**5)


@pytest.mark.parametrize("rule", ["openai", "adamw", "bert", "fairseq", "lamb"])
def test_a_vector_of_unknown_name_is_refused(rule):
  optimizer = make_optimizer(OptimConfig(optimizer=rule), 10).transformation
  with pytest.raises(ValueError, match="head/offset"):
    optimizer.init({"head": {"offset": jnp.zeros(3)}})


def test_bad_options():
  both = {"warmup_steps": 5, "warmup_share": 0.1}
  for bad in ({"optimizer": "sgd"}, {"learning_rate": -1.0}, {"schedule": "step"}, both):
    with pytest.raises(InputError, match="|".join(bad)):
      OptimConfig(**bad)


# Freezing.


class TwoLayers:
  """A model of two parameters, `embedding` and `head`, each [2, 2]."""

  def init(self, key, example):
    ones = jnp.ones((2, 2))
    return {"params": {"embedding": {"kernel": ones}, "head": {"kernel": ones}}}


class WeightedSum:
  """The gradient of embedding is the batch's first number everywhere, that of head its second."""

  def denominators(self, batch):
    return jnp.float32(1)

  def __call__(self, params, batch, key, denominators=None):
    total = (params["embedding"]["kernel"] * batch[:, :1]).sum()
    total += (params["head"]["kernel"] * batch[:, 1:]).sum()
    return total / denominators, {"loss": Mean(total, jnp.float32(1))}


def train(frozen, steps=3, **options):
  """(state, metrics) after some steps on gradients of 100 for embedding and 3 for head."""
  config = OptimConfig(
    learning_rate=0.1, schedule="constant", warmup_steps=0, weight_decay=0.5, **options
  )
  trainer = Trainer.build(
    TwoLayers(),
    WeightedSum(),
    None,
    layerwise_optimizer(config, 10, Layerwise(frozen=frozen)),
    make_mesh(MeshConfig(data=1), jax.devices()[:1]),
  )
  state = trainer.init(0)
  for _ in range(steps):
    batch = trainer.to_device(np.array([[100.0, 3.0]], np.float32))
    state, metrics = trainer.step(state, batch, 0)
  return jax.device_get((state, metrics))


@pytest.mark.parametrize("rule", ["openai", "adamw", "lamb"])  # BERT's is in LAMB's
def test_a_frozen_parameter_is_out_of_norm_moments_and_decay(rule):
  state, metrics = train(("^embedding/",), optimizer=rule)
  np.testing.assert_array_equal(state.params["embedding"]["kernel"], 1.0)
  assert (state.params["head"]["kernel"] < 1).all()
  np.testing.assert_allclose(metrics["gradient_norm"], 6.0, rtol=1e-6)  # sqrt(4 * 3^2)
  moments = jax.tree.leaves(optax.tree.get_all_with_path(state.opt_state, "mu"))
  (moment,) = [leaf for leaf in moments if np.shape(leaf) == (2, 2)]
  # Clipped to norm 1 by the norm of head alone: each of the four elements is 0.5.
  np.testing.assert_allclose(moment, (1 - 0.9**3) * 0.5, rtol=1e-5)


def test_freezing_nothing_trains_everything_and_a_pattern_without_a_parameter_is_refused():
  state, metrics = train(())
  assert all((leaf < 1).all() for leaf in jax.tree.leaves(state.params))
  np.testing.assert_allclose(metrics["gradient_norm"], np.sqrt(4 * (100**2 + 3**2)), rtol=1e-6)
  with pytest.raises(ValueError, match="'trunk' matches no parameter; they are embedding/kernel"):
    train(("trunk",))


def test_the_bias_beside_a_tied_table_does_not_decay():
  sizes = {"vocab_size": 90, "context": 8, "embedding_width": 12}
  for tied, units in ((True, (8, 12)), (False, (8, 8))):
    trunk = LSTMStackConfig(**sizes, units=units, tied=tied)
    shapes = parameter_shapes(ModelConfig(trunk))
    tables = {name: np.zeros(shapes[f"trunk/{name}"]) for name in ("tokens", "output")}
    assert decayed({"trunk": tables}) == {"trunk": {"tokens": True, "output": not tied}}


def test_every_parameter_becomes_matrices_and_every_view_has_one():
  trunks = (
    TransformerConfig(90, context=8, layers=1, width=12, heads=2),
    LSTMConfig(90, context=8, width=12, units=8),
    T5Config(90, 8, layers=1, width=12, heads=2, head_width=5, units=20),
    LSTMEncoderDecoderConfig(90, 8, embedding_width=12, layers=2, units=8),
  )
  used = set()
  for trunk in trunks:
    params = {}
    for name, shape in parameter_shapes(ModelConfig(trunk)).items():
      params[name] = np.zeros(shape)
      used |= {v for v in VIEWS if v.rank == len(shape) and re.search(v.pattern, name)}
    matrices = split_matrices(params)
    assert all(x.ndim <= 2 for x in jax.tree.leaves(matrices))
    whole = {name for name, x in matrices.items() if isinstance(x, np.ndarray) and x.ndim == 2}
    assert not [name for name in whole if "bias" in name]  # one vector for each gate or head
  assert used == {*VIEWS}
