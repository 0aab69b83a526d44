"""Four tasks on the embedded story world (data/storyworld.py), one per input transformation."""

from collections.abc import Callable, Iterator
from typing import Any

from gpt_jax.data import storyworld
from gpt_jax.tasks.formats import first_field
from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import (
  Transform,
  classification,
  entailment,
  multiple_choice,
  similarity,
)


def _reader(make: Callable[..., tuple[str, ...]]) -> Callable[[str, str], Iterator[Row]]:
  def read(data_dir: str, split: str) -> Iterator[Row]:
    del data_dir  # generated, not read
    for number, (texts, label) in enumerate(storyworld.examples(make, split)):
      yield Row(texts, label, f"{make.__name__}/{split}:{number}")

  return read


def _task(
  name: str,
  make: Callable[..., tuple[str, ...]],
  columns: tuple[str, ...],
  transform: Transform,
  **options: Any,
) -> Task:
  """A task whose rows `make` generates; options are further fields of Task."""
  return Task(
    name=name,
    labels=storyworld.LABELS[make],
    columns=columns,
    transform=transform,
    read=_reader(make),
    metrics={"accuracy": accuracy},
    **options,
  )


TASKS = (
  _task("story-ending", storyworld.ending, ("day",), classification),
  _task("story-doing", storyworld.doing, ("day", "statement"), entailment),
  _task("story-company", storyworld.company, ("first", "second"), similarity),
  _task(
    "story-next",
    storyworld.next_turn,
    ("day", "A", "B", "C", "D"),
    multiple_choice,
    pooling="per_choice",
    truncate=first_field,
  ),
)
