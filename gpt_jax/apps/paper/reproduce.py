"""Reproduces the paper's tables 2 to 5 and figure 2: makes the missing runs, compares the results.

Radford et al. 2018, sections 4 and 5.
"""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

from gpt_jax.apps.paper import comparison, differences, zero_shot
from gpt_jax.apps.paper.comparison import ABLATIONS, FULL, SCRATCH, Setting
from gpt_jax.apps.paper.pretraining import Pretraining
from gpt_jax.apps.report import figures
from gpt_jax.apps.report import paper_tables as tables
from gpt_jax.apps.report.report import reported
from gpt_jax.apps.study import Study, check_rows, choice
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.checkpoints.remote import lock
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import remove_folder
from gpt_jax.inference.intervals import summarize
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.processes import log
from gpt_jax.programs import evaluate, finetune
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.tasks.encoding import subset
from gpt_jax.tasks.readers import check_data_dir
from gpt_jax.tasks.task import BuiltinTask, all_tasks, find
from gpt_jax.training.defaults import PAPER_EPOCHS, PAPER_OPTIM
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

# Further dev sets that a task's model is evaluated on.
SHARED = {"mnli": ("mnli-mismatched",), "race": ("race-middle", "race-high")}
History = tuple[list[str], dict[str, zero_shot.Prepared]]  # checkpoint folders, tasks by name
TRUNKS = {"transformer": TransformerConfig, "lstm": LSTMConfig}
# Fine-tuning has dropout, also of checkpoints that were trained without.
_DROPOUT = tuple(f"trunk.{part}_dropout" for part in ("residual", "attention", "embedding"))


@dataclasses.dataclass(frozen=True)
class Budget:
  """How much of the paper's recipe is run."""

  name: str
  tokens: int  # of training per epoch, 0: all; the dev set is cut to as many
  zero_shot: int  # examples per task and split, 0: all
  config: FinetuneConfig
  # Of a budget that makes everything from a text:
  pretraining: Pretraining | None = None
  tasks: tuple[str, ...] = ()  # of table 5, also those that it does not have
  transferred: tuple[str, ...] = ()  # tasks of figure 2 (left)
  keeps_runs: bool = True  # the checkpoints of fine-tuned models


_SMALL_OPTIM = OptimConfig(learning_rate=5e-4, schedule="linear", warmup_steps=0, warmup_share=0.1)
_LAST_COUNTS = TrainConfig(  # the last step is evaluated and saved anyway
  epochs=PAPER_EPOCHS, log_every=100, evaluate_every=10**9, keep_checkpoints=1
)
BUDGETS = {
  "paper": Budget(
    "paper",
    0,
    0,
    FinetuneConfig(
      optim=PAPER_OPTIM,  # also of checkpoints of another size
      train=TrainConfig(epochs=PAPER_EPOCHS, log_every=100, keep_checkpoints=1),
    ),
  ),
  # For a model of a few million parameters on a CPU, a few minutes per run.
  "small": Budget(
    "small",
    100_000,
    500,
    FinetuneConfig(
      batch_size=16,
      optim=_SMALL_OPTIM,
      train=TrainConfig(epochs=3, log_every=100, keep_checkpoints=1),
    ),
  ),
  # Whole novels, on two cores, in hours.
  "books": Budget(
    "books",
    300_000,
    1000,
    FinetuneConfig(batch_size=16, optim=_SMALL_OPTIM, train=_LAST_COUNTS),
    Pretraining(("4x128", "4x256", "6x320", "8x384"), 150, 8000, ("gpt1", "lstm")),
    tasks=("sst2", "cola", "mrpc", "rte", "trec", "imdb"),
    transferred=("sst2", "trec"),
  ),
  # GPT-1 itself, pre-trained for minutes on one GPU (launch/gpu/gpt1.py).
  "gpu": Budget(
    "gpu",
    4_000_000,
    0,
    FinetuneConfig(optim=PAPER_OPTIM, train=_LAST_COUNTS),
    tasks=("cola", "mrpc", "rte", "stsb", "trec", "sst2", "imdb", "race-middle"),
    transferred=("rte",),
    keeps_runs=False,
  ),
}


