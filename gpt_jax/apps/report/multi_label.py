"""Reads what a multi-label run says of its dev set: metrics and worst errors of each label."""

import dataclasses
from typing import Any

from gpt_jax.files import parse_json
from gpt_jax.inference.dev_report import PREDICTIONS, REPORT, prediction_lines
from gpt_jax.tasks.answers.labels import MULTI_LABEL

_MAX_LABELS = 12  # whose errors are shown
_WORST = 3  # errors of a label


@dataclasses.dataclass(frozen=True)
class LabelError:
  """A label that an example should not have been given, or that it should have.

  Attributes:
    where: file and line.
    text: its columns, separated by tabs.
    given: whether the model gave the label.
    probability: of the label.
  """

  where: str
  text: str
  given: bool
  probability: float


@dataclasses.dataclass
class LabelErrors:
  """The errors of a label: how many examples miss it, how many have it wrongly, and the worst."""

  missed: int = 0
  given: int = 0
  worst: list[LabelError] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class MultiLabels:
  """dev_report.json and dev_predictions.jsonl of a multi-label run.

  Attributes:
    n: examples.
    per_class: label -> precision, recall, f1, support.
    errors: of each label; {} if they cannot be read.
  """

  n: int
  per_class: dict[str, dict[str, float]]
  errors: dict[str, LabelErrors]

  def shown_errors(self) -> dict[str, LabelErrors]:
    """Errors of the labels with the lowest F1, among those with any; _MAX_LABELS at most."""
    wrong = [name for name, errors in self.errors.items() if errors.worst]
    wrong.sort(key=lambda name: self.per_class[name]["f1"])
    return {name: self.errors[name] for name in wrong[:_MAX_LABELS]}


def is_multi_label(report: dict[str, Any]) -> bool:
  """Whether the content of a dev_report.json is of a multi-label run."""
  return report.get("kind") == MULTI_LABEL


def read_multi_labels(workdir: str, report: dict[str, Any], notes: list[str]) -> MultiLabels | None:
  """Both files, the first as `report`; None if it is not of a multi-label run.

  Adds to the notes what cannot be read.
  """
  if not is_multi_label(report):
    return None
  try:
    names = ("precision", "recall", "f1", "support")
    per_class = {}
    for label in report["labels"]:
      measures = report["per_class"][label]
      per_class[str(label)] = {name: float(measures[name]) for name in names}
    count = int(report["n"])
  except (KeyError, TypeError, ValueError, OverflowError) as error:
    notes.append(f"{REPORT}: not as fine-tuning writes it ({error!r})"[:300])
    return None
  return MultiLabels(count, per_class, _read_errors(workdir, report, list(per_class), notes))


def _read_errors(
  workdir: str, report: dict[str, Any], labels: list[str], notes: list[str]
) -> dict[str, LabelErrors]:
  errors = {label: LabelErrors() for label in labels}
  try:
    for line in prediction_lines(workdir, report):
      entry = parse_json(line)
      where, text = str(entry["where"]), str(entry["text"])
      for label, probability in zip(labels, map(float, entry["probabilities"]), strict=True):
        given = probability >= 0.5
        if given == (label in entry["labels"]):
          continue
        errors[label].given += given
        errors[label].missed += not given
        worst = errors[label].worst
        worst.append(LabelError(where, text, given, probability))
        worst.sort(key=lambda error: -abs(error.probability - 0.5))
        del worst[_WORST:]
  except FileNotFoundError:
    return {}
  except (OSError, ValueError, KeyError, TypeError) as error:
    notes.append(f"{PREDICTIONS}: not as fine-tuning writes it ({error!r})"[:300])
    return {}
  return errors
