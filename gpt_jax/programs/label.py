"""From one table of labeled texts to a classifier, and to what it can be trusted with.

Every step leaves its result in the workdir, so that the same command goes on where it was stopped.
"""

import csv
import dataclasses
import functools
import os
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt_jax.checkpoints.run_folder import listing
from gpt_jax.errors import InputError
from gpt_jax.files import (
  atomic_file,
  open_regular,
  read_json,
  refuse_url,
  with_checksum,
  write_json,
)
from gpt_jax.inference.abstention import choose_threshold
from gpt_jax.inference.calibration import (
  expected_calibration_error,
  fit_temperature,
  reliability,
  scale,
)
from gpt_jax.inference.dev_report import class_report
from gpt_jax.inference.ensemble import load_ensemble
from gpt_jax.inference.intervals import bootstrap, wilson
from gpt_jax.inference.label_errors import margins, out_of_fold
from gpt_jax.inference.learning_curve import curve_of, gain_of_doubling, outlook, subset_sizes
from gpt_jax.inference.linear_classifier import fit_best_linear, tfidf
from gpt_jax.programs import finetune
from gpt_jax.programs.labeling.probe import probe_features, save_probe
from gpt_jax.programs.labeling.table import Labeled, read_labeled, write_splits
from gpt_jax.reports.label_page import TITLES, Suspect, about_choice, about_threshold, render
from gpt_jax.reports.page import environment
from gpt_jax.tasks.group_splits import group_folds, split_by_group
from gpt_jax.tasks.metrics import accuracy, macro_f1
from gpt_jax.tasks.near_duplicates import group_near_duplicates
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.reporter import log

CLAIM, RESULT, REPORT, SUSPECTS = "label.json", "result.json", "report.html", "suspects.csv"
_FOLDS = 5
_PATIENCE = 3  # evaluations, one per epoch
_PROMISES = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
_SHOWN_SUSPECTS = 30


def run(
  source: str,
  checkpoint: str,
  workdir: str,
  *,
  texts: Sequence[str] = (),
  label: str = "",
  precision: float = 0.95,
  seed: int = 0,
) -> dict[str, Any]:
  """Trains three classifiers on a table, and measures what can be trusted.

  Writes into the workdir: data/ (the splits), probe/ and finetuned/ (runs), suspects.csv (every
  row, the most suspect label first), result.json and report.html.

  Args:
    source: a .csv, .tsv or .jsonl file.
    checkpoint: a pre-trained model; see load_model.
    workdir: a new folder, or that of the same command.
    texts: the text columns, at most two; () finds one.
    label: the label column; "" finds it.
    precision: the share of right predictions that a threshold should promise.
    seed: of the splits and of fine-tuning.

  Returns:
    The content of result.json.

  Raises:
    InputError: a file or column that cannot be used, too few rows, a workdir of something else, or
      a package is missing.
  """
  _check(workdir, precision)
  config = finetune.FinetuneConfig(
    patience=_PATIENCE, train=TrainConfig(log_every=50, keep_checkpoints=1, seed=seed)
  )
  start = finetune.load_start(config, checkpoint, "")
  if start.attention != "causal":
    config = dataclasses.replace(config, lm_weight=0.0)
  table = read_labeled(source, texts, label, start.tokenizer)
  config = dataclasses.replace(config, task=table.task())
  _claim(workdir, table, start.identity, seed)
  log(
    f"{len(table.rows):,} rows; text in {', '.join(table.columns)}, {len(table.labels)} labels in "
    f"{table.label}"
  )
  work = functools.partial(_cached, os.path.join(workdir, "work"))

  # 1. Splits, with near-duplicates on one side.
  groups = work("groups", lambda: {"group": group_near_duplicates(table.texts)})["group"]
  classes, num_classes = table.classes, len(table.labels)
  splits = split_by_group(classes, groups, seed)
  data_dir = os.path.join(workdir, "data")
  write_splits(table, splits, data_dir)
  repeated = len(groups) - len(np.unique(groups))
  log(
    f"{', '.join(f'{name} {len(rows):,}' for name, rows in splits.items())} rows; {repeated:,} are "
    "near-duplicates of earlier ones, and stay on their side"
  )

  # 2. Three models.
  truth = {name: classes[numbers] for name, numbers in splits.items()}
  predicted = {
    "tfidf": work("tfidf", lambda: _baseline(table, splits, groups, seed)),
    "probe": work("probe", lambda: _probe(table, splits, groups, seed, config, start, workdir)),
    "finetuned": work("finetuned", lambda: _finetune(config, checkpoint, workdir)),
  }
  models = [_measure(name, arrays, truth) for name, arrays in predicted.items()]
  chosen = _best(models)
  usable = _best([model for model in models if model["name"] != "tfidf"])

  # 3. What can be said about the one that predicts.
  result = {
    "source": os.path.basename(source),
    "columns": list(table.columns),
    "label": table.label,
    "rows": {name: len(numbers) for name, numbers in splits.items()},
    "skipped": table.skipped,
    "near_duplicates": repeated,
    "models": models,
    "chosen": chosen["name"],
    "usable": usable["name"],
    "checkpoint": os.path.join(workdir, usable["name"], "best"),
    "classes": _classes(table, predicted[usable["name"]]["test"], truth["test"]),
    "threshold": _threshold(predicted[usable["name"]], usable["temperature"], truth, precision),
    "curve": _curve(predicted, len(splits["train"])),
  }
  suspects = _suspects(table, predicted)
  result["suspects"] = sum(suspect.margin < 0 for suspect in suspects)
  _write_suspects(os.path.join(workdir, SUSPECTS), suspects)
  write_json(os.path.join(workdir, RESULT), with_checksum(result))
  page = render(result, suspects[:_SHOWN_SUSPECTS], os.path.basename(os.path.abspath(workdir)))
  with atomic_file(os.path.join(workdir, REPORT)) as file:
    file.write(page)
  log(format_result(result))
  return result


