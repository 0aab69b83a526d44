"""How far the full model is above others on the same dev examples; TF-IDF beside it."""

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.study import Study
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.inference.dev_report import read_dev_set, write_dev_report
from gpt_jax.inference.intervals import bootstrap_difference
from gpt_jax.inference.linear_classifier import TfidfClassifier, fit_chosen, fit_linear, fit_tfidf
from gpt_jax.parallel.processes import log
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.task import find

TFIDF = "tf-idf"

# Another setting -> task -> how much the full model's metric is above it, and its 95 % interval.
Differences = dict[str, dict[str, Sequence[float]]]


def measure(study: Study, runs: dict[str, Any], full: str) -> Differences:
  """The differences of all tasks with classes that have runs of both settings; what an earlier call
  has measured is read.
  """
  differences: Differences = {}
  for setting, tasks in runs.items():
    for name in runs.get(full, {}):
      if name not in tasks or setting == full:
        continue
      task, seeds = find(name), [runs[side][name]["seeds"] for side in (full, setting)]
      folders = [
        [study.path("runs", side, name, f"seed_{seed}") for seed in of_side]
        for side, of_side in zip((full, setting), seeds, strict=True)
      ]
      measure_one = functools.partial(_measure_one, task, *folders)
      try:
        part = study.part(f"runs/{setting}/{name}/difference", {"seeds": seeds}, measure_one)
      except MissingInput:  # not of classes, or evaluated by the model of another task
        continue
      except (InputError, ValueError) as error:
        log(f"{setting}, {name}: no difference from the full model: {error}")
        continue
      differences.setdefault(setting, {})[name] = part["value"]
  return differences


def _measure_one(task: LabeledTask, ours: list[str], theirs: list[str]) -> dict[str, Any]:
  """The difference of two settings by the folders of their runs, and its interval."""
  (truth, first), (same, second) = (_predictions(task, folders) for folders in (ours, theirs))
  if not np.array_equal(truth, same):
    raise ValueError("it has other dev examples")
  metric = task.metrics[task.primary_metric]
  means = [np.mean([metric(truth, x) for x in side]) for side in (first, second)]
  interval = bootstrap_difference(metric, truth, first, second)
  return {"value": [float(means[0] - means[1]), *interval]}


def _predictions(task: LabeledTask, folders: list[str]) -> tuple[np.ndarray, list[np.ndarray]]:
  """The true classes [N] of the dev examples, and those that each run predicts."""
  dev_sets = [read_dev_set(folder, task.labels) for folder in folders]
  return dev_sets[0].classes, [task.value(dev.probabilities) for dev in dev_sets]


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
