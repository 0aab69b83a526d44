"""Reading comprehension: RACE, Story Cloze and SQuAD."""

import functools
import glob
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import find_files, is_folder, list_folder, parse_json, read_json
from gpt_jax.tasks.answers.span import SPAN_METRICS, Answer, SpanExample, SpanTask, make_example
from gpt_jax.tasks.formats import first_field
from gpt_jax.tasks.readers import Row, find_folder, read_lines, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import Sequences, multiple_choice

# RACE ---------------------------------------------------------------------------------------------

# Four-option questions on a passage, from English exams in China (Lai et al. 2017).
OPTIONS = ("A", "B", "C", "D")


def question_answering(article: str, question: str, *options: str) -> Sequences:
  """One sequence per option: <start> article question <delimiter> option <extract>.

  Radford et al. 2018, section 3.3: no delimiter between article and question.
  """
  return tuple((article, question, option) for option in options)


def read_race(data_dir: str, split: str, schools: tuple[str, ...]) -> Iterator[Row]:
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
        yield from race_rows(passage, location)


def race_rows(passage: dict[str, Any], location: str) -> Iterator[Row]:
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
    if len(texts) != 2 + len(OPTIONS) or not all(isinstance(text, str) for text in texts):
      raise InputError(
        f"{location}: question {number}: {len(texts) - 2} options; should be {len(OPTIONS)} texts"
      )
    yield Row(texts, answer, f"{location}: question {number}")


def _race(name: str, schools: tuple[str, ...], result: str) -> Task:
  return Task(
    name=name,
    labels=OPTIONS,
    columns=("article", "question", *OPTIONS),
    transform=question_answering,
    read=functools.partial(read_race, schools=schools),
    pooling="per_choice",  # a score for each option, and a softmax over the four
    truncate=first_field,
    tfds=tuple(f"race/{school}" for school in schools),
    tfds_rows=race_rows,
    paper=f"{result} accuracy on the test set (Radford et al. 2018, table 3)",
  )


_RACE = (
  _race("race", ("middle", "high"), "59.0"),
  _race("race-middle", ("middle",), "62.9"),
  _race("race-high", ("high",), "57.4"),
)


# Story Cloze --------------------------------------------------------------------------------------

# Which of two endings belongs to a four-sentence story? (Mostafazadeh et al. 2016)
SENTENCES = ("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4")
ENDINGS = ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2")
SPLIT_SEED = 3535999445  # OpenAI's (openai/datasets.py)


def story_endings(*texts: str) -> Sequences:
  """<start> story <delimiter> ending <extract>, for each of the two endings."""
  return multiple_choice(" ".join(texts[:4]), *texts[4:])


def read_storycloze(data_dir: str, split: str, edition: str) -> Iterator[Row]:
  """Reads an edition's CSV files, "spring2016" or "winter2018"; its test set has no labels.

  The paper trains on the validation set of spring 2016, divided 4 to 1 into training and dev set,
  as by sklearn.model_selection.train_test_split. The edition of winter 2018 is divided likewise.
  The two are not mixed: 1,556 of the 1,571 stories of 2018's validation set are in that of 2016.
  """
  root = find_folder(data_dir, "story_cloze")
  if split == "test":
    yield from _read_cloze(root, f"test__{edition}", unlabeled=True)
    return
  rows = list(_read_cloze(root, f"val__{edition}"))
  # train_test_split draws so: the first places of one permutation are its test set. RandomState's
  # numbers are the same in all versions of NumPy, unlike default_rng's.
  order = np.random.RandomState(SPLIT_SEED).permutation(len(rows))
  dev_size = len(rows) // 5  # 374 of 1,871
  chosen = order[:dev_size] if split == "dev" else order[dev_size:]
  yield from (rows[i] for i in chosen)


def _read_cloze(root: str, name: str, unlabeled: bool = False) -> Iterator[Row]:
  pattern = os.path.join(glob.escape(root), "**", f"cloze_test_{name}*.csv")
  paths = [*find_files(pattern)]
  if len(paths) != 1:
    problem = InputError if paths else MissingInput
    raise problem(f"{root}: {len(paths)} files cloze_test_{name}*.csv; there should be one")
  columns = (*SENTENCES, *ENDINGS)
  return read_table(paths[0], columns, "AnswerRightEnding", unlabeled=unlabeled)


def _storycloze(name: str, edition: str, paper: str) -> Task:
  return Task(
    name=name,
    labels=("1", "2"),
    columns=(*SENTENCES, *ENDINGS),
    transform=story_endings,
    read=functools.partial(read_storycloze, edition=edition),
    pooling="per_choice",
    paper=paper,
  )


_PAPER = "86.5 accuracy on the test set of 2016 (Radford et al. 2018, table 3)"
_STORYCLOZE = (
  _storycloze("storycloze", "spring2016", _PAPER),
  _storycloze("storycloze-2018", "winter2018", ""),
)


# SQuAD --------------------------------------------------------------------------------------------

# The answer to a question is a part of a passage of Wikipedia. Version 1.1 (Rajpurkar et al. 2016);
# in 2.0 a passage may have no answer (Rajpurkar et al. 2018).
_MAX_FILE = 1 << 30  # bytes


def read_squad(data_dir: str, split: str, version: str) -> Iterator[SpanExample]:
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
        example = _question(passage, question, place)
        if not example.label and version == "1.1":
          raise InputError(
            f"{example.location}: no answer; version 2.0, the task squad-2, has such questions"
          )
        yield example


def _question(passage: Any, question: Any, place: str) -> SpanExample:
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


_SQUAD = (
  SpanTask("squad", functools.partial(read_squad, version="1.1"), SPAN_METRICS),
  SpanTask("squad-2", functools.partial(read_squad, version="2.0"), SPAN_METRICS, may_refuse=True),
)

TASKS = (*_RACE, *_STORYCLOZE, *_SQUAD)
