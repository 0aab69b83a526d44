"""Sections of the page of launch/diagnose.py: an answer, charts and tables each."""

import collections
import functools
import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.report import chart
from gpt_jax.apps.report.answers import Answer
from gpt_jax.apps.report.chart import Drawn, Level, Line, short
from gpt_jax.apps.report.page import fill_page

_BINS = 8  # columns of a heat map
_FAR = 64  # tokens
_STATES = {"trained": "After training", "fresh": "Before training"}
_CLOSE = 0.05  # of the loss: an error of a prediction below it
_SHOWN_TEMPERATURES = (0.0, 0.8, 1.5)


def render(result: dict[str, Any], name: str) -> str:
  """The page, which needs no network, with the title `name`."""
  fields: dict[str, Any] = {"name": name, "data": result["data"], "answers": []}
  if gradients := result.get("gradients"):
    fields["answers"].append(vanishes(gradients))
    fields |= {"gradients": list(map(gradient_view, gradients)), "distances": distances(gradients)}
  if scaling := result.get("scaling"):
    if "next" in scaling:
      fields["answers"].append(next_size(scaling))
    about = about_scaling(scaling)
    fields["scaling"] = {**scaling, "figures": scaling_figures(scaling), "about": about}
  if rates := result.get("rates"):
    fields["answers"].append(safe_rates(rates))
    fields["rates"] = rates_view(rates)
  if sampling := result.get("sampling"):
    fields["answers"].append(like_the_text(sampling))
    fields["sampling"] = list(map(sampling_view, sampling))
  return fill_page(os.path.dirname(__file__), **fields)


def vanishes(models: Sequence[dict[str, Any]]) -> Answer:
  model = models[0]
  near, far, distance = _near_and_far(model["trained"]["of_last"][0])
  text = f"Of the gradient at the last token but one, at the embedding of {model['name']}; a mean "
  text += f"over {model['rows']} rows."
  if decay := model["trained"]["decay"][0]:
    text += f" A power of the distance explains {decay['power_fit']:.0%} of its fall, exponential "
    text += f"decay {decay['exponential_fit']:.0%}."
  for other in models[1:]:
    near_other, far_other, _ = _near_and_far(other["trained"]["of_last"][0])
    text += f" {other['name']}: {short(100 * far_other / near_other)} % left."
  share = f"{far / near:.1%} left" if np.isfinite([near, far]).all() else "not finite"
  verdict = f"{share} after {distance} tokens"
  return Answer("Does the gradient vanish with distance?", verdict, text)


