"""Weights kept for decoding: how much they change, and what they are in every trunk."""

import functools

import jax
import numpy as np
import pytest
from sampled_texts import sample

from gpt_jax.batch import Rows
from gpt_jax.inference.beam import beam_search
from gpt_jax.models.decoding_weights import keep, keep_weights, variables
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.layers import Matrix
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, generator
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.cross_entropy import logits

V, CONTEXT = 60, 24
TRUNKS = {
  "GPT": TransformerConfig(V, CONTEXT, layers=2, width=32, heads=4),
  "LSTM": LSTMConfig(V, CONTEXT, width=16, units=24),
  "tied stack": LSTMStackConfig(V, CONTEXT, 16, (24, 16)),
  "stack": LSTMStackConfig(V, CONTEXT, 16, (24, 24), projection=12, tied=False),
  "T5": T5Config(V, CONTEXT, 1, 16, 2, 6, 24),
  "T5 1.1": T5Config(V, CONTEXT, 1, 16, 2, 6, 24, "1.1"),
  "LSTM translator": LSTMEncoderDecoderConfig(V, CONTEXT, 12, 2, 8),
}
PROMPTS, SEEDS = [[5, 9, 11], [7], list(range(20, 40)), [3] * 13], [4, 5, 6, 7]


def made(make_run, trunk):
  spec = ModelConfig(TRUNKS[trunk])
  return generator(spec), jax.tree.map(lambda x: 2 * x, make_run.params_of(spec, 1))


@functools.partial(jax.jit, static_argnums=0)
def scores(model, params, ids):
  source = {}
  if model.config.trunk.reads_source:
    positions = np.broadcast_to(np.arange(CONTEXT, dtype=np.int32), ids.shape)
    source = {"source": Rows(ids, positions)}
  hidden, table, _ = model.apply(variables(params), ids, ids >= 0, **source, method="read_prompt")
  return logits(hidden, table, V)[..., :V]


@pytest.mark.parametrize("trunk", TRUNKS)
def test_logits_and_greedy_tokens_beside_float32(make_run, trunk):
  model, params = made(make_run, trunk)
  ids = np.random.default_rng(0).integers(0, V, (16, CONTEXT)).astype(np.int32)
  exact = np.asarray(scores(model, params, ids))
  # Rounded at 2^-9 and at 2^-8 of the largest weight, in a few products one after the other.
  for kind, limit, least in (("float32", 0, 1), ("bfloat16", 0.04, 0.97), ("int8", 0.15, 0.9)):
    found = np.asarray(scores(model, keep_weights(model, params, kind), ids))
    error = float(np.sqrt(np.square(found - exact).mean()) / exact.std())
    agreement = (found.argmax(-1) == exact.argmax(-1)).mean()
    print(f"{trunk}, {kind}: logits differ by {error:.2%}, {agreement:.1%} of greedy tokens agree")
    assert error <= limit and agreement >= least


@pytest.mark.parametrize("trunk", TRUNKS)
def test_every_product_is_kept(make_run, trunk):
  """Matrices but for those that no product reads: tables of positions, learned or relative."""
  model, params = made(make_run, trunk)
  left = keep_weights(model, params, "int8")["trunk"]
  names = {
    jax.tree_util.keystr(path, simple=True, separator="/")
    for path, x in jax.tree_util.tree_leaves_with_path(left)
    if x.ndim > 1
  }
  positions = {"positions", "encoder/relative/table", "decoder/relative/table", "output"}
  assert {name for name in names if not name.endswith("bias")} <= positions
  assert "output" not in names or TRUNKS[trunk].tied  # a bias beside the table
  assert keep_weights(model, params, "float32")["trunk"].keys() == params["trunk"].keys()


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_products(kind):
  """Beside NumPy in float64, of what was kept and of x rounded to bfloat16; one row, and more."""
  rng = np.random.default_rng(0)
  matrix, bias = rng.normal(size=(40, 24)).astype(np.float32), rng.normal(size=40)
  matrix[7] = 0
  kept = keep(Matrix(matrix, bias.astype(np.float32)), kind, is_table=True)
  values = np.asarray(kept[np.arange(40)], np.float64)
  step = np.abs(matrix).max(1) / 127 if kind == "int8" else np.abs(matrix).max(1) / 128
  assert (np.abs(values - matrix) <= 0.5001 * step[:, None]).all()
  for shape in ((24,), (1, 24), (2, 3, 24)):
    x = np.asarray(jax.numpy.asarray(rng.normal(size=shape), "bfloat16"), np.float64)
    found = kept.multiply(jax.numpy.asarray(x, "float32"))
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, x @ values.T + bias, atol=1e-5)


@pytest.mark.parametrize("kind", [pytest.param("bfloat16", marks=pytest.mark.slow), "int8"])
def test_a_prompt_is_continued_the_same_in_any_company(make_run, kind):
  model, params = made(make_run, "GPT")
  kept = keep_weights(model, params, kind)
  together = sample(model, kept, PROMPTS, SEEDS, 30)
  for i in range(4):
    assert sample(model, kept, PROMPTS[i : i + 1], SEEDS[i : i + 1], 30) == together[i : i + 1]
  (greedy,) = sample(model, kept, PROMPTS[:1], [0], 5, temperature=0.0)
  assert beam_search(model, kept, PROMPTS[0], 1, 5)[0].ids == greedy
