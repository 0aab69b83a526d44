"""Weights kept for decoding and classifying: of 16 or 8 bits, in the layout that a product of few
rows reads best. A new token, or one short text, reads all weights once, so their bytes decide how
long it takes. Letters: I inputs, O outputs.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt_jax.batch import Rows
from gpt_jax.errors import InputError
from gpt_jax.models.layers import KEPT, MATRICES, Matrix, multiply
from gpt_jax.models.model import Model, smallest_batch
from gpt_jax.ops.cross_entropy import all_scores
from gpt_jax.ops.product import activation_type

KINDS = ("float32", "bfloat16", "int8")
_MAX_INT8 = 127  # of int8, both ways


@partial(
  jax.tree_util.register_dataclass, data_fields=["values", "scale", "bias", "bits"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class KeptWeights:
  """A Matrix in fewer bits."""

  values: jax.Array  # [O, I], bfloat16 or int8
  scale: jax.Array | None = None  # float32 [O], by which int8 values are multiplied
  bias: jax.Array | None = None  # float32 [O], added to the product
  # uint16 [O, I], of a bfloat16 table whose rows are looked up: a CPU looks up no bfloat16, and
  # would convert the whole table first.
  bits: jax.Array | None = None

  def multiply(self, x: jax.Array) -> jax.Array:
    """Products of x [..., I] with the weights of each output: float32 [..., O].

    x is rounded to bfloat16, and products are added up in float32, in any number of rows: what a
    text gets does not depend on how many are continued together.
    """
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.bfloat16)
    # A CPU is slow at bfloat16 with one row. XLA converts the weights once for all tokens of a
    # call: kept from that, it reads fewer bytes for each, and takes longer all the same.
    kind = jnp.float32 if len(rows) == 1 else jnp.bfloat16
    y = jax.lax.dot_general(
      rows.astype(kind),
      self.values.astype(kind),  # exact: 8 bits hold an int8
      (((1,), (1,)), ((), ())),
      preferred_element_type=jnp.float32,
    )
    if self.scale is not None:
      y = y * self.scale[None]
    if self.bias is not None:
      y = y + self.bias[None]
    return y.reshape(*x.shape[:-1], -1)

  def astype(self, dtype: jax.typing.DTypeLike) -> "KeptWeights":
    """Itself, where an array would get the type of activations: `multiply` fits every type."""
    return self

  def __getitem__(self, indices: jax.Array) -> jax.Array:
    """The weights of these outputs, float32 [..., I]; of a table."""
    if self.bits is None:
      rows = self.values[indices]
    else:
      rows = jax.lax.bitcast_convert_type(self.bits[indices], jnp.bfloat16)
    rows = rows.astype(jnp.float32)
    return rows if self.scale is None else rows * self.scale[indices][..., None]


@multiply.register
def _(kernel: KeptWeights, x: jax.Array, inputs: int, outputs: tuple[int, ...]) -> jax.Array:
  before = x.shape[: x.ndim - inputs]
  y = kernel.multiply(x.reshape(*before, -1))
  return y.reshape(*before, *outputs).astype(activation_type(x.dtype.name))


@all_scores.register
def _(table: KeptWeights, hidden: jax.Array) -> jax.Array:
  return table.multiply(hidden)


def keep_weights(model: Model, params: Any, kind: str) -> Any:
  """The trunk's parameters, on the device, and under KEPT what stands for some of them.

  model: generates, see model.generator. kind: one of KINDS; float32 leaves them as they are.
  """
  check_kind(kind)
  params = jax.device_put({"trunk": params["trunk"]})
  if kind == "float32":
    return params
  return in_place_of(params, _kept(_matrices_of_prompt, model, params, kind))


def keep_classifier_weights(model: Model, params: Any, kind: str) -> Any:
  """As keep_weights, with the heads' parameters, of a kind but float32, for a whole batch."""
  params = jax.device_put(params)
  return in_place_of(params, _kept(matrices_of_batch, model, params, kind))


@partial(jax.jit, static_argnums=(0, 1, 3))
def _kept(matrices_of, model, params, kind):
  """The KeptWeights of all products that a model makes, by the paths of their parameters."""
  flat = flatten_dict(matrices_of(model, params))
  return {path: keep(matrix, kind, path[-1] == "tokens") for path, matrix in flat.items()}


def in_place_of(params: Any, kept: dict[tuple[str, ...], Any]) -> dict[str, Any]:
  """The parameters without those, by their paths, that `kept` has something for, and under KEPT
  what products read in their place.
  """
  rest = {path: x for path, x in flatten_dict(params).items() if path not in kept}
  return {**unflatten_dict(rest), KEPT: unflatten_dict(kept)}


def variables(params: Any) -> dict[str, Any]:
  """The collections for Model.apply of parameters: a checkpoint's, or of keep_weights."""
  rest = dict(params)
  kept = rest.pop(KEPT, {})
  return {"params": rest, KEPT: kept}


def _matrices_of_prompt(model, params):
  """As matrices_of_batch, of the products that generation makes."""
  # A prompt of one token meets all of them. XLA leaves out what it computes.
  ids = jnp.zeros((1, 1), jnp.int32)
  of_source = {"source": Rows(ids, ids)} if model.config.kind == "encoder-decoder" else {}
  _, written = model.apply(
    {"params": params}, ids, ids == 0, **of_source, method="read_prompt", mutable=[MATRICES]
  )
  return written[MATRICES]


@partial(jax.jit, static_argnums=0)
def matrices_of_batch(model: Model, params: Any) -> Any:
  """The Matrix of each parameter that products of a batch read, the heads' as well, as a tree."""
  _, written = model.apply({"params": params}, smallest_batch(model.config), mutable=[MATRICES])
  return written[MATRICES]


def keep(matrix: Matrix, kind: str, is_table: bool = False) -> KeptWeights:
  """A matrix as one of KINDS but the first; is_table: whether rows are looked up.

  int8 has a scale per output: its largest weight is 127 times that.
  """
  if kind == "bfloat16":
    values = matrix.values.astype(jnp.bfloat16)
    bits = jax.lax.bitcast_convert_type(values, jnp.uint16) if is_table else None
    return KeptWeights(values, None, matrix.bias, bits)
  largest = jnp.abs(matrix.values).max(axis=1)
  scale = jnp.where(largest > 0, largest, 1) / _MAX_INT8
  values = jnp.round(matrix.values / scale[:, None]).astype(jnp.int8)
  return KeptWeights(values, scale, matrix.bias)


def check_kind(kind: str) -> None:
  """Raises InputError unless it is one of KINDS."""
  if kind not in KINDS:
    raise InputError(f"weights={kind}: must be one of {', '.join(KINDS)}")
