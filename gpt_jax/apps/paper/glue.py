"""GLUE: its score, and a submission made from fine-tuned checkpoints (Wang et al. 2018).

Only GLUE's server has the test labels. A submission is a zip without folders, with one file per
test set: the header `index<TAB>prediction`, then rows numbered from 0 in the test set's order
(gluebenchmark.com/faq; jiant writes the same, https://github.com/jiant-dev/jiant-dev/pull/134). The
server refuses files that lack an index (https://github.com/nyu-mll/GLUE-baselines/issues/14) and
STS-B scores outside 0 to 5 (https://github.com/princeton-nlp/DinkyTrain/issues/2).
"""

import dataclasses
import os
import re
import statistics
import warnings
import zipfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.errors import InputError, counted
from gpt_jax.files import atomic_file, check_path, exists
from gpt_jax.programs.outputs import check_writable, is_taken
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.glue import diagnostic_file
from gpt_jax.tasks.task import find

HEADER = "index\tprediction"


@dataclasses.dataclass(frozen=True)
class TestSet:
  """A test set of GLUE and the format of its predictions."""

  file: str  # in the submission
  task: str  # whose test split it is
  rows: int
  written: tuple[str, ...]  # for each of the task's labels; () for scores from 0 to 5
  constant: str  # without a model: the most frequent training label, for STS-B 2.5
  metrics: tuple[str, ...]  # those of the task that count in GLUE's score

  @property
  def trained_on(self) -> str:
    """The task to train on: "mnli" for all three test sets of MNLI."""
    return self.task.partition("-")[0]

  def predictions(self, values: np.ndarray) -> list[str]:
    """Formats the values of Task.value, [N], as the file's second column."""
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
OPTIONAL = ("AX.tsv",)  # the diagnostic set is reported, but is no part of the score


def check(path: str) -> dict[str, Counter[str]]:
  """Counts of each file's predictions (STS-B's in ranges of one), if the server would accept them.

  The zip has a file for each test set; AX.tsv may be missing.
  """
  contents = {}
  try:
    with zipfile.ZipFile(path) as archive:
      names = archive.namelist()
      for test_set in TEST_SETS:
        if test_set.file in names:
          contents[test_set] = archive.read(test_set.file)
  except OSError as error:
    raise InputError(f"{path}: {error.strerror or error}") from error
  except Exception as error:  # zipfile's decoders raise many types for a damaged file
    raise InputError(f"{path}: not an intact zip file ({error})") from error
  _check_names(path, names)
  counts = {}
  for test_set, content in contents.items():
    counts[test_set.file] = _check_rows(f"{path}: {test_set.file}", content, test_set)
  return counts


def average(scores: Mapping[str, Mapping[str, float]]) -> float:
  """GLUE's score: the mean over its nine tasks of each task's mean metric.

  `scores` has task -> metric -> value, all in one unit, as from evaluate.run, and may have others.
  MNLI's test sets are "mnli" and "mnli-mismatched".
  """
  missing, by_task = [], defaultdict(list)
  for test_set in TEST_SETS:
    of_task = scores.get(test_set.task, {})
    for metric in test_set.metrics:
      if metric in of_task:
        by_task[test_set.trained_on].append(of_task[metric])
      else:
        missing.append(f"{test_set.task} ({metric})")
  if missing:
    raise InputError(f"GLUE's score needs all nine tasks; missing: {', '.join(missing)}")
  return statistics.fmean(map(statistics.fmean, by_task.values()))


def _check_names(path: str, names: list[str]) -> None:
  files = [test_set.file for test_set in TEST_SETS]
  for name in names:
    if "/" in name:
      problem = f"{name!r} is a folder or in one; the files should be at the top level of the zip"
    elif name not in files:
      problem = f"{name!r} does not belong to a submission; the files are {', '.join(files)}"
    # A zip may hold a name twice, and readers differ in which of them they take.
    elif names.count(name) > 1:
      problem = f"contains {name!r} {names.count(name)} times"
    else:
      continue
    raise InputError(f"{path}: {problem}")
  if missing := [file for file in files if file not in names and file not in OPTIONAL]:
    raise InputError(f"{path}: no {', '.join(missing)}; the server needs every task")


def _check_rows(name: str, content: bytes, test_set: TestSet) -> Counter[str]:
  """Counts predictions. Raises InputError with `name` and the line of the first error."""
  # Bytes that are no UTF-8 stay visible in the message about their line.
  head, *lines = content.decode("utf-8", errors="backslashreplace").removesuffix("\n").split("\n")
  if head != HEADER:
    raise InputError(f"{name}:1: {head[:60]!r}; should be index and prediction, separated by a tab")
  counts: Counter[str] = Counter()
  for row, line in enumerate(lines):
    index, *predictions = line.split("\t")
    if len(predictions) != 1:
      columns = counted(1 + len(predictions), "column")
      problem = f"{columns}; should be 2, separated by a tab"
    elif index != str(row):
      problem = f"index {index!r}; should be {row}: every row, in order"
    else:
      counts[predictions[0]] += 1
      problem = _problem(predictions[0], test_set)
    if problem:
      raise InputError(f"{name}:{row + 2}: {problem}")
  if len(lines) != test_set.rows:
    rows = f"ends after {len(lines)} rows; should have {test_set.rows}"
    raise InputError(f"{name}:{1 + len(lines)}: {rows}")
  if test_set.written:
    return counts
  ranges: Counter[str] = Counter()
  for score, count in counts.items():
    lower = min(4, int(float(score)))  # 5 itself counts as the last range
    ranges[f"{lower} to {lower + 1}"] += count
  return ranges


