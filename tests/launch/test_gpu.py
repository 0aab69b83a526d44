"""launch/gpu: measure.sh with a Python that only writes down what it is asked to run, and gpt1.py
rehearsed on a CPU.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import gpt_jax

ROOT = Path(__file__).parents[2]
STAND_IN = """#!/usr/bin/env bash
echo "$*" | head -1 >> "$CALLS"
[[ "$*" != *"$FAILS"* ]]
"""


@pytest.fixture
def measure(tmp_path):
  """fails -> the commands that a call of the script runs, where those that contain `fails` fail."""
  launch, binaries = tmp_path / "clone" / "launch" / "gpu", tmp_path / "bin"
  for folder in (launch, binaries):
    folder.mkdir(parents=True)
  shutil.copy(ROOT / "launch" / "gpu" / "measure.sh", launch)
  (binaries / "python3").write_text(STAND_IN)
  (binaries / "python3").chmod(0o755)

  def call(fails="nothing", **settings):
    calls = tmp_path / "calls"
    calls.write_text("")
    env = os.environ | {"CALLS": str(calls), "FAILS": fails} | settings
    env["PATH"] = f"{binaries}:{env['PATH']}"
    command = ["bash", str(launch / "measure.sh"), "out"]
    subprocess.run(command, cwd=tmp_path, env=env, check=False, capture_output=True)
    return calls.read_text().splitlines()

  return call


def test_what_is_measured_is_not_measured_again(measure):
  first = measure(fails="--only=attention")
  assert first[0].startswith("-c") and sum("--only=step" in call for call in first) == 7
  again = measure()
  assert len(again) == 1 and "--only=attention" in again[0]
  assert measure() == []


def test_nothing_runs_on_a_device_that_cannot_add(measure):
  assert len(measure(fails="-c")) == 1


def test_some_pieces_only_and_none_without_time(measure):
  assert measure(SECONDS_LEFT="0") == []
  calls = measure(ONLY="peers")
  assert len(calls) == 2 and "--peers" in calls[1]


def test_the_kernels_are_compared_with_plain_attention():
  """The script's own lines, on a CPU, small, and with plain attention once more as the kernel."""
  script = (ROOT / "launch" / "gpu" / "measure.sh").read_text()
  ((code, shape),) = re.findall(
    r'"kernels-\$backend" "\$python" -c \'(.*?)\' "\$backend" ([ \d]+)', script, re.S
  )
  assert shape == "8 512 12"
  command = [sys.executable, "-c", code, "plain", "2", "128", "2"]
  told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
  assert told.count("d_v") == 4 and told.startswith("causal output ")


def test_what_pack_and_run_lack_is_one_line(prepared, tmp_path):
  pack = "pack", f"--tokens={prepared}", f"--out={tmp_path / 'pack'}"
  for words, fault in (
    ((*pack, f"--data={tmp_path}"), "--data=.*: has none of the tasks' folders, glue, trec"),
    ((*pack[::2], "--tokens=nowhere", "--data=x"), "nowhere"),
    (
      ("run", "--pack=nowhere", f"--workdir={tmp_path}", "--out=x"),
      "--pack=nowhere: has no tokens",
    ),
  ):
    with pytest.raises(subprocess.CalledProcessError) as error:
      gpt1(*words)
    (line,) = error.value.stderr.splitlines()
    assert re.match(f"error: .*{fault}", line)


def gpt1(*words):
  done = subprocess.run(
    [sys.executable, "launch/gpu/gpt1.py", *words],
    cwd=ROOT,
    check=True,
    capture_output=True,
    text=True,
  )
  return done.stdout


@pytest.mark.slow
def test_a_lease_is_rehearsed_from_packing_to_the_weights_that_come_back(prepared, tmp_path):
  for name, header, row in (
    ("CoLA", "", "x\t{n}\t\tthe cat sat {n}\n"),
    ("STS-B", "index\tsentence1\tsentence2\tscore\n", "0\tthe cat\tthe dog\t{n}.5\n"),
    ("RTE", "index\tsentence1\tsentence2\tlabel\n", "0\tit sat\ta cat\t{label}\n"),
    ("SST-2", "sentence\tlabel\n", "the cat\t{n}\n"),
  ):
    folder = tmp_path / "data" / "glue" / name
    folder.mkdir(parents=True)
    for split, count in (("train", 32), ("dev", 16)):
      labels = ("entailment", "not_entailment")
      rows = [row.format(n=n % 2, label=labels[n % 2]) for n in range(count)]
      (folder / f"{split}.tsv").write_text(header + "".join(rows))
  data, pack = f"--data={tmp_path / 'data'}", tmp_path / "pack"
  packing = ["pack", f"--tokens={prepared}", data, f"--out={pack}"]
  gpt1(*packing)
  room = sum(path.stat().st_size for path in pack.iterdir()) - 500
  told = gpt1(*packing, f"--megabytes={room / 1e6}")
  assert told.count("tokens in") > 1  # all are too many, a share is not
  asked = ["run", f"--pack={pack}", f"--workdir={tmp_path / 'work'}", "--size=2x64", "--seeds=1"]
  asked += ["--tasks=cola,stsb", "--pretraining=0.05", "--pace=8000"]
  told = gpt1(*asked, f"--out={tmp_path / 'first'}", "--minutes=0.7")  # ends in pre-training
  assert "pretraining: begins" in told and "everything is done" not in told
  told = gpt1(*asked, f"--out={tmp_path / 'second'}", "--minutes=9")
  assert "12 steps, cosine schedule" in told and "everything is done" in told
  assert "| cola, matthews | " in told and "| stsb, pearson | " in told
  figure = json.loads((tmp_path / "work" / "figure2" / "results.json").read_text())
  assert figure["runs"]["1-layers"]["rte"] and figure["zero_shot"]["transformer"]
  with tarfile.open(tmp_path / "second" / "results.tar.gz") as archive:
    archive.extractall(tmp_path / "back", filter="data")
  weights = tmp_path / "back" / "weights"
  shutil.copy(tmp_path / "second" / "part-00", weights)
  gpt1("join", f"--parts={weights}", f"--out={tmp_path / 'joined'}")
  joined, trained = (gpt_jax.load(str(tmp_path / name)) for name in ("joined", "work/gpt1"))
  table, of_run = (np.asarray(m.network.params["trunk"]["tokens"]) for m in (joined, trained))
  np.testing.assert_allclose(table, of_run, rtol=2**-8)
  assert json.loads((weights / "model.json").read_text())["step"] == 12
  # On another machine, from what came back.
  elsewhere = [*asked[:2], f"--workdir={tmp_path / 'elsewhere'}", *asked[3:]]
  told = gpt1(*elsewhere, f"--checkpoint={tmp_path / 'joined'}", f"--out={tmp_path / 'third'}")
  assert "everything is done" in told and "pretraining: begins" not in told
