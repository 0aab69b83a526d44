"""The program that compares two trained models, in whatever formats: their arrays, and what they
say of a text.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from gpt_jax.batch import Rows
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.errors import InputError
from gpt_jax.inference.scoring import bucket
from gpt_jax.models.model import ModelConfig
from gpt_jax.ops.cross_entropy import logits, token_log_probs


def run(a: str, b: str, texts: Sequence[str], tolerance: float = 1e-4) -> dict[str, Any]:
  """Prints, and returns, what sets two models apart.

  Args:
    a, b: see load_model.
    texts: read by both models, in float32, in windows of the shorter context.
    tolerance: of any logit and any number in the arrays.

  Returns:
    `equal`; `logits`, the largest |difference| over all tokens of the vocabulary at every place; `perplexities` of the
    two on the texts, a window's first token not counted; `array`, the first that differs at all, as (name, shape in a,
    shape in b, largest |difference|), shapes None where there is none; `differing`, how many such arrays there are;
    `vocabulary`, in words. None where there is nothing to compare or no difference.

  Raises:
    InputError: a path that is no model, or no text of two tokens.
  """
  if not texts:
    raise InputError("no text: give one with --text=TEXT")
  if not tolerance >= 0:
    raise InputError(f"--tolerance={tolerance}: must be at least 0")
  models = [load_model(path) for path in (a, b)]
  tokenizers = [model.tokenizer for model in models]
  same = tokenizers[0].hash == tokenizers[1].hash
  differing = _differing(*models)
  found = {
    "logits": None,
    "perplexities": None,
    "array": differing[0] if differing else None,
    "differing": len(differing),
    "vocabulary": None if same else f"of b: {tokenizers[0].difference(tokenizers[1].hash)}",
  }
  if tokenizers[0].vocab_size == tokenizers[1].vocab_size:
    windows = _windows(
      tokenizers[0].encode_many(list(texts)), min(model.spec.trunk.context for model in models)
    )
    found |= _compare(models, windows)
  # Written so that nan is not equal.
  arrays = all(difference <= tolerance for *_, difference in differing)
  found["equal"] = same and arrays and found["logits"] is not None and found["logits"] <= tolerance
  _report(models, found, tolerance)
  return found


def _differing(a: LoadedModel, b: LoadedModel) -> list[tuple]:
  """(name, shapes, largest |difference|) of all arrays that are not the same bit for bit."""
  left, right = _arrays(a), _arrays(b)
  found = []
  for name in sorted(left.keys() | right.keys(), key=_number_by_number):
    x, y = left.get(name), right.get(name)
    shapes = [None if array is None else array.shape for array in (x, y)]
    if shapes[0] != shapes[1]:
      found.append((name, *shapes, math.inf))
    elif not np.array_equal(x, y):
      found.append((name, *shapes, float(np.abs(x - y).max())))
  return found


def _number_by_number(name: str) -> list[str | int]:
  """block_2 before block_10."""
  return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _arrays(model: LoadedModel) -> dict[str, np.ndarray]:
  """By name; of the table the rows that are tokens, since what the others hold is of no
  consequence.
  """
  arrays = flatten_dict(model.params, sep="/")
  rows = model.spec.num_tokens
  return arrays | {"trunk/tokens": arrays["trunk/tokens"][:rows]}


def _windows(texts: Sequence[np.ndarray], context: int) -> list[np.ndarray]:
  windows = [ids[first : first + context] for ids in texts for first in range(0, len(ids), context)]
  if not any(len(ids) > 1 for ids in windows):
    raise InputError("no text of two tokens; give a longer one with --text=TEXT")
  return windows


def _compare(models: Sequence[LoadedModel], windows: Sequence[np.ndarray]) -> dict[str, Any]:
  """The largest |difference| of logits, and the perplexities."""
  readers = [_reader(model) for model in models]
  difference, nats, predicted = 0.0, np.zeros(2), 0
  for ids in windows:
    a, b = (read(ids) for read in readers)
    difference = np.maximum(difference, np.abs(a - b).max())  # unlike max() it keeps a nan
    nats -= [float(token_log_probs(scores[:-1], ids[1:]).sum()) for scores in (a, b)]
    predicted += len(ids) - 1
  return {
    "logits": float(difference),
    "perplexities": tuple(np.exp(np.minimum(nats / predicted, 700)).tolist()),
  }


def _reader(model: LoadedModel):
  """ids [T] -> logits float32 [T, V]."""
  trunk = dataclasses.replace(model.spec.trunk, dtype="float32")
  float32_model = ModelConfig(trunk, (), model.spec.attention).build()
  params = jax.device_put({"trunk": model.params["trunk"]})

  @jax.jit
  def scores(params, ids):
    places = np.arange(ids.shape[1], dtype=np.int32)[None]
    hidden, table = float32_model.apply({"params": params}, Rows(ids, places), method="states")
    return logits(hidden, table, trunk.vocab_size)[0, :, : trunk.vocab_size]

  def read(ids):
    row = np.zeros((1, bucket(len(ids), trunk.context)), np.int32)
    row[0, : len(ids)] = ids
    return np.asarray(scores(params, row))[: len(ids)]

  return read


def _report(models: Sequence[LoadedModel], found: dict[str, Any], tolerance: float) -> None:
  for letter, model, perplexity in zip(
    "ab", models, found["perplexities"] or ("", ""), strict=True
  ):
    said = f", perplexity {perplexity:.6g}" if perplexity != "" else ""
    print(f"{letter}: {model.path}, {model.spec.trunk.parameter_count():,} parameters{said}")
  if found["vocabulary"]:
    print(f"another vocabulary {found['vocabulary']}")
  if found["array"]:
    name, *shapes, difference = found["array"]
    what = (
      f"max |difference| {difference:.3g} of {list(shapes[0])}"
      if shapes[0] == shapes[1]
      else _shapes(*shapes)
    )
    print(f"first array that differs, of {found['differing']}: {name}, {what}")
  else:
    print("all arrays are the same, bit for bit")
  if found["logits"] is not None:
    print(f"max |difference| of logits: {found['logits']:.3g}")
  print(f"{'equal' if found['equal'] else 'not equal'} within {tolerance:g}")


def _shapes(a: tuple | None, b: tuple | None) -> str:
  return " and ".join("absent" if shape is None else str(list(shape)) for shape in (a, b))
