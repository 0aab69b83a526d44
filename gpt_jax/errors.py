"""Errors of one line, which launch/ prints, and what their messages are made of.

Every function of the package may raise InputError for what a user gave; `Raises:` in a docstring
names other exceptions alone.
"""

import contextlib
import difflib
import functools
import importlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Messages name arguments and fields; a command line sets a function that writes them as flags.
for_user: Callable[[str], str] = str

_MAX_WORD, _LONGEST = 200, 1000  # characters
_LONG_WORD = re.compile(rf"\S{{{_MAX_WORD + 1},}}")
_FACTORS = {"k": 1e3, "m": 1e6, "b": 1e9, "%": 0.01}  # after a number

# Read at the import of onnxruntime, also by way of jax2onnx, of huggingface_hub and of datasets.
_NO_TELEMETRY = {
  "ORT_DISABLE_TELEMETRY": "1",
  "HF_HUB_DISABLE_TELEMETRY": "1",
  "HF_UPDATE_DOWNLOAD_COUNTS": "0",
}


class InputError(ValueError):
  """Bad user input; the message is one line: file, line or field, value, what would be right.

  A value may be a whole document: of each word 200 characters are shown, of the message 1,000.
  """

  def __str__(self):
    line = " ".join(super().__str__().splitlines())
    # The end of a long path has the file and the line.
    text = _LONG_WORD.sub(lambda word: f"{word[0][:100]}…{word[0][-100:]}", line)
    if len(text) <= _LONGEST:
      return text
    return f"{text[: _LONGEST - 200]} … {text[-200:]}"


class MissingInput(InputError):
  """A missing file or folder; the caller may try another."""


class Unavailable(InputError):
  """A store was not reached: no fault of the input, and schedulers may start the program again."""


@contextlib.contextmanager
def about(what: str) -> Iterator[None]:
  """Begins the message of an InputError with what it is about, such as a path."""
  try:
    yield
  except InputError as error:
    raise InputError(f"{what}: {error}") from error


def counted(number: int, noun: str) -> str:
  """The number and its noun: "1 column", "1,200 columns"."""
  return f"{number:,} {agree(number, noun, f'{noun}s')}"


@functools.cache
def warn_once(message: str) -> None:
  """Warns of what is found each time that a file is opened."""
  warnings.warn(message, stacklevel=3)


def agree(number: int, one: str = "is", many: str = "are") -> str:
  """The verb, or noun, of so many: "1 of 4 rows is", "2 of 4 rows are"."""
  return one if number == 1 else many


def did_you_mean(name: str, valid: Iterable[str], prefix: str = "", most: int = 3) -> str:
  """For the end of a message about an unknown name: "; did you mean NAME or NAME?", of the nearest
  valid names in any case, each after `prefix`, or "" if none is near.
  """
  by_folded: dict[str, str] = {}
  for word in valid:
    by_folded.setdefault(word.casefold(), word)
  near = difflib.get_close_matches(name.casefold(), by_folded, n=most)
  if not near:
    return ""
  return f"; did you mean {' or '.join(prefix + by_folded[word] for word in near)}?"


def meant_number(text: str, is_integer: bool = False) -> str:
  """The end of a message about a text that is no number: what 0,001, 16k, 10% may mean; or ""."""
  digits, advice = text.strip().lower(), ""
  factor = _FACTORS.get(digits[-1:], 1.0)
  digits = digits if factor == 1.0 else digits[:-1]
  if re.fullmatch(r"[1-9]\d{0,2}(,\d{3})+", digits):
    digits = digits.replace(",", "")
  elif "," in digits:
    digits, advice = digits.replace(",", "."), " (with a decimal point)"
  if not re.fullmatch(r"\d+(\.\d+)?(e[-+]?\d{1,2})?", digits):
    return ""
  value = float(f"{factor * float(digits):.12g}")
  if is_integer and value % 1:
    return ""
  return f"; did you mean {int(value) if value % 1 == 0 else value}?{advice}"


def how_to_install(extra: str) -> str:
  """The commands that add an extra of setup.py; in a clone its constraints would be lost."""
  return (
    f"pip install 'gpt_jax[{extra}]', or in a clone "
    f"pip install -c launch/constraints.txt -e '.[{extra}]'"
  )


def require(module: str, user: str, package: str, extra: str = "") -> Any:
  """Imports a module of a package that may be missing; the InputError then says how to get it.

  Args:
    user: what needs it, such as "this metric".
    extra: of setup.py, with the package; "": it is installed by its own name.
  """
  for variable, value in _NO_TELEMETRY.items():
    os.environ.setdefault(variable, value)
  try:
    return importlib.import_module(module)
  except ImportError as error:
    install = how_to_install(extra) if extra else f"pip install {package}"
    raise InputError(f"{user} needs {package}: {install}") from error
