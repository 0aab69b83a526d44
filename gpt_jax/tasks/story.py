"""Tasks on the story world (data/storyworld.py): one per input transformation, and tagging."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from gpt_jax.data import storyworld
from gpt_jax.data.storyworld import HAPPY, HE, SAD, SHE, SIZES, Scene, pronoun, scenes_of
from gpt_jax.tasks import transforms
from gpt_jax.tasks.answers.tags import TaggedExample, TagTask
from gpt_jax.tasks.formats import first_field
from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import Task


def _task(
  name: str,
  make: Callable[..., tuple[str, ...]],
  columns: tuple[str, ...],
  transform: transforms.Transform,
  **options: Any,
) -> Task:
  """A task whose rows `make` generates; options are further fields of Task."""

  def read(data_dir: str, split: str) -> Iterator[Row]:
    for number, (texts, label) in enumerate(storyworld.examples(make, split)):
      yield Row(texts, label, f"{make.__name__}/{split}:{number}")

  return Task(
    name=name,
    labels=storyworld.LABELS[make],
    columns=columns,
    transform=transform,
    read=read,
    **options,
  )


# Token tagging: which kind of phrase does each word belong to? The phrases of the dev and test sets
# occur in no training example, so the tags must come from their words' meaning and the sentence.
_TAGS = ("other", "person", "place", "work", "good", "bad", "mood")


def _read_tags(data_dir: str, split: str) -> Iterator[TaggedExample]:
  rng = random.Random(f"tags {split}")
  scenes = scenes_of(split)
  for number in range(SIZES[split]):
    words, tags = [], []
    for phrase, tag in _day(rng, rng.choice(scenes)):
      words += phrase.split()
      tags += [tag] * len(phrase.split())
    yield TaggedExample(tuple(words), tuple(tags), f"story-tags/{split}:{number}")


def _day(rng: random.Random, scene: Scene) -> list[tuple[str, str]]:
  """A day as (phrase, tag) pairs: a place, some work, a turn, a mood."""
  name = rng.choice(SHE + HE)
  good = rng.random() < 0.5
  turn = rng.choice(scene.good if good else scene.bad)
  mood = rng.choice(HAPPY if good else SAD)
  return [
    (name, "person"),
    ("was at the", "other"),
    (f"{rng.choice(scene.places)}.", "place"),
    (pronoun(name), "person"),
    (f"{rng.choice(scene.work)}.", "work"),
    (rng.choice(("Then", "Later", "Soon")), "other"),
    (f"{turn}.", "good" if good else "bad"),
    (pronoun(name), "person"),
    (f"{mood}.", "mood"),
  ]


ONE_LABEL = (
  _task("story-ending", storyworld.ending, ("day",), transforms.classification),
  _task("story-doing", storyworld.doing, ("day", "statement"), transforms.entailment),
  _task("story-company", storyworld.company, ("first", "second"), transforms.similarity),
  _task(
    "story-next",
    storyworld.next_turn,
    ("day", "A", "B", "C", "D"),
    transforms.multiple_choice,
    pooling="per_choice",
    truncate=first_field,
  ),
)
TASKS = (*ONE_LABEL, TagTask("story-tags", _TAGS, _read_tags, {"accuracy": accuracy}))
