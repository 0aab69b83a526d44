"""OpenAI's release of GPT-1 (finetune-transformer-lm, model/): weights in ten files, vocabulary.

`params_0.npy` to `params_9.npy` are consecutive pieces of one vector: positions, tokens, then
twelve arrays per block. `params_shapes.json` has the shapes of these arrays; kernels have a leading
axis of size 1, that of a convolution.
"""

import itertools
import json
import math
import os
import tokenize
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt_jax.checkpoints.formats import Check, accept, layout
from gpt_jax.config import from_json, to_json
from gpt_jax.data.tokenizers.base import Tokenizer, load_released
from gpt_jax.data.tokenizers.gpt1 import KINDS
from gpt_jax.data.tokenizers.openai_files import FILES, is_release, read_files
from gpt_jax.errors import InputError, about
from gpt_jax.files import atomic_folder, read_json
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig

HELP = "GPT-1 as OpenAI released it"
SHAPES, PIECES = "params_shapes.json", [f"params_{i}.npy" for i in range(10)]
HEADS = 12  # in OpenAI's code (openai/train.py:340); the files do not say
_HEADER = 128  # bytes of a piece's .npy header as NumPy writes it now; in 2018 it was 80


def detect(path: str) -> bool:
  return any(os.path.isfile(os.path.join(path, name)) for name in (SHAPES, PIECES[0]))


def load(folder: str, check: Check = accept) -> tuple[dict, dict, int, Tokenizer]:
  """Reads the release: params as float32 NumPy arrays, meta, step 0, tokenizer.

  The table rows of the special tokens, which the release lacks, are zero; fine-tuning initializes
  them, and nothing reads them before.
  """
  if not is_release(folder):
    read_files(folder)  # raises InputError, which names the missing file
  tokenizer = load_released(folder)
  if tokenizer.kind not in KINDS:
    files = ", ".join(FILES[0])
    raise InputError(f"{folder}: a vocabulary of {tokenizer.kind}; should be GPT-1's, {files}")
  trunk = _read_shapes(os.path.join(folder, SHAPES), tokenizer)
  meta = {"model": to_json(ModelConfig(trunk)), "tokenizer_hash": tokenizer.hash}
  check(meta)
  pieces = [_open(os.path.join(folder, name)) for name in PIECES]
  sizes = list(map(math.prod, _shapes(trunk)))
  size, expected_size = sum(map(len, pieces)), sum(sizes)
  if size != expected_size:
    raise InputError(
      f"{folder}: {PIECES[0]} to {PIECES[-1]} hold {size:,} numbers, and {SHAPES} has "
      f"{expected_size:,}; copy them again"
    )
  parts = np.split(np.asarray(np.concatenate(pieces)), np.cumsum(sizes)[:-1])
  # Positions come before tokens in the files; OpenAI's code joins them to one table, tokens first
  # and the rows of the special tokens between (openai/train.py:410).
  tokens = np.zeros((trunk.rows, trunk.width), np.float32)
  tokens[: trunk.vocab_size] = parts[1].reshape(-1, trunk.width)
  arrays = {"positions": parts[0].reshape(-1, trunk.width), "tokens": tokens}
  for array, part in zip(layout.of_blocks(trunk), parts[2:], strict=True):
    arrays[array.ours] = part.reshape(array.our_shape)
  if broken := next((name for name, x in arrays.items() if not np.isfinite(x).all()), None):
    raise InputError(f"{folder}: {broken} holds numbers that are not finite; copy the files again")
  meta["openai_pieces"] = [[len(piece), piece.offset] for piece in pieces]
  return {"trunk": unflatten_dict(arrays, sep="/")}, meta, 0, tokenizer


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """Writes a folder like OpenAI's; after `load` of a release, byte for byte its files."""
  spec = from_json(meta["model"])
  _check_is_gpt1(spec, tokenizer)
  trunk = spec.trunk
  shapes = _shapes(trunk)
  size, remainder = divmod(sum(map(math.prod, shapes)), len(PIECES))
  sizes = [size + 1] * remainder + [size] * (len(PIECES) - remainder)
  layout_of_pieces = meta.get("openai_pieces") or [[size, _HEADER] for size in sizes]
  arrays = flatten_dict(params["trunk"], sep="/")
  arrays["tokens"] = arrays["tokens"][: trunk.vocab_size]
  names = ["positions", "tokens", *(array.ours for array in layout.of_blocks(trunk))]
  with atomic_folder(folder) as partial:
    with open(os.path.join(partial, SHAPES), "w", encoding="utf-8") as file:
      json.dump(shapes, file)
    for name, content in tokenizer.files.items():
      with open(os.path.join(partial, name), "wb") as file:
        file.write(content)
    # Pieces end anywhere, not with an array.
    vector = np.concatenate([np.asarray(arrays[name], "<f4").reshape(-1) for name in names])
    for name, (count, header) in zip(PIECES, layout_of_pieces, strict=True):
      with open(os.path.join(partial, name), "wb") as file:
        file.write(_header(count, header))
        file.write(vector[:count].data)
      vector = vector[count:]


