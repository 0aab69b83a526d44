"""Whether a classifier with weights of fewer bits still answers as in float32."""

import dataclasses

import numpy as np

from gpt_jax.checkpoints.load import AnyModel
from gpt_jax.errors import InputError
from gpt_jax.inference.intervals import paired_interval, wilson
from gpt_jax.parallel.processes import log
from gpt_jax.tasks.encoding import Encoded


@dataclasses.dataclass(frozen=True)
class Agreement:
  """Two classifiers on the same examples: float32 first, then fewer bits."""

  correct: tuple[np.ndarray, np.ndarray]  # whether each predicts an example's label, bool [N]
  same: np.ndarray  # whether both predict the same label, bool [N]

  @property
  def kept(self) -> dict[str, float]:
    """Share of float32's labels, and of its accuracy, that is kept."""
    before, after = map(np.sum, self.correct)
    # Where nothing was right, nothing can be lost.
    accuracy = float(after / before) if before else 1.0
    return {"labels": float(self.same.mean()), "accuracy": accuracy}

  @property
  def measures(self) -> dict[str, float]:
    """Both accuracies, and what is left of float32's answers, with 95 % intervals."""
    before, after = self.correct
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    change_low, change_high = paired_interval(gained, lost, len(before))
    same_low, same_high = wilson(int(self.same.sum()), len(self.same))
    return {
      "accuracy": float(after.mean()),
      "accuracy_float32": float(before.mean()),
      "accuracy_change_low": change_low,
      "accuracy_change_high": change_high,
      "same_label": self.kept["labels"],
      "same_label_low": same_low,
      "same_label_high": same_high,
    }

  def check(self, keep: float, kind: str, outcome: str) -> None:
    """Raises InputError, which ends with the outcome, if less than the share `keep` is kept."""
    # Not by the intervals: their lower ends are below 99 % for any model and fewer than 381 rows.
    for name, share in self.kept.items():
      if share < keep:
        raise InputError(
          f"keep={keep}: {kind} keeps only {share:.2%} of float32's {name} on "
          f"{len(self.same):,} examples, so {outcome}"
        )


def compare_labels(exact: np.ndarray, smaller: np.ndarray, encoded: Encoded) -> Agreement:
  """The agreement of two classifiers' labels, int [N] each, for labeled examples."""
  truth = np.asarray(encoded.labels).argmax(-1)
  return Agreement((exact == truth, smaller == truth), exact == smaller)


def check_keep(keep: float) -> None:
  """Fails before the expensive part: `keep` must be a share, and scipy installed."""
  if not 0 <= keep <= 1:
    raise InputError(f"keep={keep}: must be a share, from 0 to 1")
  wilson(1, 1)  # needs scipy


def labeled_rows(loaded: AnyModel, data: str, split: str) -> Encoded:
  """A split of the model's task, which must have one label for each text."""
  task = loaded.label_task()
  if not task.is_classification:
    kind = f"of {task.name} ({task.kind})"
    raise InputError(f"{loaded.path}: is {kind}; labels are compared, which a classifier gives")
  examples = task.examples(data, split)
  if not examples or any(example.label is None for example in examples):
    raise InputError(f"split={split}: of {data} has no labels to compare with; use another")
  encoded = loaded.encode(task, examples)
  if encoded.truncation:
    log(f"warning: {encoded.truncation}")
  return encoded
