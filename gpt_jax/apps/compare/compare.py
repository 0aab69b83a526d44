"""Compares pre-training objectives and the systems around them, as Raffel et al. 2020, section 3.3:
one text, one budget; then fine-tuning and probes.
"""

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.compare import budgets
from gpt_jax.apps.compare.measures import Cost, cost, parameters, probe_score, probe_start
from gpt_jax.apps.compare.rows import PAIR_LENGTH, SPECIAL, Row, find_rows, write_pairs
from gpt_jax.apps.compare.tables import Results, describe, step_at_equal_seconds
from gpt_jax.apps.report import plot
from gpt_jax.apps.report.figures import make_figure
from gpt_jax.apps.report.report import reported
from gpt_jax.apps.study import Study, check_rows, choice
from gpt_jax.apps.timing import paces
from gpt_jax.checkpoints.remote import check_workdir, lock
from gpt_jax.checkpoints.run_folder import listing
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, atomic_folder, is_folder, local_copy
from gpt_jax.inference.linear_classifier import fit_linear
from gpt_jax.models.model import ModelConfig
from gpt_jax.parallel.processes import log
from gpt_jax.programs import finetune, prepare, pretrain
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_task import load_task
from gpt_jax.programs.prepare import PrepareConfig
from gpt_jax.programs.pretrain import load_text, text_recipe
from gpt_jax.programs.pretrain_samples import with_samples
from gpt_jax.programs.pretrain_start import from_checkpoint
from gpt_jax.programs.start import Start, load_start, transform_of
from gpt_jax.tasks.task import find
from gpt_jax.training.hooks import Diverged
from gpt_jax.training.run_log import curve, finite

_EMPTY = ("costs", "pace", "trials", "chosen", "losses", "format_and_head", "tasks", "probes")


def run(
  workdir: str,
  *,
  budget: str | budgets.Budget = "smoke",
  objectives: Sequence[str] = (),
  data: str = "",
  corpus: str = "",
) -> Results:
  """Makes the runs that the tables lack, and writes all results of the workdir.

  Args:
    workdir: gets runs/ (pre-training), tasks/ (fine-tuning), text/, results.json, results.md,
      and curves.png; the same command resumes.
    budget: smoke: the story world; novels, books, small, full: a text of yours and tasks of GLUE;
      in Python also one of one's own.
    objectives: of causal, both_directions, masked, full_sentences, masked_next, ngrams_order,
      spans, neighbors, adversarial, lstm, elmo, ulmfit, cove, twin, views, none; by default all.
    data: folder of the tasks' official files; empty: the tasks need none.
    corpus: text to pre-train on, with sentence ends: a folder that launch/prepare.py wrote; empty:
      the budget has a text of its own.

  Returns:
    The content of results.json, which includes earlier calls with the same workdir.
  """
  if isinstance(budget, str):
    budget = choice("budget", budget, budgets.BUDGETS)
  rows = find_rows(objectives)
  study = _check(workdir, budget, rows, data, corpus)
  with lock(workdir):
    text = _text(study, budget, corpus)
    identity = {
      "budget": dataclasses.asdict(budget),
      "text": _digests(text),
      "probed_tasks": [name for name in budget.all_tasks if find(name).has_classes],
    }
    results = study.results(identity, {name: {} for name in _EMPTY})
    done = {task for of_row in results["tasks"].values() for task in of_row}
    for of_row in results["probes"].values():
      done.update(*of_row.values())
    check_rows(results, budget.all_tasks, done, data, workdir)
    known_rows = find_rows([*rows, *results["costs"]])
    comparison = _Comparison(study, budget, known_rows, data, text, results)
    comparison.measure_costs()
    try:
      for number, name in enumerate(rows, start=1):
        log(f"{number} of {len(rows)}: {rows[name].title}")
        comparison.make_row(name)
        comparison.report()
      for name in results["losses"]:  # what the fastest row's time would have reached, if kept
        step = step_at_equal_seconds(results, budget, name)
        folder = os.path.join(comparison.checkpoint(name), "checkpoints", str(step))
        if is_folder(folder):
          comparison.probe(name, folder, step)
    finally:  # after a failure too, report what is known
      comparison.report()
  print(describe(results, budget, known_rows))
  log(f"wrote results.md and curves.png to {workdir}")
  return results


