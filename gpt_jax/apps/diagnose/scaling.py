"""The loss of a model of N parameters after D tokens, L = E + A / N^a + B / D^b, and the next size.

Hoffmann et al. 2022, eq. 2 and appendix D.3: fitted to the logarithms of losses with a Huber loss.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.apps.diagnose.short_runs import make_short_run, short_config
from gpt_jax.apps.diagnose.texts import Budget, Texts
from gpt_jax.apps.study import Study
from gpt_jax.config import to_json
from gpt_jax.errors import InputError
from gpt_jax.parallel.processes import log

_HUBER = 1e-3  # residuals of log losses beyond this count linearly
_STARTS = 8  # of the grid, that are optimized
_MAX_EVALUATIONS, _MAX_EVALUATIONS_AT_END = 200, 3000
_MAX_EXPONENT = 4.0


class Law(NamedTuple):
  floor: float  # E, in nats: what neither size nor data removes
  size_scale: float  # A
  size_exponent: float  # a
  data_scale: float  # B
  data_exponent: float  # b

  def parts(self, parameters: float, tokens: float) -> tuple[float, float, float]:
    """(E, A / N^a, B / D^b): the floor, what size costs, what the number of tokens costs."""
    of_size = self.size_scale * parameters**-self.size_exponent
    of_data = self.data_scale * tokens**-self.data_exponent
    return self.floor, of_size, of_data

  def __call__(self, parameters: float, tokens: float) -> float:
    """The loss in nats."""
    return sum(self.parts(parameters, tokens))


def fit_law(runs: Sequence[tuple[float, float, float]], near: Law | None = None) -> Law:
  """The law of runs: N, D, and the loss in nats of text that no run has read.

  The fit starts from the law of almost the same runs, `near`; None: from many points of a grid.
  """
  from scipy.optimize import least_squares

  n, d, log_loss = np.log(np.array(runs, np.float64)).T
  sizes, lengths = len(set(n)), len(set(d))
  if len(n) < 6 or sizes < 3 or lengths < 2:
    raise InputError(
      f"{len(n)} runs of {sizes} sizes and {lengths} numbers of tokens do not determine a scaling "
      "law; it takes 6 runs, 3 sizes and 2 numbers of tokens"
    )
  # Around the means of log N and log D the five numbers depend less on one another.
  n_mean, d_mean = n.mean(), d.mean()
  n, d = n - n_mean, d - d_mean

  def log_terms(x):
    return np.stack([np.full_like(n, x[0]), x[1] - x[2] * n, x[3] - x[4] * d])

  def residuals(x):
    return np.logaddexp.reduce(log_terms(x)) - log_loss

  def jacobian(x):
    terms = log_terms(x)
    e, of_size, of_data = np.exp(terms - np.logaddexp.reduce(terms))
    return np.stack([e, of_size, -n * of_size, of_data, -d * of_data], axis=-1)

  low, high = log_loss.min(), log_loss.max()
  bounds = [low - 12, low - 12, 0, low - 12, 0], [low, high, _MAX_EXPONENT, high, _MAX_EXPONENT]
  if near is None:  # shares of the lowest loss, and exponents: those of the smallest errors
    floors = [low + math.log(share) for share in (0.02, 0.3, 0.6, 0.9)]
    scales = [low + math.log(share) for share in (0.02, 0.1, 0.4)]
    exponents = (0.1, 0.3, 0.6, 1.0, 1.5)
    grid = [*map(np.array, itertools.product(floors, scales, exponents, scales, exponents))]
    costs = [np.abs(residuals(x)).sum() for x in grid]
    starts = [grid[i] for i in np.argsort(costs, kind="stable")[:_STARTS]]
  else:
    # Logarithms of the parts at the means, and the exponents.
    e, a, b = np.log(near.parts(math.exp(n_mean), math.exp(d_mean)))
    start = np.array([e, a, near.size_exponent, b, near.data_exponent])
    inside = 1e-6  # of the bounds, as the optimizer wants it
    starts = [np.clip(start, np.add(bounds[0], inside), np.subtract(bounds[1], inside))]
  robust: dict[str, Any] = {"x_scale": "jac", "loss": "huber", "f_scale": _HUBER}
  optimize = functools.partial(least_squares, residuals, jac=jacobian, bounds=bounds, **robust)
  fits = [optimize(start, max_nfev=_MAX_EVALUATIONS) for start in starts]
  best = min(fits, key=lambda fit: fit.cost).x
  # Where noise leaves a valley, the best start ends on its slope.
  best = optimize(best, max_nfev=_MAX_EVALUATIONS_AT_END).x
  e, a, size_exponent, b, data_exponent = best
  return Law(
    math.exp(e),
    math.exp(a + size_exponent * n_mean),
    float(size_exponent),
    math.exp(b + data_exponent * d_mean),
    float(data_exponent),
  )


def prediction_range(
  law: Law, runs: Sequence[tuple[float, float, float]], at: tuple[float, float]
) -> tuple[float, float]:
  """The lowest and the highest prediction at (N, D) of fits that each leave out one run of those
  that the law is of.
  """
  predictions = []
  for left_out in range(len(runs)):
    kept = [*runs[:left_out], *runs[left_out + 1 :]]
    predictions.append(fit_law(kept, near=law)(*at))
  return min(predictions), max(predictions)


def measure_scaling(trunk: Any, texts: Texts, budget: Budget, study: Study) -> dict[str, Any]:
  """JSON: the runs that are fitted, the law, and the next size: predicted, then trained."""
  runs = []
  for width, steps in itertools.product(budget.widths[:-1], budget.steps[:-1]):
    runs.append(_run(trunk, width, steps, texts, study))
  result: dict[str, Any] = {
    "unigram_entropy": texts.train.unigram_entropy,
    "runs": runs,
    "text_tokens": texts.train.n_tokens,
    "bytes_per_token": texts.held_out.n_bytes / texts.held_out.n_tokens,
  }
  points = [(run["parameters"], run["tokens"], run["loss"]) for run in runs]
  losses = [run["loss"] for run in runs]
  if None in losses:  # no law
    return result
  law = fit_law(points)
  result["law"] = law._asdict()
  for run in runs:
    run["fitted"] = law(run["parameters"], run["tokens"])
  # The prediction is made, and shown, before the run.
  config = short_config(trunk, budget.widths[-1], budget.steps[-1], texts.tokenizer)
  parameters = config.trunk.parameter_count()
  tokens = budget.steps[-1] * config.data.batch_size * config.data.length
  predicted = law(parameters, tokens)
  log(f"next size: {parameters:,} parameters, {tokens:,} tokens: {predicted:.4f} predicted")
  measured_run = _run(trunk, budget.widths[-1], budget.steps[-1], texts, study)
  result["next"] = measured_run | {
    "predicted": predicted,
    "range": list(prediction_range(law, points, (parameters, tokens))),
    "parts": list(law.parts(parameters, tokens)),
    "best_fitted": min(losses),
  }
  return result


def _run(trunk: Any, width: int, steps: int, texts: Texts, study: Study) -> dict[str, Any]:
  config = short_config(trunk, width, steps, texts.tokenizer)
  settings = {"config": to_json(config), "seed": 0, **texts.identity}
  name = f"measured/width_{width}_steps_{steps}"
  result = study.part(name, settings, lambda: make_short_run(config, texts)(0))
  loss = "none" if result["loss"] is None else f"{result['loss']:.4f}"
  log(
    f"width {width}, {result['parameters']:,} parameters, {result['tokens']:,} tokens: held-out "
    f"loss {loss}, {result['seconds']:.0f} s"
  )
  return result
