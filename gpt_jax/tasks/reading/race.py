"""RACE: questions on a passage, four options each, from English exams of middle and high schools
(Lai et al. 2017).
"""

import functools
import json
import os
from collections.abc import Iterator
from typing import Any

from gpt_jax.errors import InputError, MissingInput
from gpt_jax.tasks.encoding import first_field
from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_lines
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import Sequences

LABELS = ("A", "B", "C", "D")


def sequences(article: str, question: str, *options: str) -> Sequences:
  """<start> article question <delimiter> option <extract>, an option each (the paper's section
  3.3).
  """
  return tuple((article, question, option) for option in options)


def read(data_dir: str, split: str, schools: tuple[str, ...]) -> Iterator[Row]:
  root = find_folder(data_dir, "race")
  for school in schools:
    place = os.path.join(root, split, school)
    if not os.path.isdir(place):
      raise MissingInput(
        f"{place}: no such folder; RACE has one for each split and school, with a .txt file a passage"
      )
    for name in sorted(
      os.listdir(place), key=lambda name: (len(name), name)
    ):  # 2.txt before 10.txt
      if name.endswith(".txt"):
        yield from _read_passage(os.path.join(place, name))


def _read_passage(path: str) -> Iterator[Row]:
  for number, line in read_lines(path):
    name = f"{path}:{number}"
    try:
      passage = json.loads(line)
    except ValueError as error:
      raise InputError(f"{name}: not JSON: {error}") from error
    yield from questions(passage, name)


def questions(passage: dict[str, Any], name: str) -> Iterator[Row]:
  """The rows of one passage, from the official file or from TFDS."""
  try:
    article = passage["article"]
    together = list(zip(passage["questions"], passage["options"], passage["answers"], strict=True))
    rows = [((article, question, *options), answer) for question, options, answer in together]
  except (KeyError, TypeError, ValueError) as error:
    raise InputError(
      f"{name}: should have an article, and as many questions as options and answers"
    ) from error
  for number, (texts, answer) in enumerate(rows, start=1):
    if len(texts) != 2 + len(LABELS) or not all(isinstance(text, str) for text in texts):
      raise InputError(
        f"{name}: question {number}: {len(texts) - 2} options; should be {len(LABELS)} texts"
      )
    yield Row(texts, answer, f"{name}: question {number}")


def _task(name: str, schools: tuple[str, ...], paper: str) -> Task:
  return Task(
    name=name,
    labels=LABELS,
    columns=("article", "question", *LABELS),
    sequences=sequences,
    read=functools.partial(read, schools=schools),
    metrics={"accuracy": accuracy},
    pooling="per_choice",
    truncate=first_field,
    tfds=tuple(f"race/{school}" for school in schools),
    parse=questions,
    paper=f"{paper} accuracy on the test set (Radford et al. 2018, table 3)",
  )


TASKS = (
  _task("race", ("middle", "high"), "59.0"),
  _task("race-middle", ("middle",), "62.9"),
  _task("race-high", ("high",), "57.4"),
)
