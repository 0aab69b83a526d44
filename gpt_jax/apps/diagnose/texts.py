"""The text of launch/diagnose.py, and how much it trains, writes and measures."""

import dataclasses
import itertools

import numpy as np

from gpt_jax.data.windows import PAD, Windows, WindowsConfig
from gpt_jax.programs.pretrain_config import PretrainConfig
from gpt_jax.programs.pretrain_text import Text, load_text


@dataclasses.dataclass(frozen=True)
class Budget:
  # Of the models and runs of the scaling law, ascending; the last are those of the prediction.
  widths: tuple[int, ...]
  steps: tuple[int, ...]
  rates: tuple[float, ...]  # peak learning rates
  seeds: int  # runs for each rate
  rate_width: int
  rate_steps: int
  temperatures: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
  texts: int = 16  # written at each temperature
  text_tokens: int = 100
  gradient_rows: int = 32  # of held-out text


BUDGETS = {
  "smoke": Budget(
    widths=(16, 24, 32, 48, 64, 96),
    steps=(120, 240, 480, 960),
    rates=(1e-4, 1e-3, 1e-2, 1e-1),
    seeds=2,
    rate_width=32,
    rate_steps=480,
  ),
  "small": Budget(
    widths=(32, 48, 64, 96, 128, 192),
    steps=(250, 500, 1000, 2000),
    rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    seeds=4,
    rate_width=64,
    rate_steps=1000,
    texts=48,
    gradient_rows=64,
  ),
}


class Texts(Text):
  @property
  def identity(self) -> dict[str, str]:
    return {"train_digest": self.train.digest, "valid_digest": self.held_out.digest}


def load_texts(folder: str) -> Texts:
  return Texts(*load_text(PretrainConfig(), folder))


def held_out_rows(texts: Texts, length: int, count: int) -> np.ndarray:
  """int32 [B, length], at most `count` rows from all over the held-out text, in order; none crosses
  the end of a document, unless all documents are shorter.
  """
  for sampling in ("within_documents", "across_documents"):
    config = WindowsConfig(batch_size=16, length=length - 1, sampling=sampling)
    windows = Windows(texts.held_out, config)
    rows = np.array(list(itertools.chain.from_iterable(windows.sequential())))
    rows = rows[(rows != PAD).all(-1)]
    if len(rows):
      break
  chosen = np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))
  return rows[chosen]
