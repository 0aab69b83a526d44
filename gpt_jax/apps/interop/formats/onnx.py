"""The model as ONNX, for onnxruntime and others; model.json says of which ids it gives the logits.

Needs the extra 'onnx'.
"""

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from gpt_jax.apps.interop.formats import onnx_tfidf
from gpt_jax.apps.interop.formats.function import (
  Function,
  detect_function,
  refuse_to_load,
  save_function,
)
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import require

HELP = "export only: model.onnx, for onnxruntime and others, extra 'onnx'"
NAME = "onnx"
detect = functools.partial(detect_function, NAME)
load = functools.partial(refuse_to_load, NAME)


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  if "tfidf" in params:
    onnx_tfidf.save(folder, params, meta)
    return
  check_package()  # fail before the expensive part
  save_function(folder, NAME, write, params, meta, step, tokenizer)


def check_package() -> None:
  """Refuses to go on without jax2onnx."""
  with _patches_undone():
    _library()


def _library() -> Any:
  # It warns of each library whose operations it cannot convert, and we use none of them; and of
  # the sizes that stay open.
  for name in ("jax2onnx", "onnx_ir"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  return require("jax2onnx", "format=onnx", "jax2onnx", "onnx")


@contextlib.contextmanager
def _patches_undone() -> Iterator[None]:
  """Afterwards JAX is as it was: jax2onnx replaces some of its functions, jnp.cumsum for one, by
  others that take fewer arguments.
  """
  modules = [
    module for name, module in list(sys.modules.items()) if name.split(".")[0] in ("jax", "flax")
  ]
  before = [dict(vars(module)) for module in modules]
  try:
    yield
  finally:
    for module, names in zip(modules, before, strict=True):
      vars(module).update(names)


def write(path: str, function: Function, context: int) -> None:
  del context  # ONNX has no ranges of sizes
  sizes = export.symbolic_shape(", ".join(map(str, function.shape)))
  with _patches_undone():
    model = _library().to_onnx(
      function.call,
      inputs=[jax.ShapeDtypeStruct(sizes, jnp.int32) for _ in function.inputs],
      model_name="gpt_jax",
      input_names=list(function.inputs),
      output_names=["logits"],
    )
  with open(path, "wb") as file:
    file.write(model.SerializeToString())
