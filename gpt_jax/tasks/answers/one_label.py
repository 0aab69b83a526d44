"""One label per example: a softmax over classes, or over the choices of an example."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.metrics import macro_f1
from gpt_jax.tasks.readers import as_known, of_form
from gpt_jax.tasks.transforms import Transform

MAX_CLASSES = 20  # in a table for the console


def most_likely(distributions: np.ndarray) -> np.ndarray:
  """[N, K] -> the index of the most likely class, [N]."""
  return np.argmax(distributions, axis=-1)


class OneLabel(LabeledTask):
  """The answer of a Task, whose docstring describes these fields."""

  pooling: str
  transform: Transform
  target: Callable[[str], tuple[float, ...]] | None

  has_words = True
  limits = "It knows the labels above only, and gives one of them to any text."

  @property
  def head(self) -> dict[str, Any]:
    """A name and sizes, since the class is a model and this subpackage knows only numpy."""
    return {"type": "classify", "num_classes": self.num_classes, "pooling": self.pooling}

  @property
  def has_classes(self) -> bool:
    return self.pooling == "sum"

  @property
  def is_classification(self) -> bool:
    return self.value is most_likely

  @property
  def has_report(self) -> bool:
    return self.is_classification

  @property
  def wanted(self) -> str:
    """The needs of a labeled row, for messages."""
    return f"one of {', '.join(self.labels)}"

  @property
  def kind(self) -> str:
    """The column of figure 1 that the task belongs to."""
    if self.pooling == "per_choice":
      return "multiple choice"
    sequences = self.transform(*self.columns)
    if len(sequences) == 2:
      return "similarity"
    return "classification" if len(sequences[0]) == 1 else "entailment"

  def describe_labels(self, labels: np.ndarray) -> str:
    if not labels.any():
      return ""
    # Labels are distributions [N, K]: an example may count for several classes.
    shares = zip(self.labels, labels.sum(axis=0) / labels.sum(), strict=True)
    return "labels: " + ", ".join(f"{name} {share:.1%}" for name, share in shares)

  def target_of(self, label: str, location: str) -> tuple[float, ...]:
    """A row's label as the target of the head. Raises InputError for an unknown label."""
    if self.target is not None:
      try:
        return self.target(label)
      except ValueError as error:
        raise InputError(f"{location}: label {label!r}: {error}") from error
    label = as_known(label, self.labels)
    if label not in self.labels:
      known = ", ".join(self.labels)
      raise InputError(
        f"{location}: label {label!r}: should be one of {known}{of_form(label, self.labels)}"
      )
    return tuple(float(name == label) for name in self.labels)

  def loss(self, predictions: np.ndarray, truth: np.ndarray) -> float:
    """The mean cross-entropy in nats; the arguments are those of `score`."""
    # A probability that float32 rounded to 0 costs 69 nats, not infinitely many.
    return float(-(truth * np.log(np.maximum(predictions, 1e-30))).sum(-1).mean())

  def constant_loss(self, labels: np.ndarray) -> float:
    # Of all constant answers the shares of the labels have the lowest cross-entropy.
    return self.loss(np.broadcast_to(labels.mean(axis=0), labels.shape), labels)

  def check_metrics(self) -> None:
    # Values that differ: of constants a correlation is 0 without its package.
    values = self.value(np.eye(max(2, self.num_classes)))
    for metric in self.metrics.values():
      metric(values, values)

  def baselines(self, truth: np.ndarray) -> dict[str, float]:
    """baseline_<metric> of the best constant prediction, for tasks that report it."""
    del truth
    return {}

  def score(self, predictions: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Computes the task's metrics, the primary one first.

    Args:
      predictions: [N, K], predicted probabilities.
      truth: [N, K], the labels' distributions.

    Returns:
      name -> value, the baselines, and "degenerate": 1 if all predictions are the same.
    """
    expected, predicted = self.value(np.asarray(truth)), self.value(np.asarray(predictions))
    scores = {name: float(metric(expected, predicted)) for name, metric in self.metrics.items()}
    scores |= self.baselines(truth)
    if self._is_degenerate(predictions):
      scores["degenerate"] = 1.0
    return scores

  def _is_degenerate(self, predictions: np.ndarray) -> bool:
    # Not 0: equal predictions differ in their last bits with their position in the batch.
    return np.ptp(self.value(np.asarray(predictions))) <= 1e-3

  def details(self, predictions: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """The class_report as "classes"."""
    return {"classes": self.dev_report(predictions, truth)} if self.is_classification else {}

  def dev_report(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    return class_report(self.labels, predictions, labels.argmax(axis=-1))

  def truth_entry(self, label: np.ndarray) -> dict[str, Any]:
    return {"label": self.labels[label.argmax()]}

  def answer(self, prediction: np.ndarray) -> Any:
    """The answer of `classify` for one example: the probability of every label."""
    return dict(zip(self.labels, map(float, prediction), strict=True))

  def served(self, answer: Any) -> dict[str, Any]:
    """An `answer` as the server's JSON."""
    return {"label": max(answer, key=answer.get), "probabilities": answer}

  def result(self, prediction: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """The most likely label or the task's own value (STS-B's score), and all probabilities.

    Args:
      prediction: [K], predicted probabilities.
      truth: not used.
    """
    del truth
    probabilities = self.answer(prediction)
    value = self.value(prediction[None])[0]
    if self.value is most_likely:
      return {"prediction": self.labels[int(value)], "probabilities": probabilities}
    return {"prediction": round(float(value), 4), "probabilities": probabilities}


def class_report(
  labels: tuple[str, ...], probabilities: np.ndarray, classes: np.ndarray
) -> dict[str, Any]:
  """The metrics of every class.

  Args:
    labels: names of the K classes.
    probabilities: [N, K].
    classes: int [N], the true ones.

  Returns:
    "labels", "n", "accuracy", "macro_f1" over the classes that occur, "majority" (the share of the
    commonest class), "per_class" (label -> precision, recall, f1, support) and "confusion", the
    counts [K, K] of true (rows) and predicted (columns) classes.
  """
  predicted, every_class = probabilities.argmax(axis=-1), np.arange(len(labels))
  macro = float(macro_f1(classes, predicted))  # raises first where scikit-learn is missing
  from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

  # All K classes: without `labels` those that do not occur would be left out.
  # Four arrays [K]: precision, recall, F1, support.
  columns = precision_recall_fscore_support(classes, predicted, labels=every_class, zero_division=0)
  per_class = {}
  for label, precision, recall, f1, support in zip(labels, *columns, strict=True):
    per_class[label] = {
      "precision": float(precision),
      "recall": float(recall),
      "f1": float(f1),
      "support": int(support),
    }
  return {
    "labels": list(labels),
    "n": len(classes),
    "accuracy": float((predicted == classes).mean()),
    "macro_f1": macro,
    "majority": float(np.bincount(classes).max() / len(classes)),
    "per_class": per_class,
    "confusion": confusion_matrix(classes, predicted, labels=every_class).tolist(),
  }


def format_classes(report: dict[str, Any]) -> str:
  """The class_report as a table for the console: at most 20 classes, the worst and rarest first
  if there are more.
  """
  supports = [values["support"] for values in report["per_class"].values()]
  commonest = report["labels"][int(np.argmax(supports))]
  rows = list(zip(report["labels"], report["per_class"].values(), report["confusion"], strict=True))
  if len(rows) > MAX_CLASSES:
    rows = sorted(rows, key=lambda row: (row[1]["f1"], row[1]["support"]))[:MAX_CLASSES]
  width = max(len("macro average"), *(len(shorten(label)) for label, _, _ in rows))
  lines = [f"{'':{width}}  precision  recall     f1  support  most often taken for"]
  for label, values, counts in rows:
    numbers = f"{values['precision']:9.3f}  {values['recall']:6.3f}  {values['f1']:5.3f}"
    mistake = _commonest_mistake(report["labels"], label, counts)
    lines.append(f"{shorten(label):{width}}  {numbers}  {values['support']:7,}  {mistake}".rstrip())
  if hidden := len(report["labels"]) - len(rows):
    lines.append(f"({hidden:,} more classes have a higher F1)")
  lines.append(f"{'macro average':{width}}  {'':9}  {'':6}  {report['macro_f1']:5.3f}")
  lines.append(f"accuracy {report['accuracy']:.4f}; always {shorten(commonest)!r}: ")
  lines[-1] += f"{report['majority']:.4f}"
  return "\n".join(lines)


def _commonest_mistake(labels: list[str], label: str, counts: list[int]) -> str:
  # The row of the confusion matrix without its diagonal.
  wrong = [0 if other == label else count for other, count in zip(labels, counts, strict=True)]
  most = int(np.argmax(wrong))
  return f"{shorten(labels[most])} ({wrong[most]:,})" if wrong[most] else ""


def shorten(label: str) -> str:
  label = " ".join(label.split())
  return label if len(label) <= 30 else f"{label[:29]}…"
