"""Renders the result of launch/label.py as a page that needs no network, report.html.

As in page.py, autoescape is on and nothing is marked as safe.
"""

import dataclasses
import os
import shlex
from collections.abc import Sequence
from typing import Any

from gpt_jax.apps.label.table import FEW_ROWS
from gpt_jax.apps.report import chart
from gpt_jax.apps.report.answers import MANY_DOUBTFUL, SURE_JUDGE, Answer
from gpt_jax.apps.report.chart import Line
from gpt_jax.apps.report.page import confusion_matrix, fill_page
from gpt_jax.errors import agree
from gpt_jax.tasks.slices import about_slices, format_slices

TITLES = {
  "tfidf": "TF-IDF with logistic regression",
  "probe": "linear probe of the checkpoint",
  "finetuned": "fine-tuned checkpoint",
}
_LIMITS = {  # of the model that predicts
  "tfidf": "It has no network: it does not generate or embed, and nothing is fine-tuned from it.",
  "probe": "Its network is the checkpoint's, unchanged. A transformers folder cannot hold it.",
  "finetuned": "It can do all that a fine-tuned checkpoint can.",
}


@dataclasses.dataclass(frozen=True)
class Suspect:
  """A row with its label, and what models that have not seen it say."""

  row: str  # of the input in a spreadsheet; "": it has no such number
  line: str  # of the input; "file:line" of an earlier table
  text: str  # its columns, one below the other
  given: str
  suggested: str  # the most likely other label
  p_given: float  # the mean of the models
  p_suggested: float
  doubtful: bool  # each of the models finds another label more likely


def render(result: dict[str, Any], suspects: Sequence[Suspect], name: str) -> str:
  """The page of the content of result.json and the first suspects; name is the title."""
  curve, lines = result["curve"], []
  for color, model in enumerate(("tfidf", "probe")):
    percent = [100 * value for value in curve[model]]
    lines.append(Line(TITLES[model], curve["sizes"], percent, color, "dots"))
  drawn = chart.draw(
    "Learning curve", "% right of dev and test rows", lines, x_name="training rows"
  )
  words = [f"--checkpoint={result['checkpoint']}", "--input=FILE", "--out=FILE"]
  threshold = result["threshold"]
  if "problem" not in threshold:
    words.append(f"--precision={threshold['precision']:g}")
  return fill_page(
    os.path.dirname(__file__),
    name=name,
    result=result,
    answers=_answers(result),
    title_of=TITLES,
    choice=about_choice(result),
    threshold=about_threshold(threshold),
    matrix=confusion_matrix(result["classes"]),
    about_labels=about_labels(result),
    about_slices=about_slices,
    about_curve=about_curve(result),
    curve=drawn,
    suspects=suspects,
    limits=about_limits(result),
    commands=[
      shlex.join(["python", "launch/predict.py", *words]),
      shlex.join(["python", "launch/serve.py", words[0]]),
    ],
  )


def format_result(result: dict[str, Any]) -> str:
  """The result for the console."""
  lines = [f"{'':30} dev accuracy  test accuracy, 95 % interval  macro F1"]
  for model in result["models"]:
    test = model["test"]
    low, high = test["accuracy_interval"]
    mark = "*" if model["name"] == result["chosen"] else " "
    lines.append(
      f"{mark} {TITLES[model['name']]:30} {model['dev']['accuracy']:10.1%}  "
      f"{test['accuracy']:13.1%}  {low:.1%} to {high:.1%}  {test['macro_f1']:8.3f}"
    )
  lines += [about_choice(result), about_threshold(result["threshold"]), about_curve(result)]
  lines.append(f"{about_labels(result)} suspects.csv begins with the worst.")
  if "previous" in result:
    lines.append(about_previous(result))
  if "slices" in result:
    lines.append(format_slices(result["slices"]))
  return "\n".join([*lines, about_limits(result)])


def about_limits(result: dict[str, Any]) -> str:
  """Says where the model that predicts can be used, and what it cannot do."""
  return (
    f"The {TITLES[result['chosen']]} answers in predict, serve, evaluate, gpt_jax.load(…).classify "
    f"and as ONNX. {_LIMITS[result['chosen']]}"
  )


