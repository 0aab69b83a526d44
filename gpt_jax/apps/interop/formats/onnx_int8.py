"""A classifier as ONNX with weights of 8 bits, written only if it answers as with 32.

onnxruntime's dynamic quantization: a scale for each output of a matrix, activations rounded at each
call. Tables have a scale for each row. Needs the extras 'onnx' and 'metrics'.
"""

import collections
import functools
import logging
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.interop.formats import onnx
from gpt_jax.apps.interop.formats.function import (
  IDS,
  MASK,
  TYPES,
  Function,
  refuse_to_load,
  save_function,
)
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import require
from gpt_jax.inference.agreement import Agreement, compare_labels
from gpt_jax.tasks.encoding import Encoded

HELP = "export only: as onnx, weights of 8 bits; measured on --data, see --keep"
NAME = "onnx_int8"
_BATCH = 16
_MAX_INT8 = 127
_PLAIN = {"alpha": 1.0, "beta": 0.0}  # a Gemm's factors of product and summand
load = functools.partial(refuse_to_load, NAME)


def detect(path: str) -> bool:
  del path  # the file is that of the format onnx, which says that it cannot be read back
  return False


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """See save_function; prints sizes, and shares of float32 with 95 % intervals.

  Args:
    meta: with "gate": labeled examples, and the least share to keep, see Agreement.check.
  """
  _require("onnxruntime")
  onnx.check_package()
  write = functools.partial(_write, *meta["gate"])
  save_function(folder, onnx.NAME, write, params, meta, step, tokenizer)


def _write(encoded: Encoded, keep: float, path: str, function: Function, context: int) -> None:
  with tempfile.TemporaryDirectory() as folder:
    exact = os.path.join(folder, "model.onnx")
    onnx.write(exact, function, context)
    _quantize(exact, path)
    agreement = compare(exact, path, encoded, function.inputs)
    old, new = os.path.getsize(exact), os.path.getsize(path)
  found = agreement.measures
  print(
    f"{old / 1e6:.1f} MB in float32, {new / 1e6:.1f} in int8\n"
    f"accuracy {found['accuracy_float32']:.1%} in float32, {found['accuracy']:.1%} in int8\n"
    f"{agreement.kept['accuracy']:.2%} of the accuracy is left; it changes by "
    f"{100 * found['accuracy_change_low']:+.2f} to {100 * found['accuracy_change_high']:+.2f} "
    f"points (95 %)\nthe same label for {found['same_label']:.2%} of {len(agreement.same):,} "
    f"examples ({found['same_label_low']:.2%} to {found['same_label_high']:.2%}, 95 %)"
  )
  agreement.check(keep, "int8", "nothing is written")


def _require(module: str) -> Any:
  return require(module, "format=onnx_int8", module.partition(".")[0], "onnx")


def _quantize(source: str, path: str) -> None:
  quantization, library = _require("onnxruntime.quantization"), _require("onnx")
  model = library.load(source)
  summands = set()
  for node in model.graph.node:
    if node.op_type == "Gemm" and {x.name: x.f for x in node.attribute} == _PLAIN:
      # onnxruntime quantizes no Gemm. This one, which adds nothing to a product, is a MatMul.
      node.op_type = "MatMul"
      summands |= {*node.input[2:]}
      del node.input[2:], node.attribute[:]
  for array in list(model.graph.initializer):
    if array.name in summands:  # onnxruntime would warn of each
      model.graph.initializer.remove(array)
  library.save(model, source)
  _quantize_tables(model.graph, library)
  logging.disable(logging.WARNING)  # it advises to fold batch norms, of which there are none
  try:
    quantization.quantize_dynamic(
      model,
      path,
      op_types_to_quantize=["MatMul"],
      per_channel=True,
      weight_type=quantization.QuantType.QInt8,
    )
  finally:
    logging.disable(logging.NOTSET)


def _quantize_tables(graph: Any, library: Any) -> None:
  """Gives each row of a table that is looked up 8 bits and a scale; onnxruntime has one for all."""
  arrays, nodes = {array.name: array for array in graph.initializer}, []
  uses = collections.Counter(name for node in graph.node for name in node.input)
  for node in graph.node:
    table = arrays.get(node.input[0]) if node.op_type == "Gather" else None
    looks_up_rows = not any(attribute.i for attribute in node.attribute)  # along axis 0
    if table is None or len(table.dims) != 2 or uses[table.name] > 1 or not looks_up_rows:
      nodes.append(node)
      continue
    values = library.numpy_helper.to_array(table)
    scales = np.abs(values).max(axis=1, keepdims=True) / _MAX_INT8
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    parts = {"scales": scales, "int8": np.round(values / scales).astype(np.int8)}
    graph.initializer.remove(table)
    indices, rows = node.input[1], node.output[0]
    make = library.helper.make_node
    for kind, part in parts.items():
      graph.initializer.append(library.numpy_helper.from_array(part, f"{table.name}_{kind}"))
      nodes.append(make("Gather", [f"{table.name}_{kind}", indices], [f"{rows}_{kind}"], axis=0))
    nodes.append(make("Cast", [f"{rows}_int8"], [f"{rows}_float"], to=library.TensorProto.FLOAT))
    nodes.append(make("Mul", [f"{rows}_float", f"{rows}_scales"], [rows]))
  del graph.node[:]
  graph.node.extend(nodes)


def compare(exact: str, path: str, encoded: Encoded, inputs: Sequence[str]) -> Agreement:
  """The labels by both files, float32 first, for the examples; inputs: see Function."""
  runtime = _require("onnxruntime")
  sessions = runtime.InferenceSession(exact), runtime.InferenceSession(path)
  labels: list[list[np.ndarray]] = [[], []]
  for first in range(0, len(encoded), _BATCH):
    arrays = _arrays(encoded, range(first, min(first + _BATCH, len(encoded))), inputs)
    for found, session in zip(labels, sessions, strict=True):
      found.append(session.run(None, arrays)[0].argmax(-1))
  before, after = map(np.concatenate, labels)
  return compare_labels(before, after, encoded)


def _arrays(
  encoded: Encoded, numbers: Sequence[int], inputs: Sequence[str]
) -> dict[str, np.ndarray]:
  """The function's inputs for some examples, int32 [N, T] or [N, C, T] each."""
  sequences = encoded.lengths.shape[1]
  length = int(encoded.lengths[list(numbers)].max())
  arrays = {name: np.zeros((len(numbers), sequences, length), np.int32) for name in inputs}
  for row, c in np.ndindex(len(numbers), sequences):
    ids = encoded.sequence(numbers[row], c)
    arrays[IDS][row, c, : len(ids)] = ids
    if MASK in arrays:
      arrays[MASK][row, c, : len(ids)] = 1
    if TYPES in arrays:
      types = encoded.sequence_types(numbers[row], c)
      arrays[TYPES][row, c, : len(ids)] = 0 if types is None else types
  return {name: x[:, 0] if sequences == 1 else x for name, x in arrays.items()}
