"""From one table of labeled texts to a classifier, and to what it can be trusted with.

Every step leaves its result in the workdir, so that the same command goes on where it was stopped.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.label import measures
from gpt_jax.apps.label.page import TITLES, Suspect, format_result, render
from gpt_jax.apps.label.pool import about_pool, check_pool, choose, simulate, write_pool
from gpt_jax.apps.label.previous import Previous, read_previous
from gpt_jax.apps.label.splits import group_folds, group_near_duplicates, split_by_group
from gpt_jax.apps.label.table import FEW_ROWS, Labeled, read_labeled, read_unlabeled, write_splits
from gpt_jax.apps.probe_features import POOLING, probe_features
from gpt_jax.apps.report.page import environment
from gpt_jax.apps.report.report import reported
from gpt_jax.apps.study import Study
from gpt_jax.checkpoints.run_folder import claim
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import to_json
from gpt_jax.data.file_kinds import TABLE, write_table
from gpt_jax.data.progress import Progress
from gpt_jax.errors import InputError, counted
from gpt_jax.files import atomic_file, with_checksum, write_json
from gpt_jax.inference.dev_report import write_dev_report
from gpt_jax.inference.drift import measure_drift
from gpt_jax.inference.ensemble import load_ensemble
from gpt_jax.inference.linear_classifier import (
  Linear,
  fit_best_linear,
  fit_linear,
  fit_tfidf,
  save_tfidf,
)
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.method import new_method
from gpt_jax.models.model import ModelConfig
from gpt_jax.parallel.processes import log
from gpt_jax.programs import finetune
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_task import make_meta
from gpt_jax.programs.start import Start, load_start
from gpt_jax.tasks.readers import Row, Table, column_values
from gpt_jax.tasks.slices import make_slices
from gpt_jax.tasks.task import Task
from gpt_jax.training.loop import TrainConfig

_CHECKPOINTS = {"tfidf": ("tfidf",), "probe": ("probe", "best"), "finetuned": ("finetuned", "best")}
_FOLDS = 5
_STEP = 1  # of the only checkpoint of a probe
_PATIENCE = 3  # evaluations, one per epoch
_SHOWN_SUSPECTS = 30
_JUDGES = ("tfidf", "probe")  # of labels


@dataclasses.dataclass(frozen=True)
class _Job:
  """Data and settings that all models are trained with."""

  table: Labeled
  splits: dict[str, np.ndarray]  # "train", "dev", "test" -> numbers of the rows of the table
  truth: dict[str, np.ndarray]  # the same names -> classes of those rows
  groups: np.ndarray  # of near-duplicates, one for each row of the table
  config: FinetuneConfig
  start: Start  # what the checkpoint brings
  study: Study
  previous: Previous

  @property
  def data_dir(self) -> str:
    return self.study.path("data")

  @property
  def task(self) -> Task:
    return self.config.task.build("")

  @functools.cached_property
  def fold(self) -> np.ndarray:
    """int [N], the fold of each row of the table, whose judges learn from the other folds."""
    return group_folds(self.table.classes, self.groups, _FOLDS, self.config.train.seed)

  @functools.cached_property
  def is_judged(self) -> np.ndarray:
    """bool [N], whether a row's label has rows in another fold, so that a judge can know it."""
    classes = self.table.classes
    folds = [len(np.unique(self.fold[classes == n])) for n in range(len(self.table.labels))]
    return np.array(folds)[classes] > 1

  def features(self, progress: Progress) -> np.ndarray:
    """_features of the rows of the table, which the probe and the ranking of a pool need."""
    compute = lambda: {"mean": _features(self, self.table.rows, progress)}
    return self.study.arrays("work/features", compute)["mean"]


