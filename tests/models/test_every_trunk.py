"""What every trunk must do: count its parameters, keep the texts of a row apart, read on from a
state, and compute in bfloat16.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bert_trunk import bert_trunk
from numpy_transformer import random_params
from plain_rows import plain_rows

from gpt_jax.config import from_json, to_json
from gpt_jax.models.alibi import Alibi
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.models.partly_shared import PartlySharedConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import TABLES

GPT = TransformerConfig(60, context=32, layers=2, width=16, heads=2)
# Of sizes that all differ, so that none can stand for another.
T5 = T5Config(60, 32, layers=3, width=20, heads=2, head_width=7, units=33)
STACK = {"vocab_size": 60, "context": 32, "embedding_width": 12}
AWD = LSTMStackConfig(**STACK, units=(16, 12))
GENERATING = {
  "gpt": GPT,
  "pre-norm": dataclasses.replace(GPT, norm="pre"),
  "alibi": dataclasses.replace(GPT, attention_bias=Alibi(), learned_positions=False),
  "lstm": LSTMConfig(60, 32, width=12, units=16),
  "awd": AWD,
  "t5 1.0": T5,
  "t5 1.1": dataclasses.replace(T5, version="1.1"),
  "lstm encoder-decoder": LSTMEncoderDecoderConfig(60, 32, embedding_width=5, layers=3, units=4),
}
ALBERT = bert_trunk(60, special_tokens=0, embedding_width=8, shared_layers=True)
OTHERS = {
  "t5 1.1 encoder": dataclasses.replace(T5, version="1.1", decoder=False),
  "lstm encoder": dataclasses.replace(GENERATING["lstm encoder-decoder"], decoder=False),
  "awd backward": dataclasses.replace(AWD, directions="backward"),
  "cove": LSTMStackConfig(**STACK, units=(8, 8), directions="joined", tied=False),
  "cvt": LSTMStackConfig(**STACK, units=(16, 12), projection=8, directions="joined", tied=False),
  "elmo": LSTMStackConfig(
    **STACK, units=(16, 16), projection=12, directions="separate", residual=True, tied=False
  ),
  "albert": ALBERT,
  "shared attention": PartlySharedConfig(**vars(dataclasses.replace(ALBERT, shared_layers=False))),
  "shared mlp": PartlySharedConfig(60, 32, layers=3, width=16, heads=2, shared="mlp"),
}
TRUNKS = GENERATING | OTHERS
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", TRUNKS)
def test_the_count_is_that_of_the_arrays(name):
  trunk = dataclasses.replace(TRUNKS[name], special_tokens=0)
  assert from_json(to_json(trunk)) == trunk
  shapes = parameter_shapes(ModelConfig(trunk, (), trunk.default_attention))
  tables = [shapes[path] for path in (f"trunk/{table}" for table in TABLES) if path in shapes]
  unused = (trunk.rows - 60) * sum(width for _, width in tables)
  assert sum(map(math.prod, shapes.values())) - unused == trunk.parameter_count()


@pytest.mark.parametrize("name", [name for name in TRUNKS if not TRUNKS[name].reads_source])
def test_each_text_of_a_row_equals_itself_alone(name):
  trunk = TRUNKS[name]
  spec = ModelConfig(trunk, (), trunk.default_attention)
  model, params = spec.build(), random_params(spec, trunk.width**-0.5)
  apply = jax.jit(lambda rows: model.apply({"params": params}, rows, method="states").hidden)
  ids, segments = RNG.integers(60, size=(3, 9)), np.array([[1, 1, 1, 2, 2, 2, 2, 0, 0]] * 3)
  positions = np.array([[0, 1, 2, 0, 1, 2, 3, 0, 0]] * 3, np.int32)
  hidden = apply(plain_rows(ids, segments.astype(np.int32))._replace(positions=positions))
  for begin, end in ((0, 3), (3, 7)):
    alone = np.pad(ids[:, begin:end], [(0, 0), (0, 9 - end + begin)])
    inside = (np.arange(9) < end - begin).astype(np.int32)
    wanted = apply(plain_rows(alone, np.broadcast_to(inside, alone.shape)))
    np.testing.assert_allclose(hidden[:, begin:end], wanted[:, : end - begin], atol=1e-5)


@pytest.fixture(scope="module", params=GENERATING)
def read(request):
  """The trunk's config, variables, three texts, and its keyword for their sources."""
  config, of_source = GENERATING[request.param], {}
  params = random_params(ModelConfig(config, ()), config.width**-0.5)["trunk"]
  if config.reads_source:
    segments = (np.arange(11) < np.array([[11], [3], [8]])).astype(np.int32)
    of_source = {"source": plain_rows(RNG.integers(60, size=(3, 11)), segments)}
  return config, {"params": params}, plain_rows(RNG.integers(60, size=(3, 9))), of_source


