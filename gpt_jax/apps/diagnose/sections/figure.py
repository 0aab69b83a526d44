"""Elements of the page's sections: charts with captions, and tables of shaded numbers."""

from typing import NamedTuple

from gpt_jax.apps.report.chart import Drawn


class Figure(NamedTuple):
  """A chart, and a sentence on what it shows."""

  chart: Drawn
  caption: str


class Map(NamedTuple):
  """A table of shaded numbers.

  Attributes:
    title, caption: above and below.
    columns: heads; the first names the rows.
    rows: (name, [(text, percent of the shade, kind: "right" or "error")]).
  """

  title: str
  caption: str
  columns: list[str]
  rows: list[tuple[str, list[tuple[str, int, str]]]]


def drawn_figures(*pairs: tuple[Drawn | None, str]) -> list[Figure]:
  return [Figure(drawn, caption) for drawn, caption in pairs if drawn is not None]
