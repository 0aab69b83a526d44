"""The story world: a generated corpus of simple English stories, and four labeled tasks on it.

A scene (a kitchen, a ship, a school, …) has places, work that people do there, and events that turn
out well or badly. A day is a person, a scene, some work and some events, each followed by the mood
it causes. No sentence names its scene or calls an event good or bad; a model has to learn from
co-occurrence which phrases belong together.

The labeled training sets and the dev and test sets use different phrases, whereas the pre-training
text uses all. So labels alone cannot teach the meaning of a test phrase, but pre-training can.
"""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

SHE = "Anna Clara Doris Edith Grace Helen Ivy Jane Lucy Mary Nora Ruth".split()
HE = "Adam Ben Carl David Frank Hugh Jack Leo Mark Paul Sam Tom".split()


class Scene(NamedTuple):
  """Phrases that belong together; a list has the same length in every scene."""

  places: tuple[str, ...]
  work: tuple[str, ...]
  good: tuple[str, ...]
  bad: tuple[str, ...]


# Scenes between blank lines, each with the four lists of a Scene; indented lines go on with a list.
_PHRASES = """\
oven; kitchen; larder
kneaded the dough; salted the soup; peeled the apples; rolled the pastry; stirred the batter;
  cracked the eggs
the loaves rose high; the crust was golden; the guests asked for more; the sauce turned smooth;
  the pudding set
the milk boiled over; the crust burned black; the cream went sour; the dumplings fell apart;
  the jar broke

ship; harbour; pier
hoisted the sail; coiled the ropes; cast the net; scrubbed the deck; rowed past the reef;
  trimmed the rigging
the net was full of herring; a fair wind blew; the fog lifted; the anchor held;
  a lighthouse shone ahead
the mast snapped; a storm came up; the hull sprang a leak; the oars drifted away;
  the tide ran out too soon

garden; orchard; hothouse
watered the beans; pruned the roses; dug the beds; raked the leaves; planted tulips;
  weeded the paths
the seeds sprouted; the pears grew sweet; the bees returned; the lilac bloomed;
  warm rain fell on the beds
frost killed the buds; snails ate the lettuce; the hedge withered; moles dug up the lawn;
  the vines rotted

school; classroom; library
learned the poem; wrote on the slate; copied the alphabet; solved the sums; read the chapter;
  drew a map
the teacher praised the essay; the spelling was perfect; the exam went well; a prize came;
  the sums came right
the ink ran over the page; the teacher frowned; the exam was a failure; the answers were wrong;
  the chalk broke

forge; smithy; anvil
hammered the iron; pumped the bellows; shod the mule; bent the hinge; sharpened the blade;
  filed the key
the steel rang true; the horseshoe fitted; the coals glowed evenly; the weld was strong;
  the plough was mended
the iron cracked; sparks set the thatch on fire; the tongs slipped; the blade turned blunt;
  the bellows tore

forest; clearing; hunting lodge
followed the tracks; gathered mushrooms; felled a birch; set the snare; picked berries;
  chopped firewood
a deer stepped out; the thicket opened; the basket was full of nuts; an owl showed the way;
  the campfire caught
wolves howled close by; the path was lost; the brambles tore the coat; a branch came down;
  the hare escaped

market; stall; fair
weighed the cheese; counted the coins; shouted the prices; spread the wares; haggled over goats;
  sold honey
the wares sold out; a rich buyer came; the purse grew heavy; customers queued up;
  the bargain was struck
a thief took the cash; nobody bought anything; the scales were false; the price of wool fell;
  a rival undersold

stable; paddock; riding track
brushed the pony; saddled the mare; filled the manger; cleaned the hooves; braided the mane;
  trotted round
the colt took the fence; the foal stood up; the stallion grew tame; the gallop was swift;
  the rider won a ribbon
the pony threw a shoe; the colt bolted; the mare went lame; the saddle slid off; the reins snapped

workshop; sawmill; carpenter's bench
planed the boards; sawed the beam; glued the chair; carved a spoon; sanded the table;
  drilled the holes
the joints fitted; the drawer slid smoothly; the cradle was finished; the varnish shone;
  the shelf stood level
the plank split; the saw jammed; the glue would not dry; the chisel slipped; the table wobbled

sickroom; hospital; chemist's shop
boiled the herbs; bandaged the wrist; took the pulse; mixed the ointment; changed the sheets;
  measured the drops
the fever went down; the cough was gone; the wound healed; the patient sat up; the medicine worked
the fever rose; the wound festered; the pills ran out; the patient fainted; the cough grew worse

concert hall; bandstand; ballroom
tuned the fiddle; practised the scales; beat the drum; learned the waltz; played the flute;
  sang the ballad
the audience clapped; the choir was in tune; an encore was called for; the melody soared;
  the dancers cheered
a string broke; the singer was hoarse; the audience hissed; the tune was forgotten;
  the piano was out of tune

tailor's room; weaving shed; draper's shop
threaded the needle; cut the velvet; hemmed the gown; spun the wool; ironed the collar;
  sewed on buttons
the gown was a perfect fit; the stitches held; the silk gleamed; the bride loved the lace;
  the pattern matched
the seam ripped; the scissors slipped; moths ate the felt; the dye ran; the sleeve was too short"""


