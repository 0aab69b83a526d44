"""Metrics of labeled tasks, computed by scikit-learn, scipy and seqeval (extra `metrics`).

To add a metric, write a function (truth [N], predicted [N]) -> float below. Task files name it in
`metrics={"f1": f1, ...}`, the first of which chooses the best checkpoint: higher must be better;
add it to CLASS_METRICS to allow `config.task.metric=NAME` for tables.
Multi-label metrics compare indicators, bool [N, K]; those of regression numbers, [N].
"""

import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt_jax.errors import require

Metric = Callable[[np.ndarray, np.ndarray], float]
SpanMetric = Callable[[list[list[str]], list[list[str]]], float]


def most_likely(distributions: np.ndarray) -> np.ndarray:
  """[N, K] -> the index of the most likely class, [N]."""
  return np.argmax(distributions, axis=-1)


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Share of equal entries; of indicators, of the examples whose labels are exactly right."""
  return _sklearn().accuracy_score(truth, predicted)


def f1(truth: np.ndarray, predicted: np.ndarray) -> float:
  """F1 of class 1 in a binary task; 0 if class 1 is never predicted."""
  return _sklearn().f1_score(truth, predicted, zero_division=0)


def macro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Mean F1 of the classes that occur in either array, each with the same weight."""
  return _sklearn().f1_score(truth, predicted, average="macro", zero_division=0)


