"""Sentences whose pronoun refers to one of two candidates, for zero-shot evaluation (section 5).

The paper's data is that of Rahman and Ng (2012), 1,322 sentences for training and 564 for testing;
the 273 Winograd schemas (Levesque et al. 2012) have the same form.
"""

import os
import re
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from typing import NamedTuple

from gpt_jax.errors import InputError, MissingInput, counted
from gpt_jax.files import exists
from gpt_jax.tasks.readers import find_folder, read_lines

FILES = {"dprd": "test.c.txt", "wsc273": "wsc273.txt"}
SCHEMAS = "WSCollection.xml"  # the Winograd schemas as their authors publish them


class Pronoun(NamedTuple):
  before: str  # the sentence around the pronoun
  after: str
  candidates: tuple[str, str]  # what it may refer to
  answer: int  # index of the right candidate
  location: str  # "file:line", for messages


def read(data_dir: str, name: str) -> list[Pronoun]:
  """Reads the sentences of "dprd" (its test set) or "wsc273"."""
  root = find_folder(data_dir, "winograd")
  path, schemas = os.path.join(root, FILES[name]), os.path.join(root, SCHEMAS)
  if name == "wsc273" and not exists(path):
    pronouns = list(_read_schemas(schemas))
  else:
    pronouns = list(_read_blocks(path))
  if not pronouns:
    raise InputError(
      f"{path}: empty; it should have blocks of sentence, pronoun, candidates and answer"
    )
  return pronouns


def _read_blocks(path: str) -> Iterator[Pronoun]:
  """Reads blocks of four lines: sentence, pronoun, "candidate,candidate", right candidate."""
  lines = read_lines(path)
  for i in range(0, len(lines), 4):
    location = f"{path}:{lines[i][0]}"
    block = [" ".join(line.split()) for _, line in lines[i : i + 4]]
    if len(block) < 4:
      raise InputError(
        f"{location}: {counted(len(block), 'line')}; there should be sentence, pronoun, candidates "
        "and answer"
      )
    sentence, pronoun, pair, answer = block
    candidates = [candidate.strip() for candidate in pair.split(",")]
    # The first occurrence as a word: "it" also occurs within words.
    match = re.search(rf"(?<!\w){re.escape(pronoun)}(?!\w)", sentence, re.IGNORECASE)
    if not match:
      raise InputError(f"{location}: the pronoun {pronoun!r} is not in the sentence {sentence!r}")
    before, after = sentence[: match.start()], sentence[match.end() :]
    yield _pronoun(before, after, candidates, answer, location)


def _read_schemas(path: str) -> Iterator[Pronoun]:
  try:
    schemas = xml.parse(path).getroot().iter("schema")
  except FileNotFoundError as error:
    raise MissingInput(f"{path}: {error.strerror}; {FILES['wsc273']} would do as well") from error
  except xml.ParseError as error:
    raise InputError(f"{path}: not XML: {error}") from error
  for number, schema in enumerate(schemas, start=1):
    location = f"{path}: schema {number}"
    before = _one_line(schema.findtext("text/txt1"))
    after = _one_line(schema.findtext("text/txt2"))
    candidates = [_one_line(answer.text) for answer in schema.iterfind("answers/answer")]
    letter = (schema.findtext("correctAnswer") or "").strip(" .\n")
    if letter not in ("A", "B") or len(candidates) != 2:
      raise InputError(f"{location}: should have two answers, and correctAnswer A or B")
    answer = candidates["AB".index(letter)]
    yield _pronoun(f"{before} ", f" {after}", candidates, answer, location)
    if number == 273:  # published results are on the first 273; the collection has grown since
      return


def _one_line(text: str | None) -> str:
  return " ".join((text or "").split())


def _pronoun(before: str, after: str, candidates: list[str], answer: str, location: str) -> Pronoun:
  lowered = [candidate.lower() for candidate in candidates]
  if len(candidates) != 2 or answer.lower() not in lowered:
    raise InputError(
      f"{location}: answer {answer!r}: should be one of two candidates, "
      f"not of {', '.join(candidates)}"
    )
  if before.strip():  # candidates are capitalized as if they began the sentence
    article = r"^(The|A|An) "
    candidates = [re.sub(article, lambda m: m[0].lower(), candidate) for candidate in candidates]
  first, second = candidates
  return Pronoun(before, after, (first, second), lowered.index(answer.lower()), location)