@dataclasses.dataclass(frozen=True)
class _Comparison:
  """The arguments of run, its results, and the parts of a row."""

  study: Study
  budget: budgets.Budget
  rows: Mapping[str, Row]  # those of this call and of earlier ones
  data: str
  text: str  # the prepared folder that all rows read
  results: Results  # the content of results.json

  def folder(self, name: str, rate: float) -> str:
    return self.study.path("runs", name, f"rate_{rate:g}")

  def checkpoint(self, name: str) -> str:
    """Checkpoint that a row's fine-tuning starts from; "none" for one that is not pre-trained."""
    source = self.rows[name].starts_from or name
    if not self.rows[source].is_pretrained:
      return "none"
    return self.folder(source, self.results["chosen"][source])

  def pairs(self) -> str:
    """The folder of the pairs, which it writes if they are missing."""
    folder, budget = self.study.path("pairs"), self.budget
    write_pairs(folder, self.text, budget.steps * budget.batch_size * budget.length // PAIR_LENGTH)
    return folder

  def tasks(self, name: str) -> list[str]:
    """The budget's tasks that a row can learn."""
    pooling = self.rows[name].pooling
    return [task for task in self.budget.all_tasks if not pooling or find(task).pooling in pooling]

  @property
  def tokenizer(self) -> str:
    return os.path.join(self.text, "tokenizer")

  def measure_costs(self) -> None:
    """Parameters, predictions, FLOPs and pace of every row; fails where a text does not suit."""
    budget, recipes = self.budget, {}
    for name, row in self.rows.items():
      if row.translates:
        translation = budgets.translation_config(budget, row, budget.rates[0])
        start = load_start(translation, "none", self.tokenizer)
        translation, task, data = load_task(translation, self.pairs(), start)
        recipes[name] = finetune.finetune_recipe(translation, task, data["train"], start)
      elif row.reads_text:
        config = budgets.pretrain_config(budget, row, budget.rates[0])
        recipes[name] = text_recipe(config, load_text(config, self.text))
      if row.is_pretrained:
        of_row = cost(recipes[name])
      else:
        tuning = budgets.finetune_config(budget, row, self.tasks(name)[0], from_scratch=True)
        trunk = tuning.trunk.with_vocabulary(load_tokenizer(self.tokenizer))
        of_row = Cost(*parameters(ModelConfig(trunk, (), trunk.default_attention)), 0.0, 0.0)
      self.results["costs"][name] = of_row._asdict()
      log(f"{row.title}: trunk {of_row.trunk:,} parameters, head {of_row.head:,}")
    same = [name for name, row in self.rows.items() if not row.config and not row.tuning]
    trunks = {self.results["costs"][name]["trunk"] for name in same}
    assert len(trunks) <= 1, f"trunks of different sizes: {self.results['costs']}"
    if any(name not in self.results["pace"] for name in recipes):  # all again: they are compared
      self.results["pace"] = paces(recipes)
    self.study.save(self.results)

  def make_row(self, name: str) -> None:
    """Pre-trains, probes and fine-tunes one row, where this has not been done yet."""
    budget, row = self.budget, self.rows[name]
    source = row.starts_from or name  # which comes before it in the tables
    pretrained = self.rows[source].is_pretrained
    if row.is_pretrained and name not in self.results["losses"]:
      self.pretrain(name)
    if pretrained and source not in self.results["chosen"]:
      log(f"{row.title}: diverges with every learning rate of the budget, so it has no results")
      return
    checkpoint = self.checkpoint(name)
    of_start = self.start_of(name, checkpoint)
    if name not in self.results["format_and_head"]:
      self.results["format_and_head"][name] = _format_and_head(of_start[0], load_start(*of_start))
    if not row.tuning or row.is_pretrained:  # no trunk of another row, and none without text
      self.probe(name, checkpoint, budget.steps if pretrained else 0)
    for task in self.tasks(name):
      self.fine_tune(name, checkpoint, task)

  def pretrain(self, name: str) -> None:
    """A run for each peak learning rate; the one with the lowest held-out loss, if any, counts."""
    budget, row = self.budget, self.rows[name]
    # A translator is measured by what it writes.
    metric, sign = ("dev_bleu", -1) if row.translates else ("valid_loss", 1)
    last_losses = self.results["trials"].setdefault(name, {})
    by_rate = {}
    for rate in budget.rates:
      if f"{rate:g}" not in last_losses:
        log(f"{row.title}: peak learning rate {rate:g}")
        try:
          last_losses[f"{rate:g}"] = sign * self.pretrain_at(name, rate)[metric]
        except Diverged as error:
          log(f"{row.title}: {error}")
          last_losses[f"{rate:g}"] = None
        self.study.save(self.results)
      if (loss := finite(last_losses[f"{rate:g}"])) is not None:
        by_rate[rate] = loss
    if not by_rate:
      return
    best = self.results["chosen"][name] = min(by_rate, key=lambda rate: by_rate[rate])
    steps, values = curve(self.folder(name, best), metric)
    points = zip(steps, values, strict=True)
    self.results["losses"][name] = [(step, sign * value) for step, value in points]
    self.study.save(self.results)

  def pretrain_at(self, name: str, rate: float) -> dict[str, Any]:
    """The last evaluation of a run, on the text or on pairs made from it."""
    row, folder = self.rows[name], self.folder(name, rate)
    options = reported(folder)
    if row.translates:
      translation = budgets.translation_config(self.budget, row, rate)
      options["tokenizer"] = self.tokenizer
      (result,) = finetune.run(translation, self.pairs(), "none", folder, **options)
      return result["dev"]
    config = budgets.pretrain_config(self.budget, row, rate)
    return pretrain.run(config, self.text, folder, make_recipe=with_samples(), **options)

  def trained_on_texts(self, checkpoint: str, name: str, task: str) -> str:
    """A language model that has gone on from a checkpoint on the training texts of a task."""
    place = self.study.folder("targets", name, task)  # beside runs/ and tasks/
    source, text, folder = f"{place}/texts.txt", f"{place}/text", f"{place}/run"
    examples = find(task).examples(self.data, "train")
    texts = (" ".join(text.split()) for example in examples for text in example.texts)
    with atomic_file(source) as file:
      file.write("".join(f"{line}\n" for line in dict.fromkeys(texts)))
    prepare.run(PrepareConfig(source, tokenizer=self.tokenizer, valid_share=0.1), text)
    config = budgets.target_config(self.budget, self.rows[name])
    pretrain.run(config, text, folder, make_recipe=from_checkpoint(checkpoint))
    return folder

  def fine_tune(self, name: str, checkpoint: str, task: str) -> None:
    """Notes the last dev result of every seed."""
    done = self.results["tasks"].setdefault(name, {})
    if task in done:
      return
    seeds, row, scratch = self.budget.seeds, self.rows[name], checkpoint == "none"
    config = budgets.finetune_config(self.budget, row, task, from_scratch=scratch)
    if row.tunes_on_texts:
      checkpoint = self.trained_on_texts(checkpoint, name, task)
    folder = self.study.path("tasks", name, task, *(["seed_0"] if seeds == 1 else []))
    log(f"{row.title}: fine-tuning on {task}")
    options = reported(folder) | ({"tokenizer": self.tokenizer} if scratch else {})
    runs = finetune.run(config, self.data, checkpoint, folder, seeds=seeds, **options)
    done[task] = [run["dev"][f"dev_{find(task).primary_metric}"] for run in runs]
    self.study.save(self.results)

  def probe(self, name: str, checkpoint: str, step: int) -> None:
    """Notes the probes of one checkpoint."""
    done = self.results["probes"].setdefault(name, {}).setdefault(str(step), {})
    missing = [task for task in self.results["probed_tasks"] if task not in done]
    if not missing:
      return
    start = probe_start(*self.start_of(name, checkpoint))
    examples = {"train": self.budget.examples, "dev": self.budget.dev_examples}
    for task in missing:
      done[task] = probe_score(start, find(task), self.data, examples)
    self.study.save(self.results)

  def start_of(self, name: str, checkpoint: str) -> tuple[FinetuneConfig, str, str]:
    """The config, checkpoint and vocabulary that a row is fine-tuned with, on its first task."""
    scratch, (task, *_) = checkpoint == "none", self.tasks(name)
    config = budgets.finetune_config(self.budget, self.rows[name], task, from_scratch=scratch)
    return config, checkpoint, self.tokenizer if scratch else ""

  def report(self) -> None:
    self.study.write("results.md", describe(self.results, self.budget, self.rows))
    trained = [name for name, row in self.rows.items() if row.reads_text]
    if folders := [self.checkpoint(name) for name in trained if name in self.results["losses"]]:
      plot.run(folders, self.study.path("curves.png"), overwrite=True)


# Argument checks ----------------------------------------------------------------------------------


def _check(
  workdir: str, budget: budgets.Budget, rows: Mapping[str, Row], data: str, corpus: str
) -> Study:
  """The workdir, if no argument would fail later and no package is missing."""
  check_workdir(workdir)
  study = Study(workdir, "results.json", ("lock", "text", "prepared"))
  if not corpus and not budget.vocab_size:
    raise InputError(
      f"--budget={budget.name} needs --corpus=DIR, a prepared text: python launch/prepare.py "
      "--source=novels --out=DIR --vocab_size=16000 --valid_share=0.03 --sentences"
    )
  make_figure()
  fit_linear(np.eye(2), np.arange(2), 2, 1.0)  # raises now if scikit-learn is missing
  for name in budget.all_tasks:
    if not data and not name.startswith("story-"):
      raise InputError(
        f"--budget={budget.name} needs --data=DIR, the folder of the tasks' official files"
      )
    for split in ("train", "dev"):
      find(name).examples(data, split)
  for split in ("train", "valid") if corpus else ():
    header = TokenFile(corpus, split).header
    for row in rows.values():
      if row.needs_sentences and "n_sentences" not in header:
        raise InputError(
          f"--corpus={corpus}: prepared without sentence ends, which the objective {row.title!r} "
          "needs; prepare it again in another folder: python launch/prepare.py --source=… "
          "--out=DIR --sentences"
        )
  return study


def _text(study: Study, budget: budgets.Budget, corpus: str) -> str:
  """The folder of the text, whose tokenizer has the special tokens of all rows."""
  if not corpus:
    corpus = study.path("prepared")
    prepare.run(PrepareConfig("embedded", budget.vocab_size, sentences=True), corpus)
  folder = study.path("text")
  if is_folder(folder):
    if _digests(folder) != _digests(corpus):
      raise InputError(
        f"--workdir={study.workdir} holds the results of another comparison: its text is not "
        f"that of --corpus={corpus}; use another folder"
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
