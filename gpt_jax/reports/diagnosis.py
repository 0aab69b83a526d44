"""Renders what launch/diagnose.py measured as one HTML page that needs no network: diagnosis.html.

As in page.py, autoescape is on and nothing is marked as safe.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.reports import chart
from gpt_jax.reports.answers import Answer
from gpt_jax.reports.chart import Drawn, Level, Line, short
from gpt_jax.reports.page import environment

_BINS = 8  # columns of a heat map
_FAR = 64  # tokens
_CLOSE = 0.05  # of the loss: an error of a prediction below it
_SHOWN_TEMPERATURES = (0.0, 0.8, 1.5)
_MEANINGS = (
  ("floor", "E", "nats that neither size nor data removes"),
  ("size_scale", "A", "scale of what a larger model removes"),
  ("size_exponent", "a", "twice the parameters leave 2^-a of it"),
  ("data_scale", "B", "scale of what more tokens remove"),
  ("data_exponent", "b", "twice the tokens leave 2^-b of it"),
)


class Figure(NamedTuple):
  """A chart, and what it shows in a sentence."""

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


def render(result: dict[str, Any], name: str) -> str:
  """The page.

  Args:
    result: the content of diagnosis.json; see programs.diagnose.
    name: the title.

  Raises:
    InputError: jinja2 is not installed.
  """
  gradients, scaling = result.get("gradients"), result.get("scaling")
  rates, sampling = result.get("rates"), result.get("sampling")
  answers = [
    *([_vanishes(gradients)] if gradients else []),
    *([_next_size(scaling)] if scaling and "next" in scaling else []),
    *([_safe_rates(rates)] if rates else []),
    *([_like_the_text(sampling)] if sampling else []),
  ]
  text = (
    environment()
    .get_template("diagnosis.html")
    .render(
      name=name,
      data=result["data"],
      answers=answers,
      gradients=gradients and [_gradient_view(model) for model in gradients],
      distances=gradients and _distances(gradients),
      decays=gradients and _decays(gradients),
      scaling=scaling and _scaling_view(scaling),
      rates=rates and _rates_view(rates),
      sampling=sampling and [_sampling_view(model) for model in sampling],
    )
  )
  # A text may hold halves of surrogate pairs, which UTF-8 has no bytes for.
  return text.encode("utf-8", "replace").decode("utf-8")


def _figures(*pairs: tuple[Drawn | None, str]) -> list[Figure]:
  return [Figure(drawn, caption) for drawn, caption in pairs if drawn is not None]


# Gradients ----------------------------------------------------------------------------------------


def _vanishes(models: Sequence[dict[str, Any]]) -> Answer:
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
  far = min(_FAR, len(by_distance)) * 3 // 4
  around = by_distance[far - far // 4 : far + far // 4 + 1]
  return float(by_distance[1]), float(around.mean()), far


def _gradient_view(model: dict[str, Any]) -> dict[str, Any]:
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
  figures = _figures(
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
  return {"name": model["name"], "about": model["about"], "maps": maps, "figures": figures}


def _heat_map(title: str, layers: Sequence[str], norms: np.ndarray) -> Map:
  length = norms.shape[1]
  edges = np.linspace(0, length, min(_BINS, length) + 1).round().astype(int)
  spans = list(zip(edges[:-1], edges[1:], strict=True))
  means = np.stack([norms[:, low:high].mean(1) for low, high in spans], axis=-1)
  positive = means[means > 0]
  logs = np.log(positive) if len(positive) else np.zeros(1)
  span = max(logs.max() - logs.min(), 1e-9)
  rows = []
  for layer, values in zip(layers, means, strict=True):
    cells = []
    for value in values:
      share = (np.log(value) - logs.min()) / span if value > 0 else 0.0
      cells.append((short(float(value)), round(90 * share), "right"))
    rows.append((layer, cells))
  columns = ["layer", *(f"{low}–{high - 1}" for low, high in spans)]
  caption = (
    f"{title}: length of the gradient of a row's mean loss with respect to the hidden state of "
    "each layer and position; shaded by its logarithm."
  )
  return Map(title, caption, columns, rows)


def _distances(models: Sequence[dict[str, Any]]) -> list[Figure]:
  """Of each model the embedding, and of an LSTM its memory, relative to distance 1."""
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
        shares = [norm / norms[0] or None for norm in norms]
        lines.append(Line(label, distances, shares, 2 * color + (i > 0), style))
  return _figures(
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
  centers = [(low * (high - 1)) ** 0.5 for low, high in spans]
  return centers, [float(by_distance[low:high].mean()) for low, high in spans]


def _decays(models: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
  """(model and layer, half-distance, exponential fit, exponent, power fit) after training."""
  rows = []
  for model in models:
    for layer, decay in zip(model["layers"], model["trained"]["decay"], strict=True):
      if decay is None:
        continue
      half = decay["half_distance"]
      cells = [
        "never" if half is None or half > 1e4 else f"{half:.1f}",
        f"{decay['exponential_fit']:.2f}",
        f"{decay['exponent']:.2f}",
        f"{decay['power_fit']:.2f}",
      ]
      rows.append((f"{model['name']}: {layer}", cells))
  return rows


# Scaling ------------------------------------------------------------------------------------------


def _next_size(part: dict[str, Any]) -> Answer:
  size = part["next"]
  name = f"{short(size['parameters'])} parameters, {short(size['tokens'])} tokens"
  question, low_high = f"What does the next size reach ({name})?", size["range"]
  predicted = f"{size['predicted']:.3f} nats predicted"
  if size["loss"] is None:
    return Answer(question, predicted, "The run diverged, so nothing compares with it.", "bad")
  error = size["predicted"] - size["loss"]
  naive = size["best_fitted"] - size["loss"]
  close = abs(error) < min(abs(naive), _CLOSE * size["loss"])
  text = (
    f"Trained afterwards it has {size['loss']:.3f}: the law is off by {abs(error):.3f} nats "
    f"({abs(error) / size['loss']:.1%}), the best of the fitted runs by {abs(naive):.3f}. "
    f"Without any one of the runs the law says {low_high[0]:.3f} to {low_high[1]:.3f}."
  )
  return Answer(question, predicted, text, "good" if close else "bad")


def _scaling_view(part: dict[str, Any]) -> dict[str, Any]:
  return {
    "figures": _scaling_figures(part),
    "law": _law_rows(part),
    "runs": _run_rows(part),
    "about": _about_scaling(part),
  }


def _scaling_figures(part: dict[str, Any]) -> list[Figure]:
  runs, law = part["runs"], part.get("law")
  lengths = sorted({run["tokens"] for run in runs})
  lines, by_width = [], []
  for color, tokens in enumerate(lengths):
    some = [run for run in runs if run["tokens"] == tokens]
    sizes = [run["parameters"] for run in some]
    label = f"{short(tokens)} tokens"
    lines.append(Line(label, sizes, [run["loss"] for run in some], color, "points"))
    if law:
      lines.append(Line(f"{label}, the law", sizes, [run["fitted"] for run in some], color))
  if "next" in part:
    size = part["next"]
    label = f"next size, {short(size['tokens'])} tokens"
    lines.append(
      Line(f"{label}: predicted", [size["parameters"]], [size["predicted"]], 5, "points")
    )
    lines.append(Line(f"{label}: trained", [size["parameters"]], [size["loss"]], 7, "points"))
  for color, width in enumerate(sorted({run["width"] for run in runs})):
    some = [run for run in runs if run["width"] == width]
    flops, losses = [run["flops"] for run in some], [run["loss"] for run in some]
    by_width.append(Line(f"width {width}", flops, losses, color, "dots"))
  return _figures(
    (
      chart.draw(
        "Loss and size",
        "held-out nats per token",
        lines,
        x_log=True,
        x_name="parameters, logarithmic",
      ),
      "Held-out loss of models of several sizes, each trained on three numbers of tokens; the law "
      "is fitted to all but the next size.",
    ),
    (
      chart.draw(
        "Loss and compute",
        "held-out nats per token",
        by_width,
        x_log=True,
        x_name="training FLOPs, logarithmic",
      ),
      "The same runs by what they cost: where the lines of two widths cross, the larger model "
      "becomes the better use of the same compute.",
    ),
  )


def _law_rows(part: dict[str, Any]) -> list[tuple[str, str, str]]:
  law = part.get("law")
  return [(symbol, short(law[name]), meaning) for name, symbol, meaning in _MEANINGS] if law else []


def _run_rows(part: dict[str, Any]) -> list[list[str]]:
  rows = []
  for run in [*part["runs"], *([part["next"]] if "next" in part else [])]:
    by_law = run.get("fitted", run.get("predicted"))
    loss = "none" if run["loss"] is None else f"{run['loss']:.3f}"
    law = "" if by_law is None else f"{by_law:.3f}"
    numbers = [f"{run[name]:,}" for name in ("width", "parameters", "tokens")]
    rows.append([*numbers, loss, law, f"{run['seconds']:,.0f} s"])
  return rows


def _about_scaling(part: dict[str, Any]) -> str:
  if "law" not in part:
    return "A run diverged, so that there is no law."
  if "next" not in part:
    return ""
  floor, of_size, of_data = part["next"]["parts"]
  lacks = "more parameters" if of_size > of_data else "more tokens"
  about = (
    f"Of the next size's {sum((floor, of_size, of_data)):.3f} nats the law lays {of_size:.3f} on "
    f"too few parameters, {of_data:.3f} on too few tokens, and {floor:.3f} on the text itself; "
    f"{lacks} would help most. So few runs determine the floor badly."
  )
  epochs = part["next"]["tokens"] / part["text_tokens"]
  if epochs > 1:
    about += f" It reads the text {epochs:.1f} times, and the law counts each time as new."
  return about


# Learning rates -----------------------------------------------------------------------------------


def _safe_rates(part: dict[str, Any]) -> Answer:
  learned = [entry["rate"] for entry in part["rates"] if entry["shares"]["learned"] == 1]
  best = min(part["rates"], key=lambda entry: entry["median_loss"] or float("inf"))
  seeds = len(part["rates"][0]["runs"])
  verdict = f"{min(learned):g} to {max(learned):g}" if learned else "none of these"
  if len(learned) == 1:
    verdict = f"{learned[0]:g}"
  lost = {
    name: sum(run["outcome"] == name for entry in part["rates"] for run in entry["runs"])
    for name in ("stuck", "diverged")
  }
  text = (
    f"Of {seeds * len(part['rates'])} runs of {part['steps']:,} updates {lost['stuck']} did not "
    f"get below the unigram entropy, {lost['diverged']} diverged. The lowest median loss has "
    f"{best['rate']:g}."
  )
  return Answer("Which learning rates learn with every seed?", verdict, text, "plain")


def _rates_view(part: dict[str, Any]) -> dict[str, Any]:
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
  shares = [
    Line(name, rates, [100 * entry["shares"][name] for entry in entries], color, "dots")
    for name, color in (("learned", 0), ("stuck", 4), ("diverged", 5))
  ]
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
    "figures": _figures(
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


# Sampling -----------------------------------------------------------------------------------------


def _like_the_text(models: Sequence[dict[str, Any]]) -> Answer:
  model = models[0]
  text, written = model["held_out"], model["temperatures"]
  nearest = min(written, key=lambda entry: abs(entry["distinct_2"] - text["distinct_2"]))
  coldest = min(written, key=lambda entry: entry["temperature"])
  about = (
    f"There its word pairs are as varied as the held-out text's ({nearest['distinct_2']:.1%} "
    f"and {text['distinct_2']:.1%} are distinct). At {coldest['temperature']:g} it has written "
    f"{coldest['repeated_4']:.1%} of its 4-grams before in the same text; held-out text "
    f"{text['repeated_4']:.1%}. {model['tokens_per_second']:,.0f} tokens/s ({model['name']})."
  )
  question = "Which temperature is as varied as the text?"
  return Answer(question, f"{nearest['temperature']:g}", about, "plain")


def _sampling_view(model: dict[str, Any]) -> dict[str, Any]:
  text, written = model["held_out"], model["temperatures"]
  heats = [entry["temperature"] for entry in written]

  def line(name: str, label: str, color: int = 0, factor: float = 1.0) -> Line:
    return Line(label, heats, [factor * entry[name] for entry in written], color, "dots")

  distinct, levels = [], []
  for color, (n, label) in enumerate(((1, "words"), (2, "pairs"), (3, "triples"))):
    distinct.append(line(f"distinct_{n}", label, color, 100))
    levels.append(Level(f"{label}, held-out text", 100 * text[f"distinct_{n}"], color))
  figures = _figures(
    (
      chart.draw("Distinct n-grams", "% of all", distinct, levels, x_name="temperature"),
      "How varied the texts are together; dashed: how the held-out text goes on from the same "
      "prompts.",
    ),
    (
      chart.draw(
        "Repetition",
        "% of 4-grams",
        [line("repeated_4", "written before in the text", 0, 100)],
        [Level("held-out text", 100 * text["repeated_4"])],
        x_name="temperature",
      ),
      "How much of a text was in it before: low temperatures go round in circles.",
    ),
    (
      chart.draw(
        "Surprise",
        "nats per token",
        [line("nats", "the model's own text")],
        [Level("held-out text", text["nats"])],
        x_name="temperature",
      ),
      "How unlikely the model itself finds what it wrote; above the level it writes what it finds "
      "less likely than real text.",
    ),
  )
  rows = []
  for entry in [text, *written]:
    name = f"{entry['temperature']:g}" if "temperature" in entry else "held-out text"
    shares = [f"{100 * entry[k]:.1f}" for k in ("distinct_1", "distinct_2", "distinct_3")]
    repeats = [f"{100 * entry['repeated_4']:.1f}", f"{entry['longest_repeat']:.1f}"]
    rows.append((name, [*shares, *repeats, f"{entry['nats']:.3f}"]))
  samples = [("held-out text", text["sample"])]
  samples += [
    (f"temperature {entry['temperature']:g}", entry["sample"])
    for entry in written
    if entry["temperature"] in _SHOWN_TEMPERATURES
  ]
  about = (
    f"{model['about']}. {model['texts']} texts of {model['tokens']} tokens at each temperature"
  )
  return {
    "name": model["name"],
    "about": f"{about}, {model['tokens_per_second']:,.0f} tokens/s.",
    "figures": figures,
    "rows": rows,
    "prompt": model["prompt"],
    "samples": samples,
  }