def _scenes() -> Iterator[Scene]:
  for scene in _PHRASES.replace("\n  ", " ").split("\n\n"):
    yield Scene(*(tuple(phrases.split("; ")) for phrases in scene.split("\n")))


SCENES = tuple(_scenes())
Scenes = tuple[Scene, ...]

HAPPY = (
  "sang all the way home; smiled at everyone; laughed aloud; was full of joy; "
  "felt light at heart; danced with joy; hummed merrily; was glad; was content; "
  "beamed with pride; was cheerful; thanked the stars"
).split("; ")
SAD = (
  "wept all the way home; sighed all evening; was close to tears; was full of grief; "
  "felt heavy; crept to bed; groaned aloud; was sorry; was gloomy; sulked in a corner; "
  "was downcast; cursed the day"
).split("; ")

_OPENINGS = (
  "One morning {name} went to the {place}.",
  "{name} was at the {place}.",
  "At dawn {name} came to the {place}.",
  "{name} spent the day at the {place}.",
)
_THEN = ("Then", "Later", "At noon", "Soon", "In the end", "After a while")


def documents(seed: int = 0, size: int = 3_000_000) -> Iterator[str]:
  """Books of 80 days, one per line, until they have `size` characters in all."""
  # A string seeds by its SHA-512, which, unlike hash(), is the same in every process.
  rng = random.Random(f"documents {seed}")
  total = 0
  while total < size:
    book = "\n".join(_day(rng) for _ in range(80))
    total += len(book)
    yield book


def _day(rng: random.Random) -> str:
  """An opening, work, and one to three events, each with the mood it causes."""
  scene, name = rng.choice(SCENES), rng.choice(SHE + HE)
  he = pronoun(name)
  parts = [_opening(rng, scene.places, name)]
  parts += [f"{he} {work}." for work in rng.sample(scene.work, rng.randint(1, 3))]
  for _ in range(rng.randint(1, 3)):
    # An event decides the mood that follows it: this is what a model can learn from the text.
    good = rng.random() < 0.5
    parts.append(f"{rng.choice(_THEN)} {rng.choice(scene.good if good else scene.bad)}.")
    parts.append(f"{he} {rng.choice(HAPPY if good else SAD)}.")
    if rng.random() < 0.3:  # some days go on with work, so that a mood does not end every one
      parts.append(f"{he} {rng.choice(scene.work)}.")
  return " ".join(parts)


def _opening(rng: random.Random, places: tuple[str, ...], name: str) -> str:
  return rng.choice(_OPENINGS).format(name=name, place=rng.choice(places))


def pronoun(name: str) -> str:
  return "She" if name in SHE else "He"


# The labeled tasks. Each function makes the texts of one example with the given label.