def about_choice(result: dict[str, Any]) -> str:
  """Says which model predicts, and why."""
  if (rows := sum(result["rows"].values())) < FEW_ROWS:
    right = result["judges"][result["chosen"]]
    about = f"{rows} rows are too few to choose by dev accuracy: the {TITLES[result['chosen']]} "
    about += f"predicts, which in five folds is right in {right:.1%} of the rows. Label more: "
    return f"{about}the intervals are wide, and the test rows are among those that chose."
  accuracies = [model["dev"]["accuracy"] for model in result["models"]]
  about = f"The {TITLES[result['chosen']]} has the highest dev accuracy, and predicts."
  # Exactly equal ones occur: a small dev set has few possible accuracies.
  if accuracies.count(max(accuracies)) > 1:
    about = f"The {TITLES[result['chosen']]} predicts: no model has a higher dev accuracy, and of "
    about += "equals the one with the higher macro F1 is taken, then the simpler one."
  if result["chosen"] == "tfidf":
    about += (
      " A checkpoint that has been pre-trained on more text, or with a longer context, may change "
      "that; the table below shows whether the difference is more than chance."
    )
  return f"{about} The dev rows chose; the test rows had no part in that."


def about_threshold(threshold: dict[str, Any]) -> str:
  """Says which precision a threshold promises, and how it did on the test set."""
  asked = threshold["asked"]
  if "value" not in threshold:
    return f"A precision of {asked:.0%} cannot be promised, and no lower one from 50 %."
  dev, test = threshold["dev"], threshold["test"]
  share = f"{test['correct'] / test['given']:.1%}" if test["given"] else "–"
  above, of_test = "Without a threshold", f"Of all {test['rows']:,} test rows {share}"
  if dev["given"] < dev["rows"]:
    above = f"With a probability of {threshold['value']:.3f} or more"
    of_test = f"{test['given']:,} of {test['rows']:,} test rows have that probability, and {share} "
    of_test += "of them"
  about = (
    f"{above}, {dev['correct']:,} of {dev['given']:,} dev rows are right, which promises "
    f"{threshold['precision']:.1%} on new rows like these. {of_test} are right."
  )
  if "problem" in threshold:
    about = f"{asked:.1%} cannot be promised with so few dev rows, or so many errors. {about}"
  return about


def about_curve(result: dict[str, Any]) -> str:
  """Says what more labels would bring, and to which model."""
  curve = result["curve"]
  whose = f"That is the curve of the {TITLES[curve['model']]}"
  if curve["model"] != result["chosen"]:
    whose += f", not of the {TITLES[result['chosen']]}, which predicts"
  return f"{curve['outlook']} {whose}."


def about_previous(result: dict[str, Any]) -> str:
  """Says whether and for which labels the model is better than the earlier one on its test rows."""
  previous = result["previous"]
  compared, (ours, theirs) = previous["all"], previous["all"]["shares"]
  low, high = compared["interval"]
  about = (
    f"Of the {compared['rows']:,} test rows of {previous['workdir']} {ours:.1%} are right, by the "
    f"earlier {TITLES[previous['chosen']]} {theirs:.1%}: {100 * low:+.1f} to {100 * high:+.1f} "
    "points with 95 % confidence (McNemar’s exact test)."
  )
  changed: dict[str, list[str]] = {"good": [], "bad": [], "plain": []}
  for label, of_label in previous["classes"].items():
    changed[_is_better(of_label)[1]].append(f"{label} ({100 * of_label['difference']:+.1f})")
  for title, tone in (("Better", "good"), ("Worse", "bad")):
    about += f" {title}: {', '.join(changed[tone]) or 'no label'}."
  if previous["new_labels"]:
    about += f" New labels: {', '.join(previous['new_labels'])}."
  return about