def run(
  workdir: str,
  data: str,
  checkpoint: str = "",
  *,
  text: str = "",
  minutes: float = 0.0,
  lstm: str = "",
  table: Sequence[str] = (),
  figure: Sequence[str] = (),
  tasks: Sequence[str] = (),
  seeds: int = 1,
  budget: str = "paper",
  microbatches: int = 0,
) -> dict[str, Any]:
  """Makes the runs that the tables and figures lack, and writes all results of the workdir.

  One MNLI model serves both dev sets, and one RACE model both halves if both are there.

  Args:
    workdir: gets runs/<setting>/<task>/seed_<n>, results.json, results.md and figures (PNG, SVG);
      the same command resumes.
    data: folder of the official files: glue/, race/ and so on.
    checkpoint: see load_model; the workdir of a pre-trained Transformer.
    text: instead of a checkpoint, for a budget that pre-trains, such as books: a folder that
      launch/prepare.py wrote, or sources as there.
    minutes: of pre-training; 0: the budget's.
    lstm: workdir of a pre-trained LSTM, for table 5's last row and figure 2.
    table: tables, out of 2, 3, 4, 5. GLUE's average in table 4 needs all nine tasks. With a text
      by default 5, and figure 2.
    figure: 2: layers transferred (left), zero-shot over pre-training (right), which evaluates every
      checkpoint of the workdirs.
    tasks: only these; by default those of the budget, or else all with data; for figure 2 (left) of
      paper and small race and mnli.
    seeds: runs per setting and task.
    budget: paper; small: parts of the data sets and a recipe for small models, for a CPU; books: a
      model of the size that short runs choose, and an LSTM, 150 minutes each; gpu: for one lease.
    microbatches: parts of a batch, to save memory; 0: as few as fit.

  Returns:
    The content of results.json, which includes earlier calls with the same workdir.
  """
  if bool(text) == bool(checkpoint):
    raise InputError("give either a checkpoint or a text to pre-train on")
  if text and lstm:
    raise InputError(f"lstm={lstm}: goes with a checkpoint; with a text an LSTM is trained, too")
  if minutes and not text:
    raise InputError(f"minutes={minutes:g}: of pre-training; goes with text")
  if text and not table and not figure:
    table, figure = ("5",), ("2",)
  asked_tables, sweep = _tables_and_figure(table, figure)
  chosen = choice("budget", budget, BUDGETS)
  if text and not chosen.pretraining:
    raise InputError(f"text={text}: budget={budget} has no pre-training; give a checkpoint")
  figures.make_figure()
  check_data_dir(data)
  study = Study(workdir, "results.json", ("runs", "lock", "text", "pace", "trials", "pretrained"))
  there = _available(data, tasks or chosen.tasks)
  if text and chosen.pretraining:
    usable = [name for name in tasks or chosen.tasks if name in there[0]]
    if not usable and not (sweep and _asked_only() & {*tasks}):  # before hours of work
      raise InputError("; ".join(there[1].values()))
    for name in usable:
      find(name).check_metrics()  # a package may be missing
    with lock(workdir):
      workdirs = chosen.pretraining.run(study, text, minutes)
    checkpoint, lstm = workdirs["gpt1"], workdirs.get("lstm", "")
  paths = {name: path for name, path in (("transformer", checkpoint), ("lstm", lstm)) if path}
  models = {name: _load(name, path) for name, path in paths.items()}
  wanted = asked_tables, sweep, tasks, chosen, seeds, microbatches
  asked = _Reproduction(study, data, paths, models, *wanted, *there)
  plan, history = asked.plan(), asked.history() if sweep else {}
  if not plan and not history:
    raise asked.nothing_to_run()
  with lock(workdir):
    results = asked.open_results()
    results["left_out"] = asked.left_out
    done = {task for runs in results["runs"].values() for task in runs}
    check_rows(results, dict.fromkeys(task for _, task in plan), done, data, workdir)
    try:
      for number, (setting, task) in enumerate(plan, start=1):
        asked.fine_tune(results, setting, task, f"{number} of {len(plan)}")
      if chosen.tasks:
        asked.fit_bags_of_words(results, dict.fromkeys(task for _, task in plan))
      for trunk, of_trunk in history.items():
        asked.evaluate(results, trunk, of_trunk)
    finally:  # after a failure too, report what is known
      asked.report(results)
  return results


