"""Several fine-tuned models of one task as one classifier: the mean of their probabilities."""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.checkpoints.load import AnyModel, load_adapters, load_model
from gpt_jax.errors import InputError, MissingInput, about
from gpt_jax.files import is_folder, list_folder
from gpt_jax.inference.calibration import choose_threshold, fit_temperature, scale
from gpt_jax.inference.dev_report import META, DevSet, find_temperature, read_dev_set, text_of
from gpt_jax.inference.drift import Drift, measure_drift
from gpt_jax.inference.linear_classifier import load_any
from gpt_jax.models.predictor import task_predictor
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded

_SHARED = ("name", "labels", "columns", "head")  # by all tasks of an ensemble


class Calibration(NamedTuple):
  """The temperature of a classifier; see calibration.scale."""

  temperature: float
  source: str  # what it was found on, for the log
  of_members: bool = False  # whether it is of each member, before their mean, and not of the mean

  @property
  def about(self) -> str:
    if self.temperature == 1:
      return f"probabilities are not scaled: no temperature was better on {self.source}"
    scaled = f"probabilities are scaled by the temperature {self.temperature:.3f}"
    return f"{scaled}, found on {self.source}"


def check_threshold(threshold: float | None, precision: float | None) -> None:
  """Refuses both together, and what is no probability."""
  if threshold is not None and precision is not None:
    chooses = f"precision={precision} chooses one; leave one of them out"
    raise InputError(f"threshold={threshold}: {chooses}")
  if threshold is not None and not 0 <= threshold <= 1:
    raise InputError(f"threshold={threshold}: must be between 0 and 1, for example 0.95")
  if precision is not None and not 0 < precision < 1:
    raise InputError(f"precision={precision}: must be between 0 and 1, for example 0.95")


def score_answers(
  predictions: np.ndarray, truth: np.ndarray, calibration: Calibration | None, threshold: float
) -> dict[str, Any]:
  """The share of predictions, [N, K] and not scaled, whose confidence reaches the threshold, and of
  these that is right.
  """
  scaled = scale(predictions, calibration.temperature if calibration else 1.0)
  is_answered = scaled.max(axis=-1) >= threshold
  right = (predictions.argmax(axis=-1) == truth.argmax(axis=-1))[is_answered]
  share = float(right.mean()) if len(right) else float("nan")
  return {"threshold": threshold, "answered": float(is_answered.mean()), "precision": share}


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """One model or more, fine-tuned on one task."""

  members: tuple[AnyModel, ...]
  task: LabeledTask

  @property
  def nbytes(self) -> int:
    arrays = jax.tree.leaves([member.network.params for member in self.members])
    return sum(array.nbytes for array in arrays)

  def with_weights(self, kind: str) -> "Ensemble":
    members = tuple(member.with_weights(kind) for member in self.members)
    return dataclasses.replace(self, members=members)

  def encode(self, examples: Sequence[Any]) -> list[Encoded]:
    """The examples for each member, whose vocabulary, context and format may be its own."""
    encoded: dict[Any, Encoded] = {}
    for member in self.members:
      # Members that read alike share what was encoded.
      if member.alike not in encoded:
        encoded[member.alike] = member.encode(self.task, list(examples))
    return [encoded[member.alike] for member in self.members]

  def predict(
    self,
    encoded: Sequence[Encoded],
    batch_size: int,
    done: Callable[[int], None],
    calibration: Calibration | None = None,
  ) -> Any:
    """The predictions of the members, averaged; those of a task without a mean are of one member.

    done: is called with the number of examples after every batch; it counts those of each member.
    """
    predictions: list[Any] = []
    for number, (member, examples) in enumerate(zip(self.members, encoded, strict=True)):
      before = number * len(examples)  # examples that earlier members have read
      predict = task_predictor(member, self.task)
      predicted = predict(examples, batch_size, done=lambda n, k=before: done(k + n))
      # Regressions of several folds: each has standardized by its own training rows.
      predicted = self.task.rescaled(predicted, member.task)
      if calibration and calibration.of_members:
        predicted = scale(predicted, calibration.temperature)
      predictions.append(predicted)
    mean = predictions[0] if len(predictions) == 1 else np.mean(predictions, axis=0)
    if calibration and not calibration.of_members:
      mean = scale(mean, calibration.temperature)
    return mean

  def calibration(self) -> Calibration:
    """The temperature of the mean prediction. The models of several folds share no dev set: each
    is scaled by one temperature, fitted on the held-out rows of all folds.
    """
    if len(self.members) == 1 and META in self.members[0].meta:
      return Calibration(find_temperature(self.members[0]), "the dev rows of the run")
    dev_sets = self.dev_sets
    rows = list(itertools.chain.from_iterable(dev_set.where for dev_set in dev_sets))
    # Each probability is of a model that was not trained on the row.
    # Folds hold out different rows; seeds predict the same ones.
    held_out_once = len(set(rows)) == len(rows)
    if len(dev_sets) > 1 and held_out_once:
      probabilities = np.concatenate([dev_set.probabilities for dev_set in dev_sets])
      classes = np.concatenate([dev_set.classes for dev_set in dev_sets])
      source = f"the {len(rows):,} dev rows of {len(dev_sets)} folds, for each model"
      return Calibration(fit_temperature(probabilities, classes), source, of_members=True)
    dev = self.dev_set()
    return Calibration(dev.temperature, f"{len(dev.classes):,} dev rows")

  def dev_set(self) -> DevSet:
    """The ensemble's predictions for the dev set, and the temperature that calibrates them."""
    first, *others = sets = self.dev_sets
    if not others:
      return first
    for member, dev_set in zip(self.members, sets, strict=True):
      if dev_set.where != first.where or not np.array_equal(dev_set.classes, first.classes):
        raise MissingInput(
          f"{member.folder} has another dev set than {self.members[0].folder}, so none was "
          "predicted by all"
        )
    probabilities = np.mean([dev_set.probabilities for dev_set in sets], axis=0)
    temperature = fit_temperature(probabilities, first.classes)
    return first._replace(probabilities=probabilities, temperature=temperature)

  def find_threshold(
    self,
    threshold: float | None,
    precision: float | None,
    say: Callable[[str], object],
    calibrate: bool = True,
  ) -> tuple[Calibration | None, float | None]:
    """The temperature, and the threshold that is given or has the precision; says what of."""
    check_threshold(threshold, precision)
    asked = f"threshold={threshold}" if precision is None else f"precision={precision}"
    task = self.task
    if not task.is_classification:
      if threshold is not None or precision is not None:
        raise InputError(
          f"{asked}: {task.name} ({task.kind}) has no probability for one label of each row"
        )
      return None, None
    calibration = None
    if calibrate:
      try:
        calibration = self.calibration()
        say(calibration.about)
      except MissingInput as reason:
        say(f"probabilities are not calibrated: {reason}")
    if precision is not None:
      with about(f"{asked} needs the dev set"):
        dev = self.dev_set()
      # By the temperature of the predictions that the threshold is for.
      scaled = scale(dev.probabilities, calibration.temperature if calibration else 1.0)
      is_right = scaled.argmax(axis=-1) == dev.classes
      threshold, given, correct, _ = choose_threshold(scaled.max(axis=-1), is_right, precision)
      say(
        f"threshold {threshold:.4f}: {correct:,} of {given:,} dev rows above it are right; of new "
        f"rows of this kind at least {precision:.1%}, with 95% confidence"
      )
    return calibration, threshold

  def drift(self, encoded: Encoded) -> Drift | None:
    """How far examples are from the dev rows, by their texts; see measure_drift."""
    others: dict[str, str] = {}  # where -> text
    for dev_set in self.dev_sets:
      others |= zip(dev_set.where, dev_set.texts, strict=True)
    texts = [text_of(self.task, encoded, n) for n in range(len(encoded))]
    return measure_drift(list(others.values()), texts)

  @functools.cached_property
  def dev_sets(self) -> list[DevSet]:
    labels = self.task.labels
    return [read_dev_set(member.folder, labels, member.step) for member in self.members]


