"""The program that makes a GLUE submission: test predictions in the files its server scores (Wang
et al. 2018).

Only the server has the labels. It is sent a zip without folders, a file a test set, each with the
header `index<TAB>prediction` and rows counted from 0 in the order of the test set
(gluebenchmark.com/faq; jiant writes the same, https://github.com/jiant-dev/jiant-dev/pull/134). It
refuses a file that lacks an index (https://github.com/nyu-mll/GLUE-baselines/issues/14) and scores
of STS-B outside 0 to 5 (https://github.com/princeton-nlp/DinkyTrain/issues/2).
"""

import dataclasses
import math
import os
import re
import statistics
import zipfile
from collections import Counter
from collections.abc import Mapping

import numpy as np

from gpt_jax.errors import InputError

HEADER = "index\tprediction"


@dataclasses.dataclass(frozen=True)
class TestSet:
  """A test set of GLUE, and how its predictions are written.

  Attributes:
    file: its name in the submission.
    task: which task's test split it is.
    rows: how many it has.
    written: what stands for each of the task's labels, in their order; empty where a number from 0
      to 5 does.
    constant: what is written where there is no model: the most frequent label in training, 2.5 for
      STS-B.
    metrics: those of the task that count in GLUE's score.
  """

  file: str
  task: str
  rows: int
  written: tuple[str, ...]
  constant: str
  metrics: tuple[str, ...]

  @property
  def trained_on(self) -> str:
    """The task whose models predict it: "mnli" for all three of MNLI."""
    return _trained_on(self.task)

  def predictions(self, values: np.ndarray) -> list[str]:
    """The second column of the file, of what Task.value gives, [N]."""
    if self.written:
      return [self.written[int(value)] for value in values]
    return [f"{value:.4f}" for value in np.clip(values, 0, 5)]


_BINARY = ("0", "1")


_OF_TWO = ("entailment", "not_entailment")


_OF_THREE = ("entailment", "neutral", "contradiction")


TEST_SETS = (
  TestSet("CoLA.tsv", "cola", 1063, _BINARY, "1", ("matthews",)),
  TestSet("SST-2.tsv", "sst2", 1821, _BINARY, "1", ("accuracy",)),
  TestSet("MRPC.tsv", "mrpc", 1725, _BINARY, "1", ("f1", "accuracy")),
  TestSet("STS-B.tsv", "stsb", 1379, (), "2.5", ("pearson", "spearman")),
  TestSet("QQP.tsv", "qqp", 390965, _BINARY, "0", ("f1", "accuracy")),
  TestSet("MNLI-m.tsv", "mnli", 9796, _OF_THREE, "entailment", ("accuracy",)),
  TestSet("MNLI-mm.tsv", "mnli-mismatched", 9847, _OF_THREE, "entailment", ("accuracy",)),
  TestSet("QNLI.tsv", "qnli", 5463, _OF_TWO, "entailment", ("accuracy",)),
  TestSet("RTE.tsv", "rte", 3000, _OF_TWO, "entailment", ("accuracy",)),
  TestSet("WNLI.tsv", "wnli", 146, _BINARY, "0", ("accuracy",)),
  TestSet("AX.tsv", "mnli-diagnostic", 1104, _OF_THREE, "entailment", ()),
)


OPTIONAL = ("AX.tsv",)  # the diagnostic set is shown beside the score and is no part of it


def check(path: str) -> dict[str, Counter[str]]:
  """Whether the server would take a submission.

  Args:
    path: a zip with a file for each test set; AX.tsv may be missing.

  Returns:
    For every file how often it predicts what; scores of STS-B are rounded to whole numbers.

  Raises:
    InputError: naming file and line, for the first thing that is wrong.
  """
  return {
    test_set.file: _check_rows(f"{path}: {test_set.file}", content, test_set)
    for test_set, content in _contents(path).items()
  }


