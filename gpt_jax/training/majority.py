"""A fine-tuned model that is no better than a constant answer: noticed, with advice."""

import math

import numpy as np

from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded
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
  """Logs a warning, and what to try, if the best model is no better than a constant answer: its
  accuracy does not exceed the share of the commonest label by more than its standard error, or
  another metric is not better than its baseline.

  Args:
    best: the best evaluation of the run: dev_loss, and dev_accuracy, dev_baseline_<metric> or
      dev_degenerate.
    optim, train: of the run.
  """
  constant = task.constant_loss(dev_set.labels)
  if constant is None:
    return
  shares = dev_set.labels.mean(axis=0)
  problem = _problem(task, shares, len(dev_set), best)
  if not problem:
    return
  # Steps that are too large leave a loss far above that of predicting the labels' shares.
  too_high = best.get("dev_loss", 0.0) > 1.5 * constant
  # Half a power of ten down or up.
  rate = (optim.learning_rate or 0.0) * (0.3 if too_high else 3)
  change = "lower" if too_high else "higher"
  length = "epochs" if train.epochs else "steps"
  log(
    f"warning: {task.name}: {problem}; in another workdir try a {change} rate, "
    f"config.optim.learning_rate={rate:.2g}, and a longer run, "
    f"config.train.{length}={2 * (train.epochs or train.steps)}"
  )


def _problem(task: LabeledTask, shares: np.ndarray, count: int, best: dict[str, float]) -> str:
  """Describes the problem of the best evaluation; "" if there is none."""
  commonest, share = int(shares.argmax()), float(shares.max())
  if "dev_baseline_rmse" in best and best["dev_rmse"] > 0.98 * best["dev_baseline_rmse"]:
    return (
      f"the best model's root mean squared error on dev, {best['dev_rmse']:.4g}, is not 2 % below "
      f"that of always answering the mean of the training set, {best['dev_baseline_rmse']:.4g}"
    )
  if "dev_baseline_micro_f1" in best and best["dev_micro_f1"] <= best["dev_baseline_micro_f1"]:
    return (
      f"the best model's micro-F1 on dev, {best['dev_micro_f1']:.3f}, is not above that of giving "
      f"each row the same commonest labels, {best['dev_baseline_micro_f1']:.3f}"
    )
  accuracy = best.get("dev_accuracy")
  if accuracy is None:
    return "the best model predicts the same for every dev row" if "dev_degenerate" in best else ""
  if accuracy > share + math.sqrt(share * (1 - share) / count):
    return ""
  return (
    f"the best dev accuracy, {accuracy:.1%}, is not above the share of the commonest label, "
    f"{task.labels[commonest]} with {share:.1%} of {count:,} dev rows"
  )
