"""A linear probe as a checkpoint that launch/predict.py reads: a frozen trunk and a fitted W_y."""

import dataclasses
import os
from typing import Any

import numpy as np

from gpt_jax.checkpoints.run_folder import claim
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import to_json
from gpt_jax.inference.dev_report import write_dev_report
from gpt_jax.inference.linear_classifier import Linear
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_task import make_meta
from gpt_jax.programs.probe_features import POOLING
from gpt_jax.programs.start import Start
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.task import Task

_STEP = 1  # of its only checkpoint


def save_probe(
  workdir: str,
  linear: Linear,
  start: Start,
  config: FinetuneConfig,
  task: Task,
  dev_set: Encoded,
  probabilities: np.ndarray,
  data_dir: str,
) -> None:
  """Writes the folder of a run with one checkpoint and the files of write_dev_report.

  Args:
    linear: fitted on probe_features.
    probabilities: [N, K], of the dev set.
  """
  head = ClassifyHead(task.num_classes, POOLING, dropout=0.0)
  config = dataclasses.replace(config, trunk=start.trunk, train_layers=0, lm_weight=0.0)
  meta = make_meta(config, task, start) | {
    "config": to_json(config),
    "model": to_json(ModelConfig(start.trunk, (head,), start.attention)),
    "trained_special": list(start.trained_special),
  }
  params: dict[str, Any] = {
    "trunk": start.params["trunk"],
    "head": {
      "kernel": linear.kernel.astype(np.float32),
      "bias": linear.bias.astype(np.float32),
    },
  }
  measures = task.measures(probabilities, dev_set.labels)
  metrics = {f"dev_{name}": value for name, value in measures.items()}
  claim(workdir, config, start.tokenizer, {"pretrained": start.identity})
  with Checkpoints(workdir, metric=f"dev_{task.primary_metric}", mode="max") as checkpoints:
    checkpoints.save(_STEP, {"params": params}, meta, metrics)
  write_dev_report(workdir, task, dev_set, probabilities, _STEP, os.path.join(data_dir, ""))
