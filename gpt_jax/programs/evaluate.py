"""Evaluates a language model on held-out text, or a fine-tuned model on its task."""

import dataclasses
import os
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gpt_jax.checkpoints.load import AnyModel, LoadedModel
from gpt_jax.data.token_file import TokenFile
from gpt_jax.errors import InputError
from gpt_jax.files import exists
from gpt_jax.inference.agreement import check_keep, compare_labels, labeled_rows
from gpt_jax.inference.attacks import MAX_RADIUS, find_attack
from gpt_jax.inference.ensemble import Ensemble, check_threshold, score_answers
from gpt_jax.inference.evaluate import make_text_measure
from gpt_jax.inference.linear_classifier import load_any
from gpt_jax.inference.model import Model
from gpt_jax.models.decoding_weights import check_kind
from gpt_jax.models.model import make_heads
from gpt_jax.models.predictor import task_predictor
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import replicate
from gpt_jax.parallel.processes import check_agreement, log
from gpt_jax.programs.pretrain_config import config_of
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.text import as_text
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.task import find


def run(
  checkpoint: str,
  data: str,
  split: str = "",
  task: str = "",
  attack: str = "",
  radius: Sequence[float | str] = (),
  beams: int = 1,
  length_penalty: float = 1.0,
  weights: str = "float32",
  keep: float = 0.99,
  slices: str = "",
  threshold: float | None = None,
  precision: float | None = None,
) -> dict[str, Any]:
  """Evaluates a checkpoint on a whole split. Every process of a distributed run calls it.

  Args:
    checkpoint: see load_any.
    data: for a language model, a folder written by launch/prepare.py with the checkpoint's
      vocabulary; for a fine-tuned model, the folder of its task's files, as for finetune, or a
      table with labels.
    split: text: train or valid (default valid); task: train, dev or test (default dev).
    task: for a fine-tuned model, another task with the same labels, in any order and case, such as
      mnli-mismatched. For any other, a task of similarity scores, stsb: the cosine of the texts'
      embeddings, without training on labels.
    attack: fgm: measure a fine-tuned model also under this attack.
    radius: of the attack: L2 norms of what is added to the embeddings of a sequence.
    beams: candidates of a search for a translation; 1: greedy.
    length_penalty: of the search: above 0 favors long translations.
    weights: bfloat16 or int8: compare a classifier's labels with those that it gives in float32.
    keep: of `weights`: the share of float32's labels, and of its accuracy, that must be left.
    slices: of a classifier: a further column of the task's table, such as language: accuracy by its
      values.
    threshold, precision: as for predict: the share of rows it answers, and of these that is right.

  Returns:
    Text: the numbers of tokens and bytes, loss in nats per token, perplexity per token and bits per
    byte, in windows of the training length. Task: the number of examples, loss in nats, the task's
    metrics, for a classification task "classes", a class_report, and "slices", see Slices.measure,
    and with a threshold how many it answers; for a multi-label task "labels", the
    metrics of each label. With an attack "attack": for each radius the loss and the metrics, and
    "radius". Similarity: the number of examples, the task's metrics. Weights of fewer bits: the
    number of examples, their and float32's accuracy, the share of equal labels, and 95 % intervals.
  """
  radii = _radii(attack, radius)
  scores = {"attack": attack, "slices": slices, "threshold": threshold, "precision": precision}
  given = {name: value for name, value in scores.items() if value not in ("", None)}
  check_threshold(threshold, precision)
  if weights != "float32":  # fails before a model is loaded
    if task or given or beams != 1 or jax.process_count() > 1:
      raise InputError(
        f"weights={weights}: compares a classifier with itself in float32, in one process; leave "
        f"task, {', '.join(scores)} and beams out"
      )
    check_kind(weights)
    check_keep(keep)
    return _in_fewer_bits(load_any(checkpoint), data, split or "dev", weights, keep)
  model = load_any(checkpoint)
  if model.task:
    split = split or ("test" if os.path.isfile(data) else "dev")
    search, answers = (beams, length_penalty), (threshold, precision)
    return _on_task(model, data, split, task, (attack, radii), search, slices, answers)
  loaded = model.network
  if beams != 1:
    raise InputError(f"beams={beams}: is for translations; {checkpoint} is {loaded.without_task}")
  for flag, value in given.items():
    raise InputError(
      f"--{flag}={value}: {checkpoint} is {loaded.without_task}; it is for the labels of a "
      "fine-tuned model"
    )
  if task:
    return _on_similarity(loaded, data, split or "dev", task)
  if not exists(os.path.join(data, "valid.json")):
    raise InputError(
      f"data={data}: {checkpoint} is {loaded.without_task}, measured on a folder made by "
      "prepare.run; to label rows, train it on some first, by finetune.run or label.run"
    )
  return _on_text(loaded, data, split or "valid")