@dataclasses.dataclass(frozen=True)
class _Reproduction:
  """The arguments of run that every part needs, the loaded models by trunk, and the parts."""

  study: Study
  data_dir: str
  paths: dict[str, str]
  models: dict[str, LoadedModel]
  asked_tables: list[int]
  sweep: bool
  tasks: Sequence[str]
  budget: Budget
  seeds: int
  microbatches: int
  available: list[str]  # tasks with data
  left_out: dict[str, str]  # why others have none

  def open_results(self) -> dict[str, Any]:
    """The results of earlier calls with this workdir."""
    models = {f"{name}_checkpoint": model.identity for name, model in self.models.items()}
    identity = {"budget": self.budget.name, **models}
    results = self.study.results(identity, {"runs": {}, "zero_shot": {}})
    if "checkpoints" in results:  # which nothing would compare
      path = self.study.path("results.json")
      raise InputError(f"{path}: is of an earlier version; use another workdir")
    return results

  def plan(self) -> list[tuple[Setting, str]]:
    """The (setting, task) pairs to fine-tune, without duplicates."""
    wanted: list[tuple[Sequence[str], list[Setting]]] = []  # tasks, and settings of each
    asked_tasks = self.tasks or self.budget.tasks
    for number in self.asked_tables:
      settings = [FULL]
      if number == 5:
        settings = [setting for setting in ABLATIONS.values() if setting.trunk in self.models]
      for column in tables.TABLES[number].columns:
        if column != tables.GLUE or set(column.tasks) <= set(self.available):
          wanted.append((column.tasks, settings))
      if number == 5:
        wanted.append((asked_tasks, settings))
    if self.sweep:
      # Transfer of nothing, the embeddings, the first 1, 2, … blocks, and everything.
      settings = [SCRATCH]
      for layers in range(self.models["transformer"].spec.trunk.layers):
        settings.append(Setting(f"{layers}-layers", changes=(("transfer_layers", layers),)))
      swept = self.tasks or self.budget.transferred or list(tables.TRANSFER)
      wanted.append((swept, [*settings, FULL]))
    plan: dict[tuple[Setting, str], None] = {}
    for names, settings in wanted:
      for name in names:
        model = trained(name, self.available)
        # A task is asked for by its own name or by that of the task whose model it shares.
        if name in self.available and (not asked_tasks or {name, model} & set(asked_tasks)):
          plan |= dict.fromkeys((setting, model) for setting in settings)
    return list(plan)

  def history(self) -> dict[str, History]:
    """For each trunk its run's checkpoint folders and the zero-shot tasks with data.

    Notes in left_out what cannot be evaluated: tasks, single questions, or a trunk.
    """
    names = [name for name in tables.ANCHORS if not self.tasks or name in self.tasks]
    if "race" in self.available and "race" in names and "race-middle" not in self.tasks:
      names.remove("race-middle")
    history: dict[str, History] = {}
    for trunk, loaded in self.models.items():
      prepared: dict[str, Any] = {}
      for name in names:
        try:
          prepared |= zero_shot.prepare(loaded, self.data_dir, [name], self.budget.zero_shot)
        except MissingInput as error:
          self.left_out[f"zero-shot {name}"] = str(error)
      for name, (_, questions_left_out) in prepared.items():
        if questions_left_out:
          self.left_out[f"zero-shot {name} of the {trunk}"] = questions_left_out
      try:
        folders = zero_shot.checkpoints(self.paths[trunk])
      except MissingInput as error:
        self.left_out[f"zero-shot of the {trunk}"] = str(error)
        continue
      if prepared:
        history[trunk] = folders, prepared
    return history

  def nothing_to_run(self) -> InputError:
    """Says why everything asked for is left out, naming each reason once."""
    names = set(self.tasks or self.budget.transferred or tables.TRANSFER) if self.sweep else set()
    if 5 in self.asked_tables:
      names.update(self.tasks)
    for number in self.asked_tables:
      for column in tables.TABLES[number].columns:
        names.update(column.tasks)
    if self.tasks:
      names &= {*self.tasks, *(name for task in self.tasks for name in SHARED.get(task, ()))}
    reasons = []
    for name, reason in self.left_out.items():
      if name in names or name.startswith("zero-shot"):
        reasons.append(reason.removeprefix(f"data_dir={self.data_dir}: "))
    explanation = "; ".join(dict.fromkeys(reasons)) or "no such task is in these tables"
    return InputError(f"there is nothing to run with --data={self.data_dir}: {explanation}")

  def fine_tune(self, results: dict[str, Any], setting: Setting, task: str, progress: str) -> None:
    """Makes the missing runs of one setting and task, and notes the results of all of its runs."""
    known = results["runs"].setdefault(setting.name, {})
    shared = []
    if setting in ABLATIONS.values():
      shared = [name for name in SHARED.get(task, ()) if name not in results["left_out"]]
    if all(len(known.get(name, {}).get("seeds", ())) >= self.seeds for name in (task, *shared)):
      return
    loaded = self.models[setting.trunk]
    config, note = sized(self.budget, task, self.data_dir, loaded, self.microbatches)
    config = dataclasses.replace(config, **dict(setting.changes))
    log(f"{progress}: {task}, {setting.name} {note}")
    folder = self.study.path("runs", setting.name, task)
    seeds = max(self.seeds, len(known.get(task, {}).get("seeds", ())))
    # With one seed the run would fill `folder` itself, and seeds could not be added later.
    workdir = folder if seeds > 1 else os.path.join(folder, "seed_0")
    source = self.paths[setting.trunk]
    options = reported(workdir)
    if self.budget.pretraining:
      options["set_fields"] = _DROPOUT
    runs = finetune.run(config, self.data_dir, source, workdir, seeds=seeds, **options)
    metric = find(task).primary_metric
    known[task] = {"metric": metric, "note": note, **summarize(runs)}
    for name in shared:  # as if they were runs on the other dev set
      evaluated = []
      for run in runs:
        best = os.path.join(folder, f"seed_{run['seed']}", "best")
        metrics = evaluate.run(best, self.data_dir, "dev", task=name)
        dev = {f"dev_{key}": metrics[key] for key in metrics if key not in ("examples", "classes")}
        evaluated.append({**run, "task": name, "dev": dev, "best": dev})
      note = f"the best checkpoints of {task}"
      known[name] = {"metric": metric, "note": note, **summarize(evaluated)}
    self.study.save(results)
    if not self.budget.keeps_runs:
      for run in runs:
        remove_folder(os.path.join(folder, f"seed_{run['seed']}", "checkpoints"))

  def fit_bags_of_words(self, results: dict[str, Any], tasks: Iterable[str]) -> None:
    """The results of TF-IDF, on the same rows, of tasks that label whole texts."""
    known = results["runs"].setdefault(differences.TFIDF, {})
    for name in tasks:
      task = find(name)
      if name in known or not (task.has_classes and task.is_classification):
        continue
      config, note = sized(self.budget, name, self.data_dir, self.models["transformer"])
      folder = self.study.path("runs", differences.TFIDF, name, "seed_0")
      run = differences.fit_bag_of_words(task, self.data_dir, config, folder)
      known[name] = {"metric": task.primary_metric, "note": note, **summarize([run])}
      self.study.save(results)

  def evaluate(self, results: dict[str, Any], trunk: str, history: History) -> None:
    """Evaluates the missing tasks of every checkpoint of a run."""
    folders, prepared = history
    known = results["zero_shot"].setdefault(trunk, [])
    log(f"zero-shot, {trunk}: {len(folders)} checkpoints ({self.budget.name} budget)")
    for folder in folders:
      step = int(os.path.basename(folder))
      done = {result["task"] for result in known if result["step"] == step}
      missing = {name: questions for name, questions in prepared.items() if name not in done}
      if not missing:
        continue
      try:
        loaded = load_model(folder)
      except InputError as error:
        log(f"left out: {error}")
        continue
      known += [result._asdict() for result in zero_shot.measure(loaded, missing)]
      self.study.save(results)

  def report(self, results: dict[str, Any]) -> None:
    """Writes results.json, results.md and the figures, and prints the report."""
    results["differences"] = differences.measure(self.study, results["runs"], FULL.name)
    report, note = comparison.describe(results), comparison.budget_note(results["budget"])
    self.study.save(results, report)
    if transferred := comparison.transfer_points(results["runs"]):
      figures.transferred(transferred, self.study.path("figure2_left"), note)
    if progress := comparison.progress_points(results["zero_shot"]):
      figures.progress(progress, self.study.path("figure2_right"), note)
    print(report)


