"""The paper's table 5 and figure 2 end to end on a tiny task: what is run, what is not run again, what is written."""

import json
import os
import random
import sys
from types import SimpleNamespace

import pytest

from gpt_jax import finetune, paper, reproduce
from gpt_jax.errors import InputError
from gpt_jax.models import ModelConfig
from gpt_jax.seeds import spread
from gpt_jax.trunks.lstm import LSTMConfig
from gpt_jax.trunks.transformer import TransformerConfig


@pytest.fixture(scope="module")
def world(tmp_path_factory, make_run, tiny_tokenizer):
  """CoLA's files with a few sentences, and two checkpoints each of a Transformer and an LSTM."""
  folder, rng = tmp_path_factory.mktemp("reproduce"), random.Random(0)
  (folder / "glue" / "CoLA").mkdir(parents=True)
  for split, count in (("train", 48), ("dev", 24)):
    rows = [f"x\t{n % 2}\t\tthe {('cat', 'dog')[n % 2]} {rng.choice(('sat', 'ran'))}\n" for n in range(count)]
    (folder / "glue" / "CoLA" / f"{split}.tsv").write_text("".join(rows))
  size = tiny_tokenizer.vocab_size
  trunks = {
    "transformer": TransformerConfig(size, context=32, layers=1, width=16, heads=2),
    "lstm": LSTMConfig(size, context=32, width=16, units=16),
  }
  paths = {name: make_run(folder / name, ModelConfig(trunk), steps=(3, 7)) for name, trunk in trunks.items()}
  asked = {"table": ["5"], "figure": ["2"], "tasks": ["cola"], "budget": "small", "lstm": paths["lstm"]}
  workdir = str(folder / "out")
  results = reproduce.run(workdir, paths["transformer"], str(folder), **asked)
  return SimpleNamespace(data=str(folder), workdir=workdir, paths=paths, asked=asked, results=results)


def test_every_row_and_point_is_run(world):
  assert set(world.results["runs"]) == {"full", "no-pretraining", "no-aux-lm", "lstm", "0-layers"}
  config = json.load(open(f"{world.workdir}/runs/no-aux-lm/cola/seed_0/config.json", encoding="utf-8"))["config"]
  assert (config["text_weight"], config["transfer_layers"], config["optim"]["learning_rate"]) == (0.0, None, 5e-4)
  config = json.load(open(f"{world.workdir}/runs/lstm/cola/seed_0/config.json", encoding="utf-8"))["config"]
  assert (config["text_weight"], config["trunk"]["units"]) == (0.5, 16)
  result = json.load(open(f"{world.workdir}/runs/full/cola/seed_0/result.json", encoding="utf-8"))
  full = world.results["runs"]["full"]["cola"]
  assert (full["seeds"], full["best"]["dev_matthews"]["values"]) == ([0], (result["best"]["dev_matthews"],))
  found = {trunk: [(each["task"], each["step"]) for each in of] for trunk, of in world.results["zero_shot"].items()}
  assert found == {trunk: [("cola", 3)] * 3 + [("cola", 7)] * 3 for trunk in ("transformer", "lstm")}


def test_what_is_written(world):
  assert {"results.json", "results.md", "table5.png", "table5.svg", "figure2_left.png", "figure2_left.svg"} <= set(
    os.listdir(world.workdir)
  )
  report = open(f"{world.workdir}/results.md", encoding="utf-8").read()

  def mean(setting):
    return 100 * world.results["runs"][setting]["cola"]["best"]["dev_matthews"]["mean"]

  full = mean("full")
  rows = {line.split(" | ")[0].strip("| "): line for line in report.splitlines() if line.startswith("|")}
  assert rows["Transformer w/ aux LM (full), the paper"] == "| Transformer w/ aux LM (full), the paper | 45.4 | 45.4 |"
  assert f"| **ours** (small budget) | {full:.1f} | {full:.1f} |" in report
  assert f"| difference (small budget) | {full - 45.4:+.1f} | {full - 45.4:+.1f} |" in report
  nothing, part = mean("no-pretraining"), mean("0-layers")
  assert rows["cola (small budget)"] == f"| cola (small budget) | {nothing:.1f} | {part:.1f} | {full:.1f} |"
  ours = [line for line in report.splitlines() if line.startswith(("| **ours", "| difference", "| cola"))]
  ours = [line for line in ours if "the paper's end" not in line]
  assert len(ours) == 2 + 2 * 4 + 1 + 2 + 5
  assert all("small budget" in line for line in ours)


