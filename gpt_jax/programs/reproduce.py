"""The program that repeats the paper's tables 2 to 5 and figure 2: runs what is missing, puts
ours beside theirs.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpt_jax.checkpoints import store as checkpoints
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.checkpoints.run_folder import listing
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import atomic_file, write_json
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.paper import comparison, figures, zero_shot
from gpt_jax.paper import tables as paper
from gpt_jax.paper.comparison import ABLATIONS, FULL, SCRATCH, Setting
from gpt_jax.programs import evaluate, finetune
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.encoding import evenly
from gpt_jax.tasks.readers import check_data_dir
from gpt_jax.tasks.task import BuiltinTask, find
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

# What a model of one task is evaluated on too.
SHARED = {"mnli": ("mnli-mismatched",), "race": ("race-middle", "race-high")}
TRUNKS = {"transformer": TransformerConfig, "lstm": LSTMConfig}


@dataclasses.dataclass(frozen=True)
class Budget:
  """How much of the paper's recipe is run.

  Attributes:
    tokens: of the examples in one pass over the training set, or 0 for all of them; the dev set
      gets as many.
    zero_shot: examples of each task, in each split; 0: all.
    config: the recipe.
  """

  name: str
  tokens: int
  zero_shot: int
  config: FinetuneConfig


BUDGETS = {
  "paper": Budget(
    "paper", 0, 0, FinetuneConfig(train=TrainConfig(epochs=3, log_every=100, keep_checkpoints=1))
  ),
  # For a model of some million parameters on a CPU, a few minutes a run.
  "small": Budget(
    "small",
    100_000,
    500,
    FinetuneConfig(
      batch_size=16,
      optim=OptimConfig(learning_rate=5e-4, schedule="linear", warmup_steps=0, warmup_share=0.1),
      train=TrainConfig(epochs=3, log_every=100, keep_checkpoints=1),
    ),
  ),
}


def run(
  workdir: str,
  checkpoint: str,
  data_dir: str,
  *,
  lstm: str = "",
  table: Sequence[str] = (),
  figure: Sequence[str] = (),
  tasks: Sequence[str] = (),
  seeds: int = 1,
  budget: str = "paper",
  microbatches: int = 1,
) -> dict[str, Any]:
  """Runs what is missing of the tables and figures asked for, and writes all that is known in the
  workdir.

  What the paper's model learned once is learned once: MNLI for both of its dev sets; RACE, where
  both of its halves are there, for either.

  Args:
    workdir: for `runs/<setting>/<task>/seed_<n>`, `results.json`, `results.md` and the figures, PNG
      and SVG.
    checkpoint: the workdir of a pre-trained Transformer (figure 2, right, evaluates each of its
      checkpoints).
    data_dir: the folder with the official files, glue/, race/ and so on.
    lstm: the same of an LSTM, for table 5's last row and figure 2; without it they are left out.
    table: of "2", "3", "4", "5". Table 4's last column, GLUE's average, is run where all nine tasks
      are there.
    figure: of "2".
    tasks: only these; none: all of a table, and race and mnli of figure 2 (left), whose data is
      there.
    seeds: how many runs of each.
    budget: "paper", or "small" for parts of the data sets and a recipe for small models.
    microbatches: parts of a batch, to save memory.

  Returns:
    What results.json says: also that of earlier calls in the same workdir.

  Raises:
    InputError: an unknown table, figure, task or budget, or a workdir of another checkpoint, budget
      or data.
  """
  tables, sweep = _numbers("table", table, paper.TABLES), bool(_numbers("figure", figure, [2]))
  if not tables and not sweep:
    raise InputError("nothing to reproduce: give --table=2, 3, 4 or 5, or --figure=2")
  if budget not in BUDGETS:
    raise InputError(f"--budget={budget}: must be one of {', '.join(BUDGETS)}")
  for name in tasks:
    if name not in paper.ANCHORS:
      find(name)
  figures.pyplot()
  check_data_dir(data_dir)
  _check_folder(workdir)
  paths = {"transformer": checkpoint, "lstm": lstm}
  found = {name: _load(name, path) for name, path in paths.items() if path}
  asked = _Asked(workdir, data_dir, paths, found, seeds, BUDGETS[budget], microbatches)

  available, left_out = _available(data_dir)
  plan = _plan(tables, sweep, tasks, available, found)
  history = _history(asked, tasks, available, left_out) if sweep else {}
  if not plan and not history:
    reasons = _reasons(tables, sweep, tasks, left_out)
    said = "; ".join(reason.removeprefix(f"--data_dir={data_dir}: ") for reason in reasons)
    raise InputError(
      f"there is nothing to run with --data_dir={data_dir}: {said or 'no such task is in these tables'}"
    )

  with _claimed(workdir, {name: each.identity for name, each in found.items()}, budget) as results:
    results["left_out"] = left_out
    try:
      for number, (setting, task) in enumerate(plan, start=1):
        _fine_tune(asked, results, setting, task, f"{number} of {len(plan)}")
      for trunk, (folders, prepared) in history.items():
        _zero_shot(asked, results, trunk, folders, prepared)
    finally:  # whatever stopped it, what is known is told
      _report(results, workdir)
  return results


@dataclasses.dataclass(frozen=True)
class _Asked:
  """The arguments of run that every part needs, and the models."""

  workdir: str
  data_dir: str
  paths: dict[str, str]
  found: dict[str, LoadedModel]
  seeds: int
  budget: Budget
  microbatches: int


def _numbers(flag: str, values: Iterable[str], allowed: Iterable[int]) -> list[int]:
  names = {str(number): number for number in allowed}
  for value in values:
    if value not in names:
      raise InputError(f"--{flag}={value}: must be among {', '.join(names)}")
  return [names[value] for value in values]


def _check_folder(workdir: str) -> None:
  """Raises InputError where the folder is something else's."""
  names = set(listing(workdir))
  ours = {"runs", "compilation_cache", "lock"}
  strangers = [name for name in sorted(names - ours) if not name.startswith("results.json.partial")]
  if strangers and "results.json" not in names:
    raise InputError(
      f"--workdir={workdir} holds {strangers[0]!r} and no results.json; use another folder"
    )


