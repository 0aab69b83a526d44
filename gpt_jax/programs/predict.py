"""Predicts labels with a fine-tuned checkpoint, for rows of text or a split of its task."""

import contextlib
import dataclasses
import itertools
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from gpt_jax.data.file_kinds import JSON_LINES, TABLE, kind_by_name, write_table
from gpt_jax.data.progress import Progress
from gpt_jax.errors import InputError, agree
from gpt_jax.files import atomic_file
from gpt_jax.inference.ensemble import Ensemble, check_threshold, load_adapted, load_ensemble
from gpt_jax.parallel.processes import log
from gpt_jax.programs.outputs import check_out, is_inside, is_same_file
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.readers import BlankRow, Table, as_known, column_values, is_missing, no_column
from gpt_jax.tasks.slices import Slices, format_slices

_SUFFIXES = (".tsv", ".csv", ".jsonl")  # and .ndjson, another name of .jsonl


def run(
  checkpoint: str | Sequence[str],
  source: str | None = None,
  output: str = "-",
  *,
  data: str | None = None,
  split: str | None = None,
  batch_size: int = 32,
  overwrite: bool = False,
  keep: Sequence[str] = (),
  calibrate: bool = True,
  threshold: float | None = None,
  precision: float | None = None,
  beams: int = 1,
  length_penalty: float = 1.0,
  weights: str = "float32",
  slices: str = "",
  loaded: Ensemble | None = None,
) -> list[dict[str, Any]]:
  """Predicts every row of a file, or of a split of the checkpoint's task, in order.

  A row of a file that cannot be used (blank, an empty text, too few columns) has an empty
  prediction and a problem that says why, so that results and rows stay in line. Blank rows at the
  end of a file do not count. A prediction below the threshold is withheld in the same way.

  Args:
    checkpoint: see load_any; fine-tuned. Several, or the WORKDIR of several seeds, give the mean of
      their probabilities.
    source: TSV, CSV, JSON or Parquet file with the task's text columns by name, or - for stdin. A
      TSV without a header may hold just the text columns in order, such as one text per line. An
      imported classifier reads text, and text_pair where the file has it.
    output: file to write: .tsv, .csv or .jsonl; - for TSV on stdout. Whole, or none. A .csv is
      separated and marked as the CSV file that is read, for the same spreadsheet.
    data: instead of `source`: folder of the task's official files, as for finetune.
    split: of `data`: train, dev or test (default test).
    batch_size: examples per batch.
    overwrite: replace an existing output.
    keep: columns of `source` to copy into the output, or all.
    calibrate: scale probabilities by the temperature that fine-tuning found on the dev set, or on
      all held-out folds.
    threshold: leave out predictions with a lower (scaled) probability.
    precision: choose the threshold on the dev set so that this share of the predictions is right,
      with 95 % confidence.
    beams: candidates of a search for a translation; 1: greedy.
    length_penalty: of the search: above 0 favors long translations.
    weights: float32, bfloat16 or int8: type of the weights in products.
    slices: a further column, such as language, by whose values the score is logged.
    loaded: the model, where the caller has it already, with its own weights.

  Returns:
    For every row {"prediction": label, list of labels or number, "probabilities":
    {label: probability}}, after its kept columns. Where there is no prediction it is None, and
    "problem" has the reason. A text-to-text model has no probabilities, and may write no label.
  """
  has_file, has_data = source is not None, data is not None
  for is_fault, message in (
    (has_file == has_data, "give either --input, a file of rows, or --data, the task's folder"),
    (split and has_file, f"--split={split} needs --data; --input predicts all rows of its file"),
    (keep and has_data, f"--keep={','.join(keep)} copies columns of --input; --data has none"),
  ):
    if is_fault:
      raise InputError(message)
  check_threshold(threshold, precision)
  _check_output(output, source, data, overwrite)
  ensemble: Any = loaded or _load(checkpoint, weights)
  if beams != 1:
    ensemble = dataclasses.replace(ensemble, task=ensemble.task.with_search(beams, length_penalty))
  task, table = ensemble.task, None
  if source is None:
    rows = task.examples(data or "", split or "test")
  else:
    table, columns = Table.with_texts(source, task.columns, task.pair)
    rows = _examples(task, table, columns)
  if not rows:
    raise InputError(f"{source or data}: no rows; the columns should be {', '.join(task.columns)}")
  kept = _kept_columns(table, columns, keep, task) if table and keep else [{}] * len(rows)
  calibration, threshold = ensemble.find_threshold(threshold, precision, log, calibrate)
  rows, encoded = _encode(ensemble, rows)
  sliced = task.slices(slices, encoded[0].locations)
  # Opened before predicting, so that an unwritable path fails early.
  with contextlib.nullcontext(sys.stdout) if output == "-" else atomic_file(output) as file:
    with Progress("predicting", len(encoded[0]) * len(encoded), "rows") as progress:
      predictions = ensemble.predict(encoded, batch_size, progress.update, calibration)
    predicted = [task.result(*pair) for pair in zip(predictions, encoded[0].truth, strict=True)]
    _withhold(predicted, threshold)
    _describe_batch(ensemble, encoded[0], sliced, predicted)
    results = _merge_problems(rows, predicted, ensemble)
    results = [a | b for a, b in zip(kept, results, strict=True)]
    _write(file, results, output, table, list(kept[0]), threshold is not None, task)
  return results


