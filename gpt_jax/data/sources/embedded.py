"""The embedded text, which needs no download: the story world."""

from collections.abc import Iterable, Iterator

from gpt_jax.data import storyworld

USAGE = "embedded"
FOLDER_SUFFIXES = None  # these are not files


def reads(name: str) -> bool:
  return name == "embedded"


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  for book in storyworld.documents():
    yield [book]