def _load(name: str, path: str) -> LoadedModel:
  found, flag = load_model(path), "--checkpoint" if name == "transformer" else "--lstm"
  if found.task:
    raise InputError(f"{flag}={path} is fine-tuned; give a pre-trained checkpoint")
  found.language_model()  # fail before the expensive part
  if not isinstance(found.spec.trunk, TRUNKS[name]):
    raise InputError(
      f"{flag}={path}: a {type(found.spec.trunk).__name__}; should be a {TRUNKS[name].__name__}"
    )
  return found


def _available(data_dir: str) -> tuple[list[str], dict[str, str]]:
  """The paper's tasks whose training and dev sets are there, and why the others are not."""
  available, left_out = [], {}
  columns = [column for table in paper.TABLES.values() for column in table.columns]
  for name in dict.fromkeys(task for column in columns for task in column.tasks):
    try:
      for split in ("train", "dev"):
        find(name).examples(data_dir, split)
      available.append(name)
    except MissingInput as error:
      left_out[name] = str(error)
  return available, left_out


def trained(task: str, available: Sequence[str]) -> str:
  """The task whose model a table's column of this task is of."""
  return next(
    (name for name, others in SHARED.items() if task in others and name in available), task
  )


def _plan(
  tables: Sequence[int],
  sweep: bool,
  tasks: Sequence[str],
  available: Sequence[str],
  found: dict[str, LoadedModel],
) -> list[tuple[Setting, str]]:
  """What to fine-tune: (setting, task), each once."""

  def wanted(names):
    models = [(trained(name, available), name) for name in names if name in available]
    return [model for model, name in models if not tasks or name in tasks or model in tasks]

  plan = []
  for number in tables:
    settings = (
      [each for each in ABLATIONS.values() if each.trunk in found] if number == 5 else [FULL]
    )
    for column in paper.TABLES[number].columns:
      if column != paper.GLUE or set(column.tasks) <= set(available):
        plan += [(setting, task) for task in wanted(column.tasks) for setting in settings]
  if sweep:
    layers = _layers(found["transformer"])
    plan += [(setting, task) for task in wanted(tasks or paper.TRANSFER) for setting in layers]
  return list(dict.fromkeys(plan))


