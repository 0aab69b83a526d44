"""Sentences whose pronoun stands for one of two candidates, for zero-shot evaluation (section 5).

The paper's data is that of Rahman and Ng (2012), 1,322 sentences for training and 564 for testing;
the 273 Winograd schemas (Levesque et al. 2012) have the same form.
"""

import os
import re
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from typing import NamedTuple

from gpt_jax.errors import InputError, MissingInput
from gpt_jax.tasks.readers import find_folder, read_lines

FILES = {"dprd": "test.c.txt", "wsc273": "wsc273.txt"}
SCHEMAS = "WSCollection.xml"  # the Winograd schemas as their authors publish them


class Pronoun(NamedTuple):
  """One sentence.

  Attributes:
    before, after: the sentence around its pronoun.
    candidates: what the pronoun may stand for.
    answer: which of them it does, from 0.
    location: "file:line", for messages.
  """

  before: str
  after: str
  candidates: tuple[str, str]
  answer: int
  location: str


def read(data_dir: str, name: str) -> list[Pronoun]:
  """The sentences of "dprd" (its test set) or "wsc273".

  Raises:
    InputError: naming file and line, for anything missing or malformed.
  """
  root = find_folder(data_dir, "winograd")
  path, schemas = os.path.join(root, FILES[name]), os.path.join(root, SCHEMAS)
  found = list(
    _schemas(schemas) if name == "wsc273" and not os.path.exists(path) else _blocks(path)
  )
  if not found:
    raise InputError(
      f"{path}: empty; it should have blocks of sentence, pronoun, candidates and answer"
    )
  return found


def _blocks(path: str) -> Iterator[Pronoun]:
  """Four lines a sentence: itself, the pronoun, the two candidates separated by a comma, the
  right one.
  """
  numbered = read_lines(path)
  for i in range(0, len(numbered), 4):
    name = f"{path}:{numbered[i][0]}"
    block = [" ".join(line.split()) for _, line in numbered[i : i + 4]]
    if len(block) < 4:
      raise InputError(
        f"{name}: {len(block)} lines; there should be sentence, pronoun, candidates and answer"
      )
    sentence, pronoun, both, answer = block
    candidates = [candidate.strip() for candidate in both.split(",")]
    # The first occurrence is meant, and of "it" none within a word.
    place = re.search(rf"(?<!\w){re.escape(pronoun)}(?!\w)", sentence, re.IGNORECASE)
    if not place:
      raise InputError(f"{name}: the pronoun {pronoun!r} is not in the sentence {sentence!r}")
    yield _pronoun(sentence[: place.start()], sentence[place.end() :], candidates, answer, name)


def _schemas(path: str) -> Iterator[Pronoun]:
  try:
    schemas = xml.parse(path).getroot().iter("schema")
  except FileNotFoundError as error:
    raise MissingInput(f"{path}: {error.strerror}; {FILES['wsc273']} would do as well") from error
  except xml.ParseError as error:
    raise InputError(f"{path}: not XML: {error}") from error
  for number, schema in enumerate(schemas, start=1):
    name = f"{path}: schema {number}"
    before, after = (
      " ".join((schema.findtext(f"text/{part}") or "").split()) for part in ("txt1", "txt2")
    )
    candidates = [
      " ".join((answer.text or "").split()) for answer in schema.iterfind("answers/answer")
    ]
    letter = (schema.findtext("correctAnswer") or "").strip(" .\n")
    if letter not in ("A", "B") or len(candidates) != 2:
      raise InputError(f"{name}: should have two answers, and correctAnswer A or B")
    yield _pronoun(before + " ", " " + after, candidates, candidates["AB".index(letter)], name)
    if number == 273:  # the collection has grown since; the first 273 are what is compared
      return


def _pronoun(before: str, after: str, candidates: list[str], answer: str, name: str) -> Pronoun:
  folded = [candidate.lower() for candidate in candidates]
  if len(folded) != 2 or answer.lower() not in folded:
    raise InputError(
      f"{name}: answer {answer!r}: should be one of two candidates, not of {', '.join(candidates)}"
    )
  if before.strip():  # "The bee" is written as at a sentence's beginning, wherever it will stand
    candidates = [
      re.sub(r"^(The|A|An) ", lambda article: article[0].lower(), each) for each in candidates
    ]
  return Pronoun(before, after, tuple(candidates), folded.index(answer.lower()), name)
