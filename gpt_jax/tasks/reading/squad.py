"""SQuAD: the answer to a question is a part of a passage of Wikipedia.

Version 1.1 (Rajpurkar et al. 2016); in 2.0 a passage may have no answer (Rajpurkar et al. 2018).
"""

import functools
import os
from collections.abc import Iterator
from typing import Any

from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import read_json
from gpt_jax.tasks.answers.span import SPAN_METRICS, Answer, SpanExample, SpanTask, make_example

_MAX_FILE = 1 << 30  # bytes


def read(data_dir: str, split: str, version: str) -> Iterator[SpanExample]:
  """The questions of a file, from `data_dir` or the folder squad/ in it."""
  if split not in ("train", "dev"):
    raise MissingInput(f"SQuAD: its {split} set is not public; use train or dev")
  name = f"{split}-v{version}.json"
  paths = [os.path.join(data_dir, "squad", name), os.path.join(data_dir, name)]
  for path in paths:
    try:
      tree = read_json(path, _MAX_FILE)
    except (FileNotFoundError, NotADirectoryError):
      continue
    except (OSError, ValueError) as error:
      raise InputError(f"{path}: cannot be read ({error}); copy the file again") from error
    yield from questions_of(tree, path, version)
    return
  advice = "data_dir=DIR is the folder with squad/, or squad/ itself"
  raise MissingInput(f"{paths[0]}: missing; {advice}")


def questions_of(tree: Any, path: str, version: str) -> Iterator[SpanExample]:
  """The examples in the JSON of a file."""
  for article, passages in enumerate(_list(tree, "data", path)):
    for number, passage in enumerate(_list(passages, "paragraphs", f"{path}: article {article}")):
      place = f"{path}: article {article}, paragraph {number}"
      for question in _list(passage, "qas", place):
        example = _example(passage, question, place)
        if not example.label and version == "1.1":
          raise InputError(
            f"{example.location}: no answer; version 2.0, the task squad-2, has such questions"
          )
        yield example


def _example(passage: Any, question: Any, place: str) -> SpanExample:
  try:
    location = f"{place}, question {question['id']}"
    texts = question["question"], passage["context"]
    answers = tuple(Answer(a["text"], a["answer_start"]) for a in question["answers"])
    strings = (*texts, *(answer.text for answer in answers))
    starts = (answer.start for answer in answers)
    if {*map(type, strings)} != {str} or {*map(type, starts)} - {int}:
      raise TypeError
  except (KeyError, TypeError) as error:
    raise InputError(
      f"{place}: should have a context, and questions with id, question and answers, each with "
      "text and answer_start"
    ) from error
  return make_example(*texts, answers, location)


def _list(tree: Any, name: str, place: str) -> list[Any]:
  if not isinstance(tree, dict) or not isinstance(tree.get(name), list):
    raise InputError(f"{place}: should be an object with a list {name!r}, as SQuAD's files have")
  return tree[name]


TASKS = (
  SpanTask("squad", functools.partial(read, version="1.1"), SPAN_METRICS),
  SpanTask("squad-2", functools.partial(read, version="2.0"), SPAN_METRICS, may_refuse=True),
)
