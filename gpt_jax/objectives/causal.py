"""Causal language modeling: predict every token from those before it (eq. 1)."""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.config import register
from gpt_jax.data.draws import Draw
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.objectives.objective import Bound


@register("causal")
@dataclasses.dataclass(frozen=True)
class Causal:
  """The paper's pre-training objective."""

  @property
  def attention(self) -> str:
    return "causal"

  @property
  def special(self) -> tuple[str, ...]:
    return ()

  @property
  def heads(self) -> tuple[dict, ...]:
    return ({"type": "language"},)

  @property
  def format(self) -> dict:
    return {"type": "gpt_format"}

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    del tokenizer, length
    return causal_batch


def causal_batch(rows: np.ndarray, draw: Draw | None = None) -> Batch:
  """Rows int32 [B, T + 1], -1 past a text's end, to inputs and next tokens [B, T]."""
  del draw  # nothing is random
  inputs, targets = rows[:, :-1], rows[:, 1:]
  positions = np.broadcast_to(np.arange(inputs.shape[1], dtype=np.int32), inputs.shape)
  weights = (targets >= 0).astype(np.float32)
  return Batch(
    Rows(np.maximum(inputs, 0), positions),
    predictions=Predictions(np.maximum(targets, 0), weights),
  )
