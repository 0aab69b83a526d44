"""Prepares a text without duplicates and evaluation rows, also by runners of Apache Beam."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from gpt_jax.apps.corpus.beam import RUNNERS, BeamPasses, require_beam
from gpt_jax.apps.corpus.removal import Removing, RemovingPasses
from gpt_jax.config import option, register
from gpt_jax.data.passes import Passes, local_pool
from gpt_jax.data.sources.source import Source
from gpt_jax.files import remove_folder
from gpt_jax.programs import prepare


@register("corpus")
@dataclasses.dataclass(frozen=True)
class CorpusConfig(prepare.PrepareConfig):
  """A preparation of text, what to remove from it, and who does the work."""

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
  runner: str = option(
    "",
    "Apache Beam's runner that shares the work: direct (this machine), dataflow, flink or spark; "
    "without one, processes of this machine do it. The result is the same",
    choices=("", *RUNNERS),
  )
  beam_options: str = option("", "options for --runner, such as '--project=P --region=R'")


def run(config: CorpusConfig, out: str) -> None:
  """Makes the folder `out`, as `prepare.run` does, with removed.jsonl if documents are removed.

  Args:
    config: its runner, beam_options and data change nothing in the result.
  """
  if config.runner:
    require_beam(config.runner, config.beam_options)
  removing = Removing(config.deduplicate, config.decontaminate, config.data)

  @contextlib.contextmanager
  def passes(sources: Sequence[Source], folder: str, key: dict[str, Any]) -> Iterator[Passes]:
    if config.runner:
      yield BeamPasses(removing, config.runner, config.beam_options, folder, key)
      remove_folder(folder)
    else:
      with local_pool(sources) as pool:
        yield RemovingPasses(removing, pool)

  prepare.run(config, out, passes, removing.settings)
