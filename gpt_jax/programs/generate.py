"""Continues prompts with a checkpoint."""

from collections.abc import Sequence
from typing import Any

from gpt_jax.checkpoints import load as pretrained
from gpt_jax.inference.generate import continuations


def run(checkpoint: str, prompts: Sequence[str], *settings: Any, **named: Any) -> list[str]:
  """Each prompt with its continuation by a checkpoint (see pretrained.load), with the settings
  of `continuations`.
  """
  return continuations(pretrained.load(checkpoint), prompts, *settings, **named)