def run(
  source: str,
  checkpoint: str,
  workdir: str,
  *,
  texts: Sequence[str] = (),
  label: str = "",
  merge_labels: bool = True,
  precision: float = 0.95,
  epochs: int = 0,
  minutes: float = 0.0,
  skip_finetuning: bool | None = None,
  pool: str = "",
  pool_rows: int = 100,
  seed: int = 0,
  previous: str = "",
  slices: str = "",
) -> dict[str, Any]:
  """Trains three classifiers on a table, and measures what can be trusted.

  Writes into the workdir: data/ (the splits), tfidf/, probe/ and finetuned/ (the models),
  suspects.csv (every row, the most suspect label first), result.json and report.html.

  Args:
    source: CSV, TSV, JSON or Parquet file with a text and a label in each row.
    checkpoint: see load_model; by default, with an earlier workdir, its models.
    workdir: a new folder, or that of the same command, which resumes.
    texts: text column, or two; by default text, or the one beside the label.
    label: label column; by default label, or that with fewer values of two.
    merge_labels: labels that differ only by case, spaces or form are one, the commonest.
    precision: share of right predictions that a threshold should promise.
    epochs: epochs of fine-tuning, at most; 0: by the sizes of model and data, until three bring
      nothing.
    minutes: that fine-tuning may take now; the same command goes on with it; 0: no limit.
    skip_finetuning: TF-IDF and the probe alone; false: all three. By default fine-tuning is skipped
      where the probe has fewer of the dev rows right than TF-IDF, and the 95 % interval of the
      difference on the same rows (McNemar's exact test) excludes a gain.
    pool: table of the same text columns without labels; pool.csv then has its rows to label next.
    pool_rows: how many rows of the pool to name.
    seed: of the splits, of fine-tuning and of the rows to label next.
    previous: the workdir of an earlier table, whose rows stay in their splits, also where a new row
      repeats or relabels them: train on both, from its models, add new labels, and compare with it
      on its test rows.
    slices: a further column of the table, such as language: accuracy by its values.

  Returns:
    The content of result.json.
  """
  for name, value in (("epochs", epochs), ("minutes", minutes)):
    if not 0 <= value < float("inf"):
      raise InputError(f"--{name}={value}: must be a number above 0, or 0 for no limit")
  if not 0 < precision < 1:
    raise InputError(f"--precision={precision}: must be between 0 and 1, for example 0.95")
  study = Study(workdir, "label.json", on_disk=True)
  environment()  # fail before the expensive part
  if pool:
    check_pool(study, pool)
  earlier = read_previous(previous, checkpoint, texts, label)
  config, start = _load_start(earlier.base, epochs, seed)
  table = read_labeled(source, earlier, start.tokenizer, merge_labels)
  config = dataclasses.replace(config, task=table.task())
  unlabeled = read_unlabeled(pool, table, start.tokenizer) if pool else []
  further = {slices: column_values(table.locations, slices)} if slices else {}
  study.claim(table.identity | earlier.identity | {"checkpoint": start.identity, "seed": seed})

  # 1. Splits, with near-duplicates on one side.
  groups, splits = _split(study, table, earlier, seed)
  write_splits(table, splits, study.path("data"), further)
  truth = {name: table.classes[numbers] for name, numbers in splits.items()}
  job = _Job(table, splits, truth, groups, config, start, study, earlier)
  sliced = make_slices(slices, [further[slices][n] for n in splits["test"]]) if slices else None
  before = _predicted_before(job) if previous else np.empty(0)

  # 2. Three models, or two.
  predicted, finetuning = _train(job, minutes, skip_finetuning)

  # 3. What can be said about the one that predicts.
  result: dict[str, Any] = {"source": os.path.basename(source), "finetuning": finetuning}
  result |= _about(job, predicted, precision)
  guesses = predicted[result["chosen"]]["test"].argmax(axis=-1)
  if sliced:
    result["slices"] = sliced.measure(guesses == truth["test"])
  if previous:
    result["previous"] = _beside_previous(job, before, guesses)
  suspects = _suspects(job, predicted, source)
  result["suspects"] = sum(suspect.doubtful for suspect in suspects)
  if unlabeled:
    result["pool"] = _rank_pool(job, unlabeled, pool_rows, result)
  _write_results(study, result, suspects, table.csv_layout)
  return result