def _reasons(
  tables: Sequence[int], sweep: bool, tasks: Sequence[str], left_out: dict[str, str]
) -> list[str]:
  """Why what was asked for is left out, each reason once; nothing of tasks that no table asked
  for has.
  """
  names = {
    task for number in tables for column in paper.TABLES[number].columns for task in column.tasks
  }
  names |= set(tasks or paper.TRANSFER) if sweep else set()
  if tasks:
    shared = {other for name in tasks for other in SHARED.get(name, ())}
    names &= {*tasks, *shared}
  asked = [
    name for name in left_out if name in names or name.startswith("zero-shot")
  ]  # _history looked for no other
  return list(dict.fromkeys(left_out[name] for name in asked))


def _layers(found: LoadedModel) -> list[Setting]:
  """Nothing, the embeddings, and the first 1, 2, … blocks transferred; all of them is the full
  run.
  """
  blocks = found.spec.trunk.layers
  return [
    SCRATCH,
    *(Setting(f"{k}-layers", changes=(("transfer_layers", k),)) for k in range(blocks)),
    FULL,
  ]


def _history(
  asked: _Asked, tasks: Sequence[str], available: Sequence[str], left_out: dict[str, str]
) -> dict[str, tuple[list[str], dict[str, zero_shot.Prepared]]]:
  """For each model the folders of its run's checkpoints, and the zero-shot tasks that have data."""
  names = [name for name in paper.ANCHORS if not tasks or name in tasks]
  if "race" in available and "race" in names and "race-middle" not in tasks:
    names.remove("race-middle")
  history = {}
  for trunk, found in asked.found.items():
    prepared = {}
    for name in names:
      try:
        prepared |= zero_shot.prepare(found, asked.data_dir, [name], asked.budget.zero_shot)
      except MissingInput as error:
        left_out[f"zero-shot {name}"] = str(error)
    try:
      folders = zero_shot.checkpoints(asked.paths[trunk])
    except MissingInput as error:
      left_out[f"zero-shot of the {trunk}"] = str(error)
      continue
    if prepared:
      history[trunk] = folders, prepared
  return history


@contextlib.contextmanager
def _claimed(workdir: str, models: dict[str, str], budget: str) -> Iterator[dict[str, Any]]:
  """What earlier calls in this workdir found, held by this process alone. Raises InputError
  where it is another's.
  """
  path = os.path.join(workdir, "results.json")
  with checkpoints.lock(workdir):
    results = {"budget": budget, "checkpoints": models, "runs": {}, "zero_shot": {}}
    if os.path.exists(path):
      try:
        with open(path, encoding="utf-8") as file:
          results |= json.load(file)
      except (ValueError, TypeError) as error:
        raise InputError(
          f"{path}: cannot be read ({error}); remove it: the runs stay, and are found again"
        ) from error
    before = results["checkpoints"]
    if results["budget"] != budget or any(
      before.get(name, model) != model for name, model in models.items()
    ):
      raise InputError(
        f"--workdir={workdir} holds results of budget {results['budget']} and the checkpoints {before}, "
        f"not of {budget} and {models}; use another folder"
      )
    before.update(models)
    yield results


