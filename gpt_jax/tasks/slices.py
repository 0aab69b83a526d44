"""The score by the values of a further column of a table, such as language, queue or week."""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.errors import InputError, require

MIN_ROWS = 10  # of a value of its own
_MOST = 12  # values; the rarest others are one slice
_SHOWN = 40  # characters of a value
_CHANCE = 0.05


class Slices(NamedTuple):
  """Rows by the value of a column."""

  column: str
  of_row: list[str]  # the value of each of N rows, or "other (n)" of n rare ones

  def measure(self, scores: np.ndarray) -> dict[str, Any]:
    """The mean score of each slice with its 95 % interval (Wilson 1927), the largest first.

    "different" is the slice whose mean is furthest from that of all other rows, "others", if that
    is more than chance at 5 % among so many slices (Bonferroni): by Fisher's exact test, of
    confidences by Welch's.

    scores: [N]: whether the label of each row is right, bool, or the confidence in it.
    """
    stats = require("scipy.stats", "slices", "scipy", "metrics")
    counts, of_row = collections.Counter(self.of_row).most_common(), np.array(self.of_row, object)
    are_shares, furthest = scores.dtype == bool, 0.0
    report: dict[str, Any] = {"column": self.column, "different": "", "slices": []}
    report["measure"] = "accuracy" if are_shares else "confidence"
    for name, rows in counts:
      ours, others = scores[of_row == name], scores[of_row != name]
      mean, margin = float(ours.mean()), 1.96 * float(ours.std()) / rows**0.5
      interval = max(0.0, mean - margin), min(1.0, mean + margin)
      if are_shares:
        interval = tuple(stats.binomtest(ours.sum(), rows).proportion_ci(method="wilson"))
      report["slices"].append({"slice": name, "rows": rows, "score": mean, "interval": interval})
      if min(rows, len(others)) < MIN_ROWS:
        continue
      if are_shares:
        cells = [[side.sum(), len(side) - side.sum()] for side in (ours, others)]
        chance = stats.fisher_exact(cells).pvalue
      else:
        chance = stats.ttest_ind(ours, others, equal_var=False).pvalue
      if chance < _CHANCE / len(counts) and abs(mean - others.mean()) > furthest:
        furthest = abs(mean - others.mean())
        report |= {"different": name, "others": float(others.mean())}
    return report


def make_slices(column: str, values: Sequence[str]) -> Slices:
  """The slices of rows by what the column has in each."""
  counts = collections.Counter(values).most_common()
  common = [value for value, count in counts[:_MOST] if count >= MIN_ROWS]
  if not common:
    raise InputError(
      f"slices={column}: none of its {len(counts):,} values has {MIN_ROWS} of the {len(values):,} "
      "measured rows; it needs more rows, or a column of fewer values, such as a language"
    )
  other = f"other ({len(counts) - len(common):,})"
  shown = {value: " ".join(value.split())[:_SHOWN] or "(empty)" for value in common}
  # Values that look alike when cut, such as addresses of one site, are slices of their own.
  alike = collections.Counter([other, *shown.values()])
  titles = {value: repr(value) if alike[title] > 1 else title for value, title in shown.items()}
  return Slices(column, [titles.get(value, other) for value in values])


def about_slices(report: dict[str, Any]) -> str:
  """One sentence on the slice that differs most."""
  for entry in report["slices"]:
    if entry["slice"] == report["different"]:
      return (
        f"{report['column']} {entry['slice']} differs most: {report['measure']} "
        f"{entry['score']:.1%}, that of all other rows {report['others']:.1%}, more than chance "
        f"among {len(report['slices'])} values."
      )
  return f"No value of {report['column']} differs from the other rows by more than chance."


def format_slices(report: dict[str, Any]) -> str:
  """The report as a table for the console."""
  width = max([len(report["column"]), *(len(entry["slice"]) for entry in report["slices"])])
  lines = [f"{report['column']:{width}}     rows  {report['measure']:>10}  95 % interval"]
  for entry in report["slices"]:
    low, high = entry["interval"]
    score = f"{entry['rows']:8,}  {entry['score']:10.1%}  {low:.1%} to {high:.1%}"
    lines.append(f"{entry['slice']:{width}} {score}")
  return "\n".join([*lines, about_slices(report)])
