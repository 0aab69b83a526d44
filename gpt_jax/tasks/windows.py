"""Texts longer than the context, read in windows, which become the sequences of one example."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.tasks.encoding import Encoded, window_begins
from gpt_jax.tasks.formats import Format, Ids


@register("windowed_format")
@dataclasses.dataclass(frozen=True)
class WindowedFormat(Format):
  """Another format, where the first text of an example is read in windows, each as one sequence.

  Other texts of the example are in every window, as the format or the task truncates them. Examples
  have as many sequences as the longest one needs; those that one does not need are empty.
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

  def overhead(self, fields: int) -> int:
    return self.of_window.overhead(fields)

  def truncate(self, lengths: np.ndarray, context: int) -> np.ndarray:
    return self.of_window.truncate(lengths, context)

  def join(self, fields: Sequence[np.ndarray], special: Ids) -> np.ndarray:
    return self.of_window.join(fields, special)

  def types(self, lengths: Sequence[int]) -> np.ndarray | None:
    return self.of_window.types(lengths)

  def anchor(self, ids: np.ndarray) -> int:
    return self.of_window.anchor(ids)

  def split(self, encoded: Encoded) -> Encoded:
    """The data set with windows in place of truncated first texts.

    Raises:
      InputError: examples of several sequences, or one whose other texts leave no room.
    """
    _, sequences, F = encoded.fields.shape
    if sequences > 1:
      raise InputError(
        f"windows: are of one text, and each example of this task has {sequences} sequences; "
        "leave them out"
      )
    texts, strings = list(encoded.texts), list(encoded.strings)
    split_fields, split_kept = [], []
    for n, ((first, *others), (_, *kept)) in enumerate(
      zip(encoded.fields[:, 0].tolist(), encoded.kept[:, 0].tolist(), strict=True)
    ):
      room = encoded.context - self.overhead(F) - sum(kept)
      if room < 1:
        raise InputError(f"{encoded.locations[n]}: its other texts leave no room for a window")
      fields = []
      for begin in window_begins(len(texts[first]), room, self.stride):
        fields.append([len(texts), *others])
        texts.append(texts[first][begin : begin + room])
      strings += [strings[first]] * len(fields) if strings else []
      split_fields.append(fields)
      split_kept.append([[len(texts[field[0]]), *kept] for field in fields])
    # A power of two, since each number of sequences is a shape to compile.
    most = 1 << (max(map(len, split_fields)) - 1).bit_length()
    shape = (len(encoded), most, F)
    all_fields, all_kept = np.zeros((2, *shape), np.int32)
    for n, (fields, kept) in enumerate(zip(split_fields, split_kept, strict=True)):
      all_fields[n, : len(fields)], all_kept[n, : len(kept)] = fields, kept
    return dataclasses.replace(
      encoded, texts=texts, strings=tuple(strings), fields=all_fields, kept=all_kept
    )