def _near_and_far(norms: Sequence[float]) -> tuple[float, float, int]:
  """The norm at distance 1, the mean norm around a far distance, and that distance."""
  by_distance = np.array(norms, np.float64)[::-1]  # None: not finite
  # So that the distances around it, a quarter more or less, are within the row.
  far = min(_FAR, len(by_distance)) * 3 // 4
  around = by_distance[far - far // 4 : far + far // 4 + 1]
  return float(by_distance[1]), float(around.mean()), far


def gradient_view(model: dict[str, Any]) -> dict[str, Any]:
  maps, lines = [], []
  for color, (state, title) in enumerate(_STATES.items()):
    norms = np.array(model[state]["of_text"], np.float64)  # None: not finite
    maps.append(_heat_map(title, model["layers"], norms))
    lines.append(Line(title.lower(), range(len(norms)), norms.mean(1).tolist(), color, "dots"))
  blocks = sum(layer.startswith("block") for layer in model["layers"])
  x_name, unit = "layer, 0: the embedding", "mean over positions"
  drawn = chart.draw("Gradient norm by layer", unit, lines, y_log=True, x_name=x_name)
  return {**model, "maps": maps, "figures": [drawn] if blocks > 1 else []}


def _heat_map(title: str, layers: Sequence[str], norms: np.ndarray) -> dict[str, Any]:
  """A table of shaded numbers: its title, columns, of which the first names the rows, and rows: a
  name and cells (text, percent of the shade, kind: "right" or "error").
  """
  length = norms.shape[1]
  edges = np.linspace(0, length, min(_BINS, length) + 1).round().astype(int)
  spans = list(zip(edges[:-1], edges[1:], strict=True))
  means = np.stack([norms[:, low:high].mean(1) for low, high in spans], axis=-1)
  sizes = np.nan_to_num(means, posinf=0.0)  # what is not finite has no shade
  lowest = sizes[sizes > 0].min(initial=sizes.max())
  # Not log(0), which has no shade; 1e-9: all norms may be equal.
  logs = np.log(np.maximum(sizes, lowest) / lowest) if lowest > 0 else sizes
  # At most 90 % shaded, so that the number stays readable.
  shades = np.rint(90 * logs / max(logs.max(), 1e-9)).astype(int)
  rows = []
  for layer, values, row in zip(layers, means.tolist(), shades.tolist(), strict=True):
    cells = [(short(value), shade, "right") for value, shade in zip(values, row, strict=True)]
    rows.append((layer, cells))
  columns = ["layer", *(f"{low}–{high - 1}" for low, high in spans)]
  return {"title": title, "columns": columns, "rows": rows}


def distances(models: Sequence[dict[str, Any]]) -> list[Drawn | None]:
  """Gradient of one prediction by distance, at each embedding and an LSTM's memory."""
  lines = []
  for color, model in enumerate(models):
    for i, layer in enumerate(model["layers"]):
      if i and layer != "memory":
        continue
      for state, style in (("trained", "line" if i == 0 else "thin"), ("fresh", "reference")):
        distances, norms = _by_distance(model[state]["of_last"][i])
        if not norms or not norms[0] > 0:
          continue
        label = f"{model['name']}: {layer}" if len(models) > 1 else layer
        label += "" if state == "trained" else ", before training"
        # A logarithmic axis has no 0: None leaves a gap.
        shares = [norm / norms[0] or None for norm in norms]
        lines.append(Line(label, distances, shares, 2 * color + (i > 0), style))
  both: dict[str, Any] = {"y_log": True, "x_log": True, "x_name": "tokens before the prediction"}
  return [chart.draw("Gradient of one prediction", "relative to distance 1", lines, **both)]


def _by_distance(norms: Sequence[float]) -> tuple[list[float], list[float]]:
  """Distances from 1 on and the mean norm around each, in steps of about a third."""
  by_distance = np.array(norms, np.float64)[::-1]  # None: not finite
  edges = [1]
  while edges[-1] < len(by_distance):
    edges.append(min(len(by_distance), max(edges[-1] + 1, round(4 / 3 * edges[-1]))))
  spans = list(itertools.pairwise(edges))
  # The geometric mean, as the axis is logarithmic.
  centers = [(low * (high - 1)) ** 0.5 for low, high in spans]
  return centers, [float(by_distance[low:high].mean()) for low, high in spans]


def next_size(part: dict[str, Any]) -> Answer:
  size = part["next"]
  name = f"{short(size['parameters'])} parameters, {short(size['tokens'])} tokens"
  question, low_high = f"What does the next size reach ({name})?", size["range"]
  predicted = f"{size['predicted']:.3f} nats predicted"
  if size["loss"] is None:
    return Answer(question, predicted, "The run diverged, so nothing compares with it.", "bad")
  error = size["predicted"] - size["loss"]
  naive = size["best_fitted"] - size["loss"]
  close = abs(error) < min(abs(naive), _CLOSE * size["loss"])
  text = f"Trained afterwards it has {size['loss']:.3f}: the law is off by {abs(error):.3f} nats "
  text += f"({abs(error) / size['loss']:.1%}), the best of the fitted runs by {abs(naive):.3f}. "
  text += f"Without any one of the runs the law says {low_high[0]:.3f} to {low_high[1]:.3f}."
  return Answer(question, predicted, text, "good" if close else "bad")


def scaling_figures(part: dict[str, Any]) -> list[Drawn | None]:
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
  if size := part.get("next"):
    label, at = f"next size, {short(size['tokens'])} tokens", [size["parameters"]]
    lines.append(Line(f"{label}: predicted", at, [size["predicted"]], 5, "points"))
    lines.append(Line(f"{label}: trained", at, [size["loss"]], 7, "points"))
  for color, width in enumerate(sorted({run["width"] for run in runs})):
    some = [run for run in runs if run["width"] == width]
    flops, losses = [run["flops"] for run in some], [run["loss"] for run in some]
    by_width.append(Line(f"width {width}", flops, losses, color, "dots"))
  unit = "held-out nats per token"
  return [
    chart.draw("Loss and size", unit, lines, x_log=True, x_name="parameters"),
    chart.draw("Loss and compute", unit, by_width, x_log=True, x_name="training FLOPs"),
  ]


def about_scaling(part: dict[str, Any]) -> str:
  if "law" not in part:
    return "A run diverged, so that there is no law."
  if "next" not in part:
    return ""
  floor, of_size, of_data = part["next"]["parts"]
  lacks = "more parameters" if of_size > of_data else "more tokens"
  about = f"Of the next size's {floor + of_size + of_data:.3f} nats the law lays {of_size:.3f} on "
  about += f"too few parameters, {of_data:.3f} on too few tokens, and {floor:.3f} on the text "
  about += f"itself; {lacks} would help most. So few runs determine the floor badly."
  epochs = part["next"]["tokens"] / part["text_tokens"]
  if epochs > 1:
    about += f" It reads the text {epochs:.1f} times, and the law counts each time as new."
  return about


def safe_rates(part: dict[str, Any]) -> Answer:
  learned = [entry["rate"] for entry in part["rates"] if entry["shares"]["learned"] == 1]
  best = min(part["rates"], key=lambda entry: entry["median_loss"] or float("inf"))
  verdict = ", ".join(f"{rate:g}" for rate in learned) or "none of these"
  lost: collections.Counter[str] = collections.Counter()
  for entry in part["rates"]:
    lost.update(run["outcome"] for run in entry["runs"])
  text = f"Of {lost.total()} runs of {part['steps']:,} updates {lost['stuck']} did not get below "
  text += f"the unigram entropy, {lost['diverged']} diverged. The lowest median loss has "
  text += f"{best['rate']:g}."
  return Answer("Which learning rates learn with every seed?", verdict, text)


def rates_view(part: dict[str, Any]) -> dict[str, Any]:
  entries = part["rates"]
  seeds = [f"seed {number}" for number in range(len(entries[0]["runs"]))]
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
  about = f"{part['parameters']:,} parameters, width {part['width']}, {part['steps']:,} updates."
  title = "Held-out loss by peak learning rate and seed"
  by_rate: dict[str, Any] = {"x_log": True, "x_name": "peak learning rate"}
  ends = chart.draw("How the runs end", "% of the seeds", shares, y_range=(0, 100), **by_rate)
  unit = "held-out nats per token"
  losses = chart.draw("Loss and rate", unit, [medians], [level], may_be_log=True, **by_rate)
  return {
    "about": about,
    "map": {"title": title, "columns": ["rate", *seeds], "rows": rows},
    "figures": [ends, losses],
  }


def like_the_text(models: Sequence[dict[str, Any]]) -> Answer:
  model = models[0]
  text, written = model["held_out"], model["temperatures"]
  nearest = min(written, key=lambda entry: abs(entry["distinct_2"] - text["distinct_2"]))
  coldest = min(written, key=lambda entry: entry["temperature"])
  about = f"There its word pairs are as varied as the held-out text's ({nearest['distinct_2']:.1%} "
  about += f"and {text['distinct_2']:.1%} are distinct). At {coldest['temperature']:g} it has "
  about += f"written {coldest['repeated_4']:.1%} of its 4-grams before in the same text; held-out "
  about += f"text {text['repeated_4']:.1%}. {model['tokens_per_second']:,.0f} tokens/s "
  about += f"({model['name']})."
  verdict = f"{nearest['temperature']:g}"
  return Answer("Which temperature is as varied as the text?", verdict, about)


def sampling_view(model: dict[str, Any]) -> dict[str, Any]:
  text, written = model["held_out"], model["temperatures"]
  heats = [entry["temperature"] for entry in written]

  def line(name: str, label: str, color: int = 0, factor: float = 1.0) -> Line:
    return Line(label, heats, [factor * entry[name] for entry in written], color, "dots")

  distinct, levels = [], []
  for color, (n, label) in enumerate(((1, "words"), (2, "pairs"), (3, "triples"))):
    distinct.append(line(f"distinct_{n}", label, color, 100))
    levels.append(Level(f"{label}, held-out text", 100 * text[f"distinct_{n}"], color))
  repeated = line("repeated_4", "written before in the text", 0, 100)
  of_text = Level("held-out text", 100 * text["repeated_4"])
  own, surprise = line("nats", "the model's own text"), Level("held-out text", text["nats"])
  draw = functools.partial(chart.draw, x_name="temperature")
  figures = [
    draw("Distinct n-grams", "% of all", distinct, levels),
    draw("Repetition", "% of 4-grams", [repeated], [of_text]),
    draw("Surprise", "nats per token", [own], [surprise]),
  ]
  about = f"{model['about']}. {model['texts']} texts of {model['tokens']} tokens at each "
  about += f"temperature, {model['tokens_per_second']:,.0f} tokens/s."
  return {**model, "about": about, "figures": figures, "shown": _SHOWN_TEMPERATURES}
