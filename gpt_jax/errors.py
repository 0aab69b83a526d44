"""Errors of one line, which launch/ prints, and counts in messages.

Every function of the package may raise InputError for what a user gave; `Raises:` in a docstring
names other exceptions alone.
"""

import re
from collections.abc import Callable

# Turns a message into what the user reads. Messages name arguments and fields, as a notebook has
# them; a command line sets a function that writes them as flags.
for_user: Callable[[str], str] = str

_MAX_WORD, _LONGEST = 200, 1000  # characters
_LONG_WORD = re.compile(rf"\S{{{_MAX_WORD + 1},}}")


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


def counted(number: int, noun: str) -> str:
  """The number and its noun: "1 column", "1,200 columns"."""
  return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
