"""Multi-label classification: each example has any number of the labels, possibly none."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.tasks.answers.one_label import MAX_CLASSES, shorten
from gpt_jax.tasks.metrics import micro_f1
from gpt_jax.tasks.readers import as_known, of_form
from gpt_jax.tasks.task import Task

MULTI_LABEL = "multi_label"  # "kind" of its dev_report.json
_SMALLEST = 2.0**-25  # half of what float32 resolves below 1


def split_labels(text: str, separator: str) -> list[str]:
  """The labels in a cell, without spaces around them: a JSON list, as JSONL rows have, or names
  between separators.

  Raises:
    ValueError: a list of anything but text or numbers; the message says what it should be.
  """
  items: Sequence[Any] = text.split(separator)
  if text.startswith("["):
    try:
      items = json.loads(text)
    except ValueError:  # a name that begins with a bracket
      pass
  names = []
  for item in items:
    if isinstance(item, bool) or not isinstance(item, str | int | float):
      raise ValueError("should be a list of label names")
    names.append(str(item).strip())
  return [name for name in dict.fromkeys(names) if name]


def label_indicators(text: str, labels: Sequence[str], separator: str) -> tuple[float, ...]:
  """0 or 1 for each label, by whether a cell names it.

  Raises:
    ValueError: saying what the cell should hold.
  """
  names = [as_known(name, labels) for name in split_labels(text, separator)]
  for name in names:
    if name not in labels:
      raise ValueError(f"{name!r} should be one of {', '.join(labels)}{of_form(name, labels)}")
  return tuple(float(name in names) for name in labels)


def is_present(probabilities: np.ndarray) -> np.ndarray:
  """Whether each label is predicted, bool [N, K]: its probability is at least 0.5."""
  return np.asarray(probabilities) >= 0.5


@dataclasses.dataclass(frozen=True)
class MultiLabelTask(Task):
  """A task with several labels per example, or none.

  Its predictions are a probability of each label, [N, K], and its truth is 0 or 1 for each.

  Attributes:
    separator: between the labels in a cell.
  """

  separator: str = ","

  kind = "multi-label"
  has_words = False
  has_classes = False
  has_report = True
  limits = "It knows the labels above only."

  @property
  def answers(self) -> str:
    names = ", ".join(self.labels)
    return f"any number of {names}, each with a probability of its own, the sigmoid of its logit"

  @property
  def wanted(self) -> str:
    return f"labels among {', '.join(self.labels)}, or an empty list"

  @property
  def head(self) -> dict[str, Any]:
    return {"type": "multi_label", "num_classes": self.num_classes}

  def loss(self, predictions: np.ndarray, truth: np.ndarray) -> float:
    """The mean over examples of the binary cross-entropy, summed over the labels."""
    p = np.asarray(predictions, np.float64)
    # log(1 - p) in float64, of a p that float32 may have rounded to 1.
    present, absent = np.maximum(p, 1e-30), np.maximum(1 - p, _SMALLEST)
    return float(-(truth * np.log(present) + (1 - truth) * np.log(absent)).sum(-1).mean())

  def baselines(self, truth: np.ndarray) -> dict[str, float]:
    """The highest micro-F1 of giving every example the same labels: the commonest ones."""
    expected = self.value(truth)
    order = np.argsort(-expected.sum(axis=0), kind="stable")  # [K], the commonest first
    constants = []
    for count in range(1, len(order) + 1):
      # Of all sets of `count` labels the commonest have the most true positives.
      always = np.zeros_like(expected)
      always[:, order[:count]] = True
      constants.append(micro_f1(expected, always))
    return {"baseline_micro_f1": float(max(constants))}

  def describe_labels(self, labels: np.ndarray) -> str:
    shares = zip(self.labels, labels.mean(axis=0), strict=True)
    counts = labels.sum(axis=1)  # [N]
    return (
      "labels: "
      + ", ".join(f"{name} {share:.1%}" for name, share in shares)
      + f" of the examples; {counts.mean():.2f} per example, none in {np.mean(counts == 0):.1%}"
    )

  def served(self, answer: dict[str, float]) -> dict[str, Any]:
    return {"labels": _chosen(answer), "probabilities": answer}

  def result(self, prediction: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """The list of predicted labels, and the probability of every label."""
    del truth
    probabilities = self.answer(prediction)
    return {"prediction": _chosen(probabilities), "probabilities": probabilities}

  def details(self, predictions: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """The metrics of each label as "labels"."""
    return {"labels": self._per_label(predictions, truth)}

  def dev_report(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    # Raises first where scikit-learn is missing.
    micro = float(micro_f1(self.value(labels), self.value(predictions)))
    return {
      "kind": MULTI_LABEL,
      "labels": list(self.labels),
      "n": len(labels),
      "micro_f1": micro,
      "per_class": self._per_label(predictions, labels),
    }

  def truth_entry(self, label: np.ndarray) -> dict[str, Any]:
    return {"labels": _chosen(dict(zip(self.labels, label, strict=True)))}

  def _per_label(self, predictions: np.ndarray, truth: np.ndarray) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and support of each label, by scikit-learn."""
    from sklearn.metrics import precision_recall_fscore_support

    names = ("precision", "recall", "f1", "support")
    columns = precision_recall_fscore_support(
      self.value(truth), self.value(predictions), zero_division=0
    )
    rows = zip(self.labels, np.transpose(columns).tolist(), strict=True)  # [4, K] -> [K, 4]
    return {label: dict(zip(names, values, strict=True)) for label, values in rows}

  def _is_degenerate(self, predictions: np.ndarray) -> bool:
    present = self.value(predictions)
    return bool((present == present[0]).all())


def _chosen(probabilities: dict[str, float]) -> list[str]:
  return [name for name, p in probabilities.items() if p >= 0.5]


def format_labels(report: dict[str, dict[str, float]]) -> str:
  """The metrics of each label as a table for the console: at most 20 labels, those of the lowest
  F1 if there are more.
  """
  rows = list(report.items())
  if len(rows) > MAX_CLASSES:
    rows = sorted(rows, key=lambda row: row[1]["f1"])[:MAX_CLASSES]
  width = max(len(shorten(label)) for label, _ in rows)
  lines = [f"{'':{width}}  precision  recall     f1  support"]
  for label, values in rows:
    numbers = f"{values['precision']:9.3f}  {values['recall']:6.3f}  {values['f1']:5.3f}"
    lines.append(f"{shorten(label):{width}}  {numbers}  {values['support']:7,.0f}")
  if hidden := len(report) - len(rows):
    lines.append(f"({hidden:,} more labels have a higher F1)")
  return "\n".join(lines)
