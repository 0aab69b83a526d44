"""Predicts labels with a fine-tuned checkpoint, for rows of text or a split of its task."""

import contextlib
import csv
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from gpt_jax.checkpoints.load import load_model
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, refuse_existing
from gpt_jax.tasks.readers import BlankRow, Row, has_header, read_every_row
from gpt_jax.tasks.task import LabeledTask


def run(
  checkpoint: str,
  source: str | None = None,
  output: str = "-",
  *,
  data_dir: str | None = None,
  split: str | None = None,
  batch_size: int = 32,
  overwrite: bool = False,
) -> list[dict[str, Any]]:
  """Predicts every row of a file, or of a split of the checkpoint's task, in order.

  A row of a file that cannot be used (blank, an empty text, too few columns) has an empty
  prediction and a problem that says why, so that results and rows stay in line. Blank rows at the
  end of a file do not count.

  Args:
    checkpoint: a fine-tuned model (see load_model).
    source: a TSV, CSV or JSONL file with the task's text columns by name, or "-" for standard
      input. A TSV without a header may hold just the text columns in the task's order; for tasks
      with a single text that is one text per line.
    output: the file to write, TSV unless its name ends in .csv or .jsonl; "-" for standard output.
      Nothing is written if an error occurs.
    data_dir: instead of source, the folder with the task's files, as for finetune.
    split: the split of data_dir to predict: "train", "dev" or "test", by default "test".
    batch_size: examples per batch.
    overwrite: whether an existing output may be replaced.

  Returns:
    For every row {"prediction": label or value, "probabilities": {label: probability}}, or
    {"prediction": None, "probabilities": {}, "problem": reason}.

  Raises:
    InputError: not a fine-tuned model; no usable row; both or neither of source and data_dir; an
      output that exists already.
  """
  if (source is None) == (data_dir is None):
    raise InputError("give either --input, a file of rows, or --data_dir, the folder of the task")
  if split and data_dir is None:
    raise InputError(f"--split={split} needs --data_dir; --input predicts all rows of its file")
  _check_output(output, source, data_dir, overwrite)
  loaded = load_model(checkpoint)
  task = loaded.task
  if task is None:
    raise InputError(
      f"--checkpoint={checkpoint}: a language model without a head; fine-tune it first, or generate"
    )
  rows = _examples(task, source, data_dir, split or "test")
  usable = [row for row in rows if not isinstance(row, InputError)]
  if not usable:
    raise next((row for row in rows if not isinstance(row, BlankRow)), rows[0])
  encoded = task.encode(usable, loaded.tokenizer, loaded.spec.trunk.context)
  with _open_output(output) as file:  # before predicting, so that an unwritable path fails early
    predictions = loaded.predictor()(encoded, batch_size)
    predicted = [task.result(*pair) for pair in zip(predictions, encoded.truth, strict=True)]
    results = _merge_problems(rows, predicted)
    _write(file, results, Path(output).suffix)
  return results


def _examples(task: LabeledTask, source: str | None, data_dir: str | None, split: str) -> list:
  """The examples of a split of data_dir, or of the file `source`; an InputError for each row of the
  file that cannot be used.
  """
  examples: list[Any] = []
  if source is None:
    examples = task.examples(data_dir or "", split)
    if not examples:
      raise InputError(f"--data_dir={data_dir}: no examples in the {split} split of {task.name}")
    return examples
  for row in read_rows(source, task):
    try:
      examples.append(row if isinstance(row, InputError) else task.example(row))
    except InputError as error:  # an empty text
      examples.append(error)
  if not examples:
    raise InputError(f"--input={source}: no rows; the columns should be {', '.join(task.columns)}")
  return examples


def read_rows(source: str, task: LabeledTask) -> Iterator[Row | InputError]:
  """Reads the rows of a file, ignoring labels; see `run` for the formats."""
  header = has_header(source, task.columns)
  if not header and source.endswith(".tsv"):
    names = ", ".join(task.columns)
    warnings.warn(
      f"{source}: the first line names no column of {task.name} ({names}), so it is read as a row",
      stacklevel=2,
    )
  return read_every_row(source, task.columns, header=header)


def _merge_problems(rows: list, predicted: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """A result for every row: the next prediction, or the problem of one that cannot be used.

  Warns of the rows without a prediction.
  """
  problems = [row for row in rows if isinstance(row, InputError)]
  if problems:
    warnings.warn(
      f"{len(problems)} of {len(rows)} rows have no prediction: {problems[0]}", stacklevel=3
    )
  following = iter(predicted)
  results: list[dict[str, Any]] = []
  for row in rows:
    if isinstance(row, InputError):
      results.append({"prediction": None, "probabilities": {}, "problem": str(row)})
    else:
      results.append(next(following))
  return results


def _write(file: IO[str], results: Sequence[dict[str, Any]], suffix: str) -> None:
  """Writes JSON lines for .jsonl, CSV for .csv, else TSV."""
  if suffix == ".jsonl":
    for result in results:
      print(json.dumps(result), file=file)
    return
  writer = csv.writer(file, delimiter="," if suffix == ".csv" else "\t", lineterminator="\n")
  labels = max((result["probabilities"] for result in results), key=len)  # {} of a problem
  problems = any("problem" in result for result in results)
  header = ["prediction", *(f"p({label})" for label in labels)]
  writer.writerow([*header, "problem"] if problems else header)
  for result in results:
    probabilities = result["probabilities"]
    cells = [f"{probabilities[label]:.6f}" if probabilities else "" for label in labels]
    if problems:
      cells.append(result.get("problem", ""))
    writer.writerow([result["prediction"], *cells])


def _check_output(output: str, source: str | None, data_dir: str | None, overwrite: bool) -> None:
  """Raises InputError for an output that is an input, in the task's data, or exists already."""
  if output == "-":
    return
  if os.path.isdir(output):
    raise InputError(f"--output={output} is a folder; name a file")
  exists = os.path.exists(output)
  if exists and source and os.path.exists(source) and os.path.samefile(output, source):
    raise InputError(f"--output={output} is the input; name another file")
  if exists and data_dir and Path(output).resolve().is_relative_to(Path(data_dir).resolve()):
    raise InputError(f"--output={output} is a file of --data_dir; name another file")
  refuse_existing(output, "--output", overwrite)


@contextlib.contextmanager
def _open_output(output: str) -> Iterator[IO[str]]:
  """Opens the output; a file appears only when it is complete."""
  if output == "-":
    yield sys.stdout
    return
  try:
    with atomic_file(output) as file:
      yield file
  except OSError as error:
    raise InputError(f"--output={output}: {error.strerror or error}") from error
