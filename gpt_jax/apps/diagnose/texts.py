"""The prepared text of launch/diagnose.py, and its rows that have no padding."""

import itertools
from typing import NamedTuple

import numpy as np

from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.data.windows import PAD, Windows, WindowsConfig


class Texts(NamedTuple):
  """A folder that prepare wrote.

  Attributes:
    folder: its path.
    train, held_out: the token files.
    tokenizer: of their vocabulary.
  """

  folder: str
  train: TokenFile
  held_out: TokenFile
  tokenizer: Tokenizer

  @property
  def identity(self) -> dict[str, str]:
    """Identifies the text."""
    return {"train_digest": self.train.digest, "valid_digest": self.held_out.digest}


def load_texts(folder: str) -> Texts:
  """Raises InputError if it is no folder of prepare, or damaged."""
  texts = Texts(
    folder,
    TokenFile(folder, "train"),
    TokenFile(folder, "valid"),
    load_tokenizer(f"{folder}/tokenizer"),
  )
  for tokens in (texts.train, texts.held_out):
    tokens.check_vocabulary(texts.tokenizer)
  return texts


def held_out_rows(texts: Texts, length: int, count: int) -> np.ndarray:
  """int32 [B, length], at most `count` rows from all over the held-out text, in order.

  No row crosses the end of a document, unless all documents are shorter.

  Raises:
    InputError: the whole text is shorter.
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
