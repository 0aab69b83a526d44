"""The packages of the peers, which are optional, and what they can do here."""

from typing import Any, NamedTuple

from gpt_jax.errors import InputError
from gpt_jax.models.transformer import TransformerConfig


class Packages(NamedTuple):
  """torch and transformers, as imported."""

  torch: Any
  transformers: Any


def import_packages() -> Packages:
  """Raises InputError if they are missing."""
  try:
    import torch
    import transformers
  except ImportError as error:
    raise InputError(
      f"--peers needs torch and transformers: pip install 'gpt_jax[peers]' ({error})"
    ) from error
  return Packages(torch, transformers)


def check_trunk(trunk: Any) -> TransformerConfig:
  """The trunk, if peers have a model like it; otherwise raises InputError."""
  if not trunk.is_gpt:
    raise InputError("--peers: they have no model like this trunk; use GPT-1's or GPT-2's parts")
  return trunk


def find_device() -> str:
  """The device that torch computes on: that of JAX, if torch can use it."""
  return "cuda" if import_packages().torch.cuda.is_available() else "cpu"
