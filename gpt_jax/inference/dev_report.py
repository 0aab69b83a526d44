"""The dev set under a classifier's best checkpoint: dev_report.json and dev_predictions.jsonl.

Fine-tuning writes both into the run's folder. dev_predictions.jsonl has a line for each example
with the model's own probabilities; dev_report.json the metrics of each class and, if an example has
one class, the temperature that calibrates the probabilities.
"""

import json
import math
import os
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.checkpoints.load import AnyModel
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import (
  atomic_file,
  open_regular,
  parse_json,
  read_json,
  verified,
  with_checksum,
  write_json,
)
from gpt_jax.inference.calibration import measure_calibration
from gpt_jax.parallel.processes import log
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded

REPORT, PREDICTIONS = "dev_report.json", "dev_predictions.jsonl"


class DevSet(NamedTuple):
  """A model's predictions for its dev set."""

  where: list[str]  # the location of each example
  classes: np.ndarray  # int [N], the true ones
  probabilities: np.ndarray  # [N, K], before temperature scaling
  temperature: float  # calibrates them; see calibration.scale
  texts: list[str]  # see text_of


def format_calibration(report: dict[str, Any]) -> str:
  """One line about a dev_report.json."""
  calibration, rows = report["calibration"], report["n"]
  text = f"macro F1 {report['macro_f1']:.4f}, calibration error {calibration['ece_before']:.4f}"
  if calibration["temperature"] == 1.0:
    text += "; confidence and accuracy agree but for chance"
  else:
    text += f", {calibration['ece_after']:.4f} with temperature "
    text += f"{calibration['temperature']:.2f}, on dev rows that it was not fitted on"
  if calibration["ece_after"] <= calibration["ece_chance"]:
    text += f" (within what {rows:,} rows can show: a calibrated model has up to "
    text += f"{calibration['ece_chance']:.4f})"
  return text


def write_dev_report(
  workdir: str,
  task: LabeledTask,
  encoded: Encoded,
  probabilities: np.ndarray,
  step: int,
  data_dir: str = "",
) -> dict[str, Any]:
  """Writes both files for one checkpoint's own probabilities [N, K]; the report's content.

  data_dir: left out of the examples' locations.
  """
  # With nine digits, which give the float32 back. The report is of them, as others read them.
  digits = [float(f"{p:.9g}") for p in probabilities.flat]
  probabilities = np.array(digits).reshape(probabilities.shape)
  report = task.dev_report(probabilities, encoded.labels)
  if task.is_classification:
    report["calibration"] = measure_calibration(probabilities, encoded.labels.argmax(axis=-1))
  # Places are relative to the data: the folder may have moved when the report is read.
  prefix = os.path.join(data_dir, "") if data_dir else ""
  lines = []
  for n, location in enumerate(encoded.locations):
    entry = {
      "where": location.removeprefix(prefix),
      "text": text_of(task, encoded, n),
      **task.truth_entry(encoded.labels[n]),
      "probabilities": probabilities[n].tolist(),
    }
    lines.append(json.dumps(entry) + "\n")
  content = "".join(lines).encode()
  with atomic_file(os.path.join(workdir, PREDICTIONS), "wb") as file:
    file.write(content)
  # The report last: its checksum says which predictions belong to it, if a kill comes between.
  report |= {"step": step, "predictions_crc32": zlib.crc32(content)}
  write_json(os.path.join(workdir, REPORT), with_checksum(report))
  return report


def prediction_lines(workdir: str, report: dict[str, Any]) -> Iterator[bytes]:
  """The lines of a run's dev_predictions.jsonl; report: its dev_report.json, {} without one.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is no regular file or, after the last line, the report has another checksum.
  """
  # Line by line: a large dev set does not fit into memory as Python objects.
  checksum = 0
  with open_regular(os.path.join(workdir, PREDICTIONS)) as file:
    for line in file:
      checksum = zlib.crc32(line, checksum)
      yield line
  if report.get("predictions_crc32", checksum) != checksum:
    raise ValueError(f"does not belong to {REPORT}")


def read_dev_set(workdir: str, labels: tuple[str, ...], step: int | None = None) -> DevSet:
  """Reads both files of a run; step: of the checkpoint that is used; None: whichever it was."""
  path = os.path.join(workdir, REPORT)  # the file that a message names
  try:
    report = verified(read_json(path))
    if "predictions_crc32" not in report:
      raise ValueError(f"says nothing of {PREDICTIONS}")
    path = os.path.join(workdir, PREDICTIONS)
    entries = list(map(parse_json, prediction_lines(workdir, report)))
  except FileNotFoundError as error:
    raise MissingInput(
      f"{path}: missing; fine-tuning writes it at its end, into the folder of the run"
    ) from error
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: {error}; restore it, or delete it to do without") from error
  if step is not None and report.get("step") != step:
    raise MissingInput(
      f"{workdir}/{REPORT} is of step {report.get('step')} and the checkpoint of step {step}; "
      f"give checkpoint={workdir}/best"
    )
  where, texts, classes, probabilities = [], [], [], []
  for entry in entries:
    where.append(entry["where"])
    texts.append(entry["text"])
    classes.append(labels.index(entry["label"]))
    probabilities.append(entry["probabilities"])
  temperature = _check_temperature(report["calibration"]["temperature"], path)
  return DevSet(where, np.array(classes), np.array(probabilities), temperature, texts)


def _check_temperature(temperature: Any, path: str) -> float:
  if not (isinstance(temperature, float) and math.isfinite(temperature) and temperature > 0):
    raise InputError(f"{path}: temperature {temperature!r}: should be a number above 0")
  return temperature


def text_of(task: LabeledTask, encoded: Encoded, n: int) -> str:
  """The texts of an example, separated by tabs."""
  rows = encoded.fields[n].tolist()  # [C, F]: the numbers of the texts
  fields = rows[0]
  if task.head.get("pooling") == "per_choice":  # the context, then every option
    windows = len(rows) // task.num_classes  # of each option, one after another
    fields += [sequence[-1] for sequence in rows[windows::windows]]
  return "\t".join(encoded.strings[field] for field in fields)


META = "temperature"  # its name in the metadata of an export


def find_temperature(loaded: AnyModel) -> float:
  """The temperature stored in an export, else the one fitted on the dev set of the run."""
  if META not in loaded.meta:
    return read_dev_set(loaded.folder, loaded.task.labels, loaded.step).temperature
  return _check_temperature(loaded.meta[META], loaded.path)


def temperature_of(loaded: AnyModel) -> float | None:
  """The temperature by which to divide a model's logits; None, with a line in the log where it has
  probabilities of classes, without one.
  """
  if loaded.task is None or not loaded.task.is_classification:
    return None
  try:
    return find_temperature(loaded)
  except MissingInput as reason:
    log(f"probabilities are not calibrated: {reason}")
    return None