def matthews(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Matthews correlation of class indices; 0 if either array is constant."""
  if _is_constant(truth, predicted):
    return 0.0  # as scikit-learn, which would also warn
  return _sklearn().matthews_corrcoef(truth, predicted)


def micro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
  """F1 over all pairs of example and label; 0 where nothing is true and nothing predicted."""
  return _sklearn().f1_score(truth, predicted, average="micro", zero_division=0)


def label_macro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Mean F1 of the labels that occur in either array, each with the same weight; 0 without any."""
  # scikit-learn's macro average counts a label that never occurs as 0.
  occurs = np.any(truth, axis=0) | np.any(predicted, axis=0)
  if not occurs.any():
    return 0.0
  scores = _sklearn().f1_score(truth, predicted, average=None, zero_division=0)  # [K]
  return float(np.mean(scores[occurs]))


def span_f1(truth: list[list[str]], predicted: list[list[str]]) -> float:
  """Micro F1 of the spans, kind and both ends right, as CoNLL's script, of tags in any scheme."""
  seqeval = require("seqeval.metrics", "this metric", "seqeval", "metrics")
  return seqeval.f1_score(truth, predicted, zero_division=0)


def r2(truth: np.ndarray, predicted: np.ndarray) -> float:
  """The share of the variance that is predicted; 0, not nan, if `truth` is constant."""
  if _is_constant(truth):
    return 0.0
  return _sklearn().r2_score(truth, predicted)


def rmse(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Root of the mean squared error, in the units of the numbers."""
  return _sklearn().root_mean_squared_error(truth, predicted)


def mae(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Mean absolute error, in the units of the numbers."""
  return _sklearn().mean_absolute_error(truth, predicted)


def pearson(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Pearson correlation; 0, not nan, if either array is constant."""
  if _is_constant(truth, predicted):
    return 0.0
  return _scipy().pearsonr(truth, predicted).statistic


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Spearman rank correlation; 0, not nan, if either array is constant."""
  if _is_constant(truth, predicted):
    return 0.0
  return _scipy().spearmanr(truth, predicted).statistic


# The choices of TableTask.metric.
CLASS_METRICS: dict[str, Metric] = {
  "accuracy": accuracy,
  "f1": f1,
  "macro_f1": macro_f1,
  "matthews": matthews,
}
MULTI_LABEL_METRICS: dict[str, Metric] = {
  "micro_f1": micro_f1,
  "macro_f1": label_macro_f1,
  "exact_match": accuracy,
}
# Of numbers; a higher value is better. The errors, in units, are beside them.
REGRESSION_METRICS: dict[str, Metric] = {"r2": r2, "pearson": pearson, "spearman": spearman}
REGRESSION_ERRORS: dict[str, Metric] = {"rmse": rmse, "mae": mae}


def _is_constant(*arrays: np.ndarray) -> bool:
  """Whether one of the arrays is."""
  return 0 in map(np.ptp, arrays)


def translation_scores(
  truth: Sequence[str], predicted: Sequence[str], lowercase: bool = False
) -> dict[str, tuple[float, str]]:
  """BLEU (Papineni et al. 2002; tokenization 13a of WMT's mteval) and chrF2 (Popovic 2015) of a
  corpus with one reference each, from 0 to 100, with sacrebleu's signature of each.
  """
  sacrebleu = require("sacrebleu.metrics", "BLEU", "sacrebleu", "translation")
  scores = {}
  for name, kind in (("bleu", sacrebleu.BLEU), ("chrf", sacrebleu.CHRF)):
    metric = kind(lowercase=lowercase)
    score = metric.corpus_score(list(predicted), [list(truth)]).score
    scores[name] = score, str(metric.get_signature())
  return scores


def _sklearn() -> types.ModuleType:
  # An extra, imported where it is used: training without its metrics needs none.
  return require("sklearn.metrics", "this metric", "scikit-learn", "metrics")


def _scipy() -> types.ModuleType:
  return require("scipy.stats", "this metric", "scipy", "metrics")


# Tables of the metrics of each label --------------------------------------------------------------

_MAX_CLASSES = 20  # in a table for the console


def class_report(
  labels: tuple[str, ...], probabilities: np.ndarray, classes: np.ndarray
) -> dict[str, Any]:
  """The metrics of every class, by probabilities [N, K] and the true classes, int [N]; "majority"
  is the commonest class's share, "confusion" counts true (rows) and predicted classes, [K, K].
  """
  predicted, every_class = probabilities.argmax(axis=-1), np.arange(len(labels))
  # All K classes: without `labels` those that do not occur would be left out.
  per_class = per_label(labels, classes, predicted, labels=every_class)
  for values in per_class.values():
    values["support"] = int(values["support"])
  confusion = _sklearn().confusion_matrix(classes, predicted, labels=every_class)
  return {
    "labels": list(labels),
    "n": len(classes),
    "accuracy": float((predicted == classes).mean()),
    "macro_f1": float(macro_f1(classes, predicted)),
    "majority": float(np.bincount(classes).max() / len(classes)),
    "per_class": per_class,
    "confusion": confusion.tolist(),
  }


def per_label(
  names: Sequence[str], truth: np.ndarray, predicted: np.ndarray, **options: Any
) -> dict[str, dict[str, float]]:
  """Precision, recall, F1 and support of each label, by scikit-learn."""
  columns = _sklearn().precision_recall_fscore_support(truth, predicted, zero_division=0, **options)
  measures = ("precision", "recall", "f1", "support")
  rows = zip(names, np.transpose(columns).tolist(), strict=True)  # [4, K] -> [K, 4]
  return {name: dict(zip(measures, values, strict=True)) for name, values in rows}


def format_classes(report: dict[str, Any]) -> str:
  """The class_report as a table for the console, see format_labels."""
  labels, confusion = report["labels"], np.array(report["confusion"])
  commonest = _shorten(labels[int(np.argmax(confusion.sum(axis=1)))])
  np.fill_diagonal(confusion, 0)  # what is left are mistakes
  mistakes = {}
  for label, wrong in zip(labels, confusion, strict=True):
    most = int(np.argmax(wrong))
    mistakes[label] = f"{_shorten(labels[most])} ({wrong[most]:,})" if wrong[most] else ""
  lines, width = _table(report["per_class"], "classes", mistakes)
  lines.append(f"{'macro average':{width}}  {'':9}  {'':6}  {report['macro_f1']:5.3f}")
  lines.append(f"accuracy {report['accuracy']:.4f}; always {commonest!r}: {report['majority']:.4f}")
  return "\n".join(lines)


def format_labels(report: dict[str, dict[str, float]]) -> str:
  """The metrics of each label as a table for the console: at most 20, the worst and rarest."""
  return "\n".join(_table(report, "labels", {})[0])


def _table(
  report: dict[str, dict[str, float]], labels: str, mistakes: dict[str, str]
) -> tuple[list[str], int]:
  """The lines, and the width of their first column."""
  rows = list(report.items())
  if len(rows) > _MAX_CLASSES:
    rows = sorted(rows, key=lambda row: (row[1]["f1"], row[1]["support"]))[:_MAX_CLASSES]
  width = max(len("macro average"), *(len(_shorten(label)) for label, _ in rows))
  title = "  most often taken for" if mistakes else ""
  lines = [f"{'':{width}}  precision  recall     f1  support{title}"]
  for label, values in rows:
    numbers = f"{values['precision']:9.3f}  {values['recall']:6.3f}  {values['f1']:5.3f}"
    line = f"{_shorten(label):{width}}  {numbers}  {values['support']:7,.0f}"
    lines.append(f"{line}  {mistakes.get(label, '')}".rstrip())
  if hidden := len(report) - len(rows):
    lines.append(f"({hidden:,} more {labels} have a higher F1)")
  return lines, width


def _shorten(label: str) -> str:
  label = " ".join(label.split())
  return label if len(label) <= 30 else f"{label[:29]}…"
