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
