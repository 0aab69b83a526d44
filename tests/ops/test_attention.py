"""Attention: every kind of mask against NumPy, and the dispatch to backends."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import ops
from gpt_jax.config import from_json, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops import attention_auto, attention_mosaic, attention_plain, product
from gpt_jax.ops.attention import AttentionMask, Dropout, attention, backends, find_backend
from gpt_jax.ops.dropout import step_key

B, H, K = 2, 2, 4
compiled = jax.jit(attention)


def inputs(length, seed=0):
  return np.random.default_rng(seed).normal(size=(B, length, 3, H, K)).astype(np.float32)


def reference(qkv, allowed, bias=0.0):
  """Plain attention in float64; allowed bool [B, T, T]."""
  q, k, v = np.moveaxis(qkv.astype(np.float64), 2, 0)
  scores = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(K) + bias
  scores = np.where(allowed[:, None], scores, -np.inf)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  return np.einsum("bhts,bshk->bthk", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("kind", ["causal", "bidirectional", "prefix"])
@pytest.mark.parametrize("length", [7, 128])  # in one block of queries, and in four
@pytest.mark.parametrize("seed", range(3))
def test_masks(kind, length, seed):
  rng = np.random.default_rng(seed)
  segments = np.sort(rng.integers(3, size=(B, length)), axis=1).astype(np.int32)
  prefix = rng.random((B, length)) < 0.3
  steps = np.arange(length)
  before = steps[:, None] >= steps[None]
  allowed = {
    "causal": before[None],
    "bidirectional": np.ones((1, length, length), bool),
    "prefix": before[None] | prefix[:, None, :],
  }[kind]
  allowed = allowed & (segments[:, :, None] == segments[:, None, :])
  bias = rng.normal(size=(1, H, length, length)).astype(np.float32)
  qkv = inputs(length, seed)
  output = compiled(qkv, AttentionMask(kind, segments, prefix), bias)
  np.testing.assert_allclose(output, reference(qkv, allowed, bias), atol=2e-5)


def test_dropout_zeroes_probabilities():
  """With v of ones and one key left per query, outputs are 0 or 1 / (1 - rate)."""
  qkv = inputs(8)
  segments = np.broadcast_to(np.arange(8, dtype=np.int32), (B, 8))
  qkv[:, :, 2] = 1
  dropout = Dropout(0.5, step_key(0, 0))
  output = np.asarray(attention(qkv, AttentionMask("causal", segments), dropout=dropout))
  assert set(np.unique(output)) == {0.0, 2.0}


def test_observers_see_the_probabilities_before_dropout():
  seen = []
  dropout = Dropout(0.5, step_key(0, 0))
  attention(inputs(8), AttentionMask("causal"), dropout=dropout, observe=seen.append)
  (probabilities,) = seen
  np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize(
  "device, version, dtype, bias, expected",
  [
    ("NVIDIA H200", (0, 11, 2), jnp.bfloat16, None, "mosaic"),
    ("NVIDIA H200", (0, 10, 2), jnp.bfloat16, None, "plain"),
    ("NVIDIA A100", (0, 11, 2), jnp.bfloat16, None, "plain"),
    ("NVIDIA H200", (0, 11, 2), jnp.float32, None, "plain"),
    ("NVIDIA H200", (0, 11, 2), jnp.bfloat16, jnp.zeros((1, 1, 8, 8)), "plain"),
    ("cpu", (0, 11, 2), jnp.bfloat16, None, "plain"),
  ],
)
def test_auto_takes_kernels_on_hopper_in_16_bits(
  monkeypatch, device, version, dtype, bias, expected
):
  taken = []
  monkeypatch.setattr(attention_auto, "device_kind", lambda: device)
  monkeypatch.setattr(product, "platform", lambda: "cpu" if device == "cpu" else "gpu")
  monkeypatch.setattr(jax, "__version_info__", version)
  for name, module in (("mosaic", attention_mosaic), ("plain", attention_plain)):
    monkeypatch.setattr(module, "attend", lambda *_, name=name: taken.append(name))
  qkv = inputs(8).astype(dtype)
  attention(qkv, AttentionMask("causal"), bias=bias, backend="auto")
  assert taken == [expected]


def test_an_unknown_backend_is_named_with_those_there_are():
  assert "plain" in backends()
  with pytest.raises(InputError, match=r"attention backend 'flashy': must be one of .*plain"):
    TransformerConfig(attention_backend="flashy")
  for name in ("", "plain.x", "2.5", "../plain", "mask"):
    with pytest.raises(InputError, match="must be one of .*plain"):
      find_backend(name)
  saved = to_json(TransformerConfig()) | {"attention_backend": "flash"}  # which was one
  assert from_json(saved).attention_backend == "auto"


def test_a_backend_is_a_file(monkeypatch, tmp_path):
  """A trunk that names another file attends with it."""
  (tmp_path / "attention_constant.py").write_text(
    "import jax.numpy as jnp\n\n\ndef attend(qkv, *_):\n  return jnp.full_like(qkv, 3.0)\n"
  )
  monkeypatch.setattr(ops, "__path__", [*ops.__path__, str(tmp_path)])
  monkeypatch.delitem(sys.modules, "gpt_jax.ops.attention_constant", raising=False)
  assert (attention(inputs(8), AttentionMask("causal"), backend="constant") == 3).all()