def _problem(prediction: str, test_set: TestSet) -> str:
  """Why the server would refuse a prediction, "" if it would not."""
  if test_set.written:
    allowed, known = f"one of {', '.join(test_set.written)}", prediction in test_set.written
  else:
    allowed, known = "a number from 0 to 5", False
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?(e-?[0-9]+)?", prediction):
      known = 0 <= float(prediction) <= 5
  return "" if known else f"prediction {prediction!r}: should be {allowed}"


def run(checkpoints: Sequence[str], data: str, out: str) -> dict[str, str]:
  """Predicts GLUE's test sets and writes a submission.

  Reads all checkpoints and test files before the first prediction, so that errors appear early.

  Args:
    checkpoints: fine-tuned models (see load_model), at most one per task. An MNLI model predicts
      both of its test sets and, if its file is there, the diagnostic set.
    data: the folder with GLUE's official files; TFDS orders the rows differently.
    out: the zip file to create. Test sets without a model get a constant prediction, and a warning.

  Returns:
    For every file the source of its predictions: a checkpoint, or "constant: " and the reason.
  """
  if not any(checkpoints):
    raise InputError("--checkpoint is empty; give one or more fine-tuned on tasks of GLUE")
  if data.startswith("tfds:"):
    raise InputError(f"--data={data}: TFDS shuffles the rows; use GLUE's official files")
  check_path(out)
  if not os.path.basename(out):
    raise InputError(f"--out={out}: name the zip file to create")
  _refuse_existing(out)
  check_writable(os.path.dirname(out), out)
  encoded, sources = _encode_all(checkpoints, data)
  if constant := [file for file, source in sources.items() if source not in encoded]:
    listed = ", ".join(f"{file} ({sources[file]})" for file in constant)
    warnings.warn(f"{out}: not predicted by any model: {listed}", stacklevel=2)
  predictions = {test_set.file: [test_set.constant] * test_set.rows for test_set in TEST_SETS}
  for path, test_sets in encoded.items():
    predictions |= _predict(path, test_sets)
  try:
    with atomic_file(out, "wb", overwrite=False) as submission:
      with zipfile.ZipFile(submission, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, column in predictions.items():
          rows = [f"{row}\t{value}" for row, value in enumerate(column)]
          archive.writestr(file, "\n".join([HEADER, *rows, ""]))
      submission.flush()
      check(submission.name)
      _refuse_existing(out)  # it may have come meanwhile
  except OSError as error:
    raise InputError(f"--out={out}: {error.strerror or error}") from error
  return sources


def _encode_all(
  checkpoints: Sequence[str], data_dir: str
) -> tuple[dict[str, dict[TestSet, Encoded]], dict[str, str]]:
  """Checkpoint -> the test sets that it predicts, encoded; and what `run` returns."""
  sources = {
    test_set.file: f"constant: no checkpoint of {test_set.trained_on}" for test_set in TEST_SETS
  }
  paths: dict[str, str] = {}
  encoded: dict[str, dict[TestSet, Encoded]] = {}
  tasks = list(dict.fromkeys(test_set.trained_on for test_set in TEST_SETS))
  for path in checkpoints:
    loaded = load_model(path, check=LoadedModel.check_head)
    trained_on = loaded.task.name.partition("-")[0]  # "mnli" for "mnli-mismatched"
    if trained_on not in tasks:
      raise InputError(
        f"--checkpoint: {path} is fine-tuned on {loaded.task.name}, not on a task of GLUE; these "
        f"are {', '.join(tasks)}"
      )
    if trained_on in paths:
      raise InputError(
        f"--checkpoint: {paths[trained_on]} and {path} are both of {trained_on}; give one of them"
      )
    paths[trained_on], encoded[path] = path, {}
    for test_set in TEST_SETS:
      if test_set.trained_on != trained_on:
        continue
      if test_set.file in OPTIONAL and not exists(diagnostic_file(data_dir)):
        sources[test_set.file] = f"constant: no {diagnostic_file(data_dir)}"
        continue
      sources[test_set.file] = path
      task = find(test_set.task)
      examples = task.examples(data_dir, "test")
      if len(examples) != test_set.rows:
        file = examples[0].location.rpartition(":")[0]
        raise InputError(
          f"{file}: {counted(len(examples), 'row')}; GLUE's has {test_set.rows}: copy the official "
          "file again"
        )
      rows = encoded[path][test_set] = loaded.encode(task, examples)
      if rows.truncation:
        warnings.warn(f"{test_set.file}: {rows.truncation}", stacklevel=3)
  return encoded, sources


def _refuse_existing(out: str) -> None:
  if is_taken(out):
    raise InputError(f"--out={out} already exists; name another file")


def _predict(path: str, test_sets: dict[TestSet, Encoded]) -> dict[str, list[str]]:
  """File -> the column of predictions."""
  predictor = load_model(path).predictor()  # loaded again, so that only one model is in memory
  columns = {}
  for test_set, examples in test_sets.items():
    probabilities = predictor(examples, 32)
    if not np.isfinite(probabilities).all():
      raise InputError(
        f"--checkpoint: {path} predicts nan for {test_set.task}; its training has diverged"
      )
    columns[test_set.file] = test_set.predictions(find(test_set.task).value(probabilities))
  return columns
