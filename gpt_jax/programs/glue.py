"""Makes a GLUE submission from fine-tuned checkpoints."""

import contextlib
import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file
from gpt_jax.paper.glue import HEADER, OPTIONAL, TEST_SETS, TestSet, _check_out, _trained_on, check
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.glue.mnli import diagnostic_file
from gpt_jax.tasks.task import find


def run(checkpoints: Sequence[str], data_dir: str, out: str) -> dict[str, str]:
  """Writes a submission. What is missing is told first; before the first prediction all test files
  have been read.

  Args:
    checkpoints: fine-tuned models (see load_model), at most one a task. One of MNLI predicts
      both of its test sets and, where it is there, the diagnostic set.
    data_dir: where GLUE's official files are, as in finetune. TFDS has the rows in another order.
    out: the zip to write. A file for which there is no model holds one constant, and a warning says
      so.

  Returns:
    For every file what its predictions are from: a checkpoint, or "constant: …" with the reason.

  Raises:
    InputError: `out` is there already; two models of one task, or one of none of GLUE's; a test
      file that is missing or has another number of rows than GLUE's.
  """
  if not checkpoints:
    raise InputError("--checkpoints: none is named; give one or more fine-tuned on tasks of GLUE")
  if data_dir.startswith("tfds:"):
    raise InputError(
      f"--data_dir={data_dir}: TFDS has shuffled the rows, the server wants the official files' order"
    )
  _check_out(out)
  models: dict[str, str] = {}
  encoded: dict[str, dict[TestSet, Encoded]] = {}
  for path in checkpoints:
    found = load_model(path)
    task = _task_of(found)
    if task in models:
      raise InputError(
        f"--checkpoints: {models[task]} and {path} are both of {task}; give one of them"
      )
    models[task] = path
    test_sets = [
      test_set
      for test_set in TEST_SETS
      if test_set.trained_on == task and _is_there(test_set, data_dir)
    ]
    encoded[path] = {test_set: _encode(test_set, found, data_dir) for test_set in test_sets}

  sources = {}
  for test_set in TEST_SETS:
    missing = (
      diagnostic_file(data_dir)
      if test_set.trained_on in models
      else f"checkpoint of {test_set.trained_on}"
    )
    sources[test_set.file] = f"constant: no {missing}"
  sources.update({test_set.file: path for path in encoded for test_set in encoded[path]})
  if constant := [
    f"{file} ({source})" for file, source in sources.items() if source not in encoded
  ]:
    warnings.warn(f"{out}: not predicted by any model: {', '.join(constant)}", stacklevel=2)

  predictions = {test_set.file: [test_set.constant] * test_set.rows for test_set in TEST_SETS}
  with _making(out) as submission:  # fail before the expensive part
    for path, of_model in encoded.items():
      found = load_model(path)  # again, so that one model at a time is in memory
      predict = found.predictor()
      for test_set, examples in of_model.items():
        probabilities = predict(examples, 32)
        if not np.isfinite(probabilities).all():
          raise InputError(
            f"--checkpoints: {path} predicts nan for {test_set.task}; its training must have diverged"
          )
        predictions[test_set.file] = test_set.predictions(find(test_set.task).value(probabilities))
    with zipfile.ZipFile(submission, "w", zipfile.ZIP_DEFLATED) as archive:
      for file, column in predictions.items():
        archive.writestr(
          file, "\n".join([HEADER, *(f"{row}\t{value}" for row, value in enumerate(column)), ""])
        )
    submission.flush()
    check(submission.name)
  return sources


def _task_of(found: LoadedModel) -> str:
  """What a checkpoint was trained on, e.g. "mnli"."""
  if found.task is None:
    raise InputError(
      f"--checkpoints: {found.path} is a language model without a head; fine-tune it first"
    )
  name = found.task.name
  tasks = list(dict.fromkeys(test_set.trained_on for test_set in TEST_SETS))
  if _trained_on(name) not in tasks:
    raise InputError(
      f"--checkpoints: {found.path} is of {name}, no task of GLUE; these are {', '.join(tasks)}"
    )
  return _trained_on(name)


def _is_there(test_set: TestSet, data_dir: str) -> bool:
  return test_set.file not in OPTIONAL or os.path.exists(diagnostic_file(data_dir))


def _encode(test_set: TestSet, found: LoadedModel, data_dir: str) -> Encoded:
  task = find(test_set.task)
  examples = task.examples(data_dir, "test")
  if len(examples) != test_set.rows:
    file = examples[0].location.rpartition(":")[0]
    raise InputError(
      f"{file}: {len(examples)} rows; GLUE's has {test_set.rows}: copy the official file again"
    )
  return task.encode(examples, found.tokenizer, found.spec.trunk.context)


@contextlib.contextmanager
def _making(out: str) -> Iterator[IO[bytes]]:
  """The zip to write, atomically; refuses to overwrite, however late the other file came."""
  try:
    with atomic_file(out, "wb", overwrite=False) as file:
      yield file
      _check_out(out)
  except OSError as error:
    raise InputError(f"--out={out}: {error.strerror or error}") from error