def _tables_and_figure(table: Sequence[str], figure: Sequence[str]) -> tuple[list[int], bool]:
  """The numbers of tables, and whether figure 2 is asked for."""
  numbers = {str(number): number for number in tables.TABLES}
  asked_tables = [choice("table", name, numbers) for name in table]
  sweep = any(choice("figure", name, {"2": True}) for name in figure)
  if not asked_tables and not sweep:
    raise InputError("nothing to reproduce: give --table=2, 3, 4 or 5, or --figure=2")
  return asked_tables, sweep


def _load(name: str, path: str) -> LoadedModel:
  loaded = load_model(path, check=LoadedModel.language_model)
  flag = "--checkpoint" if name == "transformer" else "--lstm"
  if loaded.task:
    raise InputError(f"{flag}={path} is fine-tuned; give a pre-trained checkpoint")
  if not isinstance(loaded.spec.trunk, TRUNKS[name]):
    actual, expected = type(loaded.spec.trunk).__name__, TRUNKS[name].__name__
    raise InputError(f"{flag}={path}: a {actual}; should be a {expected}")
  return loaded


def _asked_only() -> set[str]:
  """What figure 2 asks questions of, and has no examples to fine-tune on."""
  return tables.ANCHORS.keys() - {task.name for task in all_tasks()}


