"""How far the full model is above others on the same dev examples; TF-IDF beside it."""

import os
from typing import Any

import numpy as np

from gpt_jax.apps.study import Study
from gpt_jax.files import parse_json, read_json, verified
from gpt_jax.inference.dev_report import REPORT, prediction_lines, write_dev_report
from gpt_jax.inference.intervals import bootstrap_difference
from gpt_jax.inference.linear_classifier import (
  TfidfClassifier,
  fit_chosen,
  fit_linear,
  fit_tfidf,
)
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.task import find

TFIDF = "tf-idf"

# Another setting -> task -> how much the full model's metric is above it, and its 95 % interval.
Differences = dict[str, dict[str, tuple[float, float, float]]]


def measure(study: Study, runs: dict[str, Any], full: str) -> Differences:
  """The differences of all tasks with classes that have runs of both settings."""
  differences: Differences = {}
  for setting, tasks in runs.items():
    for name in runs.get(full, {}):
      if name not in tasks or setting == full:
        continue
      task = find(name)
      folders = []
      for side in (full, setting):
        seeds = runs[side][name]["seeds"]
        folders.append([study.path("runs", side, name, f"seed_{seed}") for seed in seeds])
      try:
        (truth, first), (same, second) = (_predictions(task, of_seeds) for of_seeds in folders)
      except (OSError, ValueError):  # of another task's model, or not of classes
        continue
      if not np.array_equal(truth, same):
        continue
      metric = task.metrics[task.primary_metric]
      ours, theirs = (np.mean([metric(truth, x) for x in side]) for side in (first, second))
      interval = bootstrap_difference(metric, truth, first, second)
      differences.setdefault(setting, {})[name] = (float(ours - theirs), *interval)
  return differences


def _predictions(task: LabeledTask, folders: list[str]) -> tuple[np.ndarray, list[np.ndarray]]:
  """The true classes [N] of the dev examples, and those that each run predicts."""
  predicted = []
  for folder in folders:
    report = verified(read_json(os.path.join(folder, REPORT)))
    entries = list(map(parse_json, prediction_lines(folder, report)))
    truth = np.array([task.labels.index(entry["label"]) for entry in entries])
    predicted.append(task.value(np.array([entry["probabilities"] for entry in entries])))
  return truth, predicted


def fit_bag_of_words(task: LabeledTask, data: str, config: FinetuneConfig, folder: str) -> Any:
  """What a run of fine-tuning gives, by logistic regression on TF-IDF of the same rows."""
  counts = {"train": config.train_examples, "dev": config.dev_examples}
  rows = {split: task.subset(task.examples(data, split), counts[split]) for split in counts}
  features = fit_tfidf(["\n".join(row.sequences[0]) for row in rows["train"]])
  empty = TfidfClassifier(folder, folder, {}, {"tfidf": features})
  encoded = {split: empty.encode(task, rows[split]) for split in counts}
  x = features(encoded["train"].strings)
  classes = encoded["train"].labels.argmax(axis=1)
  best = fit_chosen(x, classes, len(task.labels))
  linear = fit_linear(x, classes, len(task.labels), best.inverse_penalty)
  probabilities = linear(features(encoded["dev"].strings))
  os.makedirs(folder, exist_ok=True)
  write_dev_report(folder, task, encoded["dev"], probabilities, 0, data)
  scores = task.score(probabilities, encoded["dev"].labels)
  metrics = {f"dev_{name}": value for name, value in scores.items()}
  return {"task": task.name, "seed": 0, "dev": metrics, "best": {"step": 0, **metrics}}
