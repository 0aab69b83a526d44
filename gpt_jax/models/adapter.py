"""Adapters: small changes of a frozen trunk, which alone are trained and saved. LoRA (Hu et al.
2021, *Low-Rank Adaptation of Large Language Models*, section 4.1): W + alpha / r A B; and BitFit
(Ben Zaken et al. 2022), which trains biases.

Parameters are `{adapter, heads…}`, and `{base}`, which is the trunk. Letters: r rank.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt_jax.batch import Batch
from gpt_jax.config import option, register, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.layers import KEPT, MATRICES, multiply
from gpt_jax.models.method import Method
from gpt_jax.models.model import Model
from gpt_jax.models.trunk import BASE, TABLES
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.ops.product import project


@register("adapter")
@dataclasses.dataclass(frozen=True)
class Adapter(Method):
  """A small change of the trunk is trained beside the head, and the rows of new special tokens."""

  rank: int = option(8, "r, of the change of a kernel, A B; 0: kernels do not change", low=0)
  alpha: float = option(16.0, "the change of a kernel is alpha / rank A B", low=1e-3, high=1e4)
  targets: str = option(
    "attention", "regular expression, searched for in the paths of the trunk's kernels; kernel: all"
  )
  dropout: float = option(0.0, "dropout on the input of A", low=0.0, high=0.99)
  trained: str = option(
    "", "regular expression of other parameters of the trunk that train in full, such as /bias$"
  )

  slot = "adapter"
  reads_checkpoint = "a trained trunk, which it changes"

  def __post_init__(self) -> None:
    super().__post_init__()
    for name, pattern in (("targets", self.targets), ("trained", self.trained)):
      try:
        re.compile(pattern)
      except re.error as error:
        raise InputError(f"adapter.{name}={pattern}: no regular expression ({error})") from error

  @property
  def scale(self) -> float:
    return self.alpha / max(1, self.rank)

  def check(self, config: Any, task: Any, start: Any) -> None:
    if not start.trunk.heads:
      raise InputError("adapter: is for transformers; the checkpoint has another trunk")
    for name, usual in (("transfer_layers", None), ("train_layers", None), ("layer_decay", 1.0)):
      value = vars(config)[name]
      if value != usual:
        raise InputError(f"{name}={value}: has no use with an adapter; leave it out")
    for method in config.methods:
      if method.trains_trunk:
        raise InputError(f"{method.slot}: has no use with an adapter; leave it out")
    if config.mesh.model > 1 or config.mesh.backend != "jit":
      raise InputError("adapter: needs mesh.model=1 and mesh.backend=jit")

  def recipe(self, recipe: Any, start: Any) -> Any:
    return dataclasses.replace(
      recipe,
      adapted=lambda model: AdaptedModel(model, self, start.new_rows),
      start=start.apply_base,
      base=start.base,
      inference_params=jax.jit(functools.partial(merged, adapter=self)),
      meta={**recipe.meta, "adapter": {"config": to_json(self), "base": start.as_json}},
    )


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["kernel", "a", "b", "key"],
  meta_fields=["scale", "rate"],
)
@dataclasses.dataclass(frozen=True)
class _LowRank:
  """A kernel [inputs…, outputs…] plus scale A [inputs…, r] B [r, outputs…], as products read it."""

  kernel: jax.Array
  a: jax.Array
  b: jax.Array
  key: Key | None
  scale: float
  rate: float


@multiply.register
def _(kernel: _LowRank, x: jax.Array, inputs: int, outputs: tuple[int, ...]) -> jax.Array:
  if kernel.key is None or not kernel.rate:
    return _multiply(kernel.scale, inputs, kernel.kernel, kernel.a, kernel.b, x)
  fixed = multiply(kernel.kernel, x, inputs, outputs)
  dropped = dropout(x, kernel.rate, kernel.key)
  return fixed + _change(kernel.scale, inputs, kernel.a, kernel.b, dropped).astype(fixed.dtype)


def _change(scale: float, inputs: int, a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
  """scale (x A) B."""
  narrow = project(x, a.astype(x.dtype), inputs)
  return scale * project(narrow.astype(x.dtype), b.astype(x.dtype), 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _multiply(scale: float, inputs: int, kernel: Any, a: Any, b: Any, x: jax.Array) -> jax.Array:
  """x times a kernel and its change, where A's input is not dropped."""
  fixed = project(x, kernel.astype(x.dtype), inputs)
  return fixed + _change(scale, inputs, a, b, x).astype(fixed.dtype)