def format_result(result: dict[str, Any]) -> str:
  """The result for the console."""
  lines = [f"{'':30} dev accuracy  test accuracy, 95 % interval  macro F1"]
  for model in result["models"]:
    test = model["test"]
    low, high = test["accuracy_interval"]
    mark = "*" if model["name"] == result["chosen"] else " "
    lines.append(
      f"{mark} {TITLES[model['name']]:30} {model['dev']['accuracy']:10.1%}  "
      f"{test['accuracy']:13.1%}  {low:.1%} to {high:.1%}  {test['macro_f1']:8.3f}"
    )
  lines += [about_choice(result), about_threshold(result["threshold"]), result["curve"]["outlook"]]
  lines.append(f"{result['suspects']:,} labels are probably wrong: they come first in {SUSPECTS}")
  return "\n".join(lines)


# Files --------------------------------------------------------------------------------------------


def _check(workdir: str, precision: float) -> None:
  refuse_url(workdir)
  if not 0 < precision < 1:
    raise InputError(f"--precision={precision}: must be between 0 and 1, for example 0.95")
  environment()  # fail before the expensive part
  names = set(listing(workdir)) - {"compilation_cache"}
  if names and CLAIM not in names:
    raise InputError(
      f"--workdir={workdir} holds {min(names)!r} but no {CLAIM}: not a folder of this program; use "
      "another"
    )


def _claim(workdir: str, table: Labeled, checkpoint: str, seed: int) -> None:
  """Writes label.json, or checks that it is of the same rows, columns, checkpoint and seed."""
  path = os.path.join(workdir, CLAIM)
  claim = {
    "text columns": list(table.columns),
    "label column": table.label,
    "rows": f"{len(table.rows):,}, checksum {table.checksum}",
    "checkpoint": checkpoint,
    "seed": seed,
  }
  try:
    os.makedirs(workdir, exist_ok=True)
    write_json(path, claim, overwrite=False)
  except FileExistsError:
    try:
      saved = read_json(path)
    except (OSError, ValueError) as error:
      raise InputError(f"{path}: {error}; use another workdir") from error
    if not isinstance(saved, dict):
      raise InputError(f"{path}: not as this program writes it; use another workdir") from None
    changes = [
      f"{name}: {str(saved.get(name))[:200]} != {str(value)[:200]}"
      for name, value in claim.items()
      if saved.get(name) != value
    ]
    if changes:
      raise InputError(
        f"--workdir={workdir} holds the result of another command ({'; '.join(changes)}); use "
        "another folder"
      ) from None
  except OSError as error:
    raise InputError(f"--workdir={workdir}: cannot be written ({error.strerror})") from error


