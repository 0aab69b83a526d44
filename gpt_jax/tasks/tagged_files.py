"""Tagging of the user's own files: a word per line with its tags in further columns, and a line
that is empty (or of spaces and tabs) between sentences. Lines end with "\\n" or "\\r\\n", or all
with "\\r".

- CoNLL-2000 (Tjong Kim Sang and Buchholz 2000): word, part of speech and chunk, with spaces between
  them. There are no comments: "# # B-NP" is the word "#", a pound sign.
- CoNLL-2003 (Tjong Kim Sang and De Meulder 2003): word, part of speech, chunk and entity; a line
  that begins with -DOCSTART- stands before each document; it is no word, and ends a sentence.
- CoNLL-U (universaldependencies.org/format.html): ten columns with one tab between them. It alone
  has comments, lines that begin with "#". IDs count the words of a sentence from 1; a range such as
  3-4 is a token of several words, and a decimal such as 8.1 an empty node. FORM, the word, may have
  spaces inside.
- Others likewise: each line has as many columns, with a tab between two of them or, in a line
  without tabs, spaces. Other characters that look like a space (U+00A0, U+3000) are part of a word.

Tags of spans are "O" outside of them, or a mark, a hyphen and the kind. In IOB1, CoNLL-2003's, the
words of a span have I, but the first one of a span right behind another of its kind has B. In IOB2
(bio) every first word has B. In IOBES the last word of several has E, and a single one S.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Sequence

from gpt_jax.config import option, register
from gpt_jax.errors import InputError, counted
from gpt_jax.tasks.answers.tags import TaggedExample, TagTask
from gpt_jax.tasks.metrics import accuracy, span_f1
from gpt_jax.tasks.readers import merge_similar, read_every_line
from gpt_jax.tasks.task import SPLITS, TaskConfig

SCHEMES = {"bio": "BI", "iobes": "BIES"}
_OUTSIDE = "O"
_DOCUMENT = "-DOCSTART-"  # the line before each document of CoNLL-2003
_FIELDS = 10  # ID, FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL, DEPS, MISC
# Universal part-of-speech tags.
_UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
UPOS = tuple(_UPOS.split())
_NO_VALUE = "_"  # of a column


@register("tagged_files")
@dataclasses.dataclass(frozen=True)
class TaggedFiles(TaskConfig):
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

  def with_labels(self, data_dir: str) -> "TaggedFiles":
    """Fills in the tags."""
    if self.labels:
      return self
    tags = [tag for example in self._sentences(data_dir, "train") for tag in example.label or ()]
    found = {*tags}
    if len(found) < 2:
      path = os.path.join(data_dir, self.train)
      raise InputError(f"{path}: column {self.column} has the tags {sorted(found)}; should be two")
    merge_similar(tags, os.path.join(data_dir, self.train))
    if are_spans(found) and self.scheme != "files":
      # All of them: an entity of one word may not occur in the training file.
      kinds = sorted({tag[2:] for tag in found if tag != _OUTSIDE})
      found = {f"{mark}-{kind}" for kind in kinds for mark in SCHEMES[self.scheme]} | {_OUTSIDE}
    return dataclasses.replace(self, labels=tuple(sorted(found)))

  def build(self, data_dir: str) -> TagTask:
    config = self.with_labels(data_dir)
    spans = {"span_f1": span_f1} if are_spans(config.labels) else {}
    read, metrics = config._read, {"accuracy": accuracy}
    return TagTask("tags", config.labels, read, metrics, span_metrics=spans, spaced=True)

  def _read(self, data_dir: str, split: str) -> Iterator[TaggedExample]:
    """Sentences with tags as they are learned."""
    is_rewritten = self.scheme != "files" and are_spans(self.labels)
    for example in self._sentences(data_dir, split):
      tags = example.label
      if tags and is_rewritten and are_spans(tags):
        example = example._replace(label=rewritten(tags, self.scheme))
      yield example

  def _sentences(self, data_dir: str, split: str) -> Iterator[TaggedExample]:
    """Sentences with tags as the file has them."""
    if split not in SPLITS:
      raise InputError(f"split {split!r}: should be one of {', '.join(SPLITS)}")
    files = {"train": self.train, "dev": self.dev, "test": self.test}
    path = os.path.join(data_dir, files[split])
    for example in read_columns(path, self.column, may_lack_tags=split == "test"):
      if split == "test" and "_" in set(example.label or ()) - {*self.labels}:
        example = example._replace(label=None)  # how CoNLL-U writes that there is none
      yield example


def read_columns(path: str, column: int, may_lack_tags: bool = False) -> Iterator[TaggedExample]:
  """Reads sentences of a word per line, with tags in a column; see above for the formats.

  A file of words alone has sentences without tags if it `may_lack_tags`.
  """
  rows = [(number, _cells(line)) for number, line in read_every_line(path)]
  start = next((cells for _, cells in rows if cells and cells[0][:1] != "#"), [])
  if len(start) == _FIELDS and re.fullmatch(r"1|1-[0-9]+|0\.1", start[0]):
    _check_column(_FIELDS, column, path)
    yield from read_conllu(path, None, column)
    return
  first = width = 0  # the line of the file's first word, and its columns
  # Blank lines, and those before documents, end a sentence.
  for is_end, sentence in itertools.groupby(rows, lambda row: row[1][:1] in ([], [_DOCUMENT])):
    if is_end:
      continue
    words, tags, begin = [], [], 0
    for number, cells in sentence:
      if not first:
        first, width = number, len(cells)
      where, count = f"{path}:{number}", len(cells)
      is_untagged = may_lack_tags and width == count == 1
      if not cells[0]:
        raise InputError(f"{where}: the first column is empty; should be the word")
      if not is_untagged:
        _check_column(count, column, where)
      if count != width:
        raise InputError(
          f"{where}: {counted(count, 'column')}; should be {width}, as in line {first} (only "
          "CoNLL-U has comments, and tabs separate where a line has one)"
        )
      if not is_untagged:
        tags.append(_checked_tag(cells[column], where))
      begin = begin or number
      words.append(cells[0])
    yield TaggedExample(tuple(words), tuple(tags) or None, f"{path}:{begin}")
  if not first:
    raise InputError(f"{path}: no sentences; should be a word and its tag per line")


def _checked_tag(tag: str, location: str) -> str:
  """A tag that is there, and that predict can write among others."""
  if not tag or " " in tag:
    raise InputError(f"{location}: tag {tag!r}: should be there, without a space")
  return tag


def read_conllu(
  path: str, tags: Sequence[str] | None = UPOS, column: int = 3, may_lack_tags: bool = False
) -> Iterator[TaggedExample]:
  """Reads the syntactic words of each sentence with their tags, without comments, tokens of several
  words and empty nodes.

  Args:
    tags: those that may occur; None: any.
    may_lack_tags: whether a sentence with "_" in place of a tag is read without tags.
  """
  is_empty = True
  lines = read_every_line(path)
  for is_blank, sentence in itertools.groupby(lines, lambda line: not line[1].strip(" \t")):
    words: list[str] = []
    of_words, begin = [], 0
    for number, line in sentence:
      if is_blank or line.startswith("#"):
        continue
      cells, where = line.split("\t"), f"{path}:{number}"
      if len(cells) != _FIELDS:
        raise InputError(
          f"{where}: {counted(len(cells), 'column')}; should be {_FIELDS}, with tabs between them, "
          "as CoNLL-U has"
        )
      if re.fullmatch(r"[0-9]+[-.][0-9]+", cells[0]):
        continue  # a multiword token or an empty node
      if cells[0] != str(len(words) + 1):
        raise InputError(f"{where}: ID {cells[0]!r}: should be {len(words) + 1}, the word's number")
      if not cells[1].strip(" "):
        raise InputError(f"{where}: FORM is empty; should be the word")
      tag = _checked_tag(cells[column], where)
      if tags is not None and tag not in tags and not (may_lack_tags and tag == _NO_VALUE):
        raise InputError(f"{where}: tag {tag!r}: should be one of {', '.join(tags)}")
      begin = begin or number
      words.append(cells[1])
      of_words.append(tag)
    if words:
      is_empty = False
      lacks_tags = may_lack_tags and _NO_VALUE in of_words
      label = None if lacks_tags else tuple(of_words)
      yield TaggedExample(tuple(words), label, f"{path}:{begin}")
  if is_empty:
    raise InputError(f"{path}: no sentences; should be a file in CoNLL-U format")


def _cells(line: str) -> list[str]:
  """The columns of a line; none of an empty one."""
  if not line.strip(" \t"):
    return []
  if "\t" in line:
    return [cell.strip(" ") for cell in line.split("\t")]
  return re.split(" +", line.rstrip(" "))  # the first is empty where a space comes first


def _check_column(count: int, column: int, location: str) -> None:
  if count < 2 or not -count <= column < count:
    raise InputError(
      f"{location}: {count} columns, and none is config.task.column={column}; should be a word and "
      "its tags"
    )


def are_spans(tags: Sequence[str] | set[str]) -> bool:
  """Whether tags are of spans: O, or a mark of a scheme, a hyphen and a kind."""
  marked = [tag for tag in tags if tag != _OUTSIDE]
  return all(tag[:2] in ("B-", "I-", "E-", "S-") and len(tag) > 2 for tag in marked)


def rewritten(tags: Sequence[str], scheme: str) -> tuple[str, ...]:
  """Tags of spans in a scheme; given in bio, iobes, or the first CoNLL's, which has B only between
  neighbors of a kind.
  """
  spans: list[list[int]] = []  # the words of each
  for i, (before, tag) in enumerate(itertools.pairwise([_OUTSIDE, *tags])):
    if tag[:1] in "IE" and before[:1] in "BI" and before[2:] == tag[2:]:
      spans[-1].append(i)
    elif tag != _OUTSIDE:
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