def _fine_tune(
  asked: _Asked, results: dict[str, Any], setting: Setting, task: str, which: str
) -> None:
  """Makes the runs of one setting and task that are missing, and notes what all of them found."""
  known, primary = results["runs"].setdefault(setting.name, {}), find(task).primary_metric
  others = [
    name
    for name in SHARED.get(task, ())
    if setting in ABLATIONS.values() and name not in results["left_out"]
  ]
  if all(len(known.get(name, {}).get("seeds", ())) >= asked.seeds for name in (task, *others)):
    return
  config, note = sized(
    asked.budget, task, asked.data_dir, asked.found[setting.trunk], asked.microbatches
  )
  config = dataclasses.replace(config, **dict(setting.changes))
  _say(f"{which}: {task}, {setting.name} {note}")
  count = max(asked.seeds, len(known.get(task, {}).get("seeds", ())))
  folder = os.path.join(asked.workdir, "runs", setting.name, task)
  # With one seed the folder would be the run's own, and no more seeds could be added.
  each = (
    {"workdir": folder, "seeds": count}
    if count > 1
    else {"workdir": os.path.join(folder, "seed_0")}
  )
  outcome = finetune.run(config, asked.data_dir, asked.paths[setting.trunk], **each)
  known[task] = {"metric": primary, "note": note, **finetune.summary(outcome)}
  for name in others:
    of_name = []
    for run in outcome:
      best = os.path.join(folder, f"seed_{run['seed']}", "best")
      found = {
        f"dev_{k}": v
        for k, v in evaluate.run(best, asked.data_dir, "dev", task=name).items()
        if k != "examples"
      }
      of_name.append({**run, "task": name, "dev": found, "best": found})
    known[name] = {
      "metric": primary,
      "note": f"the best checkpoints of {task}",
      **finetune.summary(of_name),
    }
  write_json(os.path.join(asked.workdir, "results.json"), results)


def _zero_shot(
  asked: _Asked,
  results: dict[str, Any],
  trunk: str,
  folders: list[str],
  prepared: dict[str, zero_shot.Prepared],
) -> None:
  """Evaluates what is missing of every checkpoint of a run."""
  known, score = (
    results["zero_shot"].setdefault(trunk, []),
    zero_shot.make_scorer(asked.found[trunk].language_model()),
  )
  _say(f"zero-shot, {trunk}: {len(folders)} checkpoints ({asked.budget.name} budget)")
  for folder in folders:
    done = {each["task"] for each in known if each["step"] == int(os.path.basename(folder))}
    missing = {name: each for name, each in prepared.items() if name not in done}
    if not missing:
      continue
    try:
      found = load_model(folder)
    except InputError as error:
      _say(f"left out: {error}")
      continue
    known += [result._asdict() for result in zero_shot.measure(found, missing, score)]
    write_json(os.path.join(asked.workdir, "results.json"), results)


def sized(
  budget: Budget, name: str, data_dir: str, found: LoadedModel, microbatches: int = 1
) -> tuple[FinetuneConfig, str]:
  """The budget's config for a task, and how many of its examples that is, in words."""
  counts, notes = {}, []
  config = dataclasses.replace(budget.config, task=BuiltinTask(name))
  config = dataclasses.replace(
    config, train=dataclasses.replace(config.train, microbatches=microbatches)
  )
  if not budget.tokens:
    return config, ""
  task = find(name)
  for split in ("train", "dev"):
    examples = task.examples(data_dir, split)
    sample = task.encode(evenly(examples, 300), found.tokenizer, found.spec.trunk.context)
    most = int(budget.tokens // sample.lengths.sum(axis=1).mean())
    counts[f"{split}_examples"] = most if most < len(examples) else 0
    notes.append(f"{min(most, len(examples)):,} of {len(examples):,} {split}")
  return dataclasses.replace(config, **counts), f"({budget.name} budget: {', '.join(notes)})"


def _report(results: dict[str, Any], workdir: str) -> None:
  write_json(os.path.join(workdir, "results.json"), results)
  report, path = comparison.describe(results), os.path.join(workdir, "results.md")
  with atomic_file(path) as file:
    file.write(report)
  _draw(results, workdir)
  print(report)


def _draw(results: dict[str, Any], workdir: str) -> None:
  note = "" if results["budget"] == "paper" else f" ({results['budget']} budget)"
  if ablations := comparison.ablation_points(results["runs"]):
    figures.ablations(ablations, os.path.join(workdir, "table5"), note)
  if transferred := comparison.transfer_points(results["runs"]):
    figures.transferred(transferred, os.path.join(workdir, "figure2_left"), note)
  if progress := comparison.progress_points(results["zero_shot"]):
    figures.progress(progress, os.path.join(workdir, "figure2_right"), note)


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)