def run_adapters(
  base: str, adapters: Sequence[str], source: str | None = None, output: str = "-", **options: Any
) -> dict[str, list[dict[str, Any]]]:
  """The predictions of `run` by the name of each adapter of one base, which is in memory once.

  Args:
    adapters: "NAME=DIR" of each; see load_adapted.
    output: out.tsv stands for out.NAME.tsv of each.
    options: others of run, but for weights.
  """
  if options.get("weights", "float32") != "float32":
    raise InputError("--weights: is for one model; leave it out with --adapter")
  if output == "-":
    raise InputError("--adapter: name a file by --out; each adapter writes one beside it")
  stem, suffix = os.path.splitext(output)
  ensembles = load_adapted(base, adapters)
  outputs = {name: f"{stem}.{name}{suffix}" for name in ensembles}
  for path in outputs.values():  # before the first predicts
    _check_output(path, source, options.get("data"), options.get("overwrite", False))
  results = {}
  for name, ensemble in ensembles.items():
    log(f"adapter {name}: {outputs[name]}")
    results[name] = run(base, source, outputs[name], loaded=ensemble, **options)
  return results


def _load(checkpoint: str | Sequence[str], weights: str) -> Ensemble:
  exact = load_ensemble([checkpoint] if isinstance(checkpoint, str) else checkpoint)
  loaded = exact.with_weights(weights)
  if weights != "float32":
    share, size = loaded.nbytes / exact.nbytes, loaded.nbytes / 1e6
    log(f"{weights} weights: {size:,.1f} MB, {share:.1%} of {exact.nbytes / 1e6:,.1f} in float32")
  return loaded


def _withhold(predicted: list[dict[str, Any]], threshold: float | None) -> None:
  """Replaces the predictions below the threshold, if there is one, by None, with the problem."""
  if threshold is None:
    return
  withheld = 0
  for result in predicted:
    confidence = max(result["probabilities"].values())  # of the predicted label
    if confidence < threshold:
      problem = f"probability {confidence:.4f} is below the threshold {threshold:.4f}"
      result |= {"prediction": None, "problem": problem}
      withheld += 1
  are = f"predictions {agree(withheld)} below the threshold and left out"
  log(f"{withheld:,} of {len(predicted):,} {are}")


def _describe_batch(
  ensemble: Any, encoded: Encoded, slices: Slices | None, predicted: list[dict[str, Any]]
) -> None:
  """Logs how unlike the dev rows the examples are, if there are enough of both; and the scores of
  slices: the accuracy where the input has labels, or if it has none, the confidence.
  """
  if not ensemble.task.is_classification:
    return
  with contextlib.suppress(InputError):  # no dev rows, as was said, or no scikit-learn
    if drift := ensemble.drift(encoded):
      log(drift.advise("dev rows"))
  if slices is None:
    return
  task, labels = ensemble.task, [""] * len(predicted)
  if task.label:
    with contextlib.suppress(InputError):  # there is no such column
      labels = column_values(encoded.locations, task.label)
  has_labels, chosen, scores = any(labels), [], []
  for name, label, result in zip(slices.of_row, labels, predicted, strict=True):
    if result["prediction"] is not None and bool(label) == has_labels:
      right = as_known(label, task.labels, task.merge_labels) == result["prediction"]
      chosen.append(name)
      scores.append(right if label else max(result["probabilities"].values()))
  log(format_slices(Slices(slices.column, chosen).measure(np.array(scores))))


def _examples(task: LabeledTask, table: Table, columns: tuple[str, ...]) -> list:
  """The examples of the rows of a file; an InputError for each row that cannot be used."""
  examples: list[Any] = []
  if table.unnamed and kind_by_name(table.path).format == TABLE:
    fault = f"the first line names no column of {task.name} ({', '.join(columns)})"
    warnings.warn(f"{table.path}: {fault}, so it is read as a row", stacklevel=3)
  for row in table.rows(columns, blanks=True):
    try:
      examples.append(row if isinstance(row, InputError) else task.example(row))
    except InputError as error:  # an empty text
      examples.append(error)
  return examples


