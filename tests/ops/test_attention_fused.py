"""Fused attention against plain attention: values, gradients and dropped elements, on every mesh.

The kernels run as array operations on a CPU; that they compile is asked of the compilers' front
ends.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding, use_abstract_mesh
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Rows
from gpt_jax.errors import InputError
from gpt_jax.models.alibi import Alibi
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops import attention_fused, attention_plain
from gpt_jax.ops.attention import AttentionMask, Dropout, attention
from gpt_jax.ops.dropout import _bits, random_bits, step_key
from gpt_jax.parallel.mesh import PMAP_AXIS, MeshConfig, make_mesh

LAYOUTS, H, K = 50, 2, 8
FUSED = TransformerConfig(
  vocab_size=60, context=16, layers=1, width=32, heads=4, attention_backend="fused"
)
with_mosaic = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="fused has its place")


@pytest.fixture
def interpreted(monkeypatch):
  """The kernels for TPUs run on a CPU; the list gets the shapes that they are called with."""
  calls = []
  forward = attention_fused.fused_kernel.forward

  def spy(kind, inputs):
    calls.append(inputs.qkv.shape)
    return forward(kind, inputs)

  monkeypatch.setattr(attention_fused, "INTERPRETED", "tpu")
  monkeypatch.setattr(attention_fused.fused_kernel, "forward", spy)
  return calls


def arrays(rows, length, dtype=np.float32, heads=H):
  """qkv and the gradient of the output."""
  values = np.random.default_rng(0).normal(size=(rows, length, 4, heads, K)).astype(dtype)
  return values[:, :, :3], values[:, :, 3]


def layouts(rows, length):
  """Segments of as many kinds as there are rows: few or many, sorted or not, with padding."""
  rng = np.random.default_rng(1)
  segments = rng.integers(rng.integers(1, 9, size=(rows, 1)), size=(rows, length))
  in_order = rng.random(rows) < 0.7
  segments[in_order] = np.sort(segments[in_order], axis=1) + 1
  for row in range(0, rows, 3):  # what packing leaves at the end of a row
    segments[row, rng.integers(1, length) :] = 0
  segments[-1], segments[-2] = 1, np.arange(length)  # one segment; each position for itself
  return segments.astype(np.int32)


def masks(kind, rows, length):
  prefix = np.random.default_rng(2).random((rows, length)) < 0.3
  return AttentionMask(kind, layouts(rows, length), prefix)


def value_and_gradients(backend, rate, mask, key, qkv, d_output):
  """The output and the gradients of q, k and v."""

  def attend(qkv):
    return attention(qkv, mask, dropout=Dropout(rate, key), backend=backend)

  output, pull = jax.vjp(attend, qkv)
  (d_qkv,) = pull(d_output)
  return output, *(d_qkv[:, :, plane] for plane in range(3))


# All tests share what it compiled, for the same shapes.
plain = functools.partial(jax.jit(value_and_gradients, static_argnums=(0, 1)), "plain")


@pytest.fixture
def compute():
  """compute(backend, rate, mask, key, qkv, gradient of the output): value_and_gradients,
  compiled for this test alone, since fixtures change what "fused" is.
  """
  return jax.jit(functools.partial(value_and_gradients), static_argnums=(0, 1))


def assert_equal(found, expected, atol=1e-5):
  for name, a, b in zip(("output", "d_q", "d_k", "d_v"), found, expected, strict=True):
    a, b = (np.asarray(x, np.float32) for x in (a, b))
    np.testing.assert_allclose(a, b, atol=atol, err_msg=name)


@pytest.mark.parametrize(
  "kind, length, platform",
  [
    ("causal", 20, "cuda"),  # less than a tile
    # Several tiles, and four blocks of queries in plain attention.
    pytest.param("causal", 192, "cuda", marks=pytest.mark.slow),
    pytest.param("causal", 192, "tpu", marks=pytest.mark.slow),
    ("bidirectional", 150, "cuda"),  # the last tile is cut off
    ("prefix", 150, "cuda"),
  ],
)
def test_fused_equals_plain(monkeypatch, compute, interpreted, kind, length, platform):
  """50 layouts of segments, dropout on."""
  monkeypatch.setattr(attention_fused, "INTERPRETED", platform)
  mask, key = masks(kind, LAYOUTS, length), step_key(3, 1).fold(2)
  expected = plain(0.3, mask, key, *arrays(LAYOUTS, length))
  assert_equal(compute("fused", 0.3, mask, key, *arrays(LAYOUTS, length)), expected)
  assert interpreted


@with_mosaic
@pytest.mark.parametrize(
  "kind, length", [("causal", 192), ("bidirectional", 70), ("prefix", 70), ("causal", 20)]
)
def test_mosaic_equals_plain(monkeypatch, compute, kind, length):
  """With segments and dropout, in the interpreter of Mosaic GPU, which takes seconds."""
  monkeypatch.setattr(attention_fused, "INTERPRETED", "cuda")
  mask, key = masks(kind, 3, length), step_key(3, 1).fold(2)
  expected = plain(0.3, mask, key, *arrays(3, length))
  assert_equal(compute("mosaic", 0.3, mask, key, *arrays(3, length)), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
def test_without_segments_and_dropout(compute, interpreted, kind):
  mask = AttentionMask(kind)
  expected = plain(0.3, mask, None, *arrays(2, 150))  # two tiles
  assert_equal(compute("fused", 0.3, mask, None, *arrays(2, 150)), expected, atol=1e-5)
  assert interpreted


def test_bfloat16(compute, interpreted):
  """Within three times the error of plain attention, whose probabilities a CPU does not round."""
  mask, key = masks("causal", 8, 128), step_key(0, 0)
  low = arrays(8, 128, jnp.bfloat16, heads=4)
  exact = plain(0.3, mask, key, *(x.astype(np.float32) for x in low))
  found, rounded = compute("fused", 0.3, mask, key, *low), plain(0.3, mask, key, *low)
  for a, b, c in zip(found, rounded, exact, strict=True):
    assert a.dtype == jnp.bfloat16
    errors = [np.abs(np.asarray(x, np.float32) - c).mean() for x in (a, b)]
    assert 0 < errors[0] < 3 * errors[1]


@pytest.mark.parametrize("length", [192, 126])
def test_the_words_of_a_kernel_are_plain_attentions_bits(length):
  """For every row, head, query and key; dropout() counts the elements of a block of queries."""
  key, rows = step_key(5, 7, shard=3).fold(1), 3
  keys = np.arange(length, dtype=np.uint32)

  @jax.jit
  def of_kernel(key):
    words, starts = attention_plain.dropout_words("causal", key, rows, H, length)
    return random_bits(starts[None, :, :, None] + keys[None, None, None], words[:, None, :, None])

  compiled_bits, bits = jax.jit(_bits, static_argnums=(0, 2)), np.asarray(of_kernel(key))
  blocks = 4 if length == 192 else 1
  for i in range(blocks):
    stop = (i + 1) * length // blocks
    queries = slice(i * length // blocks, stop)
    expected = compiled_bits((rows, H, length // blocks, stop), key.fold(i), True)
    np.testing.assert_array_equal(bits[:, :, queries, :stop], expected)


@pytest.mark.parametrize(
  "data, model", [(1, 1), pytest.param(8, 1, marks=pytest.mark.slow), (2, 4)]
)
def test_every_mesh(compute, interpreted, data, model):
  """Sharded over rows and heads, each device runs the kernels on its part; the same is dropped."""
  mask, key = masks("causal", 8, 128), step_key(3, 1).fold(2)
  inputs = arrays(8, 128, heads=4)
  expected = plain(0.3, mask, key, *inputs)
  mesh = make_mesh(MeshConfig(data=data, model=model), jax.devices()[: data * model])
  axes = P("data", None, None, "model"), P("data", None, "model")
  placed = [jax.device_put(x, NamedSharding(mesh, a)) for x, a in zip(inputs, axes, strict=True)]
  with jax.set_mesh(mesh):
    found = compute("fused", 0.3, mask, key, *placed)
  assert set(interpreted) == {(8 // data, 128, 3, 4 // model, K)}
  assert_equal(found, expected, atol=1e-5)
  if data * model > 1:
    assert not any(x.sharding.is_fully_replicated for x in found)


def test_rows_that_devices_do_not_divide(compute, interpreted):
  mask, key = masks("causal", 3, 20), step_key(3, 1)
  inputs = arrays(3, 20)
  expected = plain(0.3, mask, key, *inputs)
  with jax.set_mesh(make_mesh(MeshConfig(data=2, model=4))):
    found = compute("fused", 0.3, mask, key, *inputs)
  assert set(interpreted) == {(3, 20, 3, H, K)}
  assert_equal(found, expected, atol=1e-5)


def test_pmap(compute, interpreted):
  """Key.shard says which rows a device has."""
  mask, inputs = masks("causal", 8, 128), arrays(8, 128, heads=4)
  expected = plain(0.3, mask, step_key(3, 1), *inputs)

  def on_device(mask, *inputs):
    key = step_key(3, 1, jax.lax.axis_index(PMAP_AXIS))
    return compute("fused", 0.3, mask, key, *inputs)

  parts = jax.tree.map(lambda x: x.reshape(8, 1, *x.shape[1:]), (mask, *inputs))
  found = jax.pmap(on_device, axis_name=PMAP_AXIS)(*parts)
  assert set(interpreted) == {(1, 128, 3, 4, K)}
  assert_equal([x.reshape(8, *x.shape[2:]) for x in found], expected, atol=1e-5)


def test_a_transformer_trains_as_with_plain(interpreted):
  """Loss and gradient of a model with all dropout and rematerialization, on 2 x 4 devices."""
  plain = dataclasses.replace(FUSED, attention_backend="plain")
  ids = np.random.default_rng(0).integers(0, 60, (8, 16)).astype(np.int32)
  rows = Rows(ids, np.broadcast_to(np.arange(16, dtype=np.int32), (8, 16)), layouts(8, 16))
  params = jax.jit(plain.build().init)(jax.random.key(0), rows)

  def gradient(trunk):
    def loss(params):
      return (trunk.build(remat="dots").apply(params, rows, step_key(0, 0)).hidden ** 3).mean()

    return jax.jit(jax.value_and_grad(loss))(params)

  expected = gradient(plain)
  with jax.set_mesh(make_mesh(MeshConfig(data=2, model=4))):
    found = gradient(FUSED)
  assert set(interpreted) == {(4, 16, 3, 1, 8)}
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


def test_on_a_cpu_it_is_plain_attention(compute):
  """So that a checkpoint that was trained with it can be used anywhere."""
  mask, key = masks("causal", 4, 20), step_key(3, 1)
  expected = plain(0.3, mask, key, *arrays(4, 20))
  assert_equal(compute("fused", 0.3, mask, key, *arrays(4, 20)), expected, atol=1e-6)
  program = compute.lower("fused", 0.3, mask, key, *arrays(4, 20)).as_text()
  assert "custom_call" not in program and "while" not in program


TPU = ("fused", "tpu", "tpu_custom_call")
TRITON = ("fused", "cuda", "gpu.triton")
MOSAIC_GPU = ("mosaic", "cuda", "@mosaic_gpu")


@pytest.mark.parametrize(
  "backend, platform, calls, length, width, dtype",
  [
    (*TPU, 20, 24, "float32"),
    (*TPU, 192, 64, "bfloat16"),
    (*TRITON, 20, 24, "float32"),
    (*TRITON, 192, 64, "bfloat16"),
    pytest.param(*MOSAIC_GPU, 20, 24, "float16", marks=with_mosaic),
    pytest.param(*MOSAIC_GPU, 192, 64, "bfloat16", marks=with_mosaic),
    ("mosaic", *TRITON[1:], 20, 24, "float32"),  # which wgmma would round
  ],
)
def test_the_kernels_lower(compute, backend, platform, calls, length, width, dtype):
  """To Mosaic and to Triton: three kernels, no array of scores; on a GPU no transposed qkv."""
  qkv, x = (jax.ShapeDtypeStruct((2, length, *a, H, width), dtype) for a in [(3,), ()])
  mask, key = masks("prefix", 2, length), step_key(0, 0)
  # jax 0.11 asks which GPU it is; a mesh without our axes says so.
  gpu = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
  with use_abstract_mesh(AbstractMesh((1,), ("devices",), abstract_device=gpu)):
    traced = compute.trace(backend, 0.3, mask, key, qkv, x)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
  assert program.count(calls) == 3
  assert f"x{length}x{length}x" not in program
  if platform == "cuda":
    assert not re.search(rf"stablehlo\.transpose.*x{width}x", program)


def test_observers_see_the_probabilities_of_plain_attention(interpreted):
  seen = []
  attention(arrays(2, 20)[0], AttentionMask("causal"), backend="fused", observe=seen.append)
  assert seen[0].shape == (2, H, 20, 20) and not interpreted


def test_a_bias_is_refused():
  trunk, ids = dataclasses.replace(FUSED, attention_bias=Alibi()), np.zeros((1, 4), np.int32)
  with pytest.raises(InputError, match="attention_backend: only plain has an attention bias"):
    trunk.build().init(jax.random.key(0), Rows(ids, ids))
