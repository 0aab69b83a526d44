"""Packages that are not always installed."""

import importlib
from typing import Any

from gpt_jax.errors import InputError


def require(module: str, user: str, package: str, extra: str = "") -> Any:
  """Imports a module of a package that may be missing; the InputError then says how to get it.

  Args:
    user: what needs it, such as "this metric".
    extra: of setup.py, with the package; "": it is installed by its own name.
  """
  try:
    return importlib.import_module(module)
  except ImportError as error:
    install = f"'gpt_jax[{extra}]'" if extra else package
    raise InputError(f"{user} needs {package}: pip install {install}") from error
