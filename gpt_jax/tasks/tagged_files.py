"""Tagging of the user's own files: CoNLL-2000's chunks, CoNLL-2003's entities, CoNLL-U, and others
with a word per line, its tag in a further column, and an empty line between sentences.

All lines of words have the same columns, separated by a tab if a line has one, else by spaces:

- CoNLL-2000 (Tjong Kim Sang and Buchholz 2000): word, part of speech, chunk. No comments: "#" is
  the pound sign of the Wall Street Journal.
- CoNLL-2003 (Tjong Kim Sang and De Meulder 2003): word, part of speech, chunk, entity. A line whose
  word is -DOCSTART- begins a document.
- CoNLL-U (https://universaldependencies.org/format.html): ten columns, of which the first is the
  number of the word, which is in the second. Lines that begin with "#" are comments, those numbered
  3-4 or 8.1 multiword tokens and empty nodes.
- Elsewhere a line that begins with "#" and has other columns than the words is a comment.

Tags of spans (Ramshaw and Marcus 1995) are O outside, else a mark, a hyphen and a kind. bio (IOB2)
begins each span with B; the first CoNLL's IOB1 only a span that follows one of its kind; iobes also
marks the last word with E and a span of one word with S.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

from gpt_jax.config import Config, option, register
from gpt_jax.errors import InputError, counted
from gpt_jax.tasks.answers.tags import TaggedExample, TagTask
from gpt_jax.tasks.conllu import FIELDS
from gpt_jax.tasks.metrics import accuracy, span_f1
from gpt_jax.tasks.readers import read_every_line, warn_of_similar
from gpt_jax.tasks.task import SPLITS

SCHEMES = {"bio": "BI", "iobes": "BIES"}
_OUTSIDE = "O"
_DOCUMENT = "-DOCSTART-"  # the line before each document of CoNLL-2003


@register("tagged_files")
@dataclasses.dataclass(frozen=True)
class TaggedFiles(Config):
  """Files relative to data_dir. Tags such as B-PER and I-PER are of spans, whose F1 is measured."""

  train: str = option("train.txt", "file of the training sentences")
  dev: str = option("dev.txt", "file of the sentences to evaluate on")
  test: str = option("test.txt", "file of the test sentences")
  column: int = option(
    -1,
    "column of the tags, from 0 or, below 0, from the last one: 2 and 3 are chunks and entities of "
    "CoNLL-2003; 3 and 4 the tags of CoNLL-U",
    low=-20,
    high=20,
  )
  scheme: str = option(
    "bio",
    "how spans are learned, whatever the files have: bio, iobes, or as the files have them",
    choices=(*SCHEMES, "files"),
  )
  labels: tuple[str, ...] = option((), "the tags, in order; empty: those of the training file")

  columns = ()
  has_folds = False
  writes_text = False

  def with_labels(self, data_dir: str) -> "TaggedFiles":
    """Fills in the tags. Raises InputError for a training file that cannot be read."""
    if self.labels:
      return self
    found = {tag for example in self._read(data_dir, "train") for tag in example.label or ()}
    if len(found) < 2:
      path = os.path.join(data_dir, self.train)
      raise InputError(f"{path}: column {self.column} has the tags {sorted(found)}; should be two")
    warn_of_similar(sorted(found), os.path.join(data_dir, self.train))
    if are_spans(found) and self.scheme != "files":
      # All of them: an entity of one word may not occur in the training file.
      kinds = sorted({tag[2:] for tag in found if tag != _OUTSIDE})
      found = {f"{mark}-{kind}" for kind in kinds for mark in SCHEMES[self.scheme]} | {_OUTSIDE}
    return dataclasses.replace(self, labels=tuple(sorted(found)))

  def build(self, data_dir: str) -> TagTask:
    labels = self.with_labels(data_dir).labels
    spans = {"span_f1": span_f1} if are_spans(labels) else {}
    metrics = {"accuracy": accuracy}
    return TagTask("tags", labels, self._read, metrics, span_metrics=spans, spaced=True)

  def _read(self, data_dir: str, split: str) -> Iterator[TaggedExample]:
    if split not in SPLITS:
      raise InputError(f"split {split!r}: should be one of {', '.join(SPLITS)}")
    files = {"train": self.train, "dev": self.dev, "test": self.test}
    path = os.path.join(data_dir, files[split])
    for example in read_columns(path, self.column, may_lack_tags=split == "test"):
      tags = example.label
      if tags and self.scheme != "files" and are_spans(tags):
        example = example._replace(label=rewritten(tags, self.scheme))
      yield example


def read_columns(path: str, column: int, may_lack_tags: bool = False) -> Iterator[TaggedExample]:
  """Reads sentences of a word per line.

  Args:
    path: of the file. Columns are separated by tabs or else by spaces; the word is the first one,
      in CoNLL-U the second.
    column: of the tags.
    may_lack_tags: whether a file of words alone has sentences without tags.

  Raises:
    InputError: naming file and line, for a file that cannot be read, has no sentences, or a line
      without the column.
  """
  words: list[str] = []
  tags: list[str] = []
  first = count = 0
  for number, cells in [*_word_lines(path), (0, [])]:
    if not cells:
      if words:
        yield TaggedExample(tuple(words), tuple(tags) if tags else None, f"{path}:{first}")
        count += 1
      words, tags = [], []
      continue
    where = f"{path}:{number}"
    first = first if words else number
    words.append(cells[1 if _is_conllu(cells) else 0])
    if not words[-1].strip(" "):
      raise InputError(f"{where}: the word is empty; should be a word and its tags")
    if may_lack_tags and len(cells) == 1 and not tags:
      continue
    if len(cells) < 2 or not -len(cells) <= column < len(cells):
      raise InputError(
        f"{where}: {len(cells)} columns, and none is config.task.column={column}; should "
        "be a word and its tags"
      )
    tag = cells[column]
    if not tag or " " in tag:
      raise InputError(f"{where}: tag {tag!r}: should be a name without spaces")
    tags.append(tag)
    if len(tags) != len(words):
      raise InputError(f"{where}: has a tag, and words before it have none")
  if not count:
    raise InputError(f"{path}: no sentences; should be a word and its tag per line")


def _word_lines(path: str) -> Iterator[tuple[int, list[str]]]:
  """Yields (line, cells) of words, and (line, []) where a sentence ends."""
  lines = [(number, _cells(line)) for number, line in read_every_line(path)]
  words = [cells for _, cells in lines if cells and not cells[0].startswith("#")]
  is_conllu = bool(words) and _is_conllu(words[0])
  columns: dict[int, int] = {}  # how many the words have -> the first such line
  for number, cells in lines:
    if cells and cells[0] != _DOCUMENT and not cells[0].startswith("#"):
      columns.setdefault(len(cells), number)
  for number, cells in lines:
    if not cells or cells[0] == _DOCUMENT:
      yield number, []
    elif cells[0].startswith("#") and (is_conllu or columns and len(cells) not in columns):
      continue  # a comment
    elif is_conllu and re.fullmatch(r"\d+[-.]\d+", cells[0]):
      continue  # a multiword token or an empty node
    elif columns and len(cells) != min(columns, key=columns.__getitem__):
      common = min(columns, key=columns.__getitem__)
      raise InputError(
        f"{path}:{number}: {counted(len(cells), 'column')}, and line {columns[common]} has "
        f"{common}; all lines of words should have the same"
      )
    else:
      yield number, cells


def _cells(line: str) -> list[str]:
  """The columns of a line, [] of an empty one. Only tabs or spaces separate them: other characters
  that Unicode counts as space are parts of words.
  """
  if not line.strip(" \t"):
    return []
  return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _is_conllu(cells: list[str]) -> bool:
  return len(cells) == FIELDS and re.fullmatch(r"\d+([-.]\d+)?", cells[0]) is not None


def are_spans(tags: Sequence[str] | set[str]) -> bool:
  """Whether tags are of spans: O, or a mark of a scheme, a hyphen and a kind."""
  marked = [tag for tag in tags if tag != _OUTSIDE]
  return all(tag[:2] in ("B-", "I-", "E-", "S-") and len(tag) > 2 for tag in marked)


def rewritten(tags: Sequence[str], scheme: str) -> tuple[str, ...]:
  """Tags of spans in a scheme; given in bio, iobes, or the first CoNLL's, which has B only between
  neighbors of a kind.
  """
  spans: list[list[int]] = []  # the words of each
  for i, tag in enumerate(tags):
    before = tags[i - 1] if i else _OUTSIDE
    goes_on = tag[:1] in "IE" and before[:1] in "BI" and before[2:] == tag[2:]
    if tag == _OUTSIDE:
      continue
    if goes_on:
      spans[-1].append(i)
    else:
      spans.append([i])
  result = list(tags)
  for span in spans:
    kind = tags[span[0]][2:]
    marks = ["B", *"I" * (len(span) - 1)]
    if scheme == "iobes":
      marks = ["S"] if len(span) == 1 else [*marks[:-1], "E"]
    for i, mark in zip(span, marks, strict=True):
      result[i] = f"{mark}-{kind}"
  return tuple(result)
