"""Training metrics accumulated between two progress reports."""

import functools
from typing import Any

import jax
import numpy as np

from gpt_jax.batch import Mean
from gpt_jax.errors import InputError

MAX_REFUSED_UPDATES = 10  # in a row, before a run gives up
_LAST = ("learning_rate", "loss_scale")  # reported as they were at last, not as means


class Diverged(InputError):
  """Training has only non-finite updates."""


class Interval:
  """Metrics of the steps since the last report.

  Attributes:
    steps: steps in the interval, refused ones included.
    refused: how many of them had their update refused.
    refused_in_a_row: refused updates up to now; counted across intervals. Those that a lower loss
      scale may mend are not among them.
    sound_step: the last step whose parameters are known to give a finite loss and gradient: the
      step after it has tried them. None before the first.
  """

  def __init__(self):
    self.refused_in_a_row = 0
    self.sound_step: int | None = None
    self._first: int | None = None  # the step that the run began from
    self.clear()

  def clear(self) -> None:
    """Starts a new interval."""
    self.steps, self.refused = 0, 0
    self._values: dict[str, list] = {}

  def add(self, step: int, metrics: dict[str, Any]) -> None:
    """Fetches the metrics of one step from the device, which waits for that step.

    Raises:
      Diverged: this is the tenth refused update in a row.
    """
    metrics = jax.device_get(metrics)  # waits for the step
    self.steps += 1
    self._first = step - 1 if self._first is None else self._first
    if metrics.pop("finite"):
      self.refused_in_a_row = 0
      self.sound_step = step - 1  # its parameters gave this finite update
      for name, value in metrics.items():
        self._values.setdefault(name, []).append(value)
      return
    self.refused += 1
    if metrics.get("loss_scale", 1) > 1:
      return  # the next step may be finite at half the scale
    self.refused_in_a_row += 1
    if self.refused_in_a_row == MAX_REFUSED_UPDATES:
      sound = f"the last sound step is {self.sound_step}; a checkpoint of a later one may be bad"
      if self.sound_step is None:
        sound = f"no update since step {self._first} was accepted"
      raise Diverged(
        f"step {step}: {MAX_REFUSED_UPDATES} updates in a row had a non-finite loss or gradient "
        f"(loss {metrics['loss'].value:g}, gradient norm {metrics['gradient_norm']:g}); "
        f"{sound}. Start again in another workdir with a lower optim.learning_rate, a "
        "longer optim.warmup_steps or trunk.dtype=float32"
      )

  def means(self) -> dict[str, float]:
    """Exact means of Means, plain means of other numbers, the last learning rate and loss scale,
    and the number of refused updates where there are any.
    """
    means = {name: _mean(name, values) for name, values in self._values.items()}
    if self.refused:
      means["refused_updates"] = self.refused
    return means


def _mean(name: str, values: list) -> float:
  if isinstance(values[0], Mean):
    # Totals and weights are added apart, so steps with more predictions count more; in float64.
    exact = (Mean(*map(np.float64, value)) for value in values)
    return functools.reduce(Mean.__add__, exact).value
  return float(values[-1] if name in _LAST else np.mean(values))
