"""Token tagging on the embedded story world: which kind of phrase does each word belong to?

The phrases of the dev and test sets occur in no training example, so the tags must come from
their words' meaning and from the sentence; see data/storyworld.py.
"""

import random
from collections.abc import Iterator

from gpt_jax.data.storyworld import HAPPY, HE, SAD, SHE, SIZES, Part, Scene, pronoun
from gpt_jax.tasks.answers.tags import TaggedExample, TagTask
from gpt_jax.tasks.metrics import accuracy

TAGS = ("other", "person", "place", "work", "good", "bad", "mood")


def _read(data_dir: str, split: str) -> Iterator[TaggedExample]:
  del data_dir  # generated, not read
  rng = random.Random(f"tags {split}")
  scenes = Part.of(split).scenes
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


TASKS = (TagTask("story-tags", TAGS, _read, {"accuracy": accuracy}),)
