"""Regression: each example has a number, which the model learns in units of the training set."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.tasks.metrics import mae, rmse
from gpt_jax.tasks.task import Task

_FARTHEST = 1e9  # standard deviations from the mean: the squared error must fit a float32


class Scale(NamedTuple):
  """Between numbers as the files have them and those that the model learns, float64."""

  mean: float = 0.0
  deviation: float = 1.0

  @classmethod
  def of(cls, numbers: Sequence[float]) -> "Scale":
    """The scale of a training set. Raises ValueError if it has no spread, or an infinite one."""
    with np.errstate(over="ignore", invalid="ignore"):
      scale = cls(float(np.mean(numbers)), float(np.std(numbers)))
    # Equal numbers may have a deviation above 0, the rounding error of their mean.
    if not (math.isfinite(scale.deviation) and scale.deviation > 1e-12 * abs(scale.mean)):
      spread = f"{len(numbers):,} numbers from {min(numbers):g} to {max(numbers):g}"
      raise ValueError(f"{spread}; their deviation should be finite and above 0")
    return scale

  def standardize(self, text: str) -> tuple[float, ...]:
    """The target of a label, of mean 0 and deviation 1. Raises ValueError for one that has none."""
    target = (parse_number(text) - self.mean) / self.deviation
    if abs(target) > _FARTHEST:
      raise ValueError(f"should be nearer to the training set's mean, {self.mean:g}")
    return (target,)

  def values(self, standardized: np.ndarray) -> np.ndarray:
    """[N, 1] of the model -> numbers as the files have them, [N]."""
    return np.asarray(standardized, np.float64)[..., 0] * self.deviation + self.mean


def parse_number(text: str) -> float:
  """A finite number. Raises ValueError for another text."""
  try:
    # float() takes digit separators and the digits of other scripts, which may be typing errors.
    number = float(text) if text.isascii() and "_" not in text else math.nan
  except ValueError:
    number = math.nan
  if not math.isfinite(number):
    raise ValueError("should be a finite number, such as -3.5 or 1e6")
  return number


def is_number(text: str) -> bool:
  try:
    parse_number(text)
  except ValueError:
    return False
  return True


@dataclasses.dataclass(frozen=True)
class RegressionTask(Task):
  """A task with a number per example, whose predictions are standardized numbers [N, 1]."""

  scale: Scale = Scale()  # of the training set; `target` and `value` are its functions
  # False: the model was trained elsewhere, on numbers of an unknown deviation
  knows_scale: bool = True

  kind = "regression"
  num_classes = 1
  wanted = "a number"

  @property
  def head(self) -> dict[str, Any]:
    return {"type": "regress"}

  def loss(self, predictions: np.ndarray, truth: np.ndarray) -> float:
    """The mean squared error of the standardized numbers; 1 for the mean of the training set."""
    return float(np.mean((np.asarray(predictions, np.float64) - truth) ** 2))

  def baselines(self, truth: np.ndarray) -> dict[str, float]:
    """The errors of always predicting the mean of the training set."""
    expected = self.value(truth)
    always = np.full_like(expected, self.scale.mean)
    return {"baseline_rmse": rmse(expected, always), "baseline_mae": mae(expected, always)}

  def describe_labels(self, labels: np.ndarray) -> str:
    numbers = self.value(labels)
    spread = f"from {numbers.min():.5g} to {numbers.max():.5g}"
    return f"numbers: mean {numbers.mean():.5g}, standard deviation {numbers.std():.5g}, {spread}"

  def answer(self, prediction: np.ndarray) -> float:
    """The number, to about a hundred-thousandth of the training set's deviation if it is known."""
    if not self.knows_scale:
      return float(str(np.float32(self.value(prediction))))  # the fewest digits that tell it
    # Negative for large numbers, where round() then clears digits before the point.
    digits = 5 - math.floor(math.log10(self.scale.deviation))
    return round(float(self.value(prediction)), digits)

  def served(self, answer: float) -> dict[str, Any]:
    return {"value": answer}

  def result(self, prediction: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    return {"prediction": self.answer(prediction), "probabilities": {}}

  def rescaled(self, predictions: np.ndarray, task: Any) -> np.ndarray:
    values = task.scale.values(predictions)  # folds have their own scales
    return (values[:, None] - self.scale.mean) / self.scale.deviation

  def _is_degenerate(self, predictions: np.ndarray) -> bool:
    return np.ptp(predictions) <= (1e-3 if self.knows_scale else 0.0)
