"""Formats of exported models: one file per format, named as in --format.

To add one, add a file with `HELP`, `detect`, `load` and `save` (see Format) to this folder or, for
other software, to apps/<app>/formats/; it edits no other. Files without HELP are shared code
(folder, layout) or a script to copy (read_npz).
May import: the root files, data, tasks, models; the top of this file not even jax, for --help.
"""

import ast
import importlib
from collections.abc import Callable
from typing import Any, Protocol, cast

from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.extensions import extensions, source_of

# check(meta) raises InputError for a model of no use to the caller, before its weights are read.
Check = Callable[[dict], object]


def accept(model: Any) -> None:
  """The check that any model passes."""


class Format(Protocol):
  """The module of a format."""

  HELP: str  # one line for --help, as a string literal

  def detect(self, path: str) -> bool:
    """Whether path claims to be of this format, damaged or not."""

  def load(self, path: str, check: Check = accept) -> tuple[dict, dict, int, Tokenizer]:
    """Reads params as float32 NumPy arrays, meta, step, tokenizer. Raises InputError."""

  def save(self, folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
    """Writes a new folder, atomically. Raises InputError if the format cannot hold the model."""


def list_formats() -> dict[str, str]:
  """Name -> HELP of every format; parses the files without importing them."""
  formats = {name: _help_text(module) for name, module in extensions(__name__).items()}
  return {name: text for name, text in formats.items() if text}


def describe_formats() -> str:
  """All formats in one line, for the --help of launch/."""
  return "; ".join(f"{name}: {text}" for name, text in list_formats().items())


def find_format(name: str) -> Format:
  """The format of a name. Raises InputError, with all names, at any other."""
  names = list_formats()
  if name not in names:
    raise InputError(f"format={name}: must be one of {', '.join(names)}")
  return _import(name)


def detect_format(path: str) -> Format | None:
  """The format of the model at path; None if it is of no exported format."""
  names = [name for name in list_formats() if _import(name).detect(path)]
  if len(names) > 1:
    raise InputError(f"{path}: holds models in several formats, {' and '.join(names)}; keep one")
  return _import(names[0]) if names else None


def _import(name: str) -> Format:
  return cast(Format, importlib.import_module(extensions(__name__)[name]))


def _help_text(module: str) -> str:
  """The value of the module's HELP, "" without one."""
  for node in ast.parse(source_of(module)).body:
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HELP":
      return ast.literal_eval(node.value)
  return ""
