"""A frozen linear probe: what logistic regression reads in a trunk's states."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import numpy as np

from gpt_jax.batch import Rows
from gpt_jax.inference.linear_classifier import fit_best_linear, spread_classes
from gpt_jax.models.model import ModelConfig
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_start import load_start
from gpt_jax.programs.probe_features import probe_features
from gpt_jax.programs.start import Start
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import subset
from gpt_jax.tasks.formats import RoBERTaFormat

_PENALTY_SHARE = 5  # a fifth of the training examples chooses the strength of the penalty


def probe_start(config: FinetuneConfig, checkpoint: str, tokenizer: str) -> Start:
  """The trunk that is probed; for "none", one with fresh weights.

  A text-to-text model, which writes its answers, reads plain texts here: in RoBERTa's format, and
  all positions attend to all.
  """
  start = load_start(config, checkpoint, tokenizer)
  if start.format.writes_answers:
    start = dataclasses.replace(start, format=RoBERTaFormat())
  if start.params is None:
    ids = np.zeros((1, 2), np.int32)
    model = ModelConfig(start.trunk, (), start.attention).build()
    init = jax.jit(functools.partial(model.init, method="states"))
    variables = init(jax.random.key(0), Rows(ids, ids))
    start = dataclasses.replace(start, params=jax.device_get(variables["params"]))
  return start


def probe_score(
  start: Start, task: LabeledTask, data_dir: str, examples: Mapping[str, int]
) -> float:
  """The task's primary metric on its dev set, by the mean state of each text.

  Scores (STS-B) are classes, the nearest numbers, whose expectation is the prediction.

  Args:
    examples: "train" or "dev" -> at most so many of that set; 0: all.
  """
  features, labels = {}, {}
  for split in ("train", "dev"):
    chosen = subset(task.examples(data_dir, split), examples[split], task.has_classes)
    encoded = task.encode(chosen, *start.reads)
    features[split], labels[split] = probe_features(start, encoded), encoded.labels
  classes = labels["train"].argmax(axis=1)
  # By class: every fifth row may be of one class. The end of the order, so that rare ones train.
  chooses = np.zeros(len(classes), bool)
  chooses[spread_classes(classes, 0)[-len(classes) // _PENALTY_SHARE :]] = True
  linear = fit_best_linear(
    (features["train"][~chooses], classes[~chooses]),
    (features["train"][chooses], classes[chooses]),
    task.num_classes,
  )
  return task.score(linear(features["dev"]), labels["dev"])[task.primary_metric]
