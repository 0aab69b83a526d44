"""Text without labels beside the labeled examples, for the methods that learn from it."""

import dataclasses
from typing import Any

from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.method import Method


@register("unlabeled")
@dataclasses.dataclass(frozen=True)
class Unlabeled(Method):
  """The training examples that are not among the train_examples are read without their labels."""

  file: str = option("", "a table of further texts, in the task's columns, without labels")

  slot = "unlabeled"

  def check(self, config: Any, task: Any, start: Any) -> None:
    if self.file and task.writes_text:
      raise InputError(f"unlabeled.file={self.file}: needs a head for labels")
    # A task that writes text has a file of its own.
    has_rest = config.train_examples or self.file or task.writes_text
    if not has_rest or not any(method.learns_unlabeled for method in config.methods):
      raise InputError(
        "unlabeled: needs train_examples above 0, or unlabeled.file, and what learns without "
        "labels: adversarial=virtual_adversarial (configs/adversarial.py), views "
        "(configs/cross_view.py) or a teacher (configs/distill.py)"
      )
