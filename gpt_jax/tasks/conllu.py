"""CoNLL-U files, the format of Universal Dependencies: a word per line, a blank line between
sentences (https://universaldependencies.org/format.html).
"""

from collections.abc import Iterator, Sequence

from gpt_jax.errors import InputError, counted
from gpt_jax.tasks.answers.tags import TaggedExample
from gpt_jax.tasks.readers import read_every_line

FIELDS = 10  # ID, FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL, DEPS, MISC
_UNSPECIFIED = "_"
# Universal part-of-speech tags.
_UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
UPOS = tuple(_UPOS.split())


def read_conllu(
  path: str, tags: Sequence[str] = UPOS, column: int = 3, may_lack_tags: bool = False
) -> Iterator[TaggedExample]:
  """Reads the syntactic words of each sentence with their tags.

  Args:
    path: the file. Comments, multiword tokens such as 3-4 and empty nodes such as 8.1 are skipped.
    tags: those that may occur.
    column: of the tags, from 0.
    may_lack_tags: whether sentences with a tag "_", unspecified, are read without tags.

  Raises:
    InputError: naming file and line, for a file that cannot be read, has no sentences, or a
      malformed line.
  """
  words: list[str] = []
  of_words: list[str] = []
  first, count = 0, 0
  for number, line in [*read_every_line(path), (0, "")]:  # the last sentence may have no blank line
    if not line.strip(" \t"):
      if words:
        tagged = not may_lack_tags or _UNSPECIFIED not in of_words
        yield TaggedExample(tuple(words), tuple(of_words) if tagged else None, f"{path}:{first}")
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
    parts = cells[0].replace("-", ".").split(".")
    if len(parts) == 2 and all(map(str.isdecimal, parts)):
      continue  # a multiword token or an empty node
    if cells[0] != str(len(words) + 1):
      raise InputError(f"{where}: ID {cells[0]!r}: should be {len(words) + 1}, the word's number")
    if not cells[1].strip(" "):
      raise InputError(f"{where}: FORM is empty; should be the word")
    if cells[column] not in tags and not (may_lack_tags and cells[column] == _UNSPECIFIED):
      raise InputError(f"{where}: tag {cells[column]!r}: should be one of {', '.join(tags)}")
    first = first if words else number
    words.append(cells[1])
    of_words.append(cells[column])
  if not count:
    raise InputError(f"{path}: no sentences; should be a file in CoNLL-U format")
