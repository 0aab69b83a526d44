"""The weights file of a transformers folder."""

import importlib
import os
import re
import warnings
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from gpt_jax.checkpoints.formats import safetensors
from gpt_jax.checkpoints.formats.folder import read_object
from gpt_jax.errors import InputError
from gpt_jax.files import open_regular, read_json

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
INDEX = ".index.json"  # names the files of weights in several
MODULES = "modules.json"  # of sentence-transformers
# In the order of transformers.
_NAMES = tuple(f"{name}{suffix}" for name in WEIGHTS for suffix in ("", INDEX))
# Rows of a table beyond the vocabulary: published ones have 47 (GPT-2), 28 (T5) and 1,000 (a BERT).
_MOST_PADDING = 1024
# As TensorFlow called them, which old files keep.
_OLD_NAMES = ((re.compile(r"\.gamma$"), ".weight"), (re.compile(r"\.beta$"), ".bias"))


class Weights(NamedTuple):
  """An open weights file; names are without the family's prefix."""

  path: str
  shapes: dict[str, tuple[int, ...]]
  read: Callable[[str], np.ndarray]  # name -> float32 array
  notes: dict[str, str]  # metadata of the file


def detect(path: str) -> bool:
  """Whether path is a folder with such a file, or the file."""
  if os.path.isfile(path):
    suffixes = (".safetensors", ".bin", *(f"{name}{INDEX}" for name in WEIGHTS))
    return path.endswith(suffixes) and not safetensors.detect(path)
  path = os.path.join(path, first_module(path))
  return any(os.path.isfile(os.path.join(path, name)) for name in _NAMES)


def find(path: str) -> tuple[str, str]:
  """The folder, and the weights file in it, or the index of several."""
  if os.path.isfile(path):
    return os.path.dirname(path) or ".", path
  path = os.path.join(path, first_module(path)).rstrip(os.sep)
  for name in _NAMES:
    if os.path.isfile(os.path.join(path, name)):
      return path, os.path.join(path, name)
  names = " or ".join(WEIGHTS)
  raise InputError(f"{path}: no {names} here; give a folder that save_pretrained wrote")


def first_module(folder: str) -> str:
  """The folder of the model in one of sentence-transformers: "", or 0_BERT in older ones."""
  try:
    name = read_json(os.path.join(folder, MODULES))[0].get("path") or ""
    return os.path.basename(os.path.normpath(name)) if name else ""
  except (OSError, ValueError, TypeError, LookupError, AttributeError):
    return ""  # read_embedding says what is wrong with it


def open_weights(path: str, prefix: str, ties: dict[str, str]) -> Weights:
  """Opens the file; of tied names, one that the file lacks stands for the other."""
  weights = _open(path, prefix)
  names = {name: name for name in weights.shapes}
  for other, name in ties.items():
    if other in names and name in names:
      if not np.array_equal(weights.read(other), weights.read(name)):
        raise InputError(f"{path}: {other} is not {name}, of which it should be a copy")
    elif other in names:
      names[name] = other
    names.pop(other, None)
  shapes = {name: weights.shapes[stored] for name, stored in names.items()}
  return weights._replace(shapes=shapes, read=lambda name: weights.read(names[name]))


def without_padding(
  path: str, weights: Weights, tables: Iterable[str], stored: int, rows: int
) -> Weights:
  """Leaves out the rows of tables beyond the vocabulary, which many models have for speed.

  Args:
    path: of config.json, whose vocab_size is `stored`.
    rows: of the vocabulary and its special tokens.
  """
  shapes = dict(weights.shapes)
  padded = {name for name in tables if shapes.get(name, ())[:1] == (stored,)}
  if not (stored == rows or padded and rows < stored <= rows + _MOST_PADDING):
    raise InputError(f"{path}: vocab_size is {stored:,}, and the vocabulary has {rows:,}")
  shapes |= {name: (rows, *shapes[name][1:]) for name in padded}

  def read(name: str) -> np.ndarray:
    values = weights.read(name)
    return values[:rows] if name in padded else values

  return weights._replace(shapes=shapes, read=read)


