"""A fine-tuned model that has learned nothing but the commonest label: noticed, with advice."""

import math

import numpy as np

from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.task import LabeledTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.reporter import log


def warn_of_majority(
  task: LabeledTask,
  dev_set: Encoded,
  best: dict[str, float],
  optim: OptimConfig,
  train: TrainConfig,
) -> None:
  """Logs a warning if the best accuracy does not exceed the share of the commonest label by more
  than its standard error, and what to try.

  Args:
    best: the best evaluation of the run: dev_loss and dev_accuracy or dev_degenerate.
    optim, train: of the run.
  """
  if dev_set.tags is not None or not len(dev_set):
    return
  shares = dev_set.labels.mean(axis=0)
  problem = _problem(task, shares, len(dev_set), best)
  if not problem:
    return
  entropy = -float((shares * np.log(np.maximum(shares, 1e-30))).sum())
  # Steps that are too large leave a loss far above that of predicting the labels' shares.
  too_high = best.get("dev_loss", 0.0) > 1.5 * entropy
  rate = (optim.learning_rate or 0.0) * (0.3 if too_high else 3)
  change = "lower" if too_high else "higher"
  length = "epochs" if train.epochs else "steps"
  log(
    f"warning: {task.name}: {problem}; in another workdir try a {change} rate, "
    f"--config.optim.learning_rate={rate:.2g}, and a longer run, "
    f"--config.train.{length}={2 * (train.epochs or train.steps)}"
  )


def _problem(task: LabeledTask, shares: np.ndarray, count: int, best: dict[str, float]) -> str:
  """What is wrong with the best evaluation; "" if nothing is."""
  commonest, share = int(shares.argmax()), float(shares.max())
  accuracy = best.get("dev_accuracy")
  if accuracy is None:
    return "the best model predicts the same for every dev row" if "dev_degenerate" in best else ""
  if accuracy > share + math.sqrt(share * (1 - share) / count):
    return ""
  return (
    f"the best dev accuracy, {accuracy:.1%}, is not above the share of the commonest label, "
    f"{task.labels[commonest]} with {share:.1%} of {count:,} dev rows"
  )
