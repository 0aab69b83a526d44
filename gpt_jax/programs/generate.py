"""Continues prompts with a checkpoint."""

from collections.abc import Sequence
from typing import Any

from gpt_jax.checkpoints.load import load_model
from gpt_jax.inference.generate import continuations


def run(checkpoint: str, prompts: Sequence[str], *settings: Any, **named: Any) -> list[str]:
  """Each prompt with its continuation by a checkpoint (see load_model), with the settings
  of `continuations`.
  """
  return continuations(load_model(checkpoint), prompts, *settings, **named)