def _multiply_forward(
  scale: float, inputs: int, kernel: Any, a: Any, b: Any, x: jax.Array
) -> tuple[jax.Array, Any]:
  # A training step has more tokens than a kernel has rows: there the sum of kernels is cheaper than
  # that of products. Its own gradient, which would take as long as the kernel's, is not computed.
  whole = (kernel + scale * jnp.tensordot(a, b, 1)).astype(x.dtype)
  return project(x, whole, inputs), (whole, kernel, a, b, x)


def _multiply_backward(scale: float, inputs: int, saved: Any, gradient: jax.Array) -> Any:
  whole, kernel, a, b, x = saved
  _, of_input = jax.vjp(lambda x: project(x, whole, inputs), x)
  _, of_change = jax.vjp(lambda a, b: _change(scale, inputs, a, b, x).astype(gradient.dtype), a, b)
  return jnp.zeros_like(kernel), *of_change(gradient), *of_input(gradient)


_multiply.defvjp(_multiply_forward, _multiply_backward)


class AdaptedModel:
  """A model whose trunk is frozen but for an adapter; has of Model what a loss needs."""

  def __init__(self, model: Model, adapter: Adapter, new_rows: Sequence[int] = ()):
    """new_rows: of the tables, after the vocabulary: those of special tokens that are new."""
    self.config = model.config
    self.num_tokens = model.config.num_tokens
    self._model, self._adapter, self._new_rows = model, adapter, new_rows

  def init(self, key: jax.Array, example: Any) -> dict[str, Any]:
    """The first parameters; those of the base are to be replaced. Each pattern must match one."""
    heads = dict(self._model.init(key, example)["params"])
    trunk = heads.pop("trunk")  # only its shapes count: a checkpoint's takes its place
    flat = flatten_dict(trunk, sep="/")
    sizes = self._input_sizes({**heads, "trunk": trunk}, example)
    c, vocab_size = self._adapter, self.config.trunk.vocab_size
    changes: dict[str, Any] = {}
    in_full: list[str] = []
    for number, (path, x) in enumerate(flat.items()):
      if path in TABLES:  # a change of rank r would be of all rows, also of those not trained
        if self._new_rows:
          new = jnp.array(self._new_rows)
          rows = jnp.zeros_like(x).at[new].set(x[new])  # added to rows of the base that are zero
          changes[path] = rows[vocab_size:]
      elif c.rank and path in sizes and re.search(c.targets, path):
        # As many axes, from the first on, as have that many elements.
        axes = next(n for n in range(1, x.ndim) if math.prod(x.shape[:n]) == sizes[path])
        # As peft's: A uniform, B zero, so that training begins with the base's function.
        limit, own_key = sizes[path] ** -0.5, jax.random.fold_in(key, number)
        shape = (*x.shape[:axes], c.rank)
        changes[f"{path}/a"] = jax.random.uniform(own_key, shape, minval=-limit, maxval=limit)
        changes[f"{path}/b"] = jnp.zeros((c.rank, *x.shape[axes:]))
      elif c.trained and re.search(c.trained, path):
        changes[path] = jnp.zeros_like(x)
        in_full.append(path)
    kernels = sorted(sizes.keys() - {*TABLES})
    if c.rank and not any(re.search(c.targets, path) for path in kernels):
      raise InputError(
        f"adapter.targets={c.targets}: matches no kernel of the trunk: {', '.join(kernels)}"
      )
    if c.trained and not in_full:
      raise InputError(
        f"adapter.trained={c.trained}: matches no other parameter of the trunk: "
        f"{', '.join(sorted(flat.keys() - {*kernels, *TABLES}))}"
      )
    adapter = unflatten_dict(changes, sep="/")
    return {"params": {**heads, "adapter": adapter, BASE: {"trunk": trunk}}}

  def apply(
    self, variables: Mapping[str, Any], batch: Batch, key: Key | None = None, **options: Any
  ) -> Any:
    """As Model.apply, which it calls."""
    params = dict(variables["params"])
    changes = flatten_dict(params.pop("adapter"), sep="/")
    # Nothing is differentiated by the base: its gradients are not computed.
    flat = flatten_dict(jax.lax.stop_gradient(params.pop(BASE)["trunk"]), sep="/")
    c, kept = self._adapter, {}
    for number, (path, x) in enumerate(sorted(flat.items())):
      if f"{path}/a" in changes:
        # Far from the numbers that the trunk's own dropouts fold in.
        own_key = None if key is None else key.fold(1000 + number)
        a, b = changes[f"{path}/a"], changes[f"{path}/b"]
        kept[path] = _LowRank(x, a, b, own_key, c.scale, c.dropout)
      elif path in changes:
        flat[path] = _added(x, changes[path])
    variables = {
      **variables,
      "params": {**params, "trunk": unflatten_dict(flat, sep="/")},
      # Where it is given, a product reads this in place of the kernel: no layer knows of adapters.
      KEPT: {"trunk": unflatten_dict(kept, sep="/")},
    }
    return self._model.apply(variables, batch, key, **options)

  def _input_sizes(self, params: Any, example: Any) -> dict[str, int]:
    """The number of inputs of each kernel that products read, by its path."""

    def read(params, example):
      return self._model.apply({"params": params}, example, mutable=[MATRICES])[1][MATRICES]

    matrices = flatten_dict(jax.eval_shape(read, params, example).get("trunk", {}), sep="/")
    return {path: matrix.values.shape[1] for path, matrix in matrices.items()}