def _available(data_dir: str, further: Sequence[str]) -> tuple[list[str], dict[str, str]]:
  """The tasks, the paper's and further ones, with training and dev sets in the folder, and why the
  others are left out.
  """
  available: list[str] = []
  left_out: dict[str, str] = {}
  names = dict.fromkeys(name for name in further if name not in _asked_only())
  for table in tables.TABLES.values():
    for column in table.columns:
      names |= dict.fromkeys(column.tasks)
  for name in names:
    try:
      for split in ("train", "dev"):
        find(name).examples(data_dir, split)
      available.append(name)
    except MissingInput as error:
      left_out[name] = str(error)
  return available, left_out


def trained(task: str, available: Sequence[str]) -> str:
  """The task whose model is evaluated on this task: itself, or the one that shares its model."""
  for name, shared in SHARED.items():
    if task in shared and name in available:
      return name
  return task


def sized(
  budget: Budget, name: str, data_dir: str, loaded: LoadedModel, microbatches: int = 0
) -> tuple[FinetuneConfig, str]:
  """The budget's config for a task, and a note on how many of its examples are used."""
  train = dataclasses.replace(budget.config.train, microbatches=microbatches)
  config = dataclasses.replace(budget.config, task=BuiltinTask(name), train=train)
  if not budget.tokens:
    return config, ""
  task = find(name)
  limits: dict[str, Any] = {}
  notes = []
  for split in ("train", "dev"):
    examples = task.examples(data_dir, split)
    sample = loaded.encode(task, subset(examples, 300))
    limit = int(budget.tokens // sample.lengths.sum(axis=1).mean())
    limits[f"{split}_examples"] = limit if limit < len(examples) else 0
    notes.append(f"{min(limit, len(examples)):,} of {len(examples):,} {split}")
  return dataclasses.replace(config, **limits), f"({budget.name} budget: {', '.join(notes)})"
