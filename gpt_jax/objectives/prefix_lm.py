"""Prefix language modeling (T5, Raffel et al. 2020, section 3.2.3): continue the first part of a
text, all of whose positions attend to each other.
"""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch
from gpt_jax.config import register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.objectives.objective import Bound, Noise, Objective


@register("prefix_lm")
@dataclasses.dataclass(frozen=True)
class PrefixLM(Objective):
  """Each text is cut at a random place, and what follows is predicted."""

  attention = "prefix"
  heads = ({"type": "language"},)
  format = {"type": "gpt_format"}

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    del tokenizer, length
    return _prefix_lm_batch


def _prefix_lm_batch(rows: np.ndarray, draw: Noise) -> Batch:
  """Rows int32 [B, T + 1], -1 past a text's end, to inputs and the tokens after a cut [B, T]."""
  # Inputs and targets are those of a causal model; only mask and weights differ.
  batch = causal_batch(rows)
  tokens = (rows >= 0).sum(axis=1)
  # All cuts that leave a token on both sides are equally likely; of n tokens there are n - 1.
  cut = 1 + (draw("cut", (1,))[:, 0] * np.maximum(tokens - 1, 0)).astype(np.int64)
  column = np.arange(rows.shape[1] - 1)[None]
  predictions = batch.predictions
  assert predictions is not None
  after_cut = column >= cut[:, None] - 1  # the last token of the prefix predicts the next one
  return batch._replace(
    rows=batch.rows._replace(
      segments=(rows[:, :-1] >= 0).astype(np.int32), prefix=column < cut[:, None]
    ),
    predictions=predictions._replace(weights=predictions.weights * after_cut),
  )
