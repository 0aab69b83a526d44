"""Calls that must be refused."""

from collections.abc import Callable
from typing import Any

import pytest

from gpt_jax.errors import InputError


def refused(message: str, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> str:
  """Makes a call that ends in an InputError which the regex matches; returns its text."""
  with pytest.raises(InputError, match=message) as error:
    call(*arguments, **options)
  return str(error.value)


def table(text: str) -> list[tuple[str, str]]:
  """(command, what its line says) of each case of a table.

  A row is `further arguments => line`, or has the line below it, further indented; rows that are
  indented get the arguments of the row without an arrow above them.
  """
  shared, cases = "", []
  for row in text.replace("=>\n    ", "=> ").splitlines():
    given, arrow, line = row.partition("=>")
    if not arrow:
      shared = row
    else:
      cases.append((f"{shared if row[0] == ' ' else ''} {given}".strip(), line.strip()))
  return cases
