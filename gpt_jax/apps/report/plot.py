"""Draws the curves of runs into a picture, with matplotlib (extra `plots`)."""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.report.figures import OKABE_ITO, make_figure
from gpt_jax.apps.report.page import Group, entropies, group_runs, run_names
from gpt_jax.apps.report.record import Record, find_runs
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file
from gpt_jax.programs.outputs import check_out

NAME = "curves.png"
_SUFFIXES = (".png", ".svg", ".pdf")
_LINES = ("-", "--", "-.", ":")


def run(workdirs: Sequence[str], out: str = "", *, overwrite: bool = False) -> str:
  """Draws the picture and returns its path.

  Args:
    workdirs: folders of runs, or of runs of several seeds; several are compared.
    out: picture to write: .png, .svg or .pdf; by default curves.png in the workdir, if it is only
      one, where it is replaced.
    overwrite: replace an existing output.
  """
  folders = find_runs(workdirs)
  if not out:
    if len(workdirs) > 1:
      raise InputError("several runs have no folder of their own: name the picture, --out=FILE.png")
    out, overwrite = os.path.join(workdirs[0], NAME), True
  if not out.lower().endswith(_SUFFIXES):
    raise InputError(f"--out={out}: the name of a picture ends in {', '.join(_SUFFIXES)}")
  check_out(out, overwrite)
  make_figure()  # fail before reading
  runs = list(map(Record, folders))
  if not any(record.values("loss") or record.values(record.metric) for record in runs):
    names = ", ".join(folders)
    raise InputError(f"{names}: nothing to draw; metrics.jsonl has no finite loss or evaluation")
  try:
    _draw_curves(group_runs(runs, run_names(folders)), out)
  except OSError as error:
    raise InputError(f"--out={out}: {error.strerror or error}") from error
  return out


def _draw_curves(groups: Sequence[Group], path: str) -> None:
  """Draws training loss, evaluations and learning rate by step, a color per group: the mean over
  its seeds at the steps that all have, with a band of one standard deviation.
  """
  import matplotlib

  panels = _panels(groups)
  figure = make_figure(9, 1.2 + 2.6 * len(panels))
  column = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
  for axes, (title, unit, names, values) in zip(column, panels, strict=True):
    for number, group in enumerate(groups):
      for name in names:
        _draw_group(axes, group, name, number)
    if unit == "nats":
      titles, runs, _ = zip(*groups, strict=True)
      # A group has one text.
      levels = entropies([first for first, *_ in runs], titles, "valid_loss", "loss")
      for level in levels:
        color = "gray" if len(levels) == 1 else OKABE_ITO[level.color % len(OKABE_ITO)]
        axes.axhline(level.y, linestyle=":", color=color, label=level.label)
      if 0 < 50 * min(values) < max(values):  # as after a divergence
        axes.set(yscale="log")
    axes.set(ylabel=f"{title}, {unit}" if unit else title)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
  column[-1].set(xlabel="step")
  kind = path.rpartition(".")[2].lower()
  # Without a date and with fixed ids the same runs give the same file.
  metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
  with matplotlib.rc_context({"svg.hashsalt": "gpt_jax"}), atomic_file(path, "wb") as file:
    figure.savefig(file, format=kind, dpi=120, metadata=metadata)


def _panels(groups: Sequence[Group]) -> list[tuple[str, str, list[str], list[float]]]:
  """(title, unit, metrics, their finite values) of the panels for which there is any."""
  runs = list(itertools.chain.from_iterable(group.runs for group in groups))
  panels = [("loss", "nats", ["loss", "valid_loss"])]
  for name in dict.fromkeys(run.metric for run in runs if run.task is not None):
    panels.append((name.removeprefix("dev_"), "dev set", [name]))
  panels.append(("learning rate", "", ["learning_rate"]))
  drawn = []
  for title, unit, names in panels:
    values: list[float] = []
    for run, name in itertools.product(runs, names):
      values += run.values(name)
    if values:
      drawn.append((title, unit, names, values))
  return drawn


def _draw_group(axes: Any, group: Group, metric: str, number: int) -> None:
  if not any(run.points(metric) for run in group.runs):
    return
  steps, mean, deviation = _over_seeds(group.runs, metric)
  color = OKABE_ITO[number % len(OKABE_ITO)]
  evaluated = metric.startswith(("valid_", "dev_"))
  label = group.name + {"loss": ", training", "valid_loss": ", held-out"}.get(metric, "")
  look = {
    "marker": "o" if evaluated or np.isfinite(mean).sum() == 1 else None,
    "linewidth": 1.8 if evaluated else 1.2,
    "linestyle": _LINES[number // len(OKABE_ITO) % len(_LINES)],
    "alpha": 0.65 if metric == "loss" else 1.0,
  }
  axes.plot(steps, mean, markersize=4, color=color, label=label, **look)
  if (deviation > 0).any():
    low, high = mean - deviation, mean + deviation
    axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)


def _over_seeds(runs: Sequence[Record], metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Steps that every run has, means and sample standard deviations; nan where one has a gap."""
  by_step = [dict(zip(*run.series(metric), strict=True)) for run in runs]
  shared = sorted(set.intersection(*map(set, by_step)))
  # [runs, steps]
  table = np.array([list(map(values.__getitem__, shared)) for values in by_step], np.float64)
  return np.array(shared), table.mean(axis=0), table.std(axis=0, ddof=len(runs) > 1)
