"""Line charts as geometry for a page: paths, ticks and a table, in shares of the plotting area.

The page stretches a path to the width of the screen and writes its labels as text of constant size,
so that a chart can be read on a phone and follows dark mode. Colors are numbers of the page's
color-blind-safe palette (Okabe and Ito 2008).
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

_MAX_POINTS = 400  # of a path; more cannot be told apart
_TABLE_ROWS = 12
_UNITS = 1000  # of a path's coordinates, both ways


@dataclasses.dataclass(frozen=True)
class Line:
  """A series.

  Attributes:
    label: the legend's text.
    x, y: its points; a y that is None or not finite is a gap.
    color: number in the palette.
    style: "line", "thin", "dots" (line and dots), "points", or "reference" (thin and dashed).
  """

  label: str
  x: Sequence[float]
  y: Sequence[float | None]
  color: int = 0
  style: str = "line"


@dataclasses.dataclass(frozen=True)
class Level:
  """A horizontal line of reference, such as the unigram entropy."""

  label: str
  y: float
  color: int = 7


@dataclasses.dataclass(frozen=True)
class Drawn:
  """A chart for the template.

  Attributes:
    title, unit: above it, and of the values.
    paths: {"d", "style", "color"}, in 0..1000 from the upper left corner.
    x_ticks, y_ticks: (percent from the left or from the bottom, text).
    legend: {"label", "style", "color"} in the order of the paths.
    head, rows: the table under the chart.
    log: whether y is logarithmic.
    summary: what a screen reader says in place of the picture.
  """

  title: str
  unit: str
  paths: list[dict]
  x_ticks: list[tuple[float, str]]
  y_ticks: list[tuple[float, str]]
  legend: list[dict]
  head: list[str]
  rows: list[list[str]]
  log: bool
  summary: str


def draw(
  title: str,
  unit: str,
  lines: Sequence[Line],
  levels: Sequence[Level] = (),
  *,
  may_be_log: bool = False,
  y_log: bool = False,
  x_log: bool = False,
  x_name: str = "step",
  y_range: tuple[float, float] | None = None,
  x_range: tuple[float, float] | None = None,
) -> Drawn | None:
  """The chart of these lines; None if none of them has a finite point.

  Args:
    may_be_log: whether y is logarithmic if it spans a factor of 50, as after a divergence.
    y_log, x_log: whether an axis, whose values are above 0 then, is logarithmic.
    x_name: of the horizontal axis.
    y_range, x_range: the ends of the axes; None: those of the points.
  """
  drawn, points_of = [], []  # the lines that have points
  for line in lines:
    points = _finite(line)
    if len(points):
      drawn.append(line)
      points_of.append(points)
  if not drawn:
    return None
  every_point = np.concatenate(points_of)
  all_y = [*every_point[:, 1], *(level.y for level in levels)]
  log = y_log or (may_be_log and min(all_y) > 0 and max(all_y) > 50 * min(all_y))
  first_x, last_x = every_point[:, 0].min(), every_point[:, 0].max()
  x_low, x_high = x_range or (first_x if x_log else min(0.0, first_x), last_x)
  y_low, y_high = y_range or _padded(min(all_y), max(all_y), log)
  x_axis, y_axis = _Axis(x_low, x_high, x_log), _Axis(y_low, y_high, log)

  paths, legend = [], []
  for level in levels:
    y = _UNITS * (1 - y_axis.share(level.y))
    look = {"style": "level", "color": level.color}
    paths.append({"d": f"M0 {y:.1f}H{_UNITS}", **look})
    legend.append({"label": level.label, **look})
  summaries = []
  for line, points in zip(drawn, points_of, strict=True):
    look = {"style": line.style, "color": line.color}
    if line.style != "points":
      paths.append({"d": _path(line, x_axis, y_axis), **look})
    if line.style in ("dots", "points") or len(points) == 1:  # a line has no length then
      paths.append({"d": _dots(line, x_axis, y_axis), **look, "style": "points"})
    legend.append({"label": line.label, **look})
    summaries.append(_summary(line, points, x_name))
  head, rows = _table(drawn, x_name)
  return Drawn(
    title,
    unit,
    paths,
    [(100 * x_axis.share(tick), short(tick)) for tick in x_axis.ticks(4)],
    [(100 * y_axis.share(tick), short(tick)) for tick in y_axis.ticks(5)],
    legend,
    head,
    rows,
    log,
    "; ".join(summaries),
  )


def short(value: float | None) -> str:
  """A number in at most about six characters: 1,200, 1.2M, 0.034, 2e-09."""
  if value is None or not math.isfinite(value):
    return "none"
  size = abs(value)
  for limit, factor, letter in ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M")):
    if size >= limit:
      return f"{value / factor:.3g}{letter}" if size < 1000 * limit else f"{value:.2e}"
  if size >= 1000:
    return f"{value:,.0f}"
  if size and size < 0.1:
    return f"{value:.3g}"
  return f"{value:.4g}" if size >= 10 else f"{value:.3f}".rstrip("0").rstrip(".")


class _Axis:
  """A scale from values to shares of the plotting area."""

  def __init__(self, low: float, high: float, log: bool = False):
    self.low, self.high, self.log = low, high if high > low else low + 1, log

  def share(self, value: float) -> float:
    low, high = self.low, self.high
    if self.log:
      low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
    return min(1.0, max(0.0, (value - low) / (high - low)))

  def ticks(self, count: int) -> list[float]:
    """About so many round values inside the scale."""
    if self.log:
      lowest, highest = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
      every = max(1, -(-(highest - lowest + 1) // count))
      powers = [10.0**power for power in range(lowest, highest + 1, every)]
      if len(powers) > 2:
        return powers
      # Few powers of ten are inside: 2 and 5 times a power as well.
      inside = []
      for power in range(lowest - 1, highest + 1):
        ticks = (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
        inside += [tick for tick in ticks if self.low <= tick <= self.high * (1 + 1e-9)]
      if len(inside) > 1:
        return inside
    step = _round_step((self.high - self.low) / count)
    first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _round_step(step: float) -> float:
  """The first of 1, 2, 5, 10, … times a power of ten that is not below."""
  power = 10.0 ** math.floor(math.log10(step))
  return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _padded(low: float, high: float, log: bool) -> tuple[float, float]:
  if log:
    return low / 1.1, high * 1.1
  margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
  return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin


def _finite(line: Line) -> np.ndarray:
  """The points that can be drawn, [N, 2]."""
  points = []
  for x, y in zip(line.x, line.y, strict=True):
    if y is not None and math.isfinite(y):
      points.append((x, y))
  return np.array(points, np.float64).reshape(-1, 2)


def _path(line: Line, x_axis: _Axis, y_axis: _Axis) -> str:
  """The line; a gap begins a new piece, and long lines are the means of neighboring points."""
  pieces: list[list[tuple[float, float]]] = [[]]
  for x, y in zip(line.x, line.y, strict=True):
    if y is None or not math.isfinite(y):
      pieces.append([])
    else:
      pieces[-1].append((x, y))
  total = sum(map(len, pieces))
  together = -(-total // _MAX_POINTS)
  drawn = []
  for piece in pieces:
    if not piece:
      continue
    parts = [np.mean(piece[i : i + together], axis=0) for i in range(0, len(piece), together)]
    points = [_place(x, y, x_axis, y_axis) for x, y in parts]
    drawn.append("M" + "L".join(points) + ("h0" if len(points) == 1 else ""))
  return "".join(drawn)


def _dots(line: Line, x_axis: _Axis, y_axis: _Axis) -> str:
  """A dot per point: a line of length 0, which round ends make a circle at every stretch."""
  points = _finite(line)
  every = -(-len(points) // 60)
  chosen = [*points[:-1:every], points[-1]]
  return "".join(f"M{_place(x, y, x_axis, y_axis)}h0" for x, y in chosen)


def _place(x: float, y: float, x_axis: _Axis, y_axis: _Axis) -> str:
  return f"{_UNITS * x_axis.share(x):.1f} {_UNITS * (1 - y_axis.share(y)):.1f}"


def _table(lines: Sequence[Line], x_name: str) -> tuple[list[str], list[list[str]]]:
  """Evenly spaced points of all lines, for those who read numbers."""
  values = [dict(zip(line.x, line.y, strict=True)) for line in lines]
  every_x = sorted(set().union(*values))
  chosen = np.unique(np.linspace(0, len(every_x) - 1, _TABLE_ROWS).round().astype(int))
  # Evaluations are rarer than reports; the steps that most lines have say most.
  lines_at = collections.Counter(itertools.chain.from_iterable(values))
  best = max(lines_at.values())
  shared = [x for x in every_x if lines_at[x] == best]
  if len(shared) >= 3:
    every_x = shared
    chosen = np.unique(np.linspace(0, len(every_x) - 1, _TABLE_ROWS).round().astype(int))
  rows = []
  for number in chosen:
    x = every_x[number]
    rows.append([short(x), *(short(value[x]) if x in value else "" for value in values)])
  return [x_name, *(line.label for line in lines)], rows


def _summary(line: Line, points: np.ndarray, x_name: str) -> str:
  first, last = points[0], points[-1]
  return (
    f"{line.label}: {short(first[1])} at {x_name} {short(first[0])}, "
    f"{short(last[1])} at {x_name} {short(last[0])}"
  )