def ending(rng: random.Random, scenes: Scenes, label: str) -> tuple[str, ...]:
  """Does the day end well? One event is good and one is bad; the last one decides."""
  scene, name = rng.choice(scenes), rng.choice(SHE + HE)
  # Both kinds occur in every example, so that single words do not tell the label.
  first, last = (scene.bad, scene.good) if label == "well" else (scene.good, scene.bad)
  day = [_opening(rng, scene.places, name), f"{pronoun(name)} {rng.choice(scene.work)}."]
  return (" ".join([*day, f"Then {rng.choice(first)}.", f"Later {rng.choice(last)}."]),)


def doing(rng: random.Random, scenes: Scenes, label: str) -> tuple[str, ...]:
  """Does some work follow from a place and an event, or contradict them?"""
  (scene, other_scene), name = rng.sample(scenes, 2), rng.choice(SHE + HE)
  event = rng.choice(rng.choice((scene.good, scene.bad)))
  work_scene = scene if label == "follows" else other_scene
  work = rng.choice(work_scene.work)
  return f"{_opening(rng, scene.places, name)} Then {event}.", f"{pronoun(name)} {work}."


def company(rng: random.Random, scenes: Scenes, label: str) -> tuple[str, ...]:
  """Did two people do the same kind of work, that is, work of the same scene?"""
  two_scenes, names = rng.sample(scenes, 2), rng.sample(SHE + HE, 2)
  if label == "same":
    works = rng.sample(two_scenes[0].work, 2)
  else:
    works = [rng.choice(scene.work) for scene in two_scenes]
  return f"{names[0]} {works[0]}.", f"{names[1]} {works[1]}."


def next_turn(rng: random.Random, scenes: Scenes, label: str) -> tuple[str, ...]:
  """Does an event come next? Only one of four events belongs to the scene."""
  four_scenes, name = rng.sample(scenes, 4), rng.choice(SHE + HE)
  good = rng.random() < 0.5
  events = [f"Then {rng.choice(scene.good if good else scene.bad)}." for scene in four_scenes]
  answer, scene = "ABCD".index(label), four_scenes[0]
  # The scene's own event was made first.
  events[0], events[answer] = events[answer], events[0]
  opening = _opening(rng, scene.places, name)
  return f"{opening} {pronoun(name)} {rng.choice(scene.work)}.", *events


Maker = Callable[[random.Random, Scenes, str], tuple[str, ...]]

LABELS: dict[Maker, tuple[str, ...]] = {
  ending: ("badly", "well"),
  doing: ("contradicts", "follows"),
  company: ("different", "same"),
  next_turn: ("A", "B", "C", "D"),
}
SIZES = {"train": 320, "dev": 400, "test": 400}


def scenes_of(split: str) -> Scenes:
  """The scenes with the phrases of the labeled training sets, or those of the dev and test sets."""
  held_out = split != "train"

  def select(phrases: tuple[str, ...]) -> tuple[str, ...]:
    """Every third phrase is held out."""
    return tuple(phrase for i, phrase in enumerate(phrases) if (i % 3 == 1) == held_out)

  return tuple(Scene(*map(select, scene)) for scene in SCENES)


def examples(task: Maker, split: str, seed: int = 0) -> list[tuple[tuple[str, ...], str]]:
  """The labeled examples of a task as (texts, label): distinct texts, balanced labels.

  The splits are "train", and "dev" and "test", which share no phrase with it.
  """
  rng = random.Random(f"{task.__name__} {split} {seed}")
  scenes, labels = scenes_of(split), LABELS[task]
  labels_of_texts: dict[tuple[str, ...], str] = {}
  while len(labels_of_texts) < SIZES[split]:
    label = labels[len(labels_of_texts) % len(labels)]  # in turns: balanced
    # A text that was made before is dropped, and the same label tried again.
    labels_of_texts.setdefault(task(rng, scenes, label), label)
  pairs = list(labels_of_texts.items())
  rng.shuffle(pairs)
  return pairs
