"""Matrix products of activations: factors in the compute type, sums in float32.

A CPU multiplies bfloat16 at twice the rate of float32, but only where both factors are bfloat16 and
the result is asked for in float32. So a cotangent, which has the result's type, is rounded to the
factors' before the products of the gradient (as torch.autocast does).
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from gpt_jax.errors import InputError
from gpt_jax.parallel.mesh import axis_size, platform

PROJECTED = "projected"
_FIRST_WITH_BFLOAT16 = 8.0  # CUDA compute capability: A100, RTX 30 and later; not V100, T4, RTX 20

_HAS_ONEDNN = jax.__version_info__ >= (0, 11)
# Without the second, XLA's own library (YNNPACK) takes the products before oneDNN is asked.
_ONEDNN = {
  "xla_cpu_experimental_onednn_custom_call": True,
  "xla_cpu_experimental_ynn_fusion_type": "",
}


def activation_type(dtype: str) -> str:
  """The type of activations between the products of a compute type.

  A CPU has no other arithmetic in bfloat16: there activations stay float32, and only the factors of
  products are rounded, as by torch.autocast.
  """
  return "float32" if platform() == "cpu" and dtype == "bfloat16" else dtype


def on_gpu() -> bool:
  """Whether this is for a GPU, which computes many things in less time than it reads them."""
  return platform() == "gpu"


def without_bfloat16() -> str:
  """Why a GPU of this process cannot compute in bfloat16; "" if all devices can."""
  for device in jax.devices():
    capability = str(getattr(device, "compute_capability", ""))
    is_cuda = re.fullmatch(r"\d+\.\d+", capability)
    if is_cuda and float(capability) < _FIRST_WITH_BFLOAT16:
      return f"{device.device_kind} has none (compute capability {capability})"
  return ""


def bfloat16_speed() -> float:
  """How many times as fast as in float32 a product and its gradient are in bfloat16.

  Measured on a CPU, in about 0.2 s; infinite on an accelerator with units for it, 0 without.
  """
  if platform() != "cpu":
    return 0.0 if without_bfloat16() else math.inf
  float32, bfloat16 = _seconds([("float32", {}), ("bfloat16", {})])
  return float32 / bfloat16


def onednn_speed(dtype: str) -> float:
  """How many times as fast as by XLA's own library a product and its gradient are by oneDNN.

  Measured in about 0.2 s; 0 where it cannot be chosen: not a CPU, or jax before 0.11.
  """
  if platform() != "cpu" or not _HAS_ONEDNN:
    return 0.0
  own, onednn = _seconds([(dtype, {}), (dtype, _ONEDNN)])
  return own / onednn


def compiler_options(products: str) -> Mapping[str, Any]:
  """Options of jax.jit for a CPU's products, "xla" or "onednn"."""
  if products != "onednn" or platform() != "cpu":
    return {}
  if not _HAS_ONEDNN:
    raise InputError(f"mesh.cpu_products=onednn: jax {jax.__version__} has none, 0.11 has; use xla")
  return _ONEDNN


def _seconds(programs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[float]:
  """Seconds of a product and its gradient, for each compute type with its options of jax.jit."""

  @partial(jax.grad, argnums=(0, 1))
  def gradient(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.square(product("ni,iu->nu", x, kernel, jnp.float32)).sum()

  calls = []
  for dtype, options in programs:
    factors = jnp.ones((256, 1024), dtype), jnp.ones((1024, 1024), dtype)
    calls.append(partial(jax.jit(gradient, compiler_options=dict(options)), *factors))
    jax.block_until_ready(calls[-1]())  # compiled
  least = [math.inf] * len(calls)
  for _ in range(5):  # in turns, since other programs come and go
    for i, call in enumerate(calls):
      begin = time.perf_counter()
      jax.block_until_ready(call())
      least[i] = min(least[i], time.perf_counter() - begin)
  return least


def product(
  equation: str, a: jax.Array, b: jax.Array, dtype: jax.typing.DTypeLike | None = None
) -> jax.Array:
  """jnp.einsum(equation, a, b), of two factors of one type.

  Args:
    equation: with each index in two of a, b and the result, or in all three.
    a, b: of the compute type.
    dtype: of the result; None: the factors' type.
  """
  dtype = jnp.dtype(a.dtype if dtype is None else dtype)
  # With float32 nothing is rounded. An accelerator adds up in float32 whatever is asked for, and a
  # result in float32 would move twice the bytes between its devices.
  if a.dtype == jnp.float32 or platform() != "cpu":
    return jnp.einsum(equation, a, b, preferred_element_type=dtype)
  return _product(equation, a, b, dtype)


def project(x: jax.Array, kernel: jax.Array, inputs: int, wide: bool = False) -> jax.Array:
  """x [B, …, inputs…] times a kernel [inputs…, outputs…] over the `inputs` axes: [B, …, outputs…].

  Both of a compute type. The result has its activation_type; rematerialization knows it as
  PROJECTED. wide: in float32 and without that name, for a caller that adds a bias and rounds, which
  a GPU does within the product; the caller names its result. Not where `model` splits kernels.
  """
  dtype = activation_type(x.dtype.name)
  before, outputs = x.shape[: x.ndim - inputs], kernel.shape[inputs:]
  rows, summed, new = "abcdefgh"[: len(before)], "ijkl"[:inputs], "uvwxyz"[: len(outputs)]
  if axis_size("model") > 1:  # a reshape would hide which axis of a kernel is sharded
    y = product(f"{rows}{summed},{summed}{new}->{rows}{new}", x, kernel, dtype)
  else:  # with more axes of the kernel, XLA transposes it and its gradient at every step
    size = math.prod(kernel.shape[:inputs])
    matrix = x.reshape(*before, size)
    # On a CPU float32 is 10 % of a step faster as a matrix, bfloat16 slower (jax 0.10.2). For a TPU
    # it is more memory traffic.
    if platform() == "cpu" and x.dtype == jnp.float32:
      matrix, rows = matrix.reshape(-1, size), "n"
    equation, kernel = f"{rows}i,iu->{rows}u", kernel.reshape(size, -1)
    if wide:
      return _product(equation, matrix, kernel, jnp.float32).reshape(before + outputs)
    y = product(equation, matrix, kernel, dtype)
  return checkpoint_name(y, PROJECTED).reshape(before + outputs)


@partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def _product(equation, a, b, dtype):
  return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32).astype(dtype)


def _forward(equation, a, b, dtype):
  return _product(equation, a, b, dtype), (a, b)


def _backward(equation, dtype, factors, gradient):
  a, b = factors
  left, right, result = equation.replace("->", ",").split(",")
  gradient = gradient.astype(a.dtype)  # else it is a slow product of two types
  # As products: between a GPU's devices a sum in the factors' type moves half the bytes.
  return (
    product(f"{result},{right}->{left}", gradient, b),
    product(f"{left},{result}->{right}", a, gradient),
  )


_product.defvjp(_forward, _backward)