def test_nothing_is_run_again_and_seeds_are_added(world, monkeypatch):
  made = []
  run_seed = finetune._run_seed

  def counted(config, *arguments):
    path = arguments[-1]
    made.append((os.path.relpath(path, world.workdir), os.path.exists(f"{path}/result.json")))
    return run_seed(config, *arguments)

  monkeypatch.setattr(finetune, "_run_seed", counted)
  monkeypatch.setattr(reproduce.zero_shot, "run", None)
  again = reproduce.run(world.workdir, world.paths["transformer"], world.data, **world.asked)
  assert json.dumps(again, sort_keys=True) == json.dumps(world.results, sort_keys=True)
  assert all(done for _, done in made)
  made.clear()
  more = reproduce.run(
    world.workdir, world.paths["transformer"], world.data, table=["4"], tasks=["cola"], budget="small", seeds=2
  )
  assert made == [("runs/full/cola/seed_0", True), ("runs/full/cola/seed_1", False)]
  assert more["runs"]["full"]["cola"]["seeds"] == [0, 1]
  assert set(more["runs"]) == set(world.results["runs"])  # what was known stays
  report = open(f"{world.workdir}/results.md", encoding="utf-8").read()
  assert "### Table 4" in report and "### Table 5" in report and "Multi-task BiLSTM + ELMo + Attn" in report


def test_tasks_without_data_are_said(world, capsys, tmp_path):
  reproduce.run(str(tmp_path / "out"), world.paths["transformer"], world.data, table=["2"], budget="small")
  told = capsys.readouterr().err
  for column in paper.TABLES[2].columns:
    assert f"left out: {column.tasks[0]} (" in told


def test_glue_is_averaged_by_its_own_rule():
  """With the paper's numbers in place of ours."""
  measured = {
    "cola": {"matthews": 45.4}, "sst2": {"accuracy": 91.3}, "mrpc": {"f1": 82.3, "accuracy": 75.7},
    "stsb": {"pearson": 82.0, "spearman": 80.0}, "qqp": {"f1": 70.3, "accuracy": 88.5}, "mnli": {"accuracy": 82.1},
    "mnli-mismatched": {"accuracy": 81.4}, "qnli": {"accuracy": 88.1}, "rte": {"accuracy": 56.0},
    "wnli": {"accuracy": 53.4},
  }  # fmt: skip
  runs = {}
  for task, metrics in measured.items():
    found = {f"dev_{name}": spread([value / 100])._asdict() for name, value in metrics.items()}
    runs[task] = {
      "metric": next(iter(metrics)),
      "seeds": [0],
      "degenerate": [],
      "best": found,
      "dev": found,
      "note": "",
    }
  results = {"budget": "paper", "runs": {"full": runs}, "zero_shot": {}}
  rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in reproduce.describe(results).splitlines()}
  assert rows["**ours**"] == ["45.4", "91.3", "82.3", "82.0", "70.3", "72.8 |"]
  assert rows["difference"] == [*["+0.0"] * 5, "+0.0 |"]
  del runs["wnli"]
  assert "| **ours** | 45.4 | 91.3 | 82.3 | 82.0 | 70.3 |  |" in reproduce.describe(results)


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"table": ["6"]}, "--table=6: must be among 2, 3, 4, 5"),
    ({"figure": ["1"]}, "--figure=1: must be among 2"),
    ({"table": [], "figure": []}, "nothing to reproduce: give --table"),
    ({"budget": "large"}, "--budget=large: must be one of paper, small"),
    ({"tasks": ["colla"]}, "no task 'colla'"),
    ({"budget": "paper"}, "holds results of budget small and the checkpoints"),
    ({"lstm": "nothing"}, "no checkpoint in"),
  ],
)
def test_what_is_refused(world, changes, message):
  with pytest.raises(InputError, match=message):
    reproduce.run(world.workdir, world.paths["transformer"], world.data, **world.asked | changes)


def test_what_is_needed_later_is_missed_at_once(world, monkeypatch, tmp_path):
  monkeypatch.setattr(finetune, "run", None)
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(InputError, match="figures need matplotlib"):
    reproduce.run(str(tmp_path / "new"), world.paths["transformer"], world.data, table=["5"], budget="small")
  assert not (tmp_path / "new").exists()


def test_a_folder_of_something_else(world, tmp_path):
  (tmp_path / "thesis.txt").write_text("mine")
  with pytest.raises(InputError, match="not empty, and without results.json"):
    reproduce.run(str(tmp_path), world.paths["transformer"], world.data, **world.asked)
