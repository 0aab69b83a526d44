"""A fine-tuning method: what a run does beside training a head and the whole trunk on its labels.

It is a value of the run's config: its options, the refusals that they need, and how they change the
plain recipe. Fine-tuning knows none of them by name.
"""

import re
from typing import Any

from gpt_jax.config import Config, from_json, registered_modules
from gpt_jax.extensions import source_of


class Method(Config):
  """Base of the fine-tuning methods, frozen dataclasses, registered by name."""

  # The name under which a config has it, one method for each; where a slot has one class, its
  # registered name is SLOT or SLOT_method.
  slot: str
  learns_unlabeled: bool = False  # whether examples without labels teach it anything
  takes_turns: bool = False  # whether these come in batches of their own, in turns with the others
  trains_trunk: bool = False  # whether layers of the trunk train that train_layers leaves out
  reads_checkpoint: str = ""  # what it needs of one; "": it goes with an untrained trunk, too

  def change_loaded(self, loaded: Any) -> Any:
    """The checkpoint, a LoadedModel, as the run reads it."""
    return loaded

  def change_start(self, start: Any, loaded: Any, config: Any) -> Any:
    """The Start of the run, which `loaded` gives; None: an untrained trunk."""
    return start

  def change_format(self, format: Any) -> Any:
    """How examples become sequences."""
    return format

  def change_head(self, head: dict[str, Any], start: Any) -> dict[str, Any]:
    """The JSON config of a task's head."""
    return head

  def change_layerwise(self, layerwise: Any, spec: Any, config: Any, steps_per_epoch: int) -> Any:
    """The Layerwise of the optimizer: what trains later, more slowly or not at all."""
    return layerwise

  def check(self, config: Any, task: Any, start: Any) -> None:
    """Raises InputError for a task, a start or options of the config that it does not go with."""

  def recipe(self, recipe: Any, start: Any) -> Any:
    """The Recipe with its model, loss, work, start and what its checkpoints record.

    recipe: of the plain run and the methods before this one, in alphabetical order of slots.
    """
    return recipe


def method_slots() -> list[str]:
  """The slots of all methods, read from the source: importing them may import JAX."""
  sources = map(source_of, dict.fromkeys(registered_modules().values()))
  return sorted(set(_SLOT.findall("\n".join(sources))))


_SLOT = re.compile(r'^  slot = "(\w+)"$', re.MULTILINE)


def new_method(slot: str, **options: Any) -> Any:
  """The method of a slot that has one class, with these options; None: there is no such slot."""
  names = registered_modules()
  name = next((name for name in (f"{slot}_method", slot) if name in names), None)
  method = None if name is None else from_json({"type": name, **options})
  return method if vars(type(method)).get("slot") == slot else None
