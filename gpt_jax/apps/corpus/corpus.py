"""Prepares a text without duplicates and evaluation rows."""

import dataclasses
import functools

from gpt_jax.apps.corpus.removal import Removing, RemovingPasses
from gpt_jax.config import option, register
from gpt_jax.programs import prepare


@register("corpus")
@dataclasses.dataclass(frozen=True)
class CorpusConfig(prepare.PrepareConfig):
  """A preparation of text, and what to remove from it."""

  deduplicate: str = option(
    "none",
    "documents to remove: exact duplicates of earlier ones, or near-duplicates too (MinHash); "
    "removed.jsonl says which and why",
    choices=("none", "exact", "near"),
  )
  decontaminate: str = option(
    "",
    "files of evaluation rows (text, JSON lines, tables) and names of tasks, separated by commas; "
    "documents with a row in them are removed",
  )
  data: str = option("", "folder of the tasks named by --decontaminate")


def run(config: CorpusConfig, out: str) -> None:
  """Makes the folder `out`, as `prepare.run` does, with removed.jsonl if documents are removed."""
  removing = Removing(config.deduplicate, config.decontaminate, config.data)
  prepare.run(config, out, functools.partial(RemovingPasses, removing), removing.settings)