def _split(
  study: Study, table: Labeled, previous: Previous, seed: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """The group of near-duplicates of each row, and the rows of each split; see split_by_group."""
  log(table.summary)
  with Progress("near-duplicates", in_place=False):
    kept = study.arrays("work/groups", lambda: {"group": group_near_duplicates(table.texts)})
  groups, given = kept["group"], previous.places(table.locations)[:, 0]
  splits = split_by_group(table.classes, groups, seed, given)
  counts = ", ".join(f"{name} {len(numbers):,}" for name, numbers in splits.items())
  repeated = len(groups) - len(np.unique(groups))
  log(
    f"{counts} rows; {repeated:,} of them near-duplicates, in the split of the row that they repeat"
  )
  for name in ("dev", "test"):
    absent = {*table.labels} - {table.labels[n] for n in table.classes[splits[name]]}
    if absent:
      labels = ", ".join(map(repr, sorted(absent)))
      log(f"{name} has no row with the label {labels}: its rows are few, or near-duplicates")
  earlier = [text for text, split in zip(table.texts, given, strict=True) if split >= 0]
  if drift := measure_drift(earlier, table.texts[len(earlier) :]):
    log(f"new rows: {drift.describe('earlier rows')}")
  return groups, splits


def _predicted_before(job: _Job) -> np.ndarray:
  """The classes that the earlier model predicts for its test rows, int [M]."""
  previous = job.previous
  folder = os.path.join(previous.workdir, previous.chosen)
  with Progress("earlier model", in_place=False) as progress:
    # By its name: an earlier run that went on since may have chosen another.
    name = f"work/previous_{previous.chosen}"
    kept = job.study.arrays(name, lambda: _predict(folder, previous.data_dir, progress))
  return kept["test"].argmax(axis=-1)


def _beside_previous(job: _Job, before: np.ndarray, guesses: np.ndarray) -> dict[str, Any]:
  """The predicted classes of the test rows beside those before, where there are some."""
  previous, labels, by_label = job.previous, job.table.labels, {}
  places = previous.places(job.table.locations)[job.splits["test"], 1]
  both = places >= 0
  ours, theirs, truth = guesses[both], before[places[both]], job.truth["test"][both]
  for number, label in enumerate(labels):
    inside = truth == number
    if inside.any():
      by_label[label] = measures.compare(ours[inside], theirs[inside], truth[inside])
  return {
    "workdir": previous.workdir,
    "chosen": previous.chosen,
    "new_labels": labels[len(previous.labels) :],
    "all": measures.compare(ours, theirs, truth),
    "classes": by_label,
  }


def _about(
  job: _Job, predicted: dict[str, dict[str, np.ndarray]], precision: float
) -> dict[str, Any]:
  """The table, the measures of all models, and what can be said about the best one."""
  table, truth = job.table, job.truth
  models = [measures.measure(name, arrays, truth) for name, arrays in predicted.items()]
  for split in ("dev", "test"):
    of_tfidf = predicted["tfidf"][split].argmax(axis=-1)
    for model in models:
      of_model = predicted[model["name"]][split].argmax(axis=-1)
      model[split]["beside_tfidf"] = measures.compare(of_model, of_tfidf, truth[split])
  # On all rows that can be judged, by models that have not seen them.
  judges = {}
  for name in _JUDGES:
    is_right = predicted[name]["out_of_fold"].argmax(axis=-1) == table.classes
    judges[name] = float(is_right[job.is_judged].mean()) if job.is_judged.any() else 0.0
  # Of equals by macro F1, of equals the first.
  chosen = max(models, key=lambda model: (model["dev"]["accuracy"], model["dev"]["macro_f1"]))
  if len(table.rows) < FEW_ROWS:
    judged = [model for model in models if model["name"] in judges]
    chosen = max(judged, key=lambda model: judges[model["name"]])
  arrays, of_test = predicted[chosen["name"]], truth["test"]
  commonest = np.full_like(of_test, np.bincount(of_test).argmax())
  return {
    "columns": list(table.columns),
    "label": table.label,
    "rows": {name: len(numbers) for name, numbers in job.splits.items()},
    "skipped": table.skipped,
    "near_duplicates": len(job.groups) - len(np.unique(job.groups)),
    "models": models,
    "chosen": chosen["name"],
    "checkpoint": job.study.path(*_CHECKPOINTS[chosen["name"]]),
    "classes": measures.measure_classes(table.labels, arrays["test"], of_test),
    "beside_commonest": measures.compare(arrays["test"].argmax(axis=-1), commonest, of_test),
    "threshold": measures.measure_threshold(arrays, chosen["temperature"], truth, precision),
    "curve": measures.measure_curve(predicted, len(truth["train"])),
    "judges": judges,
  }


def _load_start(checkpoint: str, epochs: int, seed: int) -> tuple[FinetuneConfig, Start]:
  """The config of fine-tuning, still without its task, and what the checkpoint brings."""
  config = FinetuneConfig(
    patience=_PATIENCE,
    train=TrainConfig(epochs=epochs, log_every=50, keep_checkpoints=1, seed=seed),
  )
  start = load_start(config, checkpoint, "")
  if start.format.writes_answers:
    raise InputError(
      f"--checkpoint={checkpoint}: learns to write its labels as text, and here probabilities are "
      "compared; use launch/finetune.py"
    )
  if start.attention != "causal":
    config = dataclasses.replace(config, lm_weight=0.0)
  return config, start


def _write_results(
  study: Study, result: dict[str, Any], suspects: Sequence[Suspect], layout: tuple[str, str]
) -> None:
  """Writes suspects.csv, result.json and the page, and says what they have."""
  cells = [["row", "line", "text", "given", "suggested", "p(given)", "p(suggested)"]]
  for s in suspects:
    chances = f"{s.p_given:.4f}", f"{s.p_suggested:.4f}"
    cells.append([s.row, s.line, s.text, s.given, s.suggested, *chances])
  with atomic_file(study.path("suspects.csv")) as file:
    write_table(file, cells, *layout)
  write_json(study.path("result.json"), with_checksum(result))
  shown = [suspect for suspect in suspects if suspect.doubtful][:_SHOWN_SUSPECTS]
  study.write(
    "report.html", render(result, shown, os.path.basename(os.path.abspath(study.workdir)))
  )
  log(format_result(result))


# Models -------------------------------------------------------------------------------------------


def _train(
  job: _Job, minutes: float, skip_finetuning: bool | None
) -> tuple[dict[str, dict[str, np.ndarray]], str]:
  """The arrays of each model, and why the fine-tuned one is missing or not finished."""
  predicted: dict[str, dict[str, np.ndarray]] = {}

  def add(name: str, compute: Callable[[Progress], dict[str, np.ndarray]]) -> None:
    log(f"{TITLES[name]}: on {counted(len(job.splits['train']), 'row')}")
    with Progress(TITLES[name], in_place=False) as progress:
      predicted[name] = compute(progress)
    right = predicted[name]["dev"].argmax(axis=-1) == job.truth["dev"]
    log(f"{TITLES[name]}: {right.mean():.1%} of {len(right):,} dev rows right")

  kept = job.study.arrays
  add("tfidf", lambda progress: kept("work/tfidf", lambda: _baseline(job, progress)))
  add("probe", lambda progress: kept("work/probe", lambda: _probe(job, progress)))
  note = _reason_to_skip(skip_finetuning, predicted, job.truth)
  if not note:
    add("finetuned", lambda progress: _finetuned(job, minutes, progress))
    if not _is_finished(job):
      note = "Fine-tuning is not finished; the same command goes on with it."
  if note:
    log(note)
  return predicted, note


def _baseline(job: _Job, progress: Progress) -> dict[str, np.ndarray]:
  """Probabilities of TF-IDF and logistic regression, which are saved; see _linear."""
  all_texts, texts = job.table.texts, {}
  for name, numbers in job.splits.items():
    texts[name] = [all_texts[n] for n in numbers]
  tfidf = fit_tfidf(texts["train"])
  features = {name: tfidf(of_split) for name, of_split in texts.items()}
  features["held_out"] = tfidf(texts["dev"] + texts["test"])
  # The rarity of words needs no labels, so all rows may say it.
  all_features = fit_tfidf(all_texts)(all_texts)
  linear, arrays = _linear(job, features, all_features, progress)
  folder = job.study.path("tfidf")
  dev = job.task.examples(job.data_dir, "dev")
  save_tfidf(folder, tfidf, linear, job.config.task, dev, job.data_dir)
  return arrays | _predict(folder, job.data_dir, progress)


def _probe(job: _Job, progress: Progress) -> dict[str, np.ndarray]:
  """Probabilities of the probe, which becomes a checkpoint; see _linear."""
  all_features = job.features(progress)
  features = {name: all_features[numbers] for name, numbers in job.splits.items()}
  features["held_out"] = np.concatenate([features["dev"], features["test"]])
  linear, arrays = _linear(job, features, all_features, progress)
  folder = _save_probe(job, linear, arrays["dev"])
  return arrays | _predict(folder, job.data_dir, progress)


def _save_probe(job: _Job, linear: Linear, probabilities: np.ndarray) -> str:
  """Writes a run with one checkpoint, a frozen trunk and the W_y of probe_features, and a report of
  dev probabilities [N, K]; its path.
  """
  task, start, folder = job.task, job.start, job.study.path("probe")
  dev_set = task.encode(task.examples(job.data_dir, "dev"), *start.reads)
  head = ClassifyHead(task.num_classes, POOLING, dropout=0.0)
  config = dataclasses.replace(job.config, trunk=start.trunk, train_layers=0, lm_weight=0.0)
  meta = make_meta(config, task, start) | {
    "config": to_json(config),
    "model": to_json(ModelConfig(start.trunk, (head,), start.attention)),
    "trained_special": list(start.trained_special),
  }
  fitted = {"kernel": linear.kernel.astype(np.float32), "bias": linear.bias.astype(np.float32)}
  params = {"trunk": start.params["trunk"], "head": fitted}
  scores = task.measures(probabilities, dev_set.labels)
  metrics = {f"dev_{name}": value for name, value in scores.items()}
  claim(folder, config, start.tokenizer, {"pretrained": start.identity})
  with Checkpoints(folder, metric=f"dev_{task.primary_metric}", mode="max") as checkpoints:
    checkpoints.save(_STEP, {"params": params}, meta, metrics)
  write_dev_report(folder, task, dev_set, probabilities, _STEP, os.path.join(job.data_dir, ""))
  return folder


def _features(job: _Job, rows: Sequence[Row], progress: Progress) -> np.ndarray:
  """The mean hidden state of each row's text, float32 [N, D]."""
  encoded = job.task.encode([job.task.example(row) for row in rows], *job.start.reads)
  if encoded.truncation:
    log(f"warning: {encoded.truncation}")
  progress.begin("reading the texts", len(encoded), "rows")
  return probe_features(job.start, encoded, progress.update)


def _linear(
  job: _Job, features: dict[str, Any], all_features: Any, progress: Progress
) -> tuple[Linear, dict[str, np.ndarray]]:
  """A logistic regression, and its arrays: "dev" and "test", probabilities [N, K]; "out_of_fold",
  those of every row of the table; "curve", accuracies.
  """
  num_classes, classes = len(job.table.labels), job.table.classes
  train = features["train"], job.truth["train"]
  progress.begin("choosing a penalty")
  linear = fit_best_linear(train, (features["dev"], job.truth["dev"]), num_classes)
  penalty = linear.inverse_penalty
  held_out = features["held_out"], np.concatenate([job.truth["dev"], job.truth["test"]])
  progress.begin("five folds, for doubtful labels")
  of_folds = measures.out_of_fold(all_features, classes, num_classes, job.fold, penalty)
  progress.begin("learning curve")
  curve = measures.curve_of(train, held_out, num_classes, penalty, job.config.train.seed)
  return linear, {
    "dev": linear(features["dev"]),
    "test": linear(features["test"]),
    "out_of_fold": of_folds,
    "curve": np.array(curve),
  }


def _reason_to_skip(
  skip: bool | None, predicted: dict[str, dict[str, np.ndarray]], truth: dict[str, np.ndarray]
) -> str:
  """Why fine-tuning is left out; "" if it is not."""
  if skip is False:
    return ""
  anyway = "--skip_finetuning=false runs it"
  if skip:
    return f"Fine-tuning was skipped; {anyway}."
  if (rows := sum(map(len, truth.values()))) < FEW_ROWS:
    return f"Fine-tuning was skipped, as {rows} rows are few to train all weights on; {anyway}."
  probe, tfidf = (predicted[name]["dev"].argmax(axis=-1) for name in ("probe", "tfidf"))
  compared = measures.compare(probe, tfidf, truth["dev"])
  low, high = compared["interval"]
  if high >= 0:
    return ""
  return (
    f"Fine-tuning was skipped: on the same {len(truth['dev']):,} dev rows the probe is right in "
    f"{-100 * compared['difference']:.1f} points fewer than TF-IDF ({-100 * high:.1f} to "
    f"{-100 * low:.1f} with 95 % confidence), so it promises no gain; {anyway} anyway."
  )


def time_limit(minutes: float, progress: Progress) -> Callable[[int], bool]:
  """step -> whether the minutes from now on are over, 0: never; `progress` is told of each step."""
  end = time.monotonic() + 60 * minutes if minutes else float("inf")

  @functools.lru_cache(maxsize=1)  # the same answer however often a step is asked about
  def is_over(step: int) -> bool:
    progress.update(step)
    return time.monotonic() >= end

  return is_over


def _finetuned(job: _Job, minutes: float, progress: Progress) -> dict[str, np.ndarray]:
  """Probabilities of the fine-tuned model, which are kept once it is finished."""
  if minutes and not _is_finished(job):
    return _finetune(job, minutes, progress)
  epochs = job.config.train.epochs  # another number is another run, which finetune.run refuses
  name = f"work/finetuned_{epochs}" if epochs else "work/finetuned"
  return job.study.arrays(name, lambda: _finetune(job, minutes, progress))


def _is_finished(job: _Job) -> bool:
  return os.path.exists(job.study.path("finetuned", "result.json"))


def _finetune(job: _Job, minutes: float, progress: Progress) -> dict[str, np.ndarray]:
  folder, limit = job.study.path("finetuned"), time_limit(minutes, progress)
  progress.begin("", unit="updates")
  config, checkpoint = job.config, job.previous.base
  if job.previous.tuned:
    config, checkpoint = config.with_methods(new_method("known_labels")), job.previous.tuned
  finetune.run(config, job.data_dir, checkpoint, folder, pauses=limit, **reported(folder))
  return _predict(folder, job.data_dir, progress)


def _predict(folder: str, data_dir: str, progress: Progress) -> dict[str, np.ndarray]:
  """Probabilities of the best checkpoint for dev and test, as launch/predict.py has them."""
  ensemble = load_ensemble([os.path.join(folder, "best")])
  examples = ensemble.task.examples(data_dir, "test")
  progress.begin("predicting the test rows", len(examples), "rows")
  probabilities = ensemble.predict(ensemble.encode(examples), 32, progress.update)
  return {"dev": ensemble.dev_set().probabilities, "test": probabilities}


def _rank_pool(job: _Job, rows: list[Row], count: int, result: dict[str, Any]) -> dict[str, Any]:
  """Writes pool.csv; what the same choice would have brought on the rows with labels."""
  classes, num_classes = job.table.classes, len(job.table.labels)
  with Progress("pool", in_place=False) as progress:
    known, unknown = job.features(progress), _features(job, rows, progress)
  train, dev = job.splits["train"], job.splits["dev"]
  linear = fit_best_linear((known[train], classes[train]), (known[dev], classes[dev]), num_classes)
  # Of all labels: those that were held out are as good a guide to what is doubtful.
  model = fit_linear(known, classes, num_classes, linear.inverse_penalty)
  probabilities, counts = model(unknown), np.bincount(classes, minlength=num_classes)
  order = choose(unknown, probabilities, counts, count, job.config.train.seed)
  path = write_pool(job.study, rows, order, job.table, probabilities)
  simulated = simulate(known, classes, job.groups, num_classes, linear.inverse_penalty)
  log(f"{path}: the {len(order):,} of {len(rows):,} rows to label next")
  log(about_pool(simulated, result["curve"], len(dev) + len(job.splits["test"])))
  return {"rows": len(rows), "chosen": len(order), **simulated}


# Doubtful labels ----------------------------------------------------------------------------------


def _suspects(job: _Job, predicted: dict[str, dict[str, np.ndarray]], source: str) -> list[Suspect]:
  """All rows, those first whose label is least likely to two models that have not seen it; last
  those whose label has no row in another fold, as near-duplicates: no model can judge them.
  """
  table = job.table
  by_model = [predicted[name]["out_of_fold"] for name in _JUDGES]
  probabilities = np.mean(by_model, axis=0)
  margin, other = measures.margins(probabilities, table.classes)
  doubtful = np.all([measures.margins(p, table.classes)[0] < 0 for p in by_model], axis=0)
  doubtful &= job.is_judged
  suspects, row_of = [], _spreadsheet_rows(source)
  for number in np.lexsort((margin, ~job.is_judged)):
    row = table.rows[number]
    suspects.append(
      Suspect(
        row=row_of.get(row.location, ""),
        line=row.location.removeprefix(f"{source}:"),
        text=table.texts[number],
        given=row.label or "",
        suggested=table.labels[other[number]],
        p_given=float(probabilities[number, table.classes[number]]),
        p_suggested=float(probabilities[number, other[number]]),
        doubtful=bool(doubtful[number]),
      )
    )
  return suspects


def _spreadsheet_rows(source: str) -> dict[str, str]:
  """The number that a spreadsheet gives each row of a file, by the row's location; {}: it has none.

  Lines are other numbers, as a cell may have several.
  """
  file = Table(source)
  if file.kind.format != TABLE:
    return {}
  # The names of the columns are a row, and so are blank ones.
  rows = enumerate(file.cells(file.kind), start=1)
  return {f"{source}:{line}": str(number) for number, (line, _) in rows}
