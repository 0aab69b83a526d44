"""The content of results.json as Markdown; cells of rows that are not run yet are empty."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gpt_jax.apps import study
from gpt_jax.apps.compare.budgets import Budget
from gpt_jax.apps.compare.rows import Row
from gpt_jax.errors import counted

Results = dict[str, Any]
Table = list[dict[str, str]]  # rows: column -> cell
_COSTS: tuple[str, ...] = ("trunk", "head's parameters", "peak rate", "held-out loss")
_COSTS += ("predicted, M", "PFLOP", "seconds")


def describe(results: Results, budget: Budget, rows: Mapping[str, Row]) -> str:
  positions = budget.batch_size * budget.length
  tokens = budget.steps * positions
  rates = f"Peak learning rate {budget.rates[0]:g}."
  if len(budget.rates) > 1:
    listed = ", ".join(f"{rate:g}" for rate in budget.rates)
    rates = f"The best peak learning rate of {listed}, by the last held-out loss."
  batch, epochs, rate = budget.finetuning
  examples = f", at most {budget.examples:,} labels" if budget.examples else ""
  captions = {
    "Pre-training": "Each loss is the objective's own, in nats: compare it with the same "
    "objective's only. Seconds are those of the training steps alone, at a pace that was measured "
    "in turns. Rows without a loss read no text before fine-tuning, or that of the row they start "
    "from.",
    "Fine-tuned": "Dev set after the last update, in percent, mean ± standard deviation over "
    f"{counted(budget.seeds, 'seed')}: {counted(epochs, 'epoch')} in batches of {batch}, peak "
    f"learning rate {rate:g}{examples}, no auxiliary loss. The checkpoint names format and head. "
    "An empty cell: the system has no head for the task.",
    "Linear probe, equal steps": "Logistic regression on the mean state of the frozen trunk; dev "
    "set, in percent.",
    "Linear probe, equal seconds": "The same runs, read at the last checkpoint within the time "
    "that the fastest one needs. Their learning rates have not fallen there as far as they would "
    "have in shorter runs.",
  }
  lines = [
    f"# Pre-training objectives and systems compared ({budget.name} budget)",
    "",
    f"One text, one vocabulary, trunks of about one size. {budget.steps:,} steps of {positions:,} "
    f"positions ({tokens / 1e6:.1f}M), one seed. {rates}",
    "",
  ]
  of_all = results, budget, rows
  tables = {
    "Pre-training": pretraining(*of_all),
    "Fine-tuned": fine_tuned(*of_all),
    "Linear probe, equal steps": probed(*of_all, equal_seconds=False),
    "Linear probe, equal seconds": probed(*of_all, equal_seconds=True),
  }
  for title, table in tables.items():
    cells = (line.values() for line in table)
    lines += [f"## {title}", "", captions[title], "", *study.table(list(table[0]), cells), ""]
  return "\n".join(lines)


def pretraining(results: Results, budget: Budget, rows: Mapping[str, Row]) -> Table:
  """Cost, peak learning rate and held-out loss of each objective."""
  table = []
  for name, row in rows.items():
    cells = dict.fromkeys(_COSTS, "")
    if cost := results["costs"].get(name):
      cells["trunk"] = f"{cost['trunk']:,}"
      cells["head's parameters"] = f"{cost['head']:,}"
      if row.is_pretrained:
        cells["predicted, M"] = f"{cost['predicted'] * budget.steps / 1e6:.2f}"
        cells["PFLOP"] = f"{cost['flops'] * budget.steps / 1e15:.3g}"
    if name in results["pace"]:
      cells["seconds"] = f"{results['pace'][name] * budget.steps:,.0f}"
    if name in results["losses"]:
      cells["peak rate"] = f"{results['chosen'][name]:g}"
      cells["held-out loss"] = _loss(results["losses"][name][-1][1], row)
    elif len(results["trials"].get(name, {})) >= len(budget.rates):  # and none ended with a loss
      cells["held-out loss"] = "diverged"
    table.append({"objective": row.title, **cells})
  return table


def fine_tuned(results: Results, budget: Budget, rows: Mapping[str, Row]) -> Table:
  """Dev results of every task, and their averages."""
  table = []
  for name, row in rows.items():
    values = results["tasks"].get(name, {})
    means = {task: statistics.mean(scores) for task, scores in values.items()}
    cells = {"format and head": results["format_and_head"].get(name, "")}
    for task in budget.all_tasks:
      cells[task] = study.percent(values[task]) if task in values else ""
    table.append({"objective": row.title, **cells, **_averages(means, budget)})
  return table


def probed(
  results: Results, budget: Budget, rows: Mapping[str, Row], *, equal_seconds: bool
) -> Table:
  """The probes of each objective's last checkpoint, or of that at equal seconds."""
  table = []
  for name, row in rows.items():
    probes = results["probes"].get(name, {})
    cells = {}
    step = budget.steps
    if equal_seconds:
      step = step_at_equal_seconds(results, budget, name) if name in results["pace"] else 0
      known = dict(results["losses"].get(name, []))
      cells["step"] = f"{step:,}" if row.is_pretrained else ""
      cells["held-out loss"] = _loss(known[step], row) if step in known else ""
    # A trunk that was not trained has one checkpoint, before any step.
    scores = probes.get(str(step if row.is_pretrained else 0), {})
    for task in results["probed_tasks"]:
      cells[task] = f"{100 * scores[task]:.1f}" if task in scores else ""
    averages = _averages(scores, budget, results["probed_tasks"])
    table.append({"objective": row.title, **cells, **averages})
  return table


def step_at_equal_seconds(results: Results, budget: Budget, name: str) -> int:
  """The last evaluated step within the time of the fastest objective's whole run; 0: none."""
  affordable = budget.steps * min(results["pace"].values()) / results["pace"][name]
  # The last step is evaluated even where it is no multiple of evaluate_every.
  if affordable >= budget.steps:
    return budget.steps
  return int(affordable) // budget.evaluate_every * budget.evaluate_every


def _averages(
  scores: Mapping[str, float], budget: Budget, scored: Sequence[str] | None = None
) -> dict[str, str]:
  """The mean over the budget's tasks that are `scored` in every row, and with the shown ones."""
  cells = {}
  with_shown = f"with {', '.join(budget.shown)}"
  for title, tasks in (("average", budget.tasks), (with_shown, budget.all_tasks)):
    known = [task for task in tasks if scored is None or task in scored]
    if title == "average" or set(known) & set(budget.shown):
      # A mean over fewer tasks could not be compared with the other rows'.
      complete = known and all(task in scores for task in known)
      cells[title] = f"{100 * statistics.mean(scores[t] for t in known):.1f}" if complete else ""
  return cells


def _loss(value: float, row: Row) -> str:
  return f"BLEU {-value:.1f}" if row.translates else f"{value:.3f}"