def _cached(
  folder: str, name: str, compute: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
  """The arrays of an earlier run of the same command, or computes them now."""
  path = os.path.join(folder, f"{name}.npz")
  try:
    with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
      return {key: arrays[key] for key in arrays.files}  # zip verifies a checksum
  except FileNotFoundError:
    pass
  except (OSError, ValueError, EOFError, zipfile.BadZipFile):
    log(f"{path}: damaged; computed again")
  arrays = compute()
  os.makedirs(folder, exist_ok=True)
  with atomic_file(path, "wb") as file:
    np.savez(file, **arrays)
  return arrays


# Models -------------------------------------------------------------------------------------------


def _baseline(
  table: Labeled, splits: dict[str, np.ndarray], groups: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
  """Probabilities of TF-IDF and logistic regression; see _linear."""
  parts = [[table.texts[number] for number in splits[name]] for name in splits]
  features = dict(zip(splits, tfidf(*parts), strict=True))
  # The rarity of words needs no labels, so all rows may say it.
  (all_features,) = tfidf(table.texts)
  _, arrays = _linear(table, splits, groups, seed, features, all_features)
  return arrays


def _probe(
  table: Labeled,
  splits: dict[str, np.ndarray],
  groups: np.ndarray,
  seed: int,
  config: finetune.FinetuneConfig,
  start: finetune.Start,
  workdir: str,
) -> dict[str, np.ndarray]:
  """Probabilities of the probe, which becomes a checkpoint; see _linear."""
  task = config.task.build("")
  encoded = task.encode(
    [task.example(row) for row in table.rows], start.tokenizer, start.trunk.context
  )
  every = probe_features(start, encoded)
  features = {name: every[numbers] for name, numbers in splits.items()}
  linear, arrays = _linear(table, splits, groups, seed, features, every)
  data_dir, folder = os.path.join(workdir, "data"), os.path.join(workdir, "probe")
  dev_set = task.encode(task.examples(data_dir, "dev"), start.tokenizer, start.trunk.context)
  save_probe(folder, linear, start, config, task, dev_set, arrays["dev"], data_dir)
  return arrays | _predict(folder, data_dir)


def _linear(
  table: Labeled,
  splits: dict[str, np.ndarray],
  groups: np.ndarray,
  seed: int,
  features: dict[str, Any],
  all_features: Any,
) -> tuple[Any, dict[str, np.ndarray]]:
  """A logistic regression, and its arrays: "dev" and "test", probabilities [N, K]; "out_of_fold",
  those of every row of the table; "curve", accuracies.
  """
  classes, num_classes = table.classes, len(table.labels)
  truth = {name: classes[numbers] for name, numbers in splits.items()}
  train = features["train"], truth["train"]
  linear = fit_best_linear(train, (features["dev"], truth["dev"]), num_classes)
  penalty = linear.inverse_penalty
  fold = group_folds(classes, groups, _FOLDS, seed)
  held_out = np.concatenate([splits["dev"], splits["test"]])
  of_held_out = features["dev"], features["test"]
  stack = np.concatenate if isinstance(all_features, np.ndarray) else _stack_sparse
  return linear, {
    "dev": linear(features["dev"]),
    "test": linear(features["test"]),
    "out_of_fold": out_of_fold(all_features, classes, num_classes, fold, penalty),
    "curve": np.array(
      curve_of(train, (stack(of_held_out), classes[held_out]), num_classes, penalty, seed)
    ),
  }


def _stack_sparse(parts: Sequence[Any]) -> Any:
  import scipy.sparse

  return scipy.sparse.vstack(parts).tocsr()


def _finetune(
  config: finetune.FinetuneConfig, checkpoint: str, workdir: str
) -> dict[str, np.ndarray]:
  data_dir, folder = os.path.join(workdir, "data"), os.path.join(workdir, "finetuned")
  finetune.run(config, data_dir, checkpoint, folder)
  return _predict(folder, data_dir)


def _predict(folder: str, data_dir: str) -> dict[str, np.ndarray]:
  """Probabilities of the best checkpoint for dev and test, as launch/predict.py has them."""
  ensemble = load_ensemble([os.path.join(folder, "best")])
  encoded = ensemble.encode(ensemble.task.examples(data_dir, "test"))
  return {
    "dev": ensemble.dev_set().probabilities,
    "test": ensemble.predict(encoded, 32, lambda _: None),
  }


# Measures -----------------------------------------------------------------------------------------


def _measure(
  name: str, probabilities: dict[str, np.ndarray], truth: dict[str, np.ndarray]
) -> dict[str, Any]:
  """The scores of a model, and its calibration error on the test set."""
  temperature = fit_temperature(probabilities["dev"], truth["dev"])
  scaled = scale(probabilities["test"], temperature)
  measures: dict[str, Any] = {"name": name, "temperature": temperature}
  for split in ("dev", "test"):
    predicted = probabilities[split].argmax(axis=-1)
    measures[split] = {
      "accuracy": float(accuracy(truth[split], predicted)),
      "macro_f1": float(macro_f1(truth[split], predicted)),
    }
  test = probabilities["test"].argmax(axis=-1)
  right = int((test == truth["test"]).sum())
  measures["test"]["accuracy_interval"] = wilson(right, len(test))
  measures["test"]["macro_f1_interval"] = bootstrap(macro_f1, truth["test"], test)
  for when, values in (("before", probabilities["test"]), ("after", scaled)):
    measures[f"ece_{when}"] = expected_calibration_error(reliability(values, truth["test"]))
  return measures


def _best(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """By dev accuracy, of equals by macro F1, of equals the first."""
  return max(models, key=lambda model: (model["dev"]["accuracy"], model["dev"]["macro_f1"]))


def _classes(table: Labeled, probabilities: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
  """The class_report of the test set, with intervals of precision and recall."""
  report = class_report(table.labels, probabilities, truth)
  confusion = np.array(report["confusion"])
  for number, label in enumerate(table.labels):
    right = int(confusion[number, number])
    report["per_class"][label] |= {
      "precision_interval": wilson(right, int(confusion[:, number].sum())),
      "recall_interval": wilson(right, int(confusion[number].sum())),
    }
  return report


def _threshold(
  probabilities: dict[str, np.ndarray],
  temperature: float,
  truth: dict[str, np.ndarray],
  precision: float,
) -> dict[str, Any]:
  """The threshold that launch/predict.py chooses on dev for a precision, and what it does on test.

  Where dev cannot show the precision, "problem" says why, and the threshold is of the highest
  lower one that it can show.
  """
  confidence, correct = {}, {}
  for split in ("dev", "test"):
    scaled = scale(probabilities[split], temperature)
    confidence[split] = scaled.max(axis=-1)
    correct[split] = scaled.argmax(axis=-1) == truth[split]
  result: dict[str, Any] = {"asked": precision}
  for promised in (precision, *(lower for lower in _PROMISES if lower < precision)):
    try:
      chosen = choose_threshold(confidence["dev"], correct["dev"], promised)
    except InputError as error:
      result.setdefault("problem", str(error))
      continue
    above = confidence["test"] >= chosen.value
    return result | {
      "precision": promised,
      "value": chosen.value,
      "dev": {"given": chosen.given, "correct": chosen.correct, "rows": len(correct["dev"])},
      "test": {
        "given": int(above.sum()),
        "correct": int(correct["test"][above].sum()),
        "rows": len(above),
      },
    }
  return result


def _curve(predicted: dict[str, dict[str, np.ndarray]], count: int) -> dict[str, Any]:
  """Accuracies of the two cheap models by training rows, and what more would bring."""
  sizes = subset_sizes(count)
  curves = {name: predicted[name]["curve"].tolist() for name in ("tfidf", "probe")}
  better = max(curves, key=lambda name: curves[name][-1])
  return {
    "sizes": sizes,
    **curves,
    "gain": gain_of_doubling(sizes, curves[better]),
    "outlook": outlook(sizes, curves[better]),
  }


def _suspects(table: Labeled, predicted: dict[str, dict[str, np.ndarray]]) -> list[Suspect]:
  """All rows, those first whose label is least likely to two models that have not seen it."""
  probabilities = np.mean([predicted[name]["out_of_fold"] for name in ("tfidf", "probe")], axis=0)
  margin, other = margins(probabilities, table.classes)
  suspects = []
  for number in np.argsort(margin, kind="stable"):
    row = table.rows[number]
    suspects.append(
      Suspect(
        line=row.location.rpartition(":")[2],
        text="\n".join(row.texts),
        given=row.label or "",
        suggested=table.labels[other[number]],
        p_given=float(probabilities[number, table.classes[number]]),
        p_suggested=float(probabilities[number, other[number]]),
      )
    )
  return suspects


def _write_suspects(path: str, suspects: Sequence[Suspect]) -> None:
  with atomic_file(path) as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["line", "text", "given", "suggested", "p(given)", "p(suggested)"])
    for s in suspects:
      writer.writerow(
        [s.line, s.text, s.given, s.suggested, f"{s.p_given:.4f}", f"{s.p_suggested:.4f}"]
      )
