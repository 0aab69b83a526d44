"""Gradient norms by layer, position and distance."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.diagnose.sections.figure import Figure, Map, drawn_figures
from gpt_jax.apps.report import chart
from gpt_jax.apps.report.answers import Answer
from gpt_jax.apps.report.chart import Line, short

_BINS = 8  # columns of a heat map
_FAR = 64  # tokens


def vanishes(models: Sequence[dict[str, Any]]) -> Answer:
  model = models[0]
  near, far, distance = _near_and_far(model["trained"]["of_last"][0])
  text = (
    f"Of the gradient at the last token but one, at the embedding of {model['name']}; a mean over "
    f"{model['rows']} rows."
  )
  decay = model["trained"]["decay"][0]
  if decay:
    text += (
      f" A power of the distance explains {decay['power_fit']:.0%} of its fall, exponential decay "
      f"{decay['exponential_fit']:.0%}."
    )
  for other in models[1:]:
    near_other, far_other, _ = _near_and_far(other["trained"]["of_last"][0])
    text += f" {other['name']}: {short(100 * far_other / near_other)} % left."
  question = "Does the gradient vanish with distance?"
  return Answer(question, f"{far / near:.1%} left after {distance} tokens", text, "plain")


def _near_and_far(norms: Sequence[float]) -> tuple[float, float, int]:
  """The norm at distance 1, the mean norm around a far distance, and that distance."""
  by_distance = np.array(norms)[::-1]
  # So that the distances around it, a quarter more or less, are within the row.
  far = min(_FAR, len(by_distance)) * 3 // 4
  around = by_distance[far - far // 4 : far + far // 4 + 1]
  return float(by_distance[1]), float(around.mean()), far


def gradient_view(model: dict[str, Any]) -> dict[str, Any]:
  trained = np.array(model["trained"]["of_text"])
  fresh = np.array(model["fresh"]["of_text"])
  maps = [
    _heat_map("After training", model["layers"], trained),
    _heat_map("Before training", model["layers"], fresh),
  ]
  lines = []
  if sum(layer.startswith("block") for layer in model["layers"]) > 1:
    numbers = range(len(model["layers"]))
    lines = [
      Line("after training", numbers, trained.mean(1).tolist(), 0, "dots"),
      Line("before training", numbers, fresh.mean(1).tolist(), 1, "dots"),
    ]
  figures = drawn_figures(
    (
      chart.draw(
        "Gradient norm by layer",
        "mean over positions",
        lines,
        y_log=True,
        x_name="layer, 0: the embedding",
      ),
      "How long the gradient of the training loss is at the output of each layer; a block that "
      "shortens it learns more slowly than those above it.",
    )
  )
  return {**model, "maps": maps, "figures": figures}


def _heat_map(title: str, layers: Sequence[str], norms: np.ndarray) -> Map:
  length = norms.shape[1]
  edges = np.linspace(0, length, min(_BINS, length) + 1).round().astype(int)
  spans = list(zip(edges[:-1], edges[1:], strict=True))
  means = np.stack([norms[:, low:high].mean(1) for low, high in spans], axis=-1)
  positive = means[means > 0]
  logs = np.log(positive) if len(positive) else np.zeros(1)
  # 1e-9: all norms may be equal.
  span = max(logs.max() - logs.min(), 1e-9)
  rows = []
  for layer, values in zip(layers, means, strict=True):
    cells = []
    for value in values:
      share = (np.log(value) - logs.min()) / span if value > 0 else 0.0
      # At most 90 % shaded, so that the number stays readable.
      cells.append((short(float(value)), round(90 * share), "right"))
    rows.append((layer, cells))
  columns = ["layer", *(f"{low}–{high - 1}" for low, high in spans)]
  caption = (
    f"{title}: length of the gradient of a row's mean loss with respect to the hidden state of "
    "each layer and position; shaded by its logarithm."
  )
  return Map(title, caption, columns, rows)


def distances(models: Sequence[dict[str, Any]]) -> list[Figure]:
  """Gradient of one prediction by distance, relative to distance 1.

  Shows each model's embedding and, of an LSTM, its memory.
  """
  lines = []
  for color, model in enumerate(models):
    chosen = [0]
    if "memory" in model["layers"]:
      chosen.append(model["layers"].index("memory"))
    for i in chosen:
      layer, several = model["layers"][i], len(models) > 1
      for state, style in (("trained", "line" if i == 0 else "thin"), ("fresh", "reference")):
        distances, norms = _by_distance(model[state]["of_last"][i])
        if not norms or norms[0] <= 0:
          continue
        label = f"{model['name']}: {layer}" if several else layer
        label += "" if state == "trained" else ", before training"
        # A logarithmic axis has no 0: None leaves a gap.
        shares = [norm / norms[0] or None for norm in norms]
        lines.append(Line(label, distances, shares, 2 * color + (i > 0), style))
  return drawn_figures(
    (
      chart.draw(
        "Gradient of one prediction",
        "relative to distance 1",
        lines,
        y_log=True,
        x_log=True,
        x_name="tokens before the prediction, logarithmic",
      ),
      "How much a state so many tokens back can change the prediction: a straight line is a power "
      "of the distance, a line that bends down is exponential decay. Means over nearby distances.",
    )
  )


def _by_distance(norms: Sequence[float]) -> tuple[list[float], list[float]]:
  """Distances from 1 on and the mean norm around each, in steps of about a third."""
  by_distance = np.array(norms)[::-1]
  edges = [1]
  while edges[-1] < len(by_distance):
    edges.append(min(len(by_distance), max(edges[-1] + 1, round(4 / 3 * edges[-1]))))
  spans = list(itertools.pairwise(edges))
  # The geometric mean, as the axis is logarithmic.
  centers = [(low * (high - 1)) ** 0.5 for low, high in spans]
  return centers, [float(by_distance[low:high].mean()) for low, high in spans]