def _in_fewer_bits(
  exact: AnyModel, data: str, split: str, kind: str, keep: float
) -> dict[str, Any]:
  models = exact, exact.with_weights(kind)
  encoded = labeled_rows(exact, data, split)
  before, after = (model.predictor()(encoded, 32).argmax(-1) for model in models)
  agreement = compare_labels(before, after, encoded)
  agreement.check(keep, kind, "stay with float32, or ask for less")
  return {"examples": len(encoded), **agreement.measures}


def _radii(attack: str, radius: Sequence[float | str]) -> list[float]:
  """The radii as numbers, checked with the attack's name."""
  if attack:
    find_attack(attack)
  if bool(attack) != bool(radius):
    raise InputError("--attack and --radius: give both, e.g. --attack=fgm --radius=0.5,1,2")
  radii = []
  for text in radius:
    try:
      radii.append(float(text))
    except ValueError:
      radii.append(0.0)
    if not 0 < radii[-1] <= MAX_RADIUS:
      raise InputError(
        f"--radius: {str(text)[:200]!r} must be a number above 0, at most {MAX_RADIUS:,.0f}"
      )
  return radii


def _on_task(
  loaded: AnyModel,
  data_dir: str,
  split: str,
  name: str,
  attack: tuple[str, Sequence[float]],
  search: tuple[int, float],
  slices: str,
  answers: tuple[float | None, float | None],
) -> dict[str, Any]:
  own = loaded.task
  if attack[0] and own.writes_text:
    raise InputError(
      f"--attack: {loaded.path} writes its labels as text; an attack is on the head of a classifier"
    )
  task = find(name) if name else own
  if name and own.writes_text:
    # With the prefix that it was trained on: "mnli" also for mnli-mismatched.
    task = as_text(task, own.name)
  if search[0] != 1:
    task = task.with_search(*search)
  loaded = _with_order_of(task, loaded, own, name)
  examples = _labeled(task, data_dir, split)
  sliced = task.slices(slices, [example.location for example in examples])
  # Without locations: hosts may have the same files under other paths.
  content = repr([example._replace(location="") for example in examples])
  digest = f"{zlib.crc32(content.encode()):08x}"
  check_agreement({"checkpoint": loaded.identity, "split": split}, {"digest": digest})
  chosen: Any = None
  if answers != (None, None):  # it may refuse, so before the long part
    chosen = Ensemble((loaded,), own).find_threshold(*answers, log)
  encoded = loaded.encode(task, examples)
  measures: dict[str, Any] = {"examples": len(examples)}
  if encoded.truncation:
    warnings.warn(encoded.truncation, stacklevel=3)
  predictions = task_predictor(loaded, task)(encoded, 32)
  measures |= task.measures(predictions, encoded.truth)
  measures |= task.details(predictions, encoded.truth)
  if sliced:
    measures["slices"] = sliced.measure(predictions.argmax(-1) == encoded.truth.argmax(-1))
  if chosen:
    measures |= score_answers(predictions, encoded.truth, *chosen)
  if attack[0]:
    measures["attack"] = _under_attack(loaded.network, task, encoded, *attack)
  return measures


def _labeled(task: LabeledTask, data_dir: str, split: str) -> list:
  """The examples of a split, which must have labels."""
  examples = task.examples(data_dir, split)
  if unlabeled := next((example.location for example in examples if example.label is None), None):
    raise InputError(
      f"{unlabeled}: no label; use launch/predict.py for unlabeled rows, or a split with labels"
    )
  return examples


