"""The smallest budget of launch/compare.py: four steps of 16 features; its tables and text."""

import itertools
import re
from pathlib import Path

from gpt_jax.apps.compare.budgets import Budget
from gpt_jax.data import storyworld
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import prepare
from gpt_jax.programs.prepare import PrepareConfig

TINY = Budget(
  "tiny",
  TransformerConfig(context=64, layers=1, width=16, heads=2, norm="pre"),
  batch_size=8,
  length=64,
  steps=4,
  warmup_steps=1,
  rates=(1e-3,),
  evaluations=2,
  evaluation_batches=1,
  tasks=("story-ending",),
  examples=32,
  finetuning=(16, 1, 1e-3),
)


def prepare_stories(folder: Path) -> str:
  """The folder of some documents of the story world, prepared with sentence ends."""
  stories = itertools.islice(storyworld.documents(size=60_000), 60)
  source, out = folder / "stories.txt", str(folder / "prepared")
  source.write_text("\n\n\n".join(stories))
  prepare.run(PrepareConfig(str(source), vocab_size=600, valid_share=0.2, sentences=True), out)
  return out


def tables_of(workdir: str) -> dict[str, dict[str, dict[str, str]]]:
  """The cells of results.md, by title, objective and column."""
  tables: dict[str, dict[str, dict[str, str]]] = {}
  sections = re.split("^## ", Path(workdir, "results.md").read_text("utf-8"), flags=re.MULTILINE)
  for section in sections[1:]:
    title, *lines = section.splitlines()
    rows = [list(map(str.strip, line[1:-1].split("|"))) for line in lines if line[:1] == "|"]
    head, _, *rows = rows
    tables[title] = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
  return tables