def _encode(ensemble: Ensemble, rows: list) -> tuple[list, list[Encoded]]:
  """The rows, with an InputError for those that the tokenizer drops, and the others encoded."""
  usable = [row for row in rows if not isinstance(row, InputError)]
  if not usable:
    # The first fault says more than that a row is blank.
    raise next((row for row in rows if not isinstance(row, BlankRow)), rows[0])
  try:
    encoded = ensemble.encode(usable)
  except InputError as error:
    # It names only the first such row: each is tried alone.
    checked = list(rows)
    for n, row in enumerate(rows):
      try:
        if not isinstance(row, InputError):
          ensemble.encode([row])
      except InputError as fault:
        checked[n] = fault
    if checked == rows:  # no single row is at fault
      raise error
    return _encode(ensemble, checked)
  if truncation := next((part.truncation for part in encoded if part.truncation), ""):
    log(f"warning: {truncation}")
  return rows, encoded


def _kept_columns(
  table: Table, texts: tuple[str, ...], keep: Sequence[str], task: LabeledTask
) -> list[dict[str, Any]]:
  """The kept cells of every row, in the order of `keep`; empty in a row that cannot be read."""
  everything = list(keep) == ["all"]
  named = () if everything else table.split(keep)
  # An error has no cells.
  rows = [row if isinstance(row, dict) else {} for row in table.records((*texts, *named))]
  names = dict.fromkeys(itertools.chain(*rows))
  if not names:  # no row can be read; _encode says why
    return rows
  for name in named:
    if name not in names:
      raise no_column(f"--keep={name}: {table.path}", name, names)
  wanted = list(names if everything else dict.fromkeys(named))  # each once, in the order given
  own = {"prediction", "probabilities", "problem", *(f"p({label})" for label in task.labels)}
  for name in wanted:
    if name in own:
      raise InputError(
        f"--keep: the output has a column {name!r} of its own; rename the one of {table.path}, or "
        "name other columns to keep"
      )
  return [{name: row.get(name, "") for name in wanted} for row in rows]


def _merge_problems(
  rows: list, predicted: list[dict[str, Any]], ensemble: Ensemble
) -> list[dict[str, Any]]:
  """A result for every row: the next prediction, or the problem of one without, which are told."""
  # Predictions are in the order of the usable rows.
  following = iter(predicted)
  results: list[dict[str, Any]] = []
  problems: list[InputError] = []
  for row in rows:
    if isinstance(row, InputError):
      problems.append(row)
      results.append({"prediction": None, "probabilities": {}, "problem": str(row)})
      continue
    results.append(next(following))
    for member in ensemble.members:
      if problem := ensemble.task.unread(row, member.tokenizer):
        results[-1]["problem"] = problem
  if problems:
    have = f"rows {agree(len(problems), 'has', 'have')} no prediction"
    warnings.warn(f"{len(problems):,} of {len(rows):,} {have}: {problems[0]}", stacklevel=3)
  return results


def _write(
  file: IO[str],
  results: Sequence[dict[str, Any]],
  output: str,
  table: Table | None,
  kept: list[str],
  withholds: bool,
  task: LabeledTask,
) -> None:
  """Writes JSON lines for .jsonl, CSV for .csv, by the layout of the table that was read, else TSV;
  if a row has a problem, or the run `withholds` predictions, with a column of problems.
  """
  kind = kind_by_name(output)
  if kind.format == JSON_LINES:
    for result in results:
      print(json.dumps(result), file=file)
    return
  labels = max((result["probabilities"] for result in results), key=len)  # {} of a problem
  problems = withholds or any("problem" in result for result in results)
  header = [*kept, "prediction", *(f"p({label})" for label in labels)]
  rows = [[*header, "problem"] if problems else header]
  for result in results:
    probabilities = result["probabilities"]
    # A row with a problem keeps its columns, so that all rows have as many cells.
    cells = [f"{probabilities[label]:.6f}" if probabilities else "" for label in labels]
    if problems:
      cells.append(result.get("problem", ""))
    copied = ["" if is_missing(result[name]) else result[name] for name in kept]
    copied = [cell if isinstance(cell, str) else json.dumps(cell) for cell in copied]
    rows.append([*copied, task.cell(result["prediction"]), *cells])
  layout = table.csv_layout if table and kind.quote else (kind.delimiter or "\t", "")
  write_table(file, rows, *layout)


def _check_output(output: str, source: str | None, data_dir: str | None, overwrite: bool) -> None:
  """Refuses an output that is an input, in the task's data, or exists already."""
  if output == "-":
    return
  if source and is_same_file(output, source):
    raise InputError(f"--out={output} is the input; name another file")
  if data_dir and is_inside(output, data_dir):
    raise InputError(f"--out={output} is a file of --data; name another file")
  check_out(output, overwrite)
  if not output.lower().endswith((*_SUFFIXES, ".ndjson")):
    suffix = Path(output).suffix
    kind = "Excel workbooks are not written" if suffix == ".xlsx" else "the suffix is the format"
    raise InputError(
      f"--out={output}: {kind}; name a file in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
    )
