"""The program that labels: a fine-tuned checkpoint, and rows of text or of its task, to labels
and probabilities.
"""

import contextlib
import csv
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from gpt_jax.checkpoints.load import load_model
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file
from gpt_jax.tasks.readers import Row, read_lines, read_table
from gpt_jax.tasks.task import Task, most_likely


def run(
  checkpoint: str,
  source: str | None = None,
  output: str = "-",
  *,
  data_dir: str | None = None,
  split: str | None = None,
  batch_size: int = 32,
) -> list[dict[str, Any]]:
  """Predicts every row of a file, or of a split of the checkpoint's task, in order.

  Args:
    checkpoint: a fine-tuned model (see load_model).
    source: TSV, CSV or JSONL with the task's text columns by name, or "-" for standard input. A TSV
      without a header may have just the text columns, in the task's order: for one text, a line a
      text.
    output: TSV, or what its name ends in, .csv or .jsonl; "-" for standard output. Nothing is left
      of it on an error.
    data_dir: instead of source, the folder of the task's files, as in finetune.
    split: which of them, "train", "dev" or "test"; by default "test".
    batch_size: examples at a time.

  Returns:
    For every row {"prediction": label or value, "probabilities": {label: probability}}.

  Raises:
    InputError: not a fine-tuned model; a row that cannot be read, with file and line; source and
      data_dir both given, or neither.
  """
  if (source is None) == (data_dir is None):
    raise InputError(
      "give either --input, a file of rows, or --data_dir, the folder of the task's own files"
    )
  if split and data_dir is None:
    raise InputError(f"--split={split}: is of --data_dir; --input takes all rows of a file")
  loaded = load_model(checkpoint)
  task = loaded.task
  if task is None:
    raise InputError(
      f"--checkpoint={checkpoint}: a language model without a head; fine-tune it first, or generate"
    )
  if source is None:
    examples = task.examples(data_dir, split or "test")
  else:
    examples = [task.example(row) for row in read_rows(source, task)]
    if not examples:
      raise InputError(f"--input={source}: no rows; one needs {', '.join(task.columns)}")
  encoded = task.encode(examples, loaded.tokenizer, loaded.spec.trunk.context)
  with _writing(output, source, data_dir) as file:  # opened before the time is spent
    probabilities = loaded.predictor()(encoded, batch_size)
    results = [
      _result(task, each, value)
      for each, value in zip(probabilities, task.value(probabilities), strict=True)
    ]
    if output.endswith(".jsonl"):
      for result in results:
        print(json.dumps(result), file=file)
    else:
      writer = csv.writer(
        file, delimiter="," if output.endswith(".csv") else "\t", lineterminator="\n"
      )
      writer.writerow(["prediction", *(f"p({label})" for label in task.labels)])
      for result in results:
        writer.writerow(
          [result["prediction"], *(f"{p:.6f}" for p in result["probabilities"].values())]
        )
  return results


def read_rows(source: str, task: Task) -> Iterator[Row]:
  """The rows of a file without their labels; see `run`."""
  if source.endswith((".csv", ".jsonl", ".json")):
    return read_table(source, task.columns)
  lines = read_lines(source)
  first = lines[0][1].split("\t") if lines else list(task.columns)
  is_json = source == "-" and first[0].lstrip().startswith("{")  # as read_table decides
  if is_json or set(first) & set(task.columns):
    return read_table(source, task.columns)
  return _without_header(source, lines, task.columns)


def _without_header(
  source: str, lines: list[tuple[int, str]], columns: tuple[str, ...]
) -> Iterator[Row]:
  for expected, (number, line) in enumerate(lines, start=1):
    if number != expected:  # left out, it would shift all labels after it
      raise InputError(f"{source}:{expected}: an empty line; give it a text, or remove it")
    cells = tuple(line.split("\t"))
    if len(cells) != len(columns):
      raise InputError(
        f"{source}:{number}: {len(cells)} columns; without a first line that names them there should be "
        f"{len(columns)}: {', '.join(columns)}"
      )
    yield Row(cells, None, f"{source}:{number}")


def _result(task: Task, probabilities: np.ndarray, value: float) -> dict[str, Any]:
  named = {label: float(p) for label, p in zip(task.labels, probabilities, strict=True)}
  # A task with a value of its own (STS-B's expected score) predicts that; any other, the most
  # likely label.
  prediction = task.labels[int(value)] if task.value is most_likely else round(float(value), 4)
  return {"prediction": prediction, "probabilities": named}


@contextlib.contextmanager
def _writing(output: str, source: str | None, data_dir: str | None) -> Iterator[TextIO]:
  """The file to write, atomically."""
  if output == "-":
    yield sys.stdout
    return
  if os.path.isdir(output):
    raise InputError(f"--output={output}: is a folder; name another file")
  if (
    source
    and os.path.exists(output)
    and os.path.exists(source)
    and os.path.samefile(output, source)
  ):
    raise InputError(f"--output={output}: is the input; name another file")
  if (
    data_dir
    and os.path.exists(output)
    and Path(output).resolve().is_relative_to(Path(data_dir).resolve())
  ):
    raise InputError(f"--output={output}: is there in --data_dir already; name another file")
  try:
    with atomic_file(output) as file:
      yield file
  except OSError as error:
    raise InputError(f"--output={output}: {error.strerror or error}") from error
