"""Products of activations: values, gradients and types."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.errors import InputError
from gpt_jax.ops.product import bfloat16_speed, compiler_options, onednn_speed, product, project

SIZES = {"b": 2, "t": 6, "s": 5, "d": 8, "r": 7, "n": 12, "i": 8, "o": 7}
EQUATIONS = ("ni,io->no", "btd,rd->btr", "bts,bsd->btd", "btd,bsd->bts")


def factors(equation, dtype):
  rng = np.random.default_rng(0)
  names = equation.partition("->")[0].split(",")
  return [jnp.asarray(rng.normal(size=[SIZES[i] for i in name]), dtype) for name in names]


def with_gradients(multiply, equation, a, b):
  """The product, and the gradients of a and b under a cotangent that is the same for all types."""
  result, backward = jax.vjp(lambda a, b: multiply(equation, a, b), a, b)
  weights = jnp.asarray(np.random.default_rng(1).normal(size=result.shape), jnp.bfloat16)
  return result, *backward(weights.astype(result.dtype))


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", [None, jnp.float32])
def test_products_of_16_bits_are_those_of_float32(equation, dtype):
  low = factors(equation, jnp.bfloat16)
  wide = [x.astype(jnp.float32) for x in low]
  actual = with_gradients(lambda *args: product(*args, dtype), equation, *low)
  expected = with_gradients(jnp.einsum, equation, *wide)
  # Only the result is rounded, to 8 bits; unless it is asked for in float32.
  for x, y, rounding in zip(actual, expected, (0 if dtype else 2**-8, 2**-8, 2**-8), strict=True):
    assert x.dtype == (jnp.bfloat16 if rounding else jnp.float32)
    np.testing.assert_allclose(x.astype(jnp.float32), y, rtol=rounding + 1e-6, atol=1e-6)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_products_of_float32_are_numpys(equation):
  wide = factors(equation, jnp.float32)
  expected = np.einsum(equation, *wide)
  np.testing.assert_allclose(product(equation, *wide), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", [1, 2])
def test_project_contracts_the_last_axes(dtype, model):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(2, 6, 4, 2)), dtype)
  kernel = jnp.asarray(rng.normal(size=(4, 2, 3, 5)), dtype)
  devices = np.array(jax.devices()[:model]).reshape(1, model)
  mesh = jax.sharding.Mesh(devices, ("data", "model"))
  with jax.set_mesh(mesh):
    actual = jax.jit(lambda x, kernel: project(x, kernel, 2))(x, kernel)
  expected = np.einsum("btik,ikuv->btuv", x.astype(jnp.float32), kernel.astype(jnp.float32))
  assert actual.dtype == jnp.float32  # also of bfloat16, on a CPU
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_timed_on_a_cpu_and_known_of_a_gpu(monkeypatch):
  assert 0.05 < bfloat16_speed() < 50
  monkeypatch.setattr("gpt_jax.ops.product.platform", lambda: "gpu")
  assert bfloat16_speed() == math.inf
  old = SimpleNamespace(device_kind="Tesla T4", compute_capability="7.5")
  monkeypatch.setattr(jax, "devices", lambda: [old])
  assert bfloat16_speed() == 0


HAS_ONEDNN = jax.__version_info__ >= (0, 11)


def test_onednn_is_timed_where_it_is(monkeypatch):
  assert (onednn_speed("float32") > 0) == HAS_ONEDNN
  monkeypatch.setattr("gpt_jax.ops.product._HAS_ONEDNN", True)
  assert 0.05 < onednn_speed("bfloat16") < 50
  monkeypatch.setattr("gpt_jax.ops.product.platform", lambda: "gpu")
  assert onednn_speed("float32") == 0
  assert compiler_options("onednn") == {}


@pytest.mark.skipif(HAS_ONEDNN, reason="this jax has oneDNN")
def test_onednn_of_an_old_jax_is_refused():
  with pytest.raises(InputError, match=r"cpu_products=onednn: jax .* has none, 0.11 has; use xla"):
    compiler_options("onednn")


@pytest.mark.skipif(not HAS_ONEDNN, reason="jax 0.11 has oneDNN")
@pytest.mark.parametrize("products", ["xla", "onednn"])
def test_products_are_those_of_the_library_chosen(products):
  x = jnp.ones((256, 256))
  options = compiler_options(products)
  text = jax.jit(jnp.matmul, compiler_options=options).lower(x, x).compile().as_text()
  assert ("onednn" in text) == (products == "onednn")
