"""Translation of the user's own text pairs: two aligned files, or a table with two columns."""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from gpt_jax.config import option, register
from gpt_jax.data.file_kinds import TEXT, kind_by_name
from gpt_jax.errors import InputError
from gpt_jax.files import exists
from gpt_jax.tasks.answers.translation import TranslationTask
from gpt_jax.tasks.readers import Row, Table, read_every_line
from gpt_jax.tasks.task import TaskConfig


@register("pairs")
@dataclasses.dataclass(frozen=True)
class PairsTask(TaskConfig):
  """Pairs relative to data_dir: a table, or a name to which both languages are added."""

  train: str = option("train", "training pairs: FILE.SOURCE and FILE.TARGET, or a table")
  dev: str = option("val", "pairs to evaluate on")
  test: str = option("", "test pairs, read by evaluate with split=test; empty: none")
  source: str = option("en", "suffix of the files, or column of the tables, to translate from")
  target: str = option("de", "suffix or column to translate to")
  prompt: str = option("", "put before each text, such as T5's 'translate English to German: '")
  longest: int = option(
    0, "leave out training pairs with more words on a side; 0: none", unit="words", low=0
  )
  synthetic: str = option(
    "", "table of further training pairs, as backtranslate writes it; empty: none"
  )
  unlabeled: str = option(
    "",
    "table of further texts with a teacher's translations, as backtranslate writes it without a "
    "tag, from which views alone learn; empty: none",
  )
  upsample: int = option(
    1,
    "times that each pair of `train` comes in an epoch, synthetic ones come once",
    low=1,
    high=1000,
  )
  lowercase: bool = option(
    False, "compare in lower case, for a vocabulary that folds it; the signatures then say case:lc"
  )

  writes_text = True

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.source == self.target:
      raise InputError(f"PairsTask.target: {self.target!r} is the source, too; name another")

  @property
  def columns(self) -> tuple[str, ...]:
    return (self.source,)

  def build(self, data_dir: str) -> TranslationTask:
    return TranslationTask(
      self._rows, self.columns, self.prompt, lowercase=self.lowercase, longest=self.longest
    )

  def _rows(self, data_dir: str, split: str) -> list[Any]:
    names = {"train": self.train, "dev": self.dev, "test": self.test, "unlabeled": self.unlabeled}
    if not names[split]:
      raise InputError(f"PairsTask.{split}: no file is named; config.task.{split}=FILE names one")
    rows = list(self._pairs(data_dir, names[split], split))
    if split == "train":
      rows *= self.upsample
      if self.synthetic:
        rows += self._pairs(data_dir, self.synthetic, split)
    return rows

  def _pairs(self, data_dir: str, name: str, split: str) -> Iterator[Any]:
    path = os.path.join(data_dir, name)
    if kind_by_name(path).format != TEXT:
      yield from Table(path).rows(self.columns, self.target, unlabeled=split == "test")
      return
    source, target = f"{path}.{self.source}", f"{path}.{self.target}"
    texts = read_every_line(source)
    if split == "test" and not exists(target):  # sources alone, to be translated
      for number, text in texts:
        yield Row((text,), None, f"{source}:{number}")
      return
    translations = read_every_line(target)
    if len(texts) != len(translations):
      raise InputError(
        f"{target}: {len(translations):,} lines, and {source} has {len(texts):,}; line n of one "
        "should translate line n of the other"
      )
    # A message names the file whose line is empty.
    for (number, text), (_, translation) in zip(texts, translations, strict=True):
      yield Row((text,), translation, f"{target if text.strip() else source}:{number}")
