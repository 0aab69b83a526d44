"""Line charts of a page: a picture by matplotlib (extra `plots`), a legend and a table.

Labels, which may be anything, are HTML; the picture has only numbers. Its colors are variables of
the page's color-blind-safe palette (Okabe and Ito 2008), so that it follows dark mode.
"""

import collections
import importlib.util
import io
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_MAX_POINTS, _MAX_DOTS = 400, 60  # of a line; more cannot be told apart
_TABLE_ROWS = 12
_COLOR = "#c0105"  # and a digit: stands for the page's color --c0, --c1, …
_INK, _AXIS, _RULE = f"{_COLOR}8", f"{_COLOR}7", f"{_COLOR}9"
_SETTINGS: Any = {
  "svg.fonttype": "none",
  "svg.hashsalt": "gpt_jax",
  "axes.edgecolor": _AXIS,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.grid": True,
  "axes.grid.axis": "y",
  "grid.color": _RULE,
  **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0),
  **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), _INK),
  "lines.markersize": 4,
}
_LOOKS: dict[str, dict[str, Any]] = {
  "line": {},
  "thin": {"linewidth": 1.2},
  "dots": {"linestyle": "-", "marker": "o"},
  "points": {"linestyle": "", "marker": "o"},
  "ring": {"linestyle": "", "marker": "o", "markersize": 7, "fillstyle": "none"},
  "reference": {"linestyle": "--", "linewidth": 0.9, "alpha": 0.85},
  "level": {"linestyle": "--", "linewidth": 1.3},
}
_DASHES = ("-", "--", ":", "-.")  # by color, so that lines differ in gray


class Line(NamedTuple):
  label: str
  x: Sequence[float]
  y: Sequence[float | None]  # None, or what is not finite, is a gap
  color: int = 0  # in the palette
  style: str = "line"  # of _LOOKS

  def points(self) -> np.ndarray:
    """[N, 2], nan for a gap, and for a number from which no axis can go on."""
    points = np.array([self.x, self.y], np.float64).T
    points[~(abs(points) < 1e250)] = math.nan
    return points

  def as_drawn(self) -> "Line":
    """A single point as a dot; of a thin line as a ring, which a dot on it does not cover."""
    if np.isfinite(self.points()[:, 1]).sum() > 1:
      return self
    return self._replace(style="ring" if self.style == "thin" else "points")


class Level(NamedTuple):
  """A horizontal line of reference, such as the unigram entropy."""

  label: str
  y: float
  color: int = 7
  style: str = "level"


class Drawn(NamedTuple):
  """A chart for the template."""

  title: str
  unit: str
  svg: str  # elements of the picture; "" without matplotlib
  size: tuple[int, int]
  legend: list[Line | Level]
  head: list[str]  # of the table under the chart, and its rows
  rows: list[list[str]]
  log: bool  # whether y is logarithmic


def draw(
  title: str,
  unit: str,
  lines: Sequence[Line],
  levels: Sequence[Level] = (),
  *,
  marks: Line | None = None,
  may_be_log: bool = False,
  y_log: bool = False,
  x_log: bool = False,
  x_name: str = "step",
  y_range: tuple[float, float] | None = None,
  square: bool = False,
) -> Drawn | None:
  """The chart of these lines; None if none of them has a finite point.

  Args:
    marks: points on the lower edge, where y is 0.
    may_be_log: whether y is logarithmic if it spans a factor of 50, as after a divergence.
    y_log, x_log: whether an axis, whose values are above 0 then, is logarithmic.
    y_range: the ends of the axis; None: those of the points.
  """
  lines = [line.as_drawn() for line in lines if np.isfinite(line.points()[:, 1]).any()]
  if not lines:
    return None
  values = np.concatenate([[level.y for level in levels], *(line.points()[:, 1] for line in lines)])
  low, high = np.nanmin(values), np.nanmax(values)
  log = y_log or bool(may_be_log and 0 < 50 * low < high)
  size = (300, 300) if square else (360, 190)
  svg = ""
  if not no_charts():
    import matplotlib  # here, because it takes a while

    with matplotlib.rc_context(_SETTINGS):
      svg = _picture(lines, levels, marks, size, (x_log, log), y_range)
  head, rows = _table(lines, f"{x_name}, logarithmic" if x_log else x_name)
  legend: list[Line | Level] = [*levels, *lines, *([marks] if marks else [])]
  return Drawn(title, unit, svg, size, legend, head, rows, log)


def no_charts() -> str:
  """How pages get pictures; "" where matplotlib is installed. Does not wait for its import."""
  if importlib.util.find_spec("matplotlib"):
    return ""
  return "a chart needs matplotlib: pip install 'gpt_jax[plots]'"


