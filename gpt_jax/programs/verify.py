"""Compares two trained models in any formats: their arrays, and their logits on texts."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from gpt_jax.batch import Rows
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.errors import InputError
from gpt_jax.inference.scoring import bucket
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.trunk import TABLES
from gpt_jax.ops.cross_entropy import logits, token_log_probs


class Difference(NamedTuple):
  """An array that differs; a shape is None if the model lacks the array."""

  name: str
  shape_a: tuple[int, ...] | None
  shape_b: tuple[int, ...] | None
  difference: float


def run(a: str, b: str, texts: Sequence[str], tolerance: float = 1e-4) -> dict[str, Any]:
  """Prints and returns the differences of two models.

  Args:
    a, b: see load_model.
    texts: read by both models in float32, in windows of the shorter context.
    tolerance: the largest |difference| of equal logits and parameters.

  Returns:
    equal: whether vocabularies, arrays and logits are equal within the tolerance.
    logits: the largest |difference| at any position; None for vocabularies of different sizes.
    perplexities: of a and b on the texts, without each window's first token; None as for
      logits, and if a model is not causal.
    array: the first Difference in the arrays' bits, None if there is none.
    differing: the number of arrays that differ.
    vocabulary: how the vocabularies differ, in words; None if they do not.
  """
  if not texts:
    raise InputError("no text: give one with --text=TEXT")
  if not tolerance >= 0:
    raise InputError(f"--tolerance={tolerance}: must be at least 0")
  models = [load_model(a), load_model(b)]
  tokenizers = [model.tokenizer for model in models]
  same_vocabulary = tokenizers[0].hash == tokenizers[1].hash
  # Arrays first: equal ones tell more than equal logits.
  differences = _differences(*models)
  comparison: dict[str, Any] = {"logits": None, "perplexities": None, "vocabulary": None}
  comparison |= {"array": next(iter(differences), None), "differing": len(differences)}
  if not same_vocabulary:
    comparison["vocabulary"] = f"of b: {tokenizers[0].difference(tokenizers[1].hash)}"
  reads_source = any(model.spec.trunk.reads_source for model in models)  # these texts have none
  if tokenizers[0].vocab_size == tokenizers[1].vocab_size and not reads_source:
    context = min(model.spec.trunk.context for model in models)
    windows = _windows(tokenizers[0].encode_many(list(texts)), context)
    comparison |= _compare_logits(models, windows)
  # Written so that nan is not equal.
  same_arrays = all(array.difference <= tolerance for array in differences)
  same_logits = comparison["logits"] is not None and comparison["logits"] <= tolerance
  same_logits |= reads_source
  comparison["equal"] = same_vocabulary and same_arrays and same_logits
  _report(models, comparison, tolerance)
  return comparison


def _differences(a: LoadedModel, b: LoadedModel) -> list[Difference]:
  """All arrays that are not bit-identical."""
  left, right = _arrays(a), _arrays(b)
  differences = []
  for name in sorted(left.keys() | right.keys(), key=_natural):
    x, y = left.get(name), right.get(name)
    shape_a, shape_b = (None if array is None else array.shape for array in (x, y))
    if x is None or y is None or shape_a != shape_b:
      # Infinite, so that no tolerance makes models of different shapes equal.
      differences.append(Difference(name, shape_a, shape_b, math.inf))
    elif not np.array_equal(x, y):
      differences.append(Difference(name, shape_a, shape_b, float(np.abs(x - y).max())))
  return differences


def _natural(name: str) -> list[str | int]:
  """The key of an order in which block_2 comes before block_10."""
  return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _arrays(model: LoadedModel) -> dict[str, np.ndarray]:
  """Parameters by path, without the rows of the tables that stand for no token."""
  arrays = flatten_dict(model.params, sep="/")
  tables = arrays.keys() & {f"trunk/{name}" for name in TABLES}
  return arrays | {name: arrays[name][: model.spec.num_tokens] for name in tables}


def _windows(texts: Sequence[np.ndarray], context: int) -> list[np.ndarray]:
  windows = []
  for ids in texts:
    windows += [ids[first : first + context] for first in range(0, len(ids), context)]
  if not any(len(ids) > 1 for ids in windows):
    raise InputError("no text of two tokens; give a longer one with --text=TEXT")
  return windows


def _compare_logits(models: Sequence[LoadedModel], windows: Sequence[np.ndarray]) -> dict[str, Any]:
  """The largest |difference| of logits, and the perplexities."""
  forwards = list(map(_make_forward, models))
  difference, nats, predicted = 0.0, np.zeros(2), 0
  for ids in windows:
    a, b = (forward(ids) for forward in forwards)
    difference = np.maximum(difference, np.abs(a - b).max())  # unlike max() it keeps a nan
    nats -= [float(token_log_probs(scores[:-1], ids[1:]).sum()) for scores in (a, b)]
    predicted += len(ids) - 1  # the first token of a window is not predicted
  if any(model.spec.attention != "causal" for model in models):
    return {"logits": float(difference)}  # a bidirectional model has seen what it would predict
  # exp overflows above 709.
  perplexities = np.exp(np.minimum(nats / predicted, 700))
  return {"logits": float(difference), "perplexities": tuple(perplexities.tolist())}


def _make_forward(model: LoadedModel) -> Callable[[np.ndarray], np.ndarray]:
  """Builds ids [T] -> logits float32 [T, V], or hidden states where the table is narrower."""
  trunk = dataclasses.replace(model.spec.trunk, dtype="float32")
  float32_model = ModelConfig(trunk, (), model.spec.attention).build()
  params = jax.device_put({"trunk": model.params["trunk"]})  # whatever heads it has

  @jax.jit
  def apply(params, ids):
    places = np.arange(ids.shape[1], dtype=np.int32)[None]
    states: Any = float32_model.apply({"params": params}, Rows(ids, places), method="states")
    hidden, table = states.hidden, states.table
    # A column more is a bias; else the trunk alone has no logits (ALBERT).
    if table.shape[1] - hidden.shape[-1] not in (0, 1):
      return hidden[0].astype(np.float32)
    return logits(hidden, table, trunk.vocab_size)[0, :, : trunk.vocab_size]

  def forward(ids):
    # Padded for few compiled shapes; both models read the same padding.
    row = np.zeros((1, bucket(len(ids), trunk.context)), np.int32)
    row[0, : len(ids)] = ids
    return np.asarray(apply(params, row))[: len(ids)]

  return forward


def _report(models: Sequence[LoadedModel], comparison: dict[str, Any], tolerance: float) -> None:
  for i, (letter, model) in enumerate(zip("ab", models, strict=True)):
    line = f"{letter}: {model.path}, {model.spec.trunk.parameter_count():,} parameters"
    if comparison["perplexities"]:
      line += f", perplexity {comparison['perplexities'][i]:.6g}"
    print(line)
  if comparison["vocabulary"]:
    print(f"different vocabularies, {comparison['vocabulary']}")
  if comparison["array"]:
    name, shape_a, shape_b, difference = comparison["array"]
    if shape_a == shape_b:
      details = f"max |difference| {difference:.3g} of {list(shape_a)}"
    else:
      shapes = ["absent" if shape is None else str(list(shape)) for shape in (shape_a, shape_b)]
      details = " and ".join(shapes)
    print(f"arrays that differ: {comparison['differing']}, the first {name}, {details}")
  else:
    print("all arrays are bit-identical")
  if comparison["logits"] is not None:
    print(f"max |difference| of logits: {comparison['logits']:.3g}")
  print(f"{'equal' if comparison['equal'] else 'not equal'} within {tolerance:g}")
