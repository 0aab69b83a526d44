"""Packages that are not always installed."""

import importlib
import os
from typing import Any

from gpt_jax.errors import InputError

# Read at the import of onnxruntime, also by way of jax2onnx, of huggingface_hub and of datasets.
_NO_TELEMETRY = {
  "ORT_DISABLE_TELEMETRY": "1",
  "HF_HUB_DISABLE_TELEMETRY": "1",
  "HF_UPDATE_DOWNLOAD_COUNTS": "0",
}


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
    install = f"'gpt_jax[{extra}]'" if extra else package
    raise InputError(f"{user} needs {package}: pip install {install}") from error