def about_labels(result: dict[str, Any]) -> str:
  """How many labels are doubtful, whether to correct them first, and whether to believe it."""
  total = sum(result["rows"].values())
  about = (
    f"{result['suspects']:,} of {total:,} labels {agree(result['suspects'])} less likely than "
    "another one to both of two models that were not trained on the row."
  )
  if _clean_labels_first(result):
    about += (
      " Correct these labels first: wrong ones hide what a model can do, and no model can promise "
      "more than the labels keep."
    )
  elif result["suspects"] and (best := max(result["judges"].values())) < SURE_JUDGE:
    about += (
      f" Caution: neither model is a sure judge, right in {best:.0%} of the rows at best, so that "
      "many of these labels will be right; read before you change one."
    )
  return about


def _clean_labels_first(result: dict[str, Any]) -> bool:
  are_many = result["suspects"] >= MANY_DOUBTFUL * sum(result["rows"].values())
  return are_many and max(result["judges"].values()) >= SURE_JUDGE


def _answers(result: dict[str, Any]) -> list[Answer]:
  models = {model["name"]: model for model in result["models"]}
  chosen = models[result["chosen"]]
  low, high = chosen["test"]["accuracy_interval"]
  least, most = result["beside_commonest"]["interval"]
  majority = result["classes"]["majority"]
  threshold = result["threshold"]
  kept = "problem" not in threshold
  share = threshold["test"]["given"] / threshold["test"]["rows"] if kept else 0.0
  gain = 100 * result["curve"]["gain"]
  labels = f"{result['suspects']:,} of {sum(result['rows'].values()):,} are doubtful"
  if _clean_labels_first(result):
    labels = f"correct {result['suspects']:,} first"
  beside = []
  if "previous" in result:
    verdict, tone = _is_better(result["previous"]["all"])
    beside = [Answer("Is it better than the earlier one?", verdict, about_previous(result), tone)]
  return [
    Answer(
      "How good is it?",
      f"{chosen['test']['accuracy']:.1%} right",
      f"of the test rows; {low:.1%} to {high:.1%} with 95 % confidence. Always the commonest "
      f"label: {majority:.1%}.",
      "good" if least > 0 else "bad" if most < 0 else "plain",
    ),
    *beside,
    Answer("Is it better than TF-IDF?", *_beside_tfidf(result, chosen)),
    Answer(
      f"Can it promise {threshold['asked']:.0%} precision?",
      f"yes, for {share:.0%} of the rows" if kept else "no",
      about_threshold(threshold),
      "good" if kept else "bad",
    ),
    Answer("Are the labels right?", labels, about_labels(result)),
    Answer("Would more labels help?", f"{gain:.1f} points for twice as many", about_curve(result)),
  ]


def _is_better(compared: dict[str, Any]) -> tuple[str, str]:
  """Verdict and tone, by what two models get right of the same rows."""
  gap, (low, high) = compared["difference"], compared["interval"]
  if low > 0:
    return f"yes, by {100 * gap:.1f} points", "good"
  if high < 0:
    return f"no, {-100 * gap:.1f} points worse", "bad"
  return f"not shown: {100 * gap:+.1f} points", "plain"


def _beside_tfidf(result: dict[str, Any], chosen: dict[str, Any]) -> tuple[str, str, str]:
  """Verdict, text and tone, by what both get right of the same test rows."""
  if result["chosen"] != "tfidf":
    compared = chosen["test"]["beside_tfidf"]
    low, high = compared["interval"]
    text = (
      f"The difference on the same {result['rows']['test']:,} test rows is {100 * low:+.1f} to "
      f"{100 * high:+.1f} points with 95 % confidence (McNemar’s exact test). "
    )
    verdict, tone = _is_better(compared)
    return verdict, text + about_choice(result), tone
  if sum(result["rows"].values()) < FEW_ROWS:
    return "no, so TF-IDF predicts", about_choice(result), "plain"
  _, *others = result["models"]
  best = max(others, key=lambda model: model["dev"]["accuracy"])
  text = (
    f"On the dev rows TF-IDF is right in {chosen['dev']['accuracy']:.1%}, the "
    f"{TITLES[best['name']]} in {best['dev']['accuracy']:.1%}. "
  )
  return "no, so TF-IDF predicts", text + about_choice(result), "plain"