def _added(x: Any, change: Any) -> Any:
  """x plus a change of it, or of its last rows."""
  if len(change) == len(x):
    return x + change
  first = len(x) - len(change)
  concatenate = np.concatenate if isinstance(x, np.ndarray) else jnp.concatenate
  return concatenate([x[:first], x[first:] + change])


def merged(params: Mapping[str, Any], adapter: Adapter) -> dict[str, Any]:
  """Parameters `{adapter, base, heads…}`, as NumPy or JAX arrays, to `{trunk, heads…}` of a model
  without an adapter that computes the same.
  """
  rest = dict(params)
  changes = flatten_dict(rest.pop("adapter"), sep="/")
  flat = flatten_dict(rest.pop(BASE)["trunk"], sep="/")
  for path in flat:
    if f"{path}/a" in changes:
      a, b = changes[f"{path}/a"], changes[f"{path}/b"]
      product = low_rank_product(a.reshape(-1, a.shape[-1]), b.reshape(len(b), -1))
      flat[path] = flat[path] + adapter.scale * product.reshape(flat[path].shape)
    elif path in changes:
      flat[path] = _added(flat[path], changes[path])
  return {**rest, "trunk": unflatten_dict(flat, sep="/")}


def low_rank_product(a: Any, b: Any) -> Any:
  """A [I, r] times B [r, O]; of NumPy arrays to the same bits on every machine, since a digest of
  merged weights tells which base an adapter is of.
  """
  if not isinstance(a, np.ndarray):
    return a @ b
  # A BLAS adds up in an order of its CPU's.
  product = np.zeros((len(a), b.shape[1]), np.float32)
  for column, row in zip(a.T, b, strict=True):
    product += np.multiply.outer(column, row)
  return product


def with_rows(trunk: Any, rows: int) -> Any:
  """A trunk's parameters with further rows of its tables, of zeros, for new special tokens."""
  tables = {name: trunk[name] for name in TABLES if name in trunk}
  short = {name: x for name, x in tables.items() if len(x) != rows}  # others are shared
  padded = {name: np.pad(x, [(0, rows - len(x)), (0, 0)]) for name, x in short.items()}
  return {**trunk, **padded}
