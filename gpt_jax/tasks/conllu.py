"""CoNLL-U files, the format of Universal Dependencies (universaldependencies.org/format.html).

A line is a word of ten columns with one tab between them, a comment (it begins with "#"), or empty,
which ends a sentence. IDs count the words of a sentence from 1; a range such as 3-4 is a token of
several words, and a decimal such as 8.1 an empty node. FORM, the word, may have spaces inside.
"""

import re
from collections.abc import Iterator, Sequence

from gpt_jax.errors import InputError, counted
from gpt_jax.tasks.answers.tags import TaggedExample
from gpt_jax.tasks.readers import read_every_line

FIELDS = 10  # ID, FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL, DEPS, MISC
# Universal part-of-speech tags.
_UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
UPOS = tuple(_UPOS.split())
_NO_VALUE = "_"  # of a column


def check_tag(tag: str, location: str) -> None:
  """Raises InputError for a tag that is not there, or that predict could not write among others."""
  if not tag or " " in tag:
    raise InputError(f"{location}: tag {tag!r}: should be there, without a space")


def is_conllu(cells: Sequence[str]) -> bool:
  """Whether the columns of a file's first line that begins with no "#" are those of CoNLL-U."""
  return len(cells) == FIELDS and bool(re.fullmatch(r"1|1-[0-9]+|0\.1", cells[0]))


def read_conllu(
  path: str, tags: Sequence[str] | None = UPOS, column: int = 3, may_lack_tags: bool = False
) -> Iterator[TaggedExample]:
  """Reads the syntactic words of each sentence with their tags.

  Args:
    path: the file. Comments, tokens of several words and empty nodes are skipped.
    tags: those that may occur; None: any.
    column: of the tags, from 0.
    may_lack_tags: whether a sentence with "_" in place of a tag is read without tags.
  """
  words: list[str] = []
  of_words: list[str] = []
  first, count = 0, 0
  for number, line in [*read_every_line(path), (0, "")]:  # the last sentence may have no blank line
    if not line.strip(" \t"):
      if words:
        lacks_tags = may_lack_tags and _NO_VALUE in of_words
        label = None if lacks_tags else tuple(of_words)
        yield TaggedExample(tuple(words), label, f"{path}:{first}")
        count += 1
      words, of_words = [], []
      continue
    if line.startswith("#"):
      continue
    cells, where = line.split("\t"), f"{path}:{number}"
    if len(cells) != FIELDS:
      raise InputError(
        f"{where}: {counted(len(cells), 'column')}; should be {FIELDS}, with tabs between them, as "
        "CoNLL-U has"
      )
    if re.fullmatch(r"[0-9]+[-.][0-9]+", cells[0]):
      continue  # a multiword token or an empty node
    if cells[0] != str(len(words) + 1):
      raise InputError(f"{where}: ID {cells[0]!r}: should be {len(words) + 1}, the word's number")
    if not cells[1].strip(" "):
      raise InputError(f"{where}: FORM is empty; should be the word")
    tag = cells[column]
    check_tag(tag, where)
    if tags is not None and tag not in tags and not (may_lack_tags and tag == _NO_VALUE):
      raise InputError(f"{where}: tag {tag!r}: should be one of {', '.join(tags)}")
    first = first if words else number
    words.append(cells[1])
    of_words.append(tag)
  if not count:
    raise InputError(f"{path}: no sentences; should be a file in CoNLL-U format")