def _with_order_of(task: LabeledTask, loaded: AnyModel, own: LabeledTask, name: str) -> AnyModel:
  """The model with its outputs in the order of a task's labels, whose names may differ by case."""
  if (task.labels, task.head) == (own.labels, own.head):
    return loaded
  fold = str if own.writes_text else str.casefold  # a text is written in the model's own case
  theirs, ours = list(map(fold, task.labels)), list(map(fold, own.labels))
  # A set: where two labels differ by case alone, it is shorter, since their order is open.
  same = task.head == own.head and sorted(theirs) == sorted({*ours})
  if not same or task.head.get("pooling") == "per_choice":
    kind = "texts" if own.writes_text else "numbers"
    raise InputError(
      f"--task={name}: its labels are {', '.join(task.labels)}; those of {own.name} are "
      f"{', '.join(own.labels) or kind}"
    )
  if own.writes_text:  # no label has an output
    return loaded
  # Output i becomes the score of the task's label i.
  return loaded.with_classes(np.array([ours.index(label) for label in theirs]))


def _under_attack(
  loaded: LoadedModel, task: LabeledTask, encoded: Encoded, attack: str, radii: Sequence[float]
) -> list[dict[str, float]]:
  """The loss and the metrics of the task at each radius."""
  mesh = make_mesh(MeshConfig())
  predict = find_attack(attack).make_attacked_predictor(loaded.model, mesh, radii)
  predictions = predict(replicate(loaded.params, mesh), encoded, 32)
  measures = []
  for i, radius in enumerate(radii):
    if isinstance(predictions, list):  # of each token
      at_radius: Any = [values[:, i] for values in predictions]
    else:
      at_radius = predictions[:, i]
    measures.append({"radius": radius, **task.measures(at_radius, encoded.truth)})
  return measures


def _on_text(loaded: LoadedModel, data: str, split: str) -> dict[str, float]:
  text = TokenFile(data, split)
  text.check_vocabulary(loaded.tokenizer)
  check_agreement({"checkpoint": loaded.identity, "split": split}, {"digest": text.digest})
  config = config_of(loaded)
  windows, objective = config.data, config.objective
  needed = {type(head) for head in make_heads(objective.heads)}
  if needed != {type(head) for head in loaded.spec.heads}:
    raise InputError(
      f"--checkpoint={loaded.path}: its heads are not those of a pre-training objective, so there "
      "is no loss to measure on text; fine-tune it, or continue its pre-training"
    )
  mesh = make_mesh(MeshConfig())
  # A multiple of the devices; the measures are sums over the text, whatever the batch size.
  size = -(-windows.batch_size // mesh.size) * mesh.size
  windows = dataclasses.replace(windows, batch_size=size)
  bound = objective.bind(loaded.tokenizer, windows.length)
  rows = objective.windows(text, windows)
  measure = make_text_measure(loaded.model, bound, rows, mesh)
  measures = measure(replicate(loaded.params, mesh))
  return {"tokens": text.n_tokens, "bytes": text.n_bytes, **measures}


def _on_similarity(loaded: LoadedModel, data_dir: str, split: str, name: str) -> dict[str, Any]:
  """How well the cosines of a split's pairs, as Model.embed reads them, agree with its scores."""
  task = find(name)
  if not (task.kind == "similarity" and "spearman" in task.metrics):
    raise InputError(
      f"task={name}: {loaded.path} is {loaded.without_task}; this program evaluates it on "
      "similarity scores such as stsb, zero_shot.run language models on other tasks"
    )
  examples = _labeled(task, data_dir, split)
  model = Model(loaded)
  # Of the two sequences of an example the first has both texts in order.
  pairs = [text for example in examples for text in example.sequences[0]]
  embedded = model.embed(pairs, truncate=True)
  scores = task.value(np.array([example.label for example in examples]))
  similarities = cosines(embedded[::2], embedded[1::2])
  metrics = {name: float(metric(scores, similarities)) for name, metric in task.metrics.items()}
  return {"examples": len(examples), **metrics}


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Cosine similarity of each pair of rows of two arrays [N, D]: float64 [N]."""
  first, second = first.astype(np.float64), second.astype(np.float64)
  lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
  return (first * second).sum(axis=1) / np.maximum(lengths, 1e-12)
