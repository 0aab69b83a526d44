"""The program that repeats the paper's tables 2 to 5 and its figure 2: runs what is missing, prints ours beside theirs."""

import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gpt_jax import finetune, paper, pretrained, zero_shot
from gpt_jax import workdir as workdirs
from gpt_jax.data.examples import evenly
from gpt_jax.errors import InputError
from gpt_jax.finetune import FinetuneConfig
from gpt_jax.optim import OptimConfig
from gpt_jax.pretrained import Pretrained
from gpt_jax.seeds import spread
from gpt_jax.tasks.task import Named, find
from gpt_jax.train import TrainConfig


class Setting(NamedTuple):
  """A row of table 5, or a point of figure 2: which checkpoint is fine-tuned, and what differs from the recipe."""

  name: str
  trunk: str = "transformer"
  changes: tuple[tuple[str, Any], ...] = ()


FULL = Setting("full")
SCRATCH = Setting("no-pretraining", changes=(("transfer_layers", -1),))
ABLATIONS = dict(
  zip(
    paper.TABLES[5].rows, (FULL, SCRATCH, Setting("no-aux-lm", changes=(("text_weight", 0.0),)), Setting("lstm", "lstm")), strict=True
  )
)


@dataclasses.dataclass(frozen=True)
class Budget:
  """How much of the paper's recipe is run.

  Attributes:
    tokens: of the examples in one pass over the training set, or 0 for all of them; the dev set gets as many.
    zero_shot: examples of each task, in each split; 0: all.
    config: the recipe.
  """

  name: str
  tokens: int
  zero_shot: int
  config: FinetuneConfig


BUDGETS = {
  "paper": Budget("paper", 0, 0, FinetuneConfig(train=TrainConfig(epochs=3, log_every=100))),
  # For a model of some million parameters on a CPU, a few minutes a run.
  "small": Budget(
    "small",
    100_000,
    1000,
    FinetuneConfig(
      batch_size=16,
      optim=OptimConfig(learning_rate=5e-4, schedule="linear", warmup_steps=0, warmup_share=0.1),
      train=TrainConfig(epochs=3, log_every=100),
    ),
  ),
}


def run(
  workdir: str,
  checkpoint: str,
  data_dir: str,
  *,
  lstm: str = "",
  tables: Sequence[int] = (),
  figures: Sequence[int] = (),
  tasks: Sequence[str] = (),
  seeds: int = 1,
  budget: str = "paper",
) -> dict[str, Any]:
  """Runs what is missing of the tables and figures asked for, and writes all that is known in the workdir.

  Args:
    workdir: for `runs/<setting>/<task>/seed_<n>`, `results.json`, `results.md` and the figures, PNG and SVG.
    checkpoint: the workdir of a pre-trained Transformer (figure 2 evaluates each of its checkpoints).
    data_dir: the folder with the official files, glue/, race/ and so on.
    lstm: the same of an LSTM, for table 5's last row and figure 2; without it they are left out.
    tables: of 2, 3, 4, 5.
    figures: of 2.
    tasks: only these; none: all of a table (figure 2, left: race-middle and mnli) whose data is there.
    seeds: how many runs of each.
    budget: "paper", or "small" for parts of the data sets and a recipe for small models.

  Returns:
    What results.json says: also that of earlier calls in the same workdir.

  Raises:
    InputError: an unknown table, figure, task or budget, or a workdir of another checkpoint, budget or data.
  """
  _check(tables, figures, tasks, budget)
  chosen = BUDGETS[budget]
  found = {"transformer": pretrained.load(checkpoint)} | ({"lstm": pretrained.load(lstm)} if lstm else {})
  paths = {"transformer": checkpoint, "lstm": lstm}
  results = _claim(workdir, {name: each.step for name, each in found.items()}, budget)

  settings = {name: each for name, each in ABLATIONS.items() if each.trunk in found}
  wanted = [task for number in tables for column in paper.TABLES[number].columns for task in column.tasks]
  available = _available(data_dir, [name for name in dict.fromkeys(wanted) if not tasks or name in tasks])
  plan = [(setting, task) for task in available for setting in (settings.values() if 5 in tables else [FULL])]
  layers = _layers(found["transformer"]) if figures else []
  moved = _available(data_dir, tasks or list(paper.TRANSFER)) if figures else []
  plan += [(setting, task) for task in moved for setting in layers]

  for number, (setting, task) in enumerate(dict.fromkeys(plan), start=1):
    config, note = sized(chosen, task, data_dir, found[setting.trunk])
    config = dataclasses.replace(config, **dict(setting.changes))
    _say(f"{number} of {len(set(plan))}: {task}, {setting.name} {note}")
    folder = os.path.join(workdir, "runs", setting.name, task)
    # With one seed the folder would be the run's own, and no more seeds could be added.
    each = {"workdir": folder, "seeds": seeds} if seeds > 1 else {"workdir": os.path.join(folder, "seed_0")}
    outcome = finetune.run(config, data_dir, paths[setting.trunk], **each)
    primary = find(task).primary_metric
    results["runs"].setdefault(setting.name, {})[task] = {
      "metric": primary,
      "note": note,
      "degenerate": [result["seed"] for result in outcome if "dev_degenerate" in result["best"]],
      "best": spread([100 * result["best"][f"dev_{primary}"] for result in outcome])._asdict(),
      "last": spread([100 * result["dev"][f"dev_{primary}"] for result in outcome])._asdict(),
    }
    workdirs.write_json(os.path.join(workdir, "results.json"), results)
  if figures:
    for trunk in found:
      _say(f"zero-shot: every checkpoint of {paths[trunk]}, {chosen.zero_shot or 'all'} examples")
      names = [name for name in paper.ANCHORS if not tasks or name in tasks]
      results["zero_shot"][trunk] = _zero_shot(results["zero_shot"].get(trunk, []), paths[trunk], data_dir, names, chosen)
      workdirs.write_json(os.path.join(workdir, "results.json"), results)
  report = describe(results)
  with open(os.path.join(workdir, "results.md.partial"), "w", encoding="utf-8") as file:
    file.write(report)
  os.replace(os.path.join(workdir, "results.md.partial"), os.path.join(workdir, "results.md"))
  print(report)
  return results


def _check(tables: Iterable[int], figures: Iterable[int], tasks: Iterable[str], budget: str) -> None:
  for flag, values, allowed in (("table", tables, sorted(paper.TABLES)), ("figure", figures, [2])):
    for value in values:
      if value not in allowed:
        raise InputError(f"--{flag}={value}: must be among {', '.join(map(str, allowed))}")
  if not tables and not figures:
    raise InputError("nothing to reproduce: give --table=2, 3, 4 or 5, or --figure=2")
  if budget not in BUDGETS:
    raise InputError(f"--budget={budget}: must be one of {', '.join(BUDGETS)}")
  for name in tasks:
    if name not in zero_shot.TASKS:
      find(name)
