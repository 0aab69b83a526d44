"""Our own exports: a folder of weights, config, tokenizer and checksums.

Reading one needs neither JAX nor this package. The arrays are in `weights.npz` or
`weights.safetensors` (float32; an array's name is its path, e.g. `trunk/block_0/mlp/in/kernel`),
beside `config.json`, `tokenizer/`, and the checksums of all files in `sha256.json`. The embedding
table is complete: the vocabulary, the special tokens, then unused rows.
"""

import dataclasses
import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt_jax.checkpoints.formats import Check, accept
from gpt_jax.config import from_json
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError, about
from gpt_jax.files import MAX_JSON, atomic_folder, open_regular, read_json, write_json
from gpt_jax.models.model import ModelConfig, parameter_shapes

CONFIG, SUMS, TOKENIZER = "config.json", "sha256.json", "tokenizer"
Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[str, tuple[int, ...]]]  # name -> NumPy's name of the type, shape


@dataclasses.dataclass(frozen=True)
class Export:
  """A format whose arrays are in one file; its methods are those of formats.Format."""

  weights: str  # name of the file
  write: Callable[[str, Arrays, dict], None]  # write(path, arrays by name, config.json)
  describe: Callable[[str], Shapes]  # describe(path) -> what `read` would read, without reading it
  read: Callable[[str], Arrays]  # read(path) -> arrays by name
  # Exceptions that both raise for a damaged file, besides OSError and ValueError
  damage: type[Exception] = ValueError

  def detect(self, path: str) -> bool:
    """Whether path is such an export, perhaps damaged: its folder, or the file."""
    if os.path.isfile(path):
      return os.path.basename(path) == self.weights
    if os.path.isfile(os.path.join(path, self.weights)):
      return True
    try:
      return self.weights in read_object(os.path.join(path, SUMS))
    except (OSError, ValueError):
      return False

  def save(self, folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
    """Writes an export atomically; keeps the export that exists if it is the same."""
    exists = self.detect(folder)
    if os.path.lexists(folder) and not exists:
      raise InputError(
        f"{folder} exists and is not an earlier export, with a {self.weights} of ours; choose "
        "another place"
      )
    config = {"format": self._name, "step": step, **meta}
    with atomic_folder(folder, _check_same if exists else None) as partial:
      arrays = {}
      for name, array in flatten_dict(params, sep="/").items():
        arrays[name] = np.asarray(array, np.float32, order="C")  # a scalar stays one
      self.write(os.path.join(partial, self.weights), arrays, config)
      write_json(os.path.join(partial, CONFIG), config)
      tokenizer.save(os.path.join(partial, TOKENIZER))
      write_sums(partial)

  def load(self, folder: str, check: Check = accept) -> tuple[dict, dict, int, Tokenizer]:
    """Reads and verifies an export: its folder, or the weights file in it."""
    folder = os.path.dirname(folder) if os.path.isfile(folder) else folder
    path = os.path.join(folder, self.weights)
    try:
      check_sums(folder, (self.weights, CONFIG, f"{TOKENIZER}/tokenizer.json"))
      meta = read_object(os.path.join(folder, CONFIG))
      if meta.pop("format", None) != self._name:
        raise InputError(f"{folder}/{CONFIG}: format is not {self._name!r}; export the model again")
      step = meta.pop("step", None)
      check_meta(meta, step)
      check(meta)
      # Shapes before contents: a config of a stranger must not make us read or allocate much.
      with about(folder):
        spec = from_json(meta["model"])
      expected = _check_shapes(self.describe(path), spec, os.path.getsize(path))
      arrays = self.read(path)
      check_finite(arrays)
      arrays = {name: array.reshape(expected[name]) for name, array in arrays.items()}
    except InputError:
      raise
    except (OSError, ValueError, self.damage) as error:
      raise InputError(
        f"{folder}: not a complete exported model ({error}); copy or export it again"
      ) from error
    tokenizer = load_tokenizer(os.path.join(folder, TOKENIZER))
    return unflatten_dict(arrays, sep="/"), meta, step, tokenizer

  @property
  def _name(self) -> str:
    return f"gpt_jax{os.path.splitext(self.weights)[1]}"


def write_sums(folder: str) -> None:
  """Writes sha256.json: size and checksum of every file but README.md, which people edit."""
  names = []
  for parent, _, files in os.walk(folder):
    names += [os.path.relpath(os.path.join(parent, name), folder) for name in files]
  names = sorted(name for name in names if name != "README.md")  # os.walk has no fixed order
  sums = {name: describe_file(os.path.join(folder, name)) for name in names}
  write_json(os.path.join(folder, SUMS), sums)


def check_sums(folder: str, required: Sequence[str] = ()) -> None:
  """Compares the files of a folder with its sha256.json. Raises OSError or ValueError where that is
  not valid, or one of its files, or of the `required` ones, is missing.
  """
  sums = read_object(os.path.join(folder, SUMS))
  for name in dict.fromkeys((*required, *sums)):
    path = os.path.join(folder, name)
    status = os.stat(path)
    # A folder from a stranger must not have other files of this machine read.
    if os.path.isabs(name) or ".." in name.split("/") or not stat.S_ISREG(status.st_mode):
      raise ValueError(f"{SUMS} names {name!r}, which is no file of this folder")
    expected = sums.get(name)
    if isinstance(expected, str):
      raise ValueError(f"{SUMS} is of an earlier version; export the model again")
    same_size = isinstance(expected, dict) and expected.get("bytes") == status.st_size
    if not same_size or describe_file(path) != expected:
      raise InputError(
        f"{path}: damaged, {SUMS} has another sum for it; copy or export the model again"
      )


def check_meta(meta: dict, step: Any) -> None:
  """Raises ValueError unless the config has what every model needs."""
  if not isinstance(meta.get("model"), dict) or not isinstance(meta.get("tokenizer_hash"), str):
    raise ValueError(f"{CONFIG} does not say which model and tokenizer it is of")
  if type(step) is not int or step < 0:  # not isinstance: True is an int
    raise ValueError(f"step is {step!r}, and should be a number of updates")


def _check_shapes(shapes: Shapes, spec: Any, size: int) -> dict[str, tuple[int, ...]]:
  """The shapes of the model's parameters. Raises ValueError unless `size` bytes hold them."""
  if not isinstance(spec, ModelConfig):
    raise ValueError(f"{CONFIG} describes no model")
  count = spec.trunk.parameter_count()
  if size < 4 * count:  # before the model is traced, which takes as long as it has layers
    raise ValueError(f"{size:,} bytes of weights, and {CONFIG} describes {count:,} parameters")
  try:
    expected = parameter_shapes(spec)
  except Exception as error:  # of a config that no program writes
    reason = " ".join(str(error).split())[:200]
    raise ValueError(f"{CONFIG} describes no model that can be built: {reason}") from error
  if differing := sorted(shapes.keys() ^ expected.keys()):
    where = "missing" if differing[0] in expected else "not one of the model's"
    raise ValueError(f"the array {differing[0]} is {where}")
  for name, shape in expected.items():
    dtype, found = shapes[name]
    # Exports of 0.3 have an array of one number for a scalar.
    if dtype != "float32" or (found != shape and (found, shape) != ((1,), ())):
      raise ValueError(f"{name} is {dtype}{list(found)}, and should be float32{list(shape)}")
  return expected


def check_finite(arrays: Arrays) -> None:
  """Raises ValueError at an array with an infinite or undefined number."""
  for name, array in arrays.items():
    if not np.isfinite(array).all():
      raise ValueError(f"{name} holds numbers that are not finite")


def read_object(path: str, limit: int = MAX_JSON) -> dict:
  """The JSON object in a file of at most `limit` bytes. Raises OSError or ValueError."""
  value = read_json(path, limit)
  if not isinstance(value, dict):
    raise ValueError(f"{os.path.basename(path)} holds no JSON object")
  return value


def _check_same(partial: str, folder: str) -> None:
  """Raises InputError unless the export in folder equals the one just written, undamaged."""
  try:
    # The same sums, and files that still have them.
    same = read_object(os.path.join(folder, SUMS)) == read_object(os.path.join(partial, SUMS))
    check_sums(folder)
  except (OSError, ValueError):  # InputError is one
    same = False
  if not same:
    raise InputError(
      f"{folder} is the export of another model, or damaged; remove it, or choose another place"
    )


def describe_file(path: str) -> dict[str, Any]:
  """The size and checksum of a file, as in sha256.json."""
  with open_regular(path) as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}
