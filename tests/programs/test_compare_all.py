"""Every row of the comparison from pre-training to the tables, in a budget that learns nothing."""

import csv
import itertools

import pytest

from gpt_jax.data import storyworld
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import compare, prepare
from gpt_jax.programs.comparing.budgets import Budget
from gpt_jax.programs.comparing.rows import ROWS
from gpt_jax.programs.prepare import PrepareConfig

BUDGET = Budget(
  "least",
  TransformerConfig(context=64, layers=1, width=16, heads=2, norm="pre"),
  batch_size=8,
  length=64,
  steps=2,
  warmup_steps=1,
  rates=(1e-3,),
  evaluations=2,
  evaluation_batches=1,
  tasks=("story-ending",),
  examples=32,
  finetuning=(16, 1, 1e-3),
)
FORMS = {
  "causal": "GPT, linear",
  "both directions": "GPT, linear",
  "masked": "RoBERTa, dense + linear",
  "masked + next sentence": "BERT, pooler + linear",
  "n-grams masked + sentence order": "BERT, pooler + linear",
  "span corruption, prefix": "text to text, answers in words",
  "contrastive, neighbors": "RoBERTa, dense + linear",
  "no pre-training": "GPT, linear",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:loss .* is not below the unigram entropy")
def test_every_row_runs_to_the_tables(tmp_path):
  stories = itertools.islice(storyworld.documents(size=60_000), 60)
  (tmp_path / "stories.txt").write_text("\n\n\n".join(stories))
  corpus, workdir = str(tmp_path / "prepared"), str(tmp_path / "out")
  source = str(tmp_path / "stories.txt")
  prepare.run(PrepareConfig(source, vocab_size=600, valid_share=0.2, sentences=True), corpus)
  results = compare.run(workdir, budget=BUDGET, corpus=corpus)
  assert len({entry["trunk"] for entry in results["costs"].values()}) == 1
  lines = list(csv.DictReader(open(f"{workdir}/results.csv", encoding="utf-8")))
  assert {line["objective"]: line["fine-tuned, format and head"] for line in lines} == FORMS
  assert [line["objective"] for line in lines] == [row.title for row in ROWS.values()]
  for line in lines:
    scores = [cell for name, cell in line.items() if name.endswith(", story-ending")]
    is_late = line["equal seconds, step"] == "0"  # no checkpoint was there yet
    assert all(0 <= float(cell) <= 100 for cell in scores[: 2 if is_late else 3])