def load_ensemble(checkpoints: Sequence[str]) -> Ensemble:
  """Loads models of one task by load_any; the workdir of several seeds (or folds) stands for the
  best checkpoint of each.
  """
  members: list[AnyModel] = []
  for checkpoint in checkpoints:
    members += [load_any(path, check=AnyModel.check_task) for path in _expand(checkpoint)]
  for member in members:
    first, task = members[0].task, member.task
    where = f"checkpoint={member.path}"
    if len(members) > 1 and task.not_per_text:
      raise InputError(
        f"{where}: {task.kind} gives no probabilities to average; give one checkpoint"
      )
    if any(getattr(task, name) != getattr(first, name) for name in _SHARED):
      raise InputError(
        f"{where}: fine-tuned on {_describe(task)}; {members[0].path} on {_describe(first)}; an "
        "ensemble needs models of one task"
      )
  return Ensemble(tuple(members), members[0].task)


def load_adapted(base: str, adapters: Sequence[str]) -> dict[str, Ensemble]:
  """Each adapter of a base by its name, see load_adapters, as an ensemble of one."""
  loaded = load_adapters(load_model(base), adapters)
  return {name: Ensemble((model,), model.task) for name, model in loaded.items()}


def _expand(checkpoint: str) -> list[str]:
  """The best checkpoints of the seeds or folds in a workdir; else the checkpoint itself."""
  names = list_folder(checkpoint) if is_folder(checkpoint) else []
  seeds = [name for name in names if re.fullmatch(r"(seed|fold)_\d+", name)]
  if not seeds or "config.json" in names:
    return [checkpoint]
  # By number: seed_10 after seed_9.
  seeds.sort(key=lambda name: int(name.partition("_")[2]))
  return [os.path.join(checkpoint, seed, "best") for seed in seeds]


def _describe(task: LabeledTask) -> str:
  columns, labels = ", ".join(task.columns), ", ".join(task.labels) or "none"
  return f"{task.name} ({task.kind}; columns {columns}; labels {labels})"