def average(scores: Mapping[str, Mapping[str, float]]) -> float:
  """GLUE's score: the mean over its nine tasks, for each the mean of its metrics; those of MNLI are
  of both test sets.

  Args:
    scores: a task's name -> its metrics by name, in one unit, as evaluate.run gives them; what is
      not GLUE's is left out. MNLI's are those of "mnli" and of "mnli-mismatched".

  Raises:
    InputError: naming what is missing.
  """
  counted = [(test_set, metric) for test_set in TEST_SETS for metric in test_set.metrics]
  missing = [
    f"{each.task} ({metric})" for each, metric in counted if metric not in scores.get(each.task, {})
  ]
  if missing:
    raise InputError(f"GLUE's score takes all nine tasks; missing: {', '.join(missing)}")
  of_task: dict[str, list[float]] = {}
  for test_set, metric in counted:
    of_task.setdefault(test_set.trained_on, []).append(scores[test_set.task][metric])
  return statistics.fmean(map(statistics.fmean, of_task.values()))


def _trained_on(task: str) -> str:
  return task.partition("-")[0]


def _check_out(out: str) -> None:
  if os.path.lexists(out):
    raise InputError(f"--out={out}: is there already; name another file")
  if not os.path.basename(out):
    raise InputError(f"--out={out}: should name the zip to make")


def _contents(path: str) -> dict[TestSet, bytes]:
  """The files of a submission, of which none is missing and none is something else."""
  try:
    with zipfile.ZipFile(path) as archive:
      names = archive.namelist()
      _check_names(path, names)
      return {
        test_set: archive.read(test_set.file) for test_set in TEST_SETS if test_set.file in names
      }
  except InputError:
    raise
  except OSError as error:
    raise InputError(f"{path}: {error.strerror or error}") from error
  except Exception as error:  # a damaged zip fails in as many ways as there are decoders in it
    raise InputError(f"{path}: not a whole zip file ({error})") from error


def _check_names(path: str, names: list[str]) -> None:
  files = [test_set.file for test_set in TEST_SETS]
  for name in names:
    if "/" in name:
      raise InputError(
        f"{path}: {name!r} is or is in a folder; the zip should have the files at its top"
      )
    if name not in files:
      raise InputError(f"{path}: {name!r} is no file of a submission; these are {', '.join(files)}")
    if names.count(name) > 1:
      raise InputError(f"{path}: {name!r} is in it {names.count(name)} times")
  if missing := [file for file in files if file not in names and file not in OPTIONAL]:
    raise InputError(f"{path}: no {', '.join(missing)}; the server wants every task")


def _check_rows(name: str, content: bytes, test_set: TestSet) -> Counter[str]:
  """How often each prediction occurs; raises InputError with `name` and line."""
  lines = content.decode("utf-8", errors="backslashreplace").removesuffix("\n").split("\n")
  if lines[0] != HEADER:
    raise InputError(
      f"{name}:1: {lines[0][:60]!r}; should be index and prediction, separated by a tab"
    )
  counts: Counter[str] = Counter()
  for row, line in enumerate(lines[1:]):
    cells = line.split("\t")
    if len(cells) != 2:
      raise InputError(f"{name}:{row + 2}: {len(cells)} columns; should be 2, separated by a tab")
    if cells[0] != str(row):
      raise InputError(
        f"{name}:{row + 2}: index {cells[0]!r}; should be {row}: every row, in order"
      )
    try:
      counts[_outcome(cells[1], test_set)] += 1
    except ValueError as error:
      raise InputError(f"{name}:{row + 2}: prediction {cells[1]!r}: should be {error}") from error
  if len(lines) - 1 != test_set.rows:
    raise InputError(
      f"{name}:{len(lines)}: ends after {len(lines) - 1} rows; should have {test_set.rows}"
    )
  return counts


def _outcome(prediction: str, test_set: TestSet) -> str:
  """A prediction as it is counted; a ValueError says what it should be."""
  if test_set.written:
    if prediction not in test_set.written:
      raise ValueError(f"one of {', '.join(test_set.written)}")
    return prediction
  number = (
    float(prediction) if re.fullmatch(r"[0-9]+(\.[0-9]*)?(e-?[0-9]+)?", prediction) else math.nan
  )
  if not 0 <= number <= 5:
    raise ValueError("a number from 0 to 5")
  return f"{number:.0f}"
