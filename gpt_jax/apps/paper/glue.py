"""Makes a GLUE submission from fine-tuned checkpoints."""

import contextlib
import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from gpt_jax.apps.paper.glue_files import HEADER, OPTIONAL, TEST_SETS, TestSet, check, trained_on
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.errors import InputError, counted
from gpt_jax.files import atomic_file, check_path, exists
from gpt_jax.programs.outputs import check_writable, is_taken
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.glue.mnli import diagnostic_file
from gpt_jax.tasks.task import find


def run(checkpoints: Sequence[str], data_dir: str, out: str) -> dict[str, str]:
  """Predicts GLUE's test sets and writes a submission.

  Reads all checkpoints and test files before the first prediction, so that errors appear early.

  Args:
    checkpoints: fine-tuned models (see load_model), at most one per task. An MNLI model predicts
      both of its test sets and, if its file is there, the diagnostic set.
    data_dir: the folder with GLUE's official files, as for finetune. TFDS orders the rows
      differently.
    out: the zip file to create. Test sets without a model get a constant prediction, with a
      warning.

  Returns:
    For every file the source of its predictions: a checkpoint, or "constant: " and the reason.
  """
  if not any(checkpoints):
    raise InputError("--checkpoint is empty; give one or more fine-tuned on tasks of GLUE")
  if data_dir.startswith("tfds:"):
    raise InputError(f"--data={data_dir}: TFDS shuffles the rows; use GLUE's official files")
  _check_out(out)
  check_writable(os.path.dirname(out), out)
  encoded = _encode_all(checkpoints, data_dir)
  sources = _sources(encoded, data_dir)
  if constant := [file for file, source in sources.items() if source not in encoded]:
    listed = ", ".join(f"{file} ({sources[file]})" for file in constant)
    warnings.warn(f"{out}: not predicted by any model: {listed}", stacklevel=2)

  predictions = {test_set.file: [test_set.constant] * test_set.rows for test_set in TEST_SETS}
  with _create(out) as submission:  # before predicting, so that an unwritable path fails early
    for path, test_sets in encoded.items():
      predictions |= _predict(path, test_sets)
    with zipfile.ZipFile(submission, "w", zipfile.ZIP_DEFLATED) as archive:
      for file, column in predictions.items():
        rows = [f"{row}\t{value}" for row, value in enumerate(column)]
        archive.writestr(file, "\n".join([HEADER, *rows, ""]))
    submission.flush()
    check(submission.name)
  return sources


def _encode_all(checkpoints: Sequence[str], data_dir: str) -> dict[str, dict[TestSet, Encoded]]:
  """Checkpoint -> the test sets that it predicts, encoded."""
  paths: dict[str, str] = {}
  encoded: dict[str, dict[TestSet, Encoded]] = {}
  for path in checkpoints:
    loaded = load_model(path)
    task = _task_of(loaded)
    if task in paths:
      raise InputError(
        f"--checkpoint: {paths[task]} and {path} are both of {task}; give one of them"
      )
    paths[task] = path
    encoded[path] = {}
    for test_set in TEST_SETS:
      if test_set.trained_on == task and _is_there(test_set, data_dir):
        encoded[path][test_set] = _encode(test_set, loaded, data_dir)
  return encoded


def _sources(encoded: dict[str, dict[TestSet, Encoded]], data_dir: str) -> dict[str, str]:
  """File -> the checkpoint that predicts it, or "constant: " and the reason."""
  by_test_set = {test_set: path for path, test_sets in encoded.items() for test_set in test_sets}
  tasks = {test_set.trained_on for test_set in by_test_set}
  sources = {}
  for test_set in TEST_SETS:
    if test_set in by_test_set:
      sources[test_set.file] = by_test_set[test_set]
    elif test_set.trained_on in tasks:  # only the diagnostic set may lack its file
      sources[test_set.file] = f"constant: no {diagnostic_file(data_dir)}"
    else:
      sources[test_set.file] = f"constant: no checkpoint of {test_set.trained_on}"
  return sources


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


def _task_of(loaded: LoadedModel) -> str:
  """The task that a checkpoint was trained on, e.g. "mnli"."""
  if loaded.task is None:
    raise InputError(f"--checkpoint: {loaded.path} is {loaded.without_task}; fine-tune it first")
  loaded.check_head()
  name = loaded.task.name
  tasks = list(dict.fromkeys(test_set.trained_on for test_set in TEST_SETS))
  if trained_on(name) not in tasks:
    raise InputError(
      f"--checkpoint: {loaded.path} is fine-tuned on {name}, not on a task of GLUE; "
      f"these are {', '.join(tasks)}"
    )
  return trained_on(name)


def _is_there(test_set: TestSet, data_dir: str) -> bool:
  return test_set.file not in OPTIONAL or exists(diagnostic_file(data_dir))


def _encode(test_set: TestSet, loaded: LoadedModel, data_dir: str) -> Encoded:
  task = find(test_set.task)
  examples = task.examples(data_dir, "test")
  if len(examples) != test_set.rows:
    file = examples[0].location.rpartition(":")[0]
    raise InputError(
      f"{file}: {counted(len(examples), 'row')}; GLUE's has {test_set.rows}: copy the official "
      "file again"
    )
  encoded = loaded.encode(task, examples)
  if encoded.truncation:
    warnings.warn(f"{test_set.file}: {encoded.truncation}", stacklevel=4)
  return encoded


def _check_out(out: str) -> None:
  check_path(out)
  if is_taken(out):
    raise InputError(f"--out={out} already exists; name another file")
  if not os.path.basename(out):
    raise InputError(f"--out={out}: name the zip file to create")


@contextlib.contextmanager
def _create(out: str) -> Iterator[IO[bytes]]:
  """Opens a temporary file that becomes `out` if no error occurs; never replaces a file."""
  try:
    with atomic_file(out, "wb", overwrite=False) as file:
      yield file
      _check_out(out)
  except OSError as error:
    raise InputError(f"--out={out}: {error.strerror or error}") from error
