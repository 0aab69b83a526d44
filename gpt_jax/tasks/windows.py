"""Texts longer than the context, read in windows, which become the sequences of one example."""

import dataclasses
from typing import Any

import numpy as np

from gpt_jax.config import option, register
from gpt_jax.tasks.encoding import Encoded, window_begins
from gpt_jax.tasks.formats import Format

_MIN_SHARE = 1 / 4  # of the context, that a window leaves to the first text


@register("windowed_format")
@dataclasses.dataclass(frozen=True)
class WindowedFormat(Format):
  """Another format, where the first text of an example is read in windows, each as one sequence.

  Other texts of the sequence are in every window, as the format or the task truncates them.
  Examples have as many windows as the longest text needs; those that one does not need are empty.
  Only `encode` takes this format: the data sets that it makes have that of the windows.
  """

  format: Any | None = option(None, "the format of each window")
  stride: int = option(
    0, "tokens from one window's beginning to the next one's; 0: windows do not overlap", low=0
  )

  @property
  def of_window(self) -> Any:
    return self.format

  @property
  def special(self) -> tuple[str, ...]:  # type: ignore[override]
    return self.of_window.special

  @property
  def both_orders(self) -> bool:  # type: ignore[override]
    return self.of_window.both_orders

  @property
  def head_transform(self) -> str:  # type: ignore[override]
    return self.of_window.head_transform

  def windowed(self, encoded: Encoded) -> Encoded:
    """The data set with windows in place of cut first texts: c W + w is window w of sequence
    c, which has W windows.

    A first text stays truncated where others leave it less than a quarter of the context, since its
    windows would be very many.
    """
    N, C, F = encoded.fields.shape
    texts, strings = list(encoded.texts), list(encoded.strings)
    split_fields, split_kept = [], []
    for (first, *others), (cut, *kept) in zip(
      encoded.fields.reshape(-1, F).tolist(), encoded.kept.reshape(-1, F).tolist(), strict=True
    ):
      room = encoded.context - encoded.format.overhead(F) - sum(kept)
      if room < encoded.context * _MIN_SHARE:
        split_fields.append([[first, *others]])
        split_kept.append([[cut, *kept]])
        continue
      fields = []
      for begin in window_begins(len(texts[first]), room, self.stride):
        fields.append([len(texts), *others])
        texts.append(texts[first][begin : begin + room])
      strings += [strings[first]] * len(fields) if strings else []
      split_fields.append(fields)
      split_kept.append([[len(texts[field[0]]), *kept] for field in fields])
    # A power of two, since each number of sequences is a shape to compile.
    most = 1 << (max(map(len, split_fields)) - 1).bit_length()
    all_fields, all_kept = np.zeros((2, N * C, most, F), np.int32)
    for s, (fields, kept) in enumerate(zip(split_fields, split_kept, strict=True)):
      all_fields[s, : len(fields)], all_kept[s, : len(kept)] = fields, kept
    shape = (N, C * most, F)
    return dataclasses.replace(
      encoded,
      texts=texts,
      strings=tuple(strings),
      fields=all_fields.reshape(shape),
      kept=all_kept.reshape(shape),
    )
