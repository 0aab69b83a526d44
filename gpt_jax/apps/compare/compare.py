"""Compares pre-training objectives, and the systems around them: one text, one budget; then
fine-tuning and probes.

Others have compared objectives before, e.g. Raffel et al. 2020, section 3.3. Here a reader makes
every row again with one command.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.compare.budgets import (
  BUDGETS,
  Budget,
  finetune_config,
  pretrain_config,
  target_config,
  translation_config,
)
from gpt_jax.apps.compare.cost import Cost, cost, paces, parameters
from gpt_jax.apps.compare.probe import probe_score, probe_start
from gpt_jax.apps.compare.rows import SPECIAL, Row, find_rows
from gpt_jax.apps.compare.systems import PAIR_LENGTH, write_pairs, write_texts
from gpt_jax.apps.compare.tables import Results, as_csv, describe, is_finite, step_at_equal_seconds
from gpt_jax.apps.report import pages, plot
from gpt_jax.apps.report.figures import pyplot
from gpt_jax.apps.report.report import write_report
from gpt_jax.checkpoints.run_folder import listing
from gpt_jax.checkpoints.staged import check_workdir
from gpt_jax.checkpoints.store import lock
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.errors import InputError, did_you_mean
from gpt_jax.files import (
  atomic_file,
  atomic_folder,
  exists,
  is_folder,
  local_copy,
  read_json,
  write_json,
)
from gpt_jax.inference.linear_classifier import fit_linear
from gpt_jax.models.model import ModelConfig
from gpt_jax.parallel.processes import log
from gpt_jax.programs import finetune, prepare, pretrain
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_start import Start, load_start, transform_of
from gpt_jax.programs.finetune_task import load_task
from gpt_jax.programs.prepare import PrepareConfig
from gpt_jax.programs.pretrain import load_text, text_recipe
from gpt_jax.programs.pretrain_samples import with_samples
from gpt_jax.programs.pretrain_start import from_checkpoint
from gpt_jax.tasks.task import find
from gpt_jax.training.history import curve
from gpt_jax.training.interval import Diverged
from gpt_jax.training.recipe import Recipe
from gpt_jax.training.trackers import parse_trackers

_RESULTS = "results.json"
_EMPTY = ("costs", "pace", "trials", "chosen", "losses", "format_and_head", "tasks", "probes")


def run(
  workdir: str,
  *,
  budget: str | Budget = "smoke",
  objectives: Sequence[str] = (),
  data: str = "",
  corpus: str = "",
) -> Results:
  """Makes the runs that the tables lack, and writes all results of the workdir.

  Args:
    workdir: gets runs/ (pre-training), tasks/ (fine-tuning), text/, results.json, results.md,
      results.csv and curves.png.
    budget: a name of BUDGETS, or one of one's own.
    objectives: names of ROWS; by default all.
    data: folder of the tasks' official files; "": the tasks need none.
    corpus: folder that prepare wrote, with sentence ends; "": the budget has a text of its own.

  Returns:
    The content of results.json, which includes earlier calls with the same workdir.
  """
  budget = _find_budget(budget)
  rows = find_rows(objectives)
  _check(workdir, budget, data, corpus)
  _check_corpus(rows, budget, corpus)
  with lock(workdir):
    text = _text(workdir, budget, corpus)
    comparison = _Comparison(workdir, budget, rows, data, text)
    results = _open_results(comparison)
    comparison = dataclasses.replace(comparison, rows=find_rows([*rows, *results["costs"]]))
    _measure_costs(comparison, results)
    try:
      for number, name in enumerate(rows, start=1):
        log(f"{number} of {len(rows)}: {rows[name].title}")
        _make_row(comparison, results, name)
        _report(comparison, results)
      for name in results["losses"]:
        _probe_at_equal_seconds(comparison, results, name)
    finally:  # after a failure too, report what is known
      _report(comparison, results)
  print(describe(results, budget, comparison.rows))
  log(f"wrote results.md, results.csv and curves.png to {workdir}")
  return results


@dataclasses.dataclass(frozen=True)
class _Comparison:
  """The arguments of run that every part needs.

  Attributes:
    rows: those of this call and of earlier ones.
    text: the prepared folder that all rows read.
  """

  workdir: str
  budget: Budget
  rows: Mapping[str, Row]
  data: str
  text: str

  def save(self, results: Results) -> None:
    write_json(os.path.join(self.workdir, _RESULTS), results)

  def folder(self, name: str, rate: float) -> str:
    """Folder of a pre-training run."""
    return os.path.join(self.workdir, "runs", name, f"rate_{rate:g}")

  def checkpoint(self, results: Results, name: str) -> str:
    """Checkpoint that a row's fine-tuning starts from; "none" for one that is not pre-trained."""
    source = self.rows[name].starts_from or name
    if not self.rows[source].is_pretrained:
      return "none"
    return self.folder(source, results["chosen"][source])

  def recipe(self, name: str) -> Recipe:
    """A pre-training run of a row, for its cost."""
    budget, row = self.budget, self.rows[name]
    if not row.translates:
      config = pretrain_config(budget, row, budget.rates[0])
      return text_recipe(config, load_text(config, self.text))
    translation = translation_config(budget, row, budget.rates[0])
    start = load_start(translation, "none", self.tokenizer)
    translation, task, data = load_task(translation, self.pairs(), start)
    return finetune.finetune_recipe(translation, task, data["train"], start)

  def pairs(self) -> str:
    """The folder of the pairs, which it writes if they are missing."""
    folder, budget = os.path.join(self.workdir, "pairs"), self.budget
    write_pairs(folder, self.text, budget.steps * budget.batch_size * budget.length // PAIR_LENGTH)
    return folder

  def tasks(self, name: str) -> list[str]:
    """The budget's tasks that a row can learn."""
    pooling = self.rows[name].pooling
    tasks = (*self.budget.tasks, *self.budget.shown)
    return [task for task in tasks if not pooling or find(task).pooling in pooling]

  @property
  def tokenizer(self) -> str:
    return os.path.join(self.text, "tokenizer")


# Argument checks ----------------------------------------------------------------------------------


def _find_budget(budget: str | Budget) -> Budget:
  if not isinstance(budget, str):
    return budget
  if budget not in BUDGETS:
    raise InputError(
      f"--budget={budget}: must be one of {', '.join(BUDGETS)}{did_you_mean(budget, BUDGETS)}"
    )
  return BUDGETS[budget]


def _check(workdir: str, budget: Budget, data: str, corpus: str) -> None:
  """Raises InputError for arguments that would fail later, and for missing packages."""
  check_workdir(workdir)
  pages.check_workdir(workdir, _RESULTS, ("lock", "text", "prepared"))
  if not corpus and not budget.vocab_size:
    raise InputError(
      f"--budget={budget.name} needs --corpus=DIR, a prepared text: python launch/prepare.py "
      "--source=novels --out=DIR --vocab_size=16000 --valid_share=0.03 --sentences"
    )
  pyplot()
  fit_linear(np.eye(2), np.arange(2), 2, 1.0)  # raises now if scikit-learn is missing
  for name in (*budget.tasks, *budget.shown):
    task = find(name)
    if not data and not name.startswith("story-"):
      raise InputError(
        f"--budget={budget.name} needs --data=DIR, the folder of the tasks' official files"
      )
    for split in ("train", "dev"):
      task.examples(data, split)


def _check_corpus(rows: Mapping[str, Row], budget: Budget, corpus: str) -> None:
  """Raises InputError for a prepared folder without what the rows need."""
  if not corpus:
    return
  needing = [row.title for row in rows.values() if row.needs_sentences]
  for split in ("train", "valid"):
    header = TokenFile(corpus, split).header
    if needing and "n_sentences" not in header:
      raise InputError(
        f"--corpus={corpus}: prepared without sentence ends, which the objective {needing[0]!r} "
        "needs; prepare it again in another folder: python launch/prepare.py --source=… --out=DIR "
        "--sentences"
      )


def _text(workdir: str, budget: Budget, corpus: str) -> str:
  """The folder of the text, whose tokenizer has the special tokens of all rows."""
  if not corpus:
    corpus = os.path.join(workdir, "prepared")
    prepare.run(PrepareConfig("embedded", budget.vocab_size, sentences=True), corpus)
  folder = os.path.join(workdir, "text")
  if is_folder(folder):
    if _digests(folder) != _digests(corpus):
      raise InputError(
        f"--workdir={workdir} holds the results of another comparison: its text is not that of "
        f"--corpus={corpus}; use another folder"
      )
    return folder
  tokenizer = load_tokenizer(os.path.join(corpus, "tokenizer")).with_special(*SPECIAL)
  with atomic_folder(folder) as partial, local_copy(corpus) as copy:
    place = os.symlink if copy == corpus else shutil.copy  # a text on a disk is not copied
    tokenizer.save(os.path.join(partial, "tokenizer"))
    for name in listing(copy):
      if name.startswith(("train.", "train-", "valid.", "valid-")):
        place(os.path.abspath(os.path.join(copy, name)), os.path.join(partial, name))
  return folder


def _digests(folder: str) -> dict[str, str]:
  return {split: TokenFile(folder, split).digest for split in ("train", "valid")}


def _open_results(comparison: _Comparison) -> Results:
  """The results of earlier calls with this workdir."""
  path = os.path.join(comparison.workdir, _RESULTS)
  tasks = (*comparison.budget.tasks, *comparison.budget.shown)
  identity = {
    "budget": json.loads(json.dumps(dataclasses.asdict(comparison.budget))),
    "text": _digests(comparison.text),
    "probed_tasks": [name for name in tasks if find(name).has_classes],
  }
  results: Results = {**identity, **{name: {} for name in _EMPTY}}
  if exists(path):
    try:
      results |= read_json(path)
    except (ValueError, TypeError) as error:
      raise InputError(
        f"{path}: cannot be read ({error}); remove it: finished runs are kept and read again"
      ) from error
  for name, value in identity.items():
    if results[name] != value:
      raise InputError(
        f"--workdir={comparison.workdir} holds the results of another comparison: its {name} "
        "differs; use another folder"
      )
  return results


# The parts of a row -------------------------------------------------------------------------------


def _measure_costs(comparison: _Comparison, results: Results) -> None:
  """Parameters, predictions, arithmetic and pace of every row; fails where a text does not suit."""
  recipes = {}
  for name, row in comparison.rows.items():
    if row.is_pretrained:
      recipes[name] = comparison.recipe(name)
      of_row = cost(recipes[name])
    else:
      config = finetune_config(comparison.budget, row, comparison.tasks(name)[0], from_scratch=True)
      trunk = config.trunk.with_vocabulary(load_tokenizer(comparison.tokenizer))
      of_row = Cost(*parameters(ModelConfig(trunk, (), trunk.attention)), 0.0, 0.0)
    results["costs"][name] = of_row._asdict()
    log(f"{row.title}: trunk {of_row.trunk:,} parameters, head {of_row.head:,}")
  same = [name for name, row in comparison.rows.items() if not row.config and not row.tuning]
  trunks = {results["costs"][name]["trunk"] for name in same}
  assert len(trunks) <= 1, f"trunks of different sizes: {results['costs']}"
  if any(name not in results["pace"] for name in recipes):  # all again: they are compared
    results["pace"] = paces(recipes)
  comparison.save(results)


def _make_row(comparison: _Comparison, results: Results, name: str) -> None:
  """Pre-trains, probes and fine-tunes one row, where this has not been done yet."""
  budget, row = comparison.budget, comparison.rows[name]
  source = row.starts_from or name  # which comes before it in the tables
  pretrained = comparison.rows[source].is_pretrained
  if row.is_pretrained and name not in results["losses"]:
    _pretrain(comparison, results, name)
  if pretrained and source not in results["chosen"]:
    log(f"{row.title}: diverges with every learning rate of the budget, so it has no results")
    return
  checkpoint = comparison.checkpoint(results, name)
  of_start = _start_of(comparison, name, checkpoint)
  if name not in results["format_and_head"]:
    results["format_and_head"][name] = _format_and_head(of_start[0], load_start(*of_start))
  if not row.tuning or row.is_pretrained:  # no trunk of another row, and none without text
    _probe(comparison, results, name, checkpoint, budget.steps if pretrained else 0)
  for task in comparison.tasks(name):
    _fine_tune(comparison, results, name, checkpoint, task)


def _pretrain(comparison: _Comparison, results: Results, name: str) -> None:
  """One run for each peak learning rate; the row is that with the lowest held-out loss, if any
  run ends with one.
  """
  budget, row = comparison.budget, comparison.rows[name]
  # A translator is measured by what it writes.
  metric, sign = ("dev_bleu", -1) if row.translates else ("valid_loss", 1)
  last_losses = results["trials"].setdefault(name, {})
  for rate in budget.rates:
    if f"{rate:g}" in last_losses:
      continue
    log(f"{row.title}: peak learning rate {rate:g}")
    try:
      last_losses[f"{rate:g}"] = sign * _pretrain_at(comparison, name, rate)[metric]
    except Diverged as error:
      log(f"{row.title}: {error}")
      last_losses[f"{rate:g}"] = None
    comparison.save(results)
  finite = {rate: last_losses[f"{rate:g}"] for rate in budget.rates}
  finite = {rate: loss for rate, loss in finite.items() if is_finite(loss)}
  if not finite:
    return
  best = min(finite, key=lambda rate: finite[rate])
  results["chosen"][name] = best
  steps, values = curve(comparison.folder(name, best), metric)
  results["losses"][name] = [
    (step, sign * value) for step, value in zip(steps, values, strict=True)
  ]
  comparison.save(results)


def _pretrain_at(comparison: _Comparison, name: str, rate: float) -> dict[str, Any]:
  """The last evaluation of a run, on the text or on pairs made from it."""
  budget, row = comparison.budget, comparison.rows[name]
  folder = comparison.folder(name, rate)
  options: dict[str, Any] = {"trackers": parse_trackers("auto", folder), "on_end": [write_report]}
  if row.translates:
    translation = translation_config(budget, row, rate)
    options["tokenizer"] = comparison.tokenizer
    (result,) = finetune.run(translation, comparison.pairs(), "none", folder, **options)
    return result["dev"]
  config = pretrain_config(budget, row, rate)
  return pretrain.run(config, comparison.text, folder, make_recipe=with_samples(), **options)


def _trained_on_texts(comparison: _Comparison, checkpoint: str, name: str, task: str) -> str:
  """A language model that has gone on from a checkpoint on the training texts of a task."""
  place = os.path.join(comparison.workdir, "targets", name, task)  # beside runs/ and tasks/
  text, folder = os.path.join(place, "text"), os.path.join(place, "run")
  write_texts(f"{place}/texts.txt", find(task).examples(comparison.data, "train"))
  prepare.run(
    PrepareConfig(f"{place}/texts.txt", tokenizer=comparison.tokenizer, valid_share=0.1), text
  )
  config = target_config(comparison.budget, comparison.rows[name])
  pretrain.run(config, text, folder, make_recipe=from_checkpoint(checkpoint))
  return folder


def _fine_tune(
  comparison: _Comparison, results: Results, name: str, checkpoint: str, task: str
) -> None:
  """Notes the last dev result of every seed."""
  done = results["tasks"].setdefault(name, {})
  if task in done:
    return
  budget, row = comparison.budget, comparison.rows[name]
  scratch = checkpoint == "none"
  config = finetune_config(budget, row, task, from_scratch=scratch)
  if row.tunes_on_texts:
    checkpoint = _trained_on_texts(comparison, checkpoint, name, task)
  folder = os.path.join(comparison.workdir, "tasks", name, task)
  arguments: dict[str, Any] = {"workdir": folder, "seeds": budget.seeds}
  if budget.seeds == 1:
    arguments = {"workdir": os.path.join(folder, "seed_0")}
  if scratch:
    arguments["tokenizer"] = comparison.tokenizer
  log(f"{row.title}: fine-tuning on {task}")
  arguments["trackers"] = parse_trackers("auto", arguments["workdir"])
  runs = finetune.run(config, comparison.data, checkpoint, on_end=[write_report], **arguments)
  metric = f"dev_{find(task).primary_metric}"
  done[task] = [run["dev"][metric] for run in runs]
  comparison.save(results)


def _probe(
  comparison: _Comparison, results: Results, name: str, checkpoint: str, step: int
) -> None:
  """Notes the probes of one checkpoint."""
  done = results["probes"].setdefault(name, {}).setdefault(str(step), {})
  missing = [task for task in results["probed_tasks"] if task not in done]
  if not missing:
    return
  budget = comparison.budget
  start = probe_start(*_start_of(comparison, name, checkpoint))
  examples = {"train": budget.examples, "dev": budget.dev_examples}
  for task in missing:
    done[task] = probe_score(start, find(task), comparison.data, examples)
  comparison.save(results)


def _start_of(
  comparison: _Comparison, name: str, checkpoint: str
) -> tuple[FinetuneConfig, str, str]:
  """The config, checkpoint and vocabulary that a row is fine-tuned with, on its first task."""
  scratch, (task, *_) = checkpoint == "none", comparison.tasks(name)
  config = finetune_config(comparison.budget, comparison.rows[name], task, from_scratch=scratch)
  return config, checkpoint, comparison.tokenizer if scratch else ""


def _probe_at_equal_seconds(comparison: _Comparison, results: Results, name: str) -> None:
  step = step_at_equal_seconds(results, comparison.budget, name)
  folder = os.path.join(comparison.checkpoint(results, name), "checkpoints", str(step))
  if is_folder(folder):
    _probe(comparison, results, name, folder, step)


def _format_and_head(config: FinetuneConfig, start: Start) -> str:
  """How a checkpoint is fine-tuned, in words."""
  if start.format.writes_answers:
    return "text to text, answers in words"
  name = type(start.format).__name__.removesuffix("Format")
  if (mix := config.method("mix")) is not None:
    return f"{name}, {type(mix).__name__.removesuffix('Head').lower()}"
  heads = {"none": "linear", "dense": "dense + linear", "pooler": "pooler + linear"}
  hidden = "two layers" if config.head_units else heads[transform_of(start)]
  return f"{name}, {hidden}"


# Reports ------------------------------------------------------------------------------------------


def _report(comparison: _Comparison, results: Results) -> None:
  """Writes results.md, results.csv and curves.png."""
  for name, content in (
    ("results.md", describe(results, comparison.budget, comparison.rows)),
    ("results.csv", as_csv(results, comparison.budget, comparison.rows)),
  ):
    with atomic_file(os.path.join(comparison.workdir, name)) as file:
      file.write(content)
  rows = comparison.rows.items()
  done = [name for name, row in rows if row.reads_text and name in results["losses"]]
  if done:
    folders = [comparison.checkpoint(results, name) for name in done]
    plot.run(folders, os.path.join(comparison.workdir, "curves.png"), overwrite=True)