def check_arrays(
  weights: Weights,
  expected: dict[str, tuple[int, ...]],
  model_type: str,
  ignored: re.Pattern[str],
  heads: re.Pattern[str],
  architecture: str,
) -> None:
  """Refuses a missing, unknown or misshapen array; warns of a head that is left out, with
  transformers' class, `architecture`.
  """
  path = weights.path
  for name, wanted in expected.items():
    shape = weights.shapes.get(name)
    if shape is None:
      raise InputError(f"{path}: holds no {name}, which {model_type} has")
    if shape != wanted:
      raise InputError(f"{path}: {name} has the shape {list(shape)}: should be {list(wanted)}")
  extra = sorted(weights.shapes.keys() - expected.keys())
  extra = [name for name in extra if not ignored.fullmatch(name)]
  left_out = list(filter(heads.fullmatch, extra))
  for name in extra:
    if name not in left_out:
      raise InputError(f"{path}: holds {name}, which no {model_type} has")
  if left_out:
    warnings.warn(
      f"{path}: {left_out[0]} is left out: of {architecture} only the trunk is read", stacklevel=5
    )


def _names(names: Iterable[str], prefix: str) -> dict[str, str]:
  """Name without the prefix, as now written -> name in the file."""
  result = {}
  for name in names:
    short = name.removeprefix(prefix)
    for old, new in _OLD_NAMES:
      short = old.sub(new, short)
    result[short] = name
  return result


def _open(path: str, prefix: str) -> Weights:
  if path.endswith(INDEX):
    return _open_shards(path, prefix)
  return (_open_torch if path.endswith(".bin") else _open_safetensors)(path, prefix)


def _open_shards(path: str, prefix: str) -> Weights:
  """The files that an index names, as one."""
  try:
    shards = set(read_object(path)["weight_map"].values())
    for shard in shards:
      here = os.path.join(os.path.dirname(path), os.path.basename(shard))
      is_beside = shard == os.path.basename(shard) and os.path.isfile(here)
      if not is_beside or shard.endswith(INDEX):
        raise ValueError(f"{shard!r} is not there, or an index itself")
  except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
    raise InputError(
      f"{path}: should map arrays to the files beside it ({error}); copy it again"
    ) from error
  owners: dict[str, Weights] = {}
  for shard in sorted(shards):
    part = _open(os.path.join(os.path.dirname(path), shard), prefix)
    owners |= dict.fromkeys(part.shapes, part)
  shapes = {name: part.shapes[name] for name, part in owners.items()}
  return Weights(path, shapes, lambda name: owners[name].read(name), {})


def _open_safetensors(path: str, prefix: str) -> Weights:
  library = safetensors.library()
  try:
    open_regular(path).close()  # safe_open would wait for the writer of a pipe
    file = library.safe_open(path, framework="np")
    names = _names(file.keys(), prefix)
    # Types and shapes come from the header; no array is read yet.
    slices = {name: (stored, file.get_slice(stored)) for name, stored in names.items()}
  except (OSError, ValueError, library.SafetensorError) as error:
    raise InputError(f"{path}: not a safetensors file ({error}); copy it again") from error

  def read(name: str) -> np.ndarray:
    full_name, part = slices[name]
    if part.get_dtype() not in ("F32", "F16", "BF16"):
      raise InputError(f"{path}: {full_name} is {part.get_dtype()}: should be F32, F16 or BF16")
    return np.asarray(file.get_tensor(full_name), np.float32)

  shapes = {name: tuple(part.get_shape()) for name, (_, part) in slices.items()}
  return Weights(path, shapes, read, file.metadata() or {})


def _open_torch(path: str, prefix: str) -> Weights:
  try:
    torch = importlib.import_module("torch")
  except ImportError as error:
    raise InputError(
      f"{path}: is read by torch, which is not installed; a model.safetensors needs none"
    ) from error
  try:
    # weights_only: tensors and containers alone are unpickled, no code is run.
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    names = _names(tensors, prefix)
    shapes = {name: tuple(tensors[names[name]].shape) for name in names}
  except Exception as error:  # a damaged or foreign pickle can raise anything
    reason = str(error).partition("\n")[0].partition(". ")[0]
    raise InputError(
      f"{path}: torch.load(weights_only=True) refuses it ({type(error).__name__}: {reason})"
    ) from error

  def read(name: str) -> np.ndarray:
    tensor = tensors[names[name]]
    if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
      raise InputError(
        f"{path}: {names[name]} is {tensor.dtype}: should be float32, float16 or bfloat16"
      )
    if tensor.is_meta or tensor.layout != torch.strided:
      kind = "on the meta device" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
      raise InputError(f"{path}: {names[name]} is {kind}: should be a dense tensor with its values")
    # By force, since a saved Parameter requires a gradient.
    return tensor.to(torch.float32).numpy(force=True)

  return Weights(path, shapes, read, {})