def short(value: float | None) -> str:
  """A number in at most about six characters: 1,200, 1.2M, 0.034, 2e-09."""
  if value is None or not math.isfinite(value):
    return "none"
  size = abs(value)
  for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
    if size >= limit:
      return f"{value / limit:.3g}{letter}" if size < 1000 * limit else f"{value:.2e}"
  if size >= 1000:
    return f"{value:,.0f}"
  if size and size < 0.1:
    return f"{value:.3g}"
  return f"{value:.4g}" if size >= 10 else f"{value:.3f}".rstrip("0").rstrip(".")


def _picture(
  lines: Sequence[Line],
  levels: Sequence[Level],
  marks: Line | None,
  size: tuple[int, int],
  logs: tuple[bool, bool],
  y_range: tuple[float, float] | None,
) -> str:
  """The elements of an SVG picture; `logs` of x and y."""
  from matplotlib.figure import Figure  # not pyplot, which is for the main thread
  from matplotlib.ticker import LogLocator, MaxNLocator

  width, height = size
  figure = Figure(figsize=(width / 72, height / 72), facecolor="none")
  # Fixed margins, so that the charts of a page are in line.
  axes: Any = figure.add_axes((48 / width, 22 / height, 1 - 60 / width, 1 - 30 / height))
  axes.set(facecolor="none", axisbelow=True)
  axes.set(xscale="log" if logs[0] else "linear", yscale="log" if logs[1] else "linear")
  for level in levels:
    axes.axhline(level.y, color=f"{_COLOR}{level.color % 8}", **_LOOKS["level"])
  for line in lines:
    _plot(axes, line, line.points())
  axes.margins(0, 0.05)
  if not logs[0]:
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
  (low, high), limits = axes.get_ylim(), axes.dataLim
  if logs[1]:  # so that noise looks like noise
    axes.set_ylim(min(low, limits.ymin / 1.1), max(high, limits.ymax * 1.1))
  elif low < 0 <= limits.ymin:
    axes.set_ylim(bottom=0)
  if y_range:
    axes.set_ylim(y_range)
  if marks:
    _plot(axes, marks, marks.points(), transform=axes.get_xaxis_transform())
  for axis, log, count in ((axes.xaxis, logs[0], 4), (axes.yaxis, logs[1], 5)):
    low, high = axis.get_view_interval()
    # Where few powers of ten are inside, 2 and 5 times a power as well.
    factors = (1, 2, 5) if high < 200 * low else (1,)
    axis.set_major_locator(MaxNLocator(count, steps=[1, 2, 5, 10]))
    if log and high > 10 * low:
      axis.set_major_locator(LogLocator(subs=factors, numticks=count))
    axis.set_major_formatter(lambda value, _: short(value))
  axes.minorticks_off()
  file, metadata = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
  figure.savefig(file, format="svg", metadata=metadata)
  # Without a style for all of the page, and ids that other pictures have as well; no point is
  # outside, so that nothing needs clipping.
  svg = file.getvalue().partition("</defs>")[2].removesuffix("</svg>\n")
  svg = re.sub(r' id="[^"]*_\d+"| clip-path="[^"]*"|font-family: [^;"]*;|\n *(?=<)', "", svg)
  return re.sub(rf"{_COLOR}(\d)", r"var(--c\1)", svg)


def _plot(axes: Any, line: Line, points: np.ndarray, **named: Any) -> None:
  """Draws a line; long ones are the means of neighboring points."""
  look = {"linestyle": _DASHES[line.color % 4], **_LOOKS[line.style]}
  together = -(-len(points) // _MAX_POINTS)
  means = [points[i : i + together].mean(0) for i in range(0, len(points), together)]
  look |= {"color": f"{_COLOR}{line.color % 8}", "markevery": -(-len(means) // _MAX_DOTS)}
  axes.plot(*np.array(means).T, **look, **named)


def _table(lines: Sequence[Line], x_name: str) -> tuple[list[str], list[list[str]]]:
  """Evenly spaced points of all lines, for those who read numbers."""
  values = [dict(zip(line.x, line.y, strict=True)) for line in lines]
  lines_at = collections.Counter(itertools.chain.from_iterable(values))
  # Evaluations are rarer than reports; the steps that most lines have say most.
  best = max(lines_at.values())
  shared = sorted(x for x, count in lines_at.items() if count == best)
  every_x = shared if len(shared) >= 3 else sorted(lines_at)
  chosen = np.unique(np.linspace(0, len(every_x) - 1, _TABLE_ROWS).round().astype(int))
  rows = []
  for x in (every_x[number] for number in chosen):
    rows.append([short(x), *(short(value[x]) if x in value else "" for value in values)])
  return [x_name, *(line.label for line in lines)], rows
