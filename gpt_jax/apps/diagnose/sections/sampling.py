"""How varied and repetitive written text is at each temperature."""

from collections.abc import Sequence
from typing import Any

from gpt_jax.apps.diagnose.sections.figure import drawn_figures
from gpt_jax.apps.report import chart
from gpt_jax.apps.report.answers import Answer
from gpt_jax.apps.report.chart import Level, Line

_SHOWN_TEMPERATURES = (0.0, 0.8, 1.5)


def like_the_text(models: Sequence[dict[str, Any]]) -> Answer:
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


def sampling_view(model: dict[str, Any]) -> dict[str, Any]:
  text, written = model["held_out"], model["temperatures"]
  heats = [entry["temperature"] for entry in written]

  def line(name: str, label: str, color: int = 0, factor: float = 1.0) -> Line:
    return Line(label, heats, [factor * entry[name] for entry in written], color, "dots")

  distinct, levels = [], []
  for color, (n, label) in enumerate(((1, "words"), (2, "pairs"), (3, "triples"))):
    distinct.append(line(f"distinct_{n}", label, color, 100))
    levels.append(Level(f"{label}, held-out text", 100 * text[f"distinct_{n}"], color))
  figures = drawn_figures(
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
  about = (
    f"{model['about']}. {model['texts']} texts of {model['tokens']} tokens at each temperature, "
    f"{model['tokens_per_second']:,.0f} tokens/s."
  )
  return {**model, "about": about, "figures": figures, "shown": _SHOWN_TEMPERATURES}
