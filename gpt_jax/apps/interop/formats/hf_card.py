"""README.md of a transformers folder: a model card, with the front matter that hubs read.

It has what the run knows. A license is not among it, and is for the owner to add.
"""

import json
from typing import Any

from gpt_jax.apps.interop.tokenizer_json import TRAINED_IDS, find
from gpt_jax.checkpoints.formats.folder import TOKENIZER
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import counted
from gpt_jax.models.model import ModelConfig
from gpt_jax.tasks.answers.labels import MultiLabelTask
from gpt_jax.tasks.answers.number import RegressionTask
from gpt_jax.tasks.answers.span import SpanTask
from gpt_jax.tasks.task import Task

_UNITS = ("loss", "perplexity", "bits_per_byte")  # metrics of a language model


def write_card(
  model: str,
  spec: ModelConfig,
  meta: dict[str, Any],
  step: int,
  tokenizer: Tokenizer,
  task: Task | None,
  orders: int,
  folded: bool,
  temperature: float | None,
  sequences: list[str],
) -> str:
  """The text of README.md.

  Args:
    model: the class of transformers.
    meta: of the checkpoint; "metrics" are those at its step, if they are known.
    orders: sequences per example whose logits are added.
    folded: whether the head's bias was moved into the last norm.
    temperature: by which the head was divided; None for a model that is not calibrated.
    sequences: paragraphs on how a labeled example is written.
  """
  pipeline = pipeline_tag(spec, task, orders)
  use = f"from transformers import {model}\n    model = {model}.from_pretrained(FOLDER)"
  if pipeline:
    use = f'from transformers import pipeline\n    model = pipeline("{pipeline}", model=FOLDER)'
  paragraphs = [
    _front_matter(meta, task, pipeline),
    f"# {model}",
    "Written by gpt_jax, which reads this folder like a checkpoint.",
    f"    {use}",
    _ids(tokenizer, fills_masks=pipeline == "fill-mask"),
  ]
  if task:
    first, *others = sequences
    paragraphs += [f"Fine-tuned on {task.name}: {_answers(task)}. {first}", *others]
  if task and orders > 1:
    paragraphs.append(
      "Read the two texts in both orders, and add the logits. A pipeline reads one order alone, "
      "and so does not give this model's answers."
    )
  if folded:
    paragraphs.append(
      "`score` has no bias: the bias of W_y is folded into the bias of the last norm. The logits "
      "of this class are therefore exact, but those of a language model made from this folder "
      "are not; gpt_jax undoes the change and reads both exactly."
    )
  if temperature is not None:
    paragraphs.append(
      f"The head is divided by the temperature {temperature:.4g}, found on the dev set, so the "
      "softmax of the logits gives calibrated probabilities."
    )
  paragraphs += ["## Training", _training(spec, meta, step, task), "## Limits", _limits(spec, task)]
  return "\n\n".join(paragraphs) + "\n"


def pipeline_tag(spec: ModelConfig, task: Task | None, orders: int) -> str:
  """The pipeline of transformers that gives the model's answers; "" if none does."""
  if spec.head is None and spec.attention == "causal":
    return "text-generation"
  if spec.head is None:
    return "fill-mask" if any(head.scope == "masked" for head in spec.heads) else ""
  # A pipeline reads one sequence of a text: no options, no second order.
  one_sequence = not spec.head.per_token and spec.head.pooling == "sum" and orders == 1
  return "text-classification" if task and one_sequence else ""


def _front_matter(meta: dict[str, Any], task: Task | None, pipeline: str) -> str:
  """YAML, which contains JSON."""
  card: dict[str, Any] = {"library_name": "transformers", "tags": ["gpt_jax"]}
  if pipeline:
    card["pipeline_tag"] = pipeline
  scores = _scores(meta, task)
  if scores and task:
    card["metrics"] = list(scores)
    result = {
      "task": {"type": pipeline or "other"},
      "dataset": {"name": task.name, "type": task.name, "split": "dev"},
      "metrics": [{"type": name, "value": round(value, 4)} for name, value in scores.items()],
    }
    card["model-index"] = [{"name": f"gpt_jax {task.name}", "results": [result]}]
  return f"---\n{json.dumps(card, indent=2)}\n---"


def _scores(meta: dict[str, Any], task: Task | None) -> dict[str, float]:
  """The metrics of the task on its dev set, or the losses of a language model."""
  metrics = meta.get("metrics") or {}  # of the step that is exported
  if task:
    return {name: metrics[f"dev_{name}"] for name in task.metrics if f"dev_{name}" in metrics}
  return {name: value for name, value in metrics.items() if name.endswith(_UNITS)}


def _ids(tokenizer: Tokenizer, fills_masks: bool) -> str:
  """Markdown on the tokenizer: whether transformers can load it, and gives the same ids."""
  spelled = "text that spells a special token stays text"
  if fills_masks and "mask" in tokenizer.special_inside:
    mask = tokenizer.spelling(tokenizer.special["mask"])
    spelled = f"a text spells what is to be filled as `{mask}`"
  own_ids = (
    f"Get the model's ids with gpt_jax: `load_tokenizer('FOLDER/{TOKENIZER}').encode(text)`, from "
    "`gpt_jax.data.tokenizers.base`."
  )
  writer = find(tokenizer.kind)
  if writer is None:
    return f"The vocabulary is {tokenizer.kind}, for which transformers has no class. {own_ids}"
  given = f"`AutoTokenizer.from_pretrained(FOLDER)` gives {writer.IDS}"
  return f"{given}; {spelled}." if writer.IDS == TRAINED_IDS else f"{given}. {own_ids}"


def _answers(task: Task) -> str:
  labels = ", ".join(task.labels)
  others = {
    MultiLabelTask.kind: (
      f"any number of {labels}, each with a probability of its own, the sigmoid of its logit"
    ),
    RegressionTask.kind: "a number; the logit is in the units of the training data",
    SpanTask.kind: "a part of the context, by scores of its first and its last token",
  }
  return others.get(task.kind, labels)


def _training(spec: ModelConfig, meta: dict[str, Any], step: int, task: Task | None) -> str:
  """Scores and recipe, as far as the checkpoint knows them."""
  trunk = spec.trunk
  lines = [
    f"- {trunk.parameter_count():,} parameters, {counted(trunk.layers, 'layer')}, "
    f"context {trunk.context}, {counted(step, 'update')}"
  ]
  for name, value in _scores(meta, task).items():
    lines.append(f"- {name}{' on dev' if task else ''}: {value:.4g}")
  config = meta.get("config") or {}
  for part in ("optim", "train"):
    settings = config.get(part)
    if isinstance(settings, dict):
      # Without "type", which is ours, and what is off.
      values = [f"{name} {value}" for name, value in settings.items() if name != "type" and value]
      lines.append(f"- {part}: {', '.join(values)}")
  if "batch_size" in config:
    lines.append(f"- batch_size {config['batch_size']}, lm_weight {config.get('lm_weight')}")
  return "\n".join(lines)


def _limits(spec: ModelConfig, task: Task | None) -> str:
  limit = f"It reads at most {spec.trunk.context} tokens"
  causal = spec.attention == "causal"
  if task:
    limit += ": give `truncation=True` for longer texts"
  if task and causal:  # bidirectional models' formats cut the longer text
    limit += "; of two texts gpt_jax keeps half of that each"
  elif causal:
    limit += (
      ", and was not tuned to follow instructions. `decode` keeps the space before the first word, "
      "since a pipeline decodes a continuation alone"
    )
  return f"{limit}. Nobody has examined it for biases of its training data."
