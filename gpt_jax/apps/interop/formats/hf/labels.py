"""Labels in config.json: the classes of a labeled head, and its task."""

from typing import Any

from gpt_jax.apps.interop.formats.hf.weights import Weights
from gpt_jax.apps.interop.imported import ImportedTask
from gpt_jax.config import registered_name, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.regress import MultiLabelHead, RegressHead
from gpt_jax.tasks.answers.labels import MultiLabelTask
from gpt_jax.tasks.answers.number import RegressionTask
from gpt_jax.tasks.answers.span import SpanTask
from gpt_jax.tasks.task import Task

# The registered name of a head -> ImportedTask.kind.
_KINDS = {
  "classify": "one_label",
  "multi_label": "multi_label",
  "regress": "regression",
  "tag_head": "tags",
}
# The registered name of a linear head on each token -> transformers' class, without the family's
# name, and the name of its map there.
_ON_TOKENS = {
  "tag_head": ("ForTokenClassification", "classifier"),
  "span_head": ("ForQuestionAnswering", "qa_outputs"),
}
# LabeledTask.kind -> problem_type.
_PROBLEMS = {RegressionTask.kind: "regression", MultiLabelTask.kind: "multi_label_classification"}
# LabeledTask.kind -> names of the outputs, where they are not the labels.
_OUTPUTS = {RegressionTask.kind: ("value",), SpanTask.kind: ("start", "end")}


def token_class(head: Any) -> tuple[str, str]:
  """The class and the name of the map of a linear head on each token; ("", ""): it is none."""
  return _ON_TOKENS.get(registered_name(type(head)), ("", ""))


def scale_of(task: Any) -> tuple[float, float] | None:
  """Mean and deviation by which a task's numbers were standardized; None: it has none."""
  return task.scale if task and task.kind == RegressionTask.kind else None


def label_settings(head: Any, task: Task | None) -> dict[str, Any]:
  """The names of the outputs, and the kind of problem where it is not one class each."""
  settings: dict[str, Any] = {}
  labels = tuple(map(str, range(head.num_classes)))
  if task:
    labels = _OUTPUTS.get(task.kind, task.labels)
  if task and task.kind in _PROBLEMS:
    settings["problem_type"] = _PROBLEMS[task.kind]
  settings["id2label"] = {str(i): label for i, label in enumerate(labels)}
  settings["label2id"] = {label: i for i, label in enumerate(labels)}
  return settings


def architecture_of(config: dict[str, Any]) -> str:
  """The name of the class whose weights are in the folder; "" if it is not named."""
  names = config.get("architectures")
  first = names[0] if isinstance(names, list) and names else None
  return first if isinstance(first, str) else ""


def outputs_of(weights: Weights, name: str) -> int:
  """The number of rows of a head's matrix; 0 if it is no matrix, or empty."""
  shape = weights.shapes[name]
  return shape[0] if len(shape) == 2 and shape[1] else 0


def sequence_head(config: dict[str, Any], outputs: int, **settings: Any) -> Any:
  """The head of a ForSequenceClassification with so many outputs."""
  problem = config.get("problem_type")
  if problem == "multi_label_classification":
    return MultiLabelHead(outputs, **settings)
  if problem == "regression" and outputs > 1:
    raise InputError(f"problem_type is 'regression' with {outputs} outputs: only 1 is supported")
  # transformers takes one output for a regression where problem_type is not set.
  return RegressHead(**settings) if outputs == 1 else ClassifyHead(outputs, **settings)


def task_of(config: dict[str, Any], head: Any) -> ImportedTask | None:
  """The task of a head that others have trained; None without a head, and for a choice among any
  number of options, since nothing says where they are.
  """
  if head is None:
    return None
  tree = to_json(head)
  if tree.get("pooling") == "per_choice":
    return None
  kind = _KINDS[tree["type"]]
  return ImportedTask(kind, () if kind == "regression" else _labels(config, head.num_classes))


def _labels(config: dict[str, Any], count: int) -> tuple[str, ...]:
  """The names of the outputs in their order, which may not be that of the file."""
  # transformers leaves its default names out.
  names = config.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
  if not isinstance(names, dict) or sorted(names) != sorted(map(str, range(count))):
    raise InputError(f"id2label is {str(names)[:100]}: should name the outputs 0 to {count - 1}")
  labels = tuple(str(names[str(i)]) for i in range(count))
  if len({*labels}) < count:
    raise InputError(f"id2label is {str(names)[:100]}: should have another name for each output")
  return labels
