"""What config.json says of the classes of a labeled head."""

from typing import Any

from gpt_jax.tasks.multi_label import MultiLabelTask
from gpt_jax.tasks.regression import RegressionTask
from gpt_jax.tasks.task import Task


def label_settings(head: Any, task: Task | None) -> dict[str, Any]:
  """The names of the outputs, and the kind of problem where it is not one class each."""
  settings: dict[str, Any] = {}
  labels = task.labels if task else tuple(str(i) for i in range(head.num_classes))
  if isinstance(task, RegressionTask):
    labels, settings["problem_type"] = ("value",), "regression"
  elif isinstance(task, MultiLabelTask):
    settings["problem_type"] = "multi_label_classification"
  settings["id2label"] = {str(i): label for i, label in enumerate(labels)}
  settings["label2id"] = {label: i for i, label in enumerate(labels)}
  return settings