def _check_is_gpt1(spec: ModelConfig, tokenizer: Tokenizer) -> None:
  if kind := layout.other_than_gpt(spec):
    raise InputError(
      f"format=openai: holds causal Transformers only, this is {kind}; npz can hold it"
    )
  trunk, problem = spec.trunk, None
  if tokenizer.kind not in KINDS:
    problem = f"its vocabulary is of the kind {tokenizer.kind}"
  elif spec.head:
    problem = "it is fine-tuned, and the files have no place for W_y and the special tokens"
  elif trunk.norm != "post":
    problem = "it is pre-norm, as GPT-2"
  elif trunk.heads != HEADS:
    problem = f"it has {trunk.heads} heads and not {HEADS}"
  elif trunk.activation != "gelu_tanh":
    problem = f"it has activation={trunk.activation} and not gelu_tanh"
  if problem:
    raise InputError(
      f"format=openai: holds GPT-1 with OpenAI's vocabulary only, and {problem}; hf and npz hold it"
    )


def _shapes(trunk: TransformerConfig) -> list[tuple[int, ...]]:
  """The shapes of all arrays, as in params_shapes.json."""
  blocks = [array.shape for array in layout.of_blocks(trunk)]
  kernels = [(1, *shape) if len(shape) == 2 else shape for shape in blocks]
  return [(trunk.context, trunk.width), (trunk.vocab_size, trunk.width), *kernels]


def _read_shapes(path: str, tokenizer: Tokenizer) -> TransformerConfig:
  """The model config that has the shapes of params_shapes.json."""
  try:
    shapes = list(map(tuple, read_json(path)))
    sizes = itertools.chain.from_iterable(shapes)
    if not all(type(size) is int and size > 0 for size in sizes):
      raise ValueError("a size is no number above 0")
    (context, width), (vocab_size, _), *blocks = shapes
  except (OSError, ValueError, TypeError) as error:
    raise InputError(f"{path}: not the shapes of a release ({error}); copy it again") from error
  if vocab_size != tokenizer.vocab_size:
    raise InputError(
      f"{path}: {vocab_size:,} rows of tokens, and the vocabulary has {tokenizer.vocab_size:,}"
    )
  if width % HEADS:
    raise InputError(
      f"{path}: a width of {width}: should be a multiple of {HEADS}, OpenAI's number of heads"
    )
  with about(path):
    trunk = TransformerConfig(
      vocab_size, context=context, layers=max(1, len(blocks) // 12), width=width, heads=HEADS
    )
  for number, (shape, wanted) in enumerate(zip(shapes, _shapes(trunk), strict=False)):
    if shape != wanted:
      raise InputError(
        f"{path}: array {number} has the shape {list(shape)}: should be {list(wanted)}"
      )
  if len(shapes) != len(_shapes(trunk)):
    raise InputError(f"{path}: {len(shapes)} shapes: should be 2, and 12 a block")
  return trunk


def _open(path: str) -> np.memmap:
  """A piece as a memory map."""
  try:
    piece = np.lib.format.open_memmap(path, mode="r")  # reads neither pickles nor zips
    if piece.ndim != 1 or piece.dtype != np.dtype("<f4"):
      raise ValueError("should be one vector of float32")
    if os.path.getsize(path) != piece.offset + piece.nbytes:
      raise ValueError("is longer than it says")
    return piece
  except FileNotFoundError as error:
    raise InputError(f"{path}: missing; a release has {PIECES[0]} to {PIECES[-1]}") from error
  except (OSError, ValueError, OverflowError, tokenize.TokenError) as error:
    # The last two come out of NumPy's parser of headers.
    raise InputError(f"{path}: not a piece of a release ({error}); copy it again") from error


def _header(count: int, size: int) -> bytes:
  """The header of an .npy file of float32 [count], version 1.0, padded to `size` bytes."""
  # 10 bytes come before this text: magic string 6, version 2, length of the text 2.
  text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}"
  return (
    b"\x93NUMPY\x01\x00"
    + (size - 10).to_bytes(2, "little")
    + text.ljust(size - 11).encode()
    + b"\n"
  )
