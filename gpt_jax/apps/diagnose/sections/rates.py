"""The map of learning rates and seeds."""

import collections
from typing import Any

from gpt_jax.apps.diagnose.sections.figure import Map, drawn_figures
from gpt_jax.apps.report import chart
from gpt_jax.apps.report.answers import Answer
from gpt_jax.apps.report.chart import Level, Line


def safe_rates(part: dict[str, Any]) -> Answer:
  learned = [entry["rate"] for entry in part["rates"] if entry["shares"]["learned"] == 1]
  best = min(part["rates"], key=lambda entry: entry["median_loss"] or float("inf"))
  seeds = len(part["rates"][0]["runs"])
  verdict = f"{min(learned):g} to {max(learned):g}" if learned else "none of these"
  if len(learned) == 1:
    verdict = f"{learned[0]:g}"
  lost: collections.Counter[str] = collections.Counter()
  for entry in part["rates"]:
    lost.update(run["outcome"] for run in entry["runs"])
  text = (
    f"Of {seeds * len(part['rates'])} runs of {part['steps']:,} updates {lost['stuck']} did not "
    f"get below the unigram entropy, {lost['diverged']} diverged. The lowest median loss has "
    f"{best['rate']:g}."
  )
  return Answer("Which learning rates learn with every seed?", verdict, text, "plain")


def rates_view(part: dict[str, Any]) -> dict[str, Any]:
  entries, seeds = part["rates"], len(part["rates"][0]["runs"])
  shades = {"learned": (35, "right"), "stuck": (30, "error"), "diverged": (80, "error")}
  rows = []
  for entry in entries:
    cells = []
    for run in entry["runs"]:
      loss = "none" if run["loss"] is None else f"{run['loss']:.2f}"
      cells.append((f"{loss} {run['outcome']}", *shades[run["outcome"]]))
    rows.append((f"{entry['rate']:g}", cells))
  rates = [entry["rate"] for entry in entries]
  shares = []
  for name, color in (("learned", 0), ("stuck", 4), ("diverged", 5)):
    percent = [100 * entry["shares"][name] for entry in entries]
    shares.append(Line(name, rates, percent, color, "dots"))
  medians = Line("median over seeds", rates, [entry["median_loss"] for entry in entries], 0, "dots")
  level = Level(f"unigram entropy {part['unigram_entropy']:.2f}", part["unigram_entropy"])
  return {
    "about": (
      f"{part['parameters']:,} parameters, width {part['width']}, {part['steps']:,} updates."
    ),
    "map": Map(
      "Held-out loss by peak learning rate and seed",
      "Stuck: not 0.1 nats below the unigram entropy, so nothing was learned but word frequencies; "
      "diverged: above the loss before training, or not finite.",
      ["rate", *(f"seed {seed}" for seed in range(seeds))],
      rows,
    ),
    "figures": drawn_figures(
      (
        chart.draw(
          "How the runs end",
          "% of the seeds",
          shares,
          x_log=True,
          y_range=(0, 100),
          x_name="peak learning rate, logarithmic",
        ),
        "Share of the seeds that learn, get stuck or diverge at each rate.",
      ),
      (
        chart.draw(
          "Loss and rate",
          "held-out nats per token",
          [medians],
          [level],
          may_be_log=True,
          x_log=True,
          x_name="peak learning rate, logarithmic",
        ),
        "The loss at the end; the level is that of a model that knows only word frequencies.",
      ),
    ),
  }
