"""Multi-label classification: each example has any number of the labels, possibly none."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.tasks.metrics import micro_f1, per_label
from gpt_jax.tasks.readers import as_known, of_form
from gpt_jax.tasks.task import Task

MULTI_LABEL = "multi_label"  # "kind" of its dev_report.json
_MIN_ABSENT = 2.0**-25  # half of what float32 resolves below 1


def split_labels(text: str, separator: str) -> list[str]:
  """The labels in a cell: a JSON list, as JSONL rows have, or names between separators.

  Raises ValueError for a list of anything but text or numbers.
  """
  items: Sequence[Any] = text.split(separator)
  if text.startswith("["):
    try:
      items = json.loads(text)
    except ValueError:  # a name that begins with a bracket
      pass
  if not {*map(type, items)} <= {str, int, float}:
    raise ValueError("should be a list of label names")
  return list(filter(None, dict.fromkeys(str(item).strip() for item in items)))


def is_present(probabilities: np.ndarray) -> np.ndarray:
  """Whether each label is predicted, bool [N, K]: its probability is at least 0.5."""
  return np.asarray(probabilities) >= 0.5


@dataclasses.dataclass(frozen=True)
class MultiLabelTask(Task):
  """A task with several labels per example, or none, between separators in a cell.

  Its predictions are a probability of each label, [N, K], and its truth is 0 or 1 for each.
  """

  value: Callable[[np.ndarray], np.ndarray] = is_present
  separator: str = ","

  kind = "multi-label"
  has_report = True
  is_classification = False

  def target_of(self, label: str, location: str) -> tuple[float, ...]:
    """0 or 1 for each label, by whether a cell names it."""
    try:
      found = split_labels(label, self.separator)
    except ValueError as error:
      raise InputError(f"{location}: label {label!r}: {error}") from error
    names = [as_known(name, self.labels, self.merge_labels) for name in found]
    for name in names:
      if name not in self.labels:
        wanted = f"one of {', '.join(self.labels)}{of_form(name, self.labels)}"
        raise InputError(f"{location}: label {label!r}: {name!r} should be {wanted}")
    return tuple(float(name in names) for name in self.labels)

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
    present, absent = np.maximum(p, 1e-30), np.maximum(1 - p, _MIN_ABSENT)
    return float(-(truth * np.log(present) + (1 - truth) * np.log(absent)).sum(-1).mean())

  def baselines(self, truth: np.ndarray) -> dict[str, float]:
    """The highest micro-F1 of giving every example the same labels: the commonest ones."""
    expected = self.value(truth)
    always, best = np.zeros_like(expected), 0.0
    # Of all sets of so many labels the commonest have the most true positives.
    for label in np.argsort(-expected.sum(axis=0), kind="stable"):
      always[:, label] = True
      best = max(best, float(micro_f1(expected, always)))
    return {"baseline_micro_f1": best}

  def describe_labels(self, labels: np.ndarray) -> str:
    shares = zip(self.labels, labels.mean(axis=0), strict=True)
    counts = labels.sum(axis=1)  # [N]
    names = ", ".join(f"{name} {share:.1%}" for name, share in shares)
    mean, none = counts.mean(), np.mean(counts == 0)
    return f"labels: {names} of the examples; {mean:.2f} per example, none in {none:.1%}"

  def served(self, answer: dict[str, float]) -> dict[str, Any]:
    return {"labels": _chosen(answer), "probabilities": answer}

  def result(self, prediction: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    probabilities = self.answer(prediction)
    return {"prediction": _chosen(probabilities), "probabilities": probabilities}

  def cell(self, prediction: list[str] | None) -> str | None:
    return None if prediction is None else self.separator.join(prediction)

  def details(self, predictions: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    return {"labels": per_label(self.labels, self.value(truth), self.value(predictions))}

  def dev_report(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    truth, predicted = self.value(labels), self.value(predictions)
    return {
      "kind": MULTI_LABEL,
      "labels": list(self.labels),
      "n": len(labels),
      "micro_f1": float(micro_f1(truth, predicted)),
      "per_class": per_label(self.labels, truth, predicted),
    }

  def truth_entry(self, label: np.ndarray) -> dict[str, Any]:
    return {"labels": _chosen(dict(zip(self.labels, label, strict=True)))}

  def _is_degenerate(self, predictions: np.ndarray) -> bool:
    present = self.value(predictions)
    return bool((present == present[0]).all())


def _chosen(probabilities: dict[str, float]) -> list[str]:
  return [name for name, p in probabilities.items() if p >= 0.5]
