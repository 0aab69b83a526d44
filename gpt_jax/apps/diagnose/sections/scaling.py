"""The scaling law: its answer, charts and tables."""

from typing import Any

from gpt_jax.apps.diagnose.sections.figure import Figure, drawn_figures
from gpt_jax.apps.report import chart
from gpt_jax.apps.report.answers import Answer
from gpt_jax.apps.report.chart import Line, short

_CLOSE = 0.05  # of the loss: an error of a prediction below it


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
  text = (
    f"Trained afterwards it has {size['loss']:.3f}: the law is off by {abs(error):.3f} nats "
    f"({abs(error) / size['loss']:.1%}), the best of the fitted runs by {abs(naive):.3f}. "
    f"Without any one of the runs the law says {low_high[0]:.3f} to {low_high[1]:.3f}."
  )
  return Answer(question, predicted, text, "good" if close else "bad")


def scaling_figures(part: dict[str, Any]) -> list[Figure]:
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
  return drawn_figures(
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


def about_scaling(part: dict[str, Any]) -> str:
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
