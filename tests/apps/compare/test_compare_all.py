"""Every row of the comparison from pre-training to the tables, in a budget that learns nothing."""

import dataclasses

import jax
import numpy as np
import pytest
from tiny_budget import TINY, prepare_stories, tables_of

from gpt_jax.apps.compare import compare
from gpt_jax.apps.compare.rows import ROWS
from gpt_jax.apps.compare.tables import step_at_equal_seconds
from gpt_jax.programs import finetune
from gpt_jax.programs.finetune_task import load_task
from gpt_jax.programs.pretrain import pretrain_recipe
from gpt_jax.programs.start import load_start
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.training.recipe import make_trainer

BUDGET = dataclasses.replace(TINY, name="least", steps=2, shown=("story-tags",))
FORMS = {
  "causal": "GPT, linear",
  "both directions": "GPT, linear",
  "masked": "RoBERTa, dense + linear",
  "masked, full sentences": "RoBERTa, dense + linear",
  "masked + next sentence": "BERT, pooler + linear",
  "n-grams masked + sentence order": "BERT, pooler + linear",
  "span corruption, prefix": "text to text, answers in words",
  "contrastive, neighbors": "RoBERTa, dense + linear",
  "causal, adversarial fine-tuning": "GPT, linear",
  "LSTM, causal": "GPT, linear",
  "ELMo, frozen": "GPT, mixed",
  "ULMFiT": "GPT, two layers",
  "CoVe, frozen": "BERT, biattentive",
  "supervised twin": "GPT, views",
  "cross-view training": "GPT, views",
  "no pre-training": "GPT, linear",
}


# They have one label per text, or answer in words.
WITHOUT_TAGS = {"span corruption, prefix", "ULMFiT", "CoVe, frozen"}
NOT_PROBED = {"causal, adversarial fine-tuning", "supervised twin", "cross-view training"}
PACES = {"causal": 1.0, "spans": 3.0}  # seconds a step; all others take 0.5


@pytest.fixture
def untrained_rows(monkeypatch):
  """The folders of the rows whose fine-tuning ends before its first step.

  Those are the rows of a format and head that an earlier row has been fine-tuned with. Tags are not
  trained either.
  """
  tune, known, folders = finetune.run, set(), []

  def run(config, data_dir, checkpoint, workdir, tokenizer="", seeds=1, trackers=None, on_end=()):
    if isinstance(config.task, PairsTask):  # pre-training
      return tune(config, data_dir, checkpoint, workdir, tokenizer=tokenizer)
    start = load_start(config, checkpoint, tokenizer)
    unlabeled = config.method("unlabeled") is not None
    form = compare._format_and_head(config, start), unlabeled
    has_tags = config.task.name == "story-tags"
    if form not in known and not has_tags:
      known.add(form)
      return tune(config, data_dir, checkpoint, workdir, tokenizer=tokenizer, on_end=on_end)
    config, task, data = load_task(config, data_dir, start)
    trainer = make_trainer(finetune.finetune_recipe(config, task, data["train"], start))
    of_trunk = trainer.abstract_state().params["trunk"]
    if checkpoint != "none":
      assert jax.tree.map(np.shape, start.params["trunk"]) == jax.tree.map(np.shape, of_trunk)
    if not has_tags:
      folders.append(workdir)
    return [{"dev": {"dev_accuracy": 0.5}}]

  monkeypatch.setattr(finetune, "run", run)
  return folders


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*loss .* is not below the unigram entropy")
def test_every_row_runs_to_the_tables(tmp_path, monkeypatch, untrained_rows):
  corpus, workdir = prepare_stories(tmp_path), str(tmp_path / "out")
  monkeypatch.setattr(
    compare, "paces", lambda recipes: {name: PACES.get(name, 0.5) for name in recipes}
  )
  # Samples of each model are compiled for nothing here.
  monkeypatch.setattr(compare, "with_samples", lambda: pretrain_recipe)
  results = compare.run(workdir, budget=BUDGET, corpus=corpus)
  trunks = {name: entry["trunk"] for name, entry in results["costs"].items()}
  assert len({trunks[name] for name, row in ROWS.items() if row.objective}) == 1
  # An LSTM's units are a multiple of 8, which is coarse beside 16 features; characters come on top.
  for name in ("lstm", "ulmfit", "twin", "views"):
    assert trunks[name] == pytest.approx(trunks["causal"], rel=0.2)
  _, tuned, steady, early = tables_of(workdir).values()
  assert {name: row["format and head"] for name, row in tuned.items()} == FORMS
  assert list(tuned) == [row.title for row in ROWS.values()]
  assert {name for name, row in tuned.items() if not row["story-tags"]} == WITHOUT_TAGS
  # The supervised twin is trained, too.
  assert len(untrained_rows) == len(FORMS) - len(set(FORMS.values())) - 1
  # Two steps of the fastest rows take a second, and so does one of the causal model.
  steps = {name: step_at_equal_seconds(results, BUDGET, name) for name in results["losses"]}
  assert steps == dict.fromkeys(steps, 2) | {"causal": 1, "spans": 0}
  for name in FORMS:
    scores = [table[name]["story-ending"] for table in (tuned, steady, early)]
    if name in NOT_PROBED:
      assert scores[1:] == ["", ""]
      scores = scores[:1]
    is_late = early[name]["step"] == "0"  # no checkpoint was there yet
    assert is_late == (name == "span corruption, prefix")
    assert all(0 <= float(cell) <= 100 for cell in scores[: 2 if is_late else 3])
