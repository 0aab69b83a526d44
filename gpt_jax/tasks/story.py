"""The four tasks of the embedded world (data/storyworld.py), one for each of the paper's
transformations.
"""

from collections.abc import Callable, Iterator

from gpt_jax.data import storyworld
from gpt_jax.tasks import metrics
from gpt_jax.tasks.encoding import first_field
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import classification, entailment, multiple_choice, similarity


def _read(make: Callable) -> Callable[[str, str], Iterator[Row]]:
  def read(data_dir: str, split: str) -> Iterator[Row]:
    del data_dir  # the world is in the code
    for number, (texts, label) in enumerate(storyworld.examples(make, split)):
      yield Row(texts, label, f"{make.__name__}/{split}:{number}")

  return read


def _task(name: str, make: Callable, columns: tuple[str, ...], sequences: Callable, **more) -> Task:
  labels = storyworld.LABELS[make]
  return Task(name, labels, columns, sequences, _read(make), {"accuracy": metrics.accuracy}, **more)


TASKS = (
  _task("story-ending", storyworld.ending, ("day",), classification),
  _task("story-doing", storyworld.doing, ("day", "statement"), entailment),
  _task("story-company", storyworld.company, ("one", "other"), similarity),
  _task(
    "story-next",
    storyworld.next_turn,
    ("day", "A", "B", "C", "D"),
    multiple_choice,
    pooling="per_choice",
    truncate=first_field,
  ),
)
