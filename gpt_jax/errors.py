"""Errors in a user's input: launch/ prints their single line and exits with code 2; counts in
messages.
"""

import re

_LONGEST_WORD, _LONGEST = 200, 1000  # characters
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


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


def counted(number: int, noun: str) -> str:
  """The number and its noun: "1 column", "1,200 columns"."""
  return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
