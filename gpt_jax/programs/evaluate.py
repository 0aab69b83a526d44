"""Evaluates a checkpoint: a language model on held-out text, a fine-tuned one on its task."""

import dataclasses

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import Windows, WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.inference.evaluate import (
  evaluation_batches,
  make_evaluator,
  task_measures,
  text_measures,
)
from gpt_jax.models.loss import model_loss
from gpt_jax.objectives.causal import Causal
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import local_rows, replicate
from gpt_jax.tasks.task import find


def run(checkpoint: str, data: str, split: str = "", task: str = "") -> dict[str, float]:
  """How well a checkpoint does on a whole split of text, or of the labeled examples of its task.

  Args:
    checkpoint: see load_model.
    data: for a language model, a folder that prepare wrote, with the checkpoint's vocabulary; for a
      fine-tuned one, the folder of its task's files, as in finetune.
    task: for a fine-tuned model, another task with the same labels as its own, such as
      mnli-mismatched.
    split: "train" or "valid" of text, "train", "dev" or "test" of a task; by default "valid" and
      "dev".

  Returns:
    Text: counts of tokens and bytes, loss in nats per token, perplexity per token, bits per byte;
    read in windows of the length that the model was trained with. Task: the count of examples, loss
    in nats, the task's metrics.

  Raises:
    InputError: no such checkpoint or data, data of another vocabulary, or examples without labels.
  """
  found = load_model(checkpoint)
  if found.task:
    return _on_task(found, data, split or "dev", task)
  if task:
    raise InputError(
      f"--task={task}: {checkpoint} is a language model without a head; zero_shot.py asks it for tasks"
    )
  return _on_text(found, data, split or "valid")


def _on_task(found: LoadedModel, data_dir: str, split: str, other: str) -> dict[str, float]:
  own = found.task
  task = find(other) if other else own
  if (task.labels, task.pooling) != (own.labels, own.pooling):
    labels = f"{', '.join(task.labels)}, and not {', '.join(own.labels)} as those of {own.name}"
    raise InputError(f"--task={other}: its labels are {labels}")
  examples = task.examples(data_dir, split)
  if unlabeled := next((example.location for example in examples if example.label is None), None):
    raise InputError(f"{unlabeled}: no label; launch/predict.py is for rows without")
  encoded = task.encode(examples, found.tokenizer, found.spec.trunk.context)
  probabilities = found.predictor()(encoded, 32)
  return {"examples": len(examples), **task_measures(task, probabilities, encoded.labels)}


def _on_text(found: LoadedModel, data: str, split: str) -> dict[str, float]:
  text = TokenFile(data, split)
  text.check_vocabulary(found.tokenizer)
  windows, objective = (
    WindowsConfig(length=found.spec.trunk.context),
    Causal(),
  )  # of weights from elsewhere
  if found.config:
    windows, objective = found.config.data, found.config.objective
  mesh = make_mesh(MeshConfig())
  size = -(-windows.batch_size // mesh.size) * mesh.size
  bound = objective.bind(found.tokenizer, windows.length)
  windows = dataclasses.replace(windows, batch_size=size)
  batches = evaluation_batches(bound, Windows(text, windows), local_rows(size, mesh))
  params = replicate(found.params, mesh)
  means = make_evaluator(model_loss(found.model), mesh)(params, batches)
  return {
    "tokens": text.n_tokens,
    "bytes": text.n_bytes,
    **text_measures(means["loss"], text.n_tokens, text.n_bytes),
  }
