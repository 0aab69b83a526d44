"""Masked language modeling on rows of sentences: pairs with a class, or as many as fit.

The rows are those of data/sentence_windows.py: the text needs sentence ends (prepare --sentences).
"""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch, Labels, Rows, rows_of
from gpt_jax.config import option, register
from gpt_jax.data.sentence_windows import (
  IN_ORDER,
  NOT_IN_ORDER,
  SENTENCE_END,
  PackedSentenceWindows,
  PairWindows,
)
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.windows import Windows, WindowsConfig
from gpt_jax.objectives.masking import MaskedObjective
from gpt_jax.objectives.objective import Bound, Noise


@register("masked_pairs")
@dataclasses.dataclass(frozen=True)
class MaskedPairs(MaskedObjective):
  """Rows "[CLS] A [SEP] B [SEP]": masked tokens, and whether B follows A: BERT's next sentence
  (Devlin et al. 2018, section 3.1, task 2) or ALBERT's sentence order (Lan et al. 2019, 3.1).
  """

  second: str = option(
    "random_document",
    "what B is in half of the rows: random_document: text of another document (BERT's next "
    "sentence); swapped: the text before A (ALBERT's sentence order)",
    choices=("random_document", "swapped"),
  )

  attention = "bidirectional"
  special = ("cls", "sep", "mask")
  heads = ({"type": "masked_head"}, {"type": "sentence_pair"})
  format = {"type": "bert_format"}

  def windows(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0) -> Windows:
    return PairWindows(tokens, config, seed, self.copies, self.second)

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    mask = self.bind_masks(tokenizer, self.special, length)
    cls_id, sep_id = tokenizer.special["cls"], tokenizer.special["sep"]

    def pair_batch(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, T + 1], see PairWindows; class 0: B follows A, 1: it does not."""
      size = (rows != -1).sum(axis=1, keepdims=True)  # of A, the mark and B
      is_mark = (rows == IN_ORDER) | (rows == NOT_IN_ORDER)
      # One to the right, after [CLS].
      column = np.arange(length, dtype=np.int32)[None]
      shifted = np.concatenate([np.zeros_like(rows[:, :1]), rows[:, : length - 1]], axis=1)
      after = np.concatenate([np.zeros_like(is_mark[:, :1]), is_mark[:, : length - 1]], axis=1)
      # [CLS] at 0, A, the mark and B at 1 … size, the last [SEP] at size + 1.
      valid = (column <= size + 1) & (size > 0)
      is_text = valid & (column > 0) & (column <= size) & ~after
      tokens = np.where(is_text, shifted, 0)
      tokens[valid & ~is_text] = sep_id
      tokens[valid[:, 0], 0] = cls_id
      # 1 from the token after the mark: the first [SEP] still belongs to A, as in BERT's code.
      types = (valid & (np.cumsum(after, axis=1) - after > 0)).astype(np.int32)
      inputs, predictions = mask(tokens.astype(np.int32), valid, is_text, draw)
      segments = valid.astype(np.int32)  # no attention to padding
      # The class of each pair is read at its [CLS], position 0 of a row, counted over the batch.
      anchors = np.arange(len(rows), dtype=np.int32)[:, None] * length  # [B, 1]
      classes = np.eye(2, dtype=np.float32)[(rows == NOT_IN_ORDER).any(axis=1).astype(int)]
      return Batch(
        Rows(inputs, np.broadcast_to(column, inputs.shape), segments, types),
        predictions=predictions,
        labels=Labels(anchors, classes, (rows != -1).any(axis=1).astype(np.float32)),
      )

    return pair_batch


@register("full_sentences")
@dataclasses.dataclass(frozen=True)
class FullSentences(MaskedObjective):
  """Rows "<s> sentence </s> sentence </s> …", of one document or, with data.sampling
  across_documents (FULL-SENTENCES of RoBERTa, Liu et al. 2019, section 4.2), of several.
  """

  marks_sentences = True
  attention = "bidirectional"
  special = ("cls", "sep", "mask")
  heads = ({"type": "masked_head"},)
  format = {"type": "roberta_format"}

  def windows(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0) -> Windows:
    return PackedSentenceWindows(tokens, config, seed, self.copies)

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    mask = self.bind_masks(tokenizer, self.special, length)
    cls_id, sep_id = tokenizer.special["cls"], tokenizer.special["sep"]

    def sentences_batch(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, T + 1], see PackedSentenceWindows."""
      # <s>, then T - 1 tokens: [B, T + 1] -> [B, T]. A row of padding stays one.
      first = np.where(rows[:, :1] == -1, -1, cls_id)
      rows = np.concatenate([first, rows[:, : length - 1]], axis=1).astype(np.int32)
      valid = rows != -1
      is_text = valid & (rows != SENTENCE_END)
      is_text[:, 0] = False
      # RoBERTa's rows have no token types, and </s> alone separates sentences.
      read = rows_of(np.where(rows == SENTENCE_END, np.int32(sep_id), rows))
      inputs, predictions = mask(read.inputs, valid, is_text, draw)
      return Batch(read._replace(inputs=inputs), predictions=predictions)

    return sentences_batch
