"""The model as ONNX, for onnxruntime and others; model.json says of which ids it gives the logits.

Needs the extra 'onnx'.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import export

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


def detect(path: str) -> bool:
  return detect_function(path, NAME)


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """See save_function."""
  check_package()  # fail before the expensive part
  save_function(folder, NAME, write, params, meta, step, tokenizer)


def load(path: str) -> NoReturn:
  """Raises InputError: the program cannot be turned back into parameters."""
  raise refuse_to_load(NAME, path)


def check_package() -> None:
  """Raises InputError if jax2onnx is not installed."""
  with _patches_undone():
    _library()


def _library() -> Any:
  """The jax2onnx package. Raises InputError if it is not installed."""
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
      for name, value in names.items():
        if vars(module).get(name) is not value:
          setattr(module, name, value)


def write(path: str, function: Function, context: int) -> None:
  """Writes the function as an ONNX file; see save_function."""
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