def test_reading_on_equals_the_full_forward(read):
  """Prompts of three lengths in one pass, then token by token in a state with more room."""
  config, variables, rows, of_source = read
  module, lengths = config.build(), np.array([1, 6, 5])
  full = jax.jit(module.apply)(variables, rows, **of_source)

  def check(hidden):
    for row, length in enumerate(lengths):
      np.testing.assert_allclose(hidden[row, :length], full.hidden[row, :length], atol=2e-5)

  valid = rows.positions[:, :6] < lengths[:, None]
  prompt = np.where(valid, rows.inputs[:, :6], 59)  # anything may stand after a shorter prompt
  read_prompt = jax.jit(functools.partial(module.apply, method="read_prompt"))
  hidden, table, part = read_prompt(variables, prompt, valid, **of_source)
  np.testing.assert_array_equal(table, full.table)
  check(hidden)
  room = (9, 16) if of_source else (9,)
  empty = module.apply(variables, 3, *room, method="start")
  state = jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice(x, y, (0,) * x.ndim), empty, part)
  extend = jax.jit(functools.partial(module.apply, method="extend"))
  if not of_source:  # a state that has read nothing may read on, too
    check(extend(variables, prompt, rows.positions[:, :6], valid, empty)[0])
  for first, count in ((0, 1), (1, 2)):  # a token; several, as zero_shot reads options
    at = (lengths[:, None] + np.arange(first, first + count)).astype(np.int32)
    ids = np.take_along_axis(rows.inputs, at, 1)
    hidden, _, state = extend(variables, ids, at, np.ones(at.shape, bool), state)
    np.testing.assert_allclose(hidden, full.hidden[np.arange(3)[:, None], at], atol=2e-5)


def test_a_state_of_bfloat16_keeps_its_types(read):
  """As a loop over the tokens needs it."""
  config, variables, rows, of_source = read
  module = dataclasses.replace(config, dtype="bfloat16").build()

  def shapes(method, *inputs, **options):
    apply = functools.partial(module.apply, method=method)
    return jax.eval_shape(apply, variables, *inputs, **options)

  hidden, _, state = shapes("read_prompt", rows.inputs, rows.positions >= 0, **of_source)
  assert hidden.dtype == jnp.bfloat16
  at = np.full((3, 1), 8, np.int32)
  assert shapes("extend", at, at, at > 0, state)[2] == state


def test_bfloat16_is_near_float32(read):
  config, variables, rows, of_source = read
  exact, rough = (
    jax.jit(dataclasses.replace(config, dtype=dtype).build().apply)(variables, rows, **of_source)
    for dtype in ("float32", "bfloat16")
  )
  assert rough.hidden.dtype == jnp.bfloat16 and rough.table.dtype == jnp.float32
  error = np.asarray(rough.hidden, np.float32) - exact.hidden
  assert 0 < np.sqrt((error**2).mean()) < 0.05 * np.std(exact.hidden)
