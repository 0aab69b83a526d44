"""Objectives in one table: equal trunks, runs that are not made twice, the choice of a rate."""

import dataclasses
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from refused import refused
from shared_trainers import stop_in_step
from tiny_budget import TINY, prepare_stories, tables_of

from gpt_jax.apps.compare import compare
from gpt_jax.apps.compare.budgets import (
  BUDGETS,
  finetune_config,
  pretrain_config,
  translation_config,
)
from gpt_jax.apps.compare.measures import cost
from gpt_jax.apps.compare.rows import ROWS, find_rows
from gpt_jax.apps.compare.tables import fine_tuned, probed, step_at_equal_seconds
from gpt_jax.apps.study import Study
from gpt_jax.errors import InputError
from gpt_jax.files import list_folder, read_json, upload_folder, verified, with_checksum, write_json
from gpt_jax.programs import finetune, pretrain
from gpt_jax.programs.pretrain import load_text, text_recipe
from gpt_jax.tasks.task import find
from gpt_jax.training.hooks import Diverged
from gpt_jax.training.run_log import curve

# The runs are too short to learn anything.
pytestmark = pytest.mark.filterwarnings("ignore:loss .* is not below the unigram entropy")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  return prepare_stories(tmp_path_factory.mktemp("stories"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory, corpus):
  """A comparison that is stopped in pre-training, fails in its last fine-tuning, and goes on."""
  workdir = str(tmp_path_factory.mktemp("compared") / "out")
  asked = {"budget": TINY, "objectives": ["spans", "none"], "corpus": corpus}
  made = []
  fine_tune = finetune.run

  def fails_at_last(config, data_dir, pretrained, workdir, **arguments):
    made.append(workdir)
    if len(made) == 2:
      raise InputError("the power fails")
    return fine_tune(config, data_dir, pretrained, workdir, **arguments)

  with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
    stop_in_step(patch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    compare.run(workdir, **asked)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(finetune, "run", fails_at_last)
    refused("the power fails", compare.run, workdir, **asked)
  before = read(workdir)
  results = compare.run(workdir, **asked)
  return SimpleNamespace(workdir=workdir, asked=asked, before=before, results=results)


def test_a_comparison_on_a_store_is_that_of_the_disk(compared, store, monkeypatch):
  upload_folder(compared.asked["corpus"], f"{store}/text")
  asked = compared.asked | {"corpus": f"{store}/text"}
  compare.run(f"{store}/out", **asked)
  results = read_json(f"{store}/out/results.json")
  for part in ("text", "losses", "tasks", "probes"):
    assert results[part] == read(compared.workdir)[part]
  assert "curves.png" in list_folder(f"{store}/out")
  for program in (pretrain, finetune):
    monkeypatch.setattr(program, "run", refuse)
  assert compare.run(f"{store}/out", **asked)["tasks"] == results["tasks"]


def read(workdir):
  return read_json(os.path.join(workdir, "results.json"))


def report_of(workdir):
  return Path(workdir, "results.md").read_text(encoding="utf-8")


def refuse(*_, **__):
  raise AssertionError("made again")


@pytest.mark.parametrize("budget", [TINY, BUDGETS["full"]], ids=lambda budget: budget.name)
def test_all_objectives_train_trunks_of_one_size(corpus, budget):
  budget = dataclasses.replace(budget, trunk=dataclasses.replace(budget.trunk, layers=1))
  workdir = os.path.dirname(corpus)
  text = compare._text(Study(workdir, "prepared"), budget, corpus)
  costs = {}
  for name, row in ROWS.items():
    if row.objective:
      config = pretrain_config(budget, row, 1e-3)
      costs[name] = cost(text_recipe(config, load_text(config, text)))
  assert len({entry.trunk for entry in costs.values()}) == 1
  width, positions = budget.trunk.width, budget.batch_size * budget.length
  heads = {name: entry.head for name, entry in costs.items()}
  assert (heads["causal"], heads["spans"], heads["neighbors"]) == (0, 0, 0)
  # Pooler and sentence pair's classes, beside the masked head.
  assert heads["masked_next"] == heads["masked"] + width * (width + 1) + 2 * (width + 1)
  # All read as many positions; the causal ones predict at each, the masked ones at 15 %.
  assert costs["both_directions"].predicted <= costs["causal"].predicted <= positions
  assert costs["masked"].predicted == pytest.approx(0.15 * costs["causal"].predicted, rel=0.1)
  assert costs["causal"].flops == costs["both_directions"].flops > costs["masked"].flops
  assert costs["neighbors"].predicted == 0


def test_a_row_brings_the_one_that_it_starts_from_and_finds_its_configs(monkeypatch, tmp_path):
  assert list(find_rows(["none", "adversarial"])) == ["causal", "adversarial", "none"]
  monkeypatch.chdir(tmp_path)  # from any folder
  order = list(ROWS)
  for name, row in ROWS.items():
    assert not row.starts_from or order.index(row.starts_from) < order.index(name)
    if row.translates:
      translation_config(TINY, row, 1e-3)
    elif row.is_pretrained:
      pretrain_config(TINY, row, 1e-3)
    finetune_config(TINY, row, "story-ending", from_scratch=False)


def test_what_a_killed_run_had_done_is_kept(compared):
  before, after = compared.before, compared.results
  assert before["tasks"] == {"spans": after["tasks"]["spans"]}
  for part in ("pace", "chosen", "losses"):
    assert before[part] == after[part]
  assert after["tasks"]["none"].keys() == {"story-ending"}
  run = f"{compared.workdir}/runs/spans/rate_0.001"
  evaluated, _ = curve(run, "valid_loss")
  assert {*map(str, evaluated)} < {*os.listdir(f"{run}/checkpoints")}  # of all evaluations


def test_the_tables_have_the_results_of_the_runs_and_are_written_again(compared, monkeypatch):
  tables, name, none = tables_of(compared.workdir), "span corruption, prefix", "no pre-training"
  run = read_json(f"{compared.workdir}/tasks/spans/story-ending/seed_0/result.json")
  assert compared.results["tasks"]["spans"]["story-ending"] == [run["dev"]["dev_accuracy"]]
  tuned = tables["Fine-tuned"]
  assert tuned[name]["story-ending"] == f"{100 * run['dev']['dev_accuracy']:.1f}"
  _, losses = curve(f"{compared.workdir}/runs/spans/rate_0.001", "valid_loss")
  assert tables["Pre-training"][name]["held-out loss"] == f"{losses[-1]:.3f}"
  assert tables["Pre-training"][none]["held-out loss"] == ""
  probe = compared.results["probes"]["spans"]["4"]["story-ending"]
  assert tables["Linear probe, equal steps"][name]["story-ending"] == f"{100 * probe:.1f}"
  assert len(tuned) == 2 and tuned[none]["format and head"] == "GPT, linear"
  assert tuned[name]["format and head"] == "text to text, answers in words"
  report = report_of(compared.workdir)
  # Given again it runs nothing.
  for place, name in ((pretrain, "run"), (finetune, "run"), (compare, "probe_score")):
    monkeypatch.setattr(place, name, refuse)
  monkeypatch.setattr(compare, "paces", refuse)
  assert compare.run(compared.workdir, **compared.asked) == verified(read(compared.workdir))
  compare.run(compared.workdir, **compared.asked | {"objectives": ["none"]})
  assert report_of(compared.workdir) == report
  assert os.path.getsize(f"{compared.workdir}/curves.png") > 10_000


def test_other_rows_of_a_task_are_refused_where_it_has_results(compared, tmp_path):
  workdir = shutil.copytree(compared.workdir, tmp_path / "out")
  results = read_json(str(workdir / "results.json"))
  del results["checksum"]
  results["rows"] = dict.fromkeys(results["rows"], "of others")
  write_json(str(workdir / "results.json"), with_checksum(results))
  refused("its rows of story-ending are not those", compare.run, str(workdir), **compared.asked)
  results["tasks"], results["probes"] = {}, {}  # a call that measured nothing
  write_json(str(workdir / "results.json"), with_checksum(results))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(compare, "probe_score", refuse)
    with pytest.raises(AssertionError, match="made again"):
      compare.run(str(workdir), **compared.asked)


def test_averages_are_over_common_tasks_and_equal_seconds_end_at_an_evaluation():
  # One of several choices has no probe.
  assert [find(name).has_classes for name in ("story-ending", "story-next")] == [True, False]
  budget = dataclasses.replace(TINY, tasks=("sst2", "stsb"), shown=("rte",))
  results = {
    "tasks": {"causal": {"sst2": [0.8, 0.9], "stsb": [0.2, 0.4], "rte": [0.5, 0.6]}},
    "format_and_head": {"causal": "GPT, linear"},
    "probes": {"causal": {"4": {"sst2": 0.7, "rte": 0.6}}},
    "probed_tasks": ["sst2", "rte"],
  }
  rows = {name: ROWS[name] for name in ("causal", "masked")}
  causal, masked = fine_tuned(results, budget, rows)
  assert (causal["sst2"], causal["average"], causal["with rte"]) == ("85.0 ± 7.1", "57.5", "56.7")
  assert set(masked.values()) == {"masked", ""}
  causal, _ = probed(results, budget, rows, equal_seconds=False)
  scores = {"sst2": "70.0", "rte": "60.0", "average": "70.0", "with rte": "65.0"}
  assert causal == {"objective": "causal", **scores}
  budget = dataclasses.replace(TINY, steps=800, evaluations=8)
  results = {"pace": {"masked": 0.01, "causal": 0.0182, "spans": 0.5}}
  steps = {name: step_at_equal_seconds(results, budget, name) for name in results["pace"]}
  assert steps == {"masked": 800, "causal": 400, "spans": 0}  # of 439 and 16 affordable ones


def test_the_rate_is_chosen_by_the_held_out_loss(monkeypatch, corpus, tmp_path):
  """One that diverges is not; all have a whole run, once."""
  losses, trained = {5e-4: 3.5, 1e-3: 3.0, 2e-2: None}, []

  def train(config, text, folder, **added_by_the_command):
    rate = config.optim.learning_rate
    trained.append((rate, config.train.steps))
    if losses[rate] is None:
      raise Diverged("ten updates are not finite")
    return {"valid_loss": losses[rate]}

  monkeypatch.setattr(pretrain, "run", train)
  monkeypatch.setattr(compare, "curve", lambda folder, name: ([4], [os.path.basename(folder)]))
  budget = dataclasses.replace(TINY, rates=tuple(losses))
  study, rows = Study(str(tmp_path), "results.json"), {"causal": ROWS["causal"]}
  results = {"trials": {}, "chosen": {}, "losses": {}}
  comparison = compare._Comparison(study, budget, rows, "", corpus, results)
  for _ in range(2):
    comparison.pretrain("causal")
    assert results["trials"] == {"causal": {"0.0005": 3.5, "0.001": 3.0, "0.02": None}}
    assert results["chosen"] == {"causal": 1e-3}
    assert results["losses"] == {"causal": [(4, "rate_0.001")]}
  assert trained == [(rate, TINY.steps) for rate in losses]


def test_an_objective_that_diverges_has_no_results_and_the_others_have(
  tmp_path, corpus, monkeypatch
):
  budget = dataclasses.replace(TINY, rates=(1e-3, 2e-3))

  def diverge(config, *_, **__):
    raise Diverged("ten updates are not finite")

  def fine_tune(config, data, checkpoint, *_, **__):
    assert checkpoint == "none"
    return [{"dev": {"dev_accuracy": 0.25}}]

  monkeypatch.setattr(pretrain, "run", diverge)
  monkeypatch.setattr(finetune, "run", fine_tune)
  monkeypatch.setattr(compare, "paces", lambda recipes: dict.fromkeys(recipes, 1.0))
  workdir = str(tmp_path / "out")
  results = compare.run(workdir, budget=budget, objectives=["masked", "none"], corpus=corpus)
  assert results["trials"] == {"masked": {"0.001": None, "0.002": None}}
  assert results["tasks"] == {"none": {"story-ending": [0.25]}}
  tables = tables_of(workdir)
  losses = [row["held-out loss"] for row in tables["Pre-training"].values()]
  scores = [row["story-ending"] for row in tables["Fine-tuned"].values()]
  assert (losses, scores) == (["diverged", ""], ["", "25.0"])


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"objectives": ["mask"]}, "--objectives=mask: must be one of .*; did you mean masked"),
    (
      {"budget": "ful"},
      "=ful: must be one of smoke, novels, books, small, full; did you mean full",
    ),
    ({"budget": "small", "corpus": ""}, "=small needs --corpus=DIR, a prepared text: .*--s"),
    ({"budget": "small", "corpus": "prepared"}, "--budget=small needs --data=DIR"),
    ({"corpus": "prepared", "objectives": ["masked_next"]}, "prepared without sentence ends"),
    ({"corpus": "nothing"}, "must be a folder made by prepare.run"),
    ({"workdir": "other"}, "holds 'notes.txt' but no results.json"),
    ({"workdir": "compared", "corpus": "prepared", "objectives": ["none"]}, "text is not that of"),
    ({"workdir": "compared", "budget": "other"}, r"of another command \(budget: .*tiny"),
  ],
)
def test_bad_input_is_met_at_the_door(changes, message, compared, prepared, tmp_path):
  (tmp_path / "notes.txt").write_text("mine")
  other_budget = dataclasses.replace(TINY, steps=6)
  asked = {**compared.asked, "workdir": str(tmp_path / "new"), **changes}
  names = {"other": str(tmp_path), "compared": compared.workdir}
  asked["workdir"] = names.get(asked["workdir"], asked["workdir"])
  asked["corpus"] = prepared if asked["corpus"] == "prepared" else asked["corpus"]
  asked["budget"] = other_budget if asked["budget"] == "other" else asked["budget"]
  refused(message, compare.run, **asked)
