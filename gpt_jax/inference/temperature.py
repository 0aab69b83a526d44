"""Loads the calibration temperature of a classifier, so that all programs agree."""

import math

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.inference.dev_report import read_dev_set
from gpt_jax.parallel.processes import log

META = "temperature"  # its name in the metadata of an export


def find_temperature(loaded: LoadedModel) -> float:
  """The temperature stored in an export, else the one fitted on the dev set of the run."""
  if loaded.task is None or not loaded.task.is_classification:
    raise InputError(f"{loaded.path}: gives no probabilities of classes")
  if META not in loaded.meta:
    return read_dev_set(loaded.folder, loaded.task.labels, loaded.step).temperature
  temperature = loaded.meta[META]
  if not (isinstance(temperature, float) and math.isfinite(temperature) and temperature > 0):
    raise InputError(f"{loaded.path}: temperature {temperature!r}: should be a number above 0")
  return temperature


def temperature_of(loaded: LoadedModel) -> float:
  """The temperature by which to divide a model's logits; 1 for a model without, which is logged."""
  if loaded.task is None or not loaded.task.is_classification:
    return 1.0
  try:
    return find_temperature(loaded)
  except MissingInput as reason:
    log(f"probabilities are not calibrated: {reason}")
    return 1.0
