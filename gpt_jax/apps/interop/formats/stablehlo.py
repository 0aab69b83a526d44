"""The model as StableHLO by `jax.export`, to run with jax alone on a CPU, a GPU or a TPU.

`jax.export.deserialize(bytes).call(ids)` gives the logits; model.json says of which ids, and which
further inputs come after them.
"""

import functools
from typing import Any

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

HELP = "export only: model.stablehlo, for jax alone (jax.export), extra 'stablehlo'"
NAME = "stablehlo"
PLATFORMS = ("cpu", "cuda", "tpu")
detect = functools.partial(detect_function, NAME)
load = functools.partial(refuse_to_load, NAME)


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  require("flatbuffers", "format=stablehlo", "flatbuffers", "stablehlo")
  save_function(folder, NAME, _write, params, meta, step, tokenizer)


def _write(path: str, function: Function, context: int) -> None:
  sizes = export.symbolic_shape(
    ", ".join(map(str, function.shape)), constraints=["N >= 1", "T >= 1", f"T <= {context}"]
  )
  inputs = [jax.ShapeDtypeStruct(sizes, jnp.int32) for _ in function.inputs]
  # One file with a program for each platform; none of the devices needs to be here.
  exported = export.export(jax.jit(function.call), platforms=PLATFORMS)(*inputs)
  with open(path, "wb") as file:
    file.write(exported.serialize())
