import collections
import itertools

import numpy as np
import pytest

from gpt_jax.apps.paper import quickstart
from gpt_jax.data import storyworld as world
from gpt_jax.tasks import task as tasks
from gpt_jax.tasks.story import ONE_LABEL

MAKERS = tuple(world.LABELS)


def named(maker):
  return maker.__name__


def facts():
  """The phrases as a second view of the world: sentence end -> (scene, kind)."""
  kinds = {}
  for number, scene in enumerate(world.SCENES):
    for kind in ("places", "work", "good", "bad"):
      for phrase in getattr(scene, kind):
        assert phrase not in kinds, f"{phrase!r} is in two scenes, so nothing follows from it"
        kinds[phrase] = (number, kind)
  for kind, phrases in (("happy", world.HAPPY), ("sad", world.SAD)):
    for phrase in phrases:
      assert phrase not in kinds
      kinds[phrase] = (None, kind)
  return kinds


FACTS = facts()


def read(text):
  """The (scene, kind) of every phrase in a text, in the order of the text."""
  ended = [phrase for phrase in FACTS if f" {phrase}." in text]
  return [FACTS[phrase] for phrase in sorted(ended, key=lambda phrase: text.index(f" {phrase}."))]


def true_label(maker, texts):
  """The label as the phrases themselves say, replayed from the texts alone."""
  kinds = [read(text) for text in texts]
  if maker is world.ending:
    return {"good": "well", "bad": "badly"}[kinds[0][-1][1]]
  if maker is world.doing:
    scenes = [{scene for scene, _ in of_text} for of_text in kinds]
    return "follows" if scenes[0] == scenes[1] else "contradicts"
  if maker is world.company:
    return "same" if kinds[0][0][0] == kinds[1][0][0] else "different"
  turns = zip("ABCD", kinds[1:], strict=True)
  (right,) = (letter for letter, turn in turns if turn[0][0] == kinds[0][0][0])
  return right


def phrases_of(texts):
  return {phrase for phrase in FACTS for text in texts if f" {phrase}." in text}


@pytest.mark.parametrize("maker", MAKERS, ids=named)
@pytest.mark.parametrize("split", world.SIZES)
def test_labels_are_true_and_balanced_and_texts_distinct(maker, split):
  examples = world.examples(maker, split)
  for texts, label in examples:
    assert true_label(maker, texts) == label, texts
  counts = collections.Counter(label for _, label in examples)
  assert len({texts for texts, _ in examples}) == len(examples) == world.SIZES[split]
  assert max(counts.values()) - min(counts.values()) <= 1
  assert set(counts) == set(world.LABELS[maker])


@pytest.mark.parametrize("maker", MAKERS, ids=named)
def test_length_tells_nothing(maker):
  """Characters of the texts differ between labels by less than a third of their deviation."""
  lengths = collections.defaultdict(list)
  for texts, label in itertools.chain.from_iterable(
    world.examples(maker, split) for split in world.SIZES
  ):
    lengths[label].append(sum(map(len, texts)))
  means = [np.mean(values) for values in lengths.values()]
  assert max(means) - min(means) < np.std(list(itertools.chain.from_iterable(lengths.values()))) / 3


@pytest.mark.parametrize("maker", MAKERS, ids=named)
def test_no_phrase_of_the_dev_set_is_in_the_training_set(maker):
  train, dev = (
    set().union(*(phrases_of(texts) for texts, _ in world.examples(maker, split)))
    for split in ("train", "dev")
  )
  assert train and dev and not train & dev


@pytest.mark.parametrize("task", ONE_LABEL, ids=lambda task: task.name)
def test_bag_of_words_learns_next_to_nothing(task):
  assert quickstart.bag_of_words(task) < 1 / task.num_classes + 0.12


def test_the_books_have_every_phrase_and_no_example():
  text = "\n".join(world.documents(size=400_000))
  assert phrases_of([text]) == set(FACTS)
  for maker in MAKERS:
    for texts, _ in world.examples(maker, "dev"):
      assert " ".join(texts) not in text


def test_moods_in_the_books_follow_from_the_turns_before_them():
  kinds = {"good": "happy", "bad": "sad"}
  for day in next(world.documents()).split("\n"):
    turn = None
    for _, kind in read(day) if len(set(read(day))) == len(read(day)) else []:
      if kind in ("happy", "sad"):
        assert kinds[turn] == kind, day
      elif kind in kinds:
        turn = kind


def test_the_world_is_a_function_of_its_seed():
  books = [next(world.documents(seed=seed)) for seed in (3, 3, 4)]
  assert books[0] == books[1] != books[2]
  assert world.examples(world.doing, "dev") == world.examples(world.doing, "dev")
  # And of the size that was asked for.
  assert 100_000 <= sum(map(len, world.documents(size=100_000))) < 120_000


def test_tasks_are_found_by_name():
  for task in ONE_LABEL:
    examples = tasks.find(task.name).examples("", "train")
    assert len(examples) == world.SIZES["train"] and examples[0].location.endswith("train:0")
