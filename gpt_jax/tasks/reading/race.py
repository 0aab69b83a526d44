"""RACE: four-option questions on a passage, from English exams in China (Lai et al. 2017)."""

import functools
import os
from collections.abc import Iterator
from typing import Any

from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import is_folder, list_folder, parse_json
from gpt_jax.tasks.formats import first_field
from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_lines
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import Sequences

LABELS = ("A", "B", "C", "D")


def question_answering(article: str, question: str, *options: str) -> Sequences:
  """One sequence per option: <start> article question <delimiter> option <extract>.

  Radford et al. 2018, section 3.3: no delimiter between article and question.
  """
  return tuple((article, question, option) for option in options)


def read(data_dir: str, split: str, schools: tuple[str, ...]) -> Iterator[Row]:
  """Reads the release: one folder per split and school, one .txt file of JSON per passage."""
  root = find_folder(data_dir, "race")
  for school in schools:
    folder = os.path.join(root, split, school)
    if not is_folder(folder):
      layout = "RACE has one per split and school, with one .txt file per passage"
      raise MissingInput(f"{folder}: no such folder; {layout}")
    passages = [name for name in list_folder(folder) if name.endswith(".txt")]
    passages.sort(key=lambda name: (len(name), name))  # 2.txt before 10.txt
    for path in (os.path.join(folder, name) for name in passages):
      for number, line in read_lines(path):
        location = f"{path}:{number}"
        try:
          passage = parse_json(line)
        except ValueError as error:
          raise InputError(f"{location}: not JSON: {error}") from error
        yield from passage_rows(passage, location)


def passage_rows(passage: dict[str, Any], location: str) -> Iterator[Row]:
  """Yields one row per question of a passage, from the official file or from TFDS."""
  try:
    article = passage["article"]
    questions = list(zip(passage["questions"], passage["options"], passage["answers"], strict=True))
    # A text is the article, the question and the four options; the answer is a letter.
    rows = [((article, question, *options), answer) for question, options, answer in questions]
  except (KeyError, TypeError, ValueError) as error:
    raise InputError(
      f"{location}: should have an article, and as many questions as options and answers"
    ) from error
  for number, (texts, answer) in enumerate(rows, start=1):
    if len(texts) != 2 + len(LABELS) or not all(isinstance(text, str) for text in texts):
      raise InputError(
        f"{location}: question {number}: {len(texts) - 2} options; should be {len(LABELS)} texts"
      )
    yield Row(texts, answer, f"{location}: question {number}")


def _task(name: str, schools: tuple[str, ...], result: str) -> Task:
  return Task(
    name=name,
    labels=LABELS,
    columns=("article", "question", *LABELS),
    transform=question_answering,
    read=functools.partial(read, schools=schools),
    metrics={"accuracy": accuracy},
    pooling="per_choice",  # a score for each option, and a softmax over the four
    truncate=first_field,
    tfds=tuple(f"race/{school}" for school in schools),
    tfds_rows=passage_rows,
    paper=f"{result} accuracy on the test set (Radford et al. 2018, table 3)",
  )


TASKS = (
  _task("race", ("middle", "high"), "59.0"),
  _task("race-middle", ("middle",), "62.9"),
  _task("race-high", ("high",), "57.4"),
)
