"""The list of tasks, for complete, partial and malformed data folders."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from refused import refused

from gpt_jax.programs import list_tasks
from gpt_jax.tasks.task import all_tasks

ROOT = Path(__file__).parents[2]
COLA = "x\t1\t\tThe cat sat.\n"
DEV = "x\t1\t\tThe dog ran.\n"

# The paper's twelve tasks: transformations of section 3.3, results of tables 2 to 4.
PAPER = {
  "classification": {"cola": 45.4, "sst2": 91.3},
  "similarity": {"mrpc": 82.3, "qqp": 70.3, "stsb": 82.0},
  "entailment": {"mnli": 82.1, "mnli-mismatched": 81.4, "qnli": 88.1}
  | {"rte": 56.0, "scitail": 88.3, "snli": 89.9},
  "multiple choice": {"race": 59.0, "race-middle": 62.9, "race-high": 57.4, "storycloze": 86.5},
}


@pytest.fixture
def files(tmp_path):
  """files({name: content}) writes the files and returns their folder."""

  def make(contents):
    for name, content in contents.items():
      path = tmp_path / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(tmp_path)

  return make


def entry_of(name, data_dir):
  return next(entry for entry in list_tasks.run(data_dir, count=True) if entry.task.name == name)


def test_the_list_describes_every_task():
  entries = {entry.task.name: entry for entry in list_tasks.run()}
  assert list(entries) == [task.name for task in all_tasks()]
  results = {}
  for entry in entries.values():
    assert (entry.sizes, entry.remarks) == ({}, ())
    if entry.paper is not None:
      results.setdefault(entry.task.kind, {})[entry.task.name] = entry.paper
  assert results == PAPER
  assert entries["stsb"].paper == 82.0
  assert entries["story-tags"].task.kind == "tagging"
  assert {
    entries[f"story-{name}"].task.kind for name in ("ending", "doing", "company", "next")
  } == set(PAPER)


def test_the_examples_of_a_folder_are_counted(files):
  data_dir = files(
    {
      "glue/CoLA/train.tsv": COLA * 3,
      "glue/CoLA/dev.tsv": DEV,
      "glue/CoLA/test.tsv": "sentence\nA.\n",
    }
  )
  assert entry_of("cola", data_dir)[-2:] == ({"train": 3, "dev": 1, "test": 1}, ())
  assert entry_of("cola", f"{data_dir}/glue").sizes == {"train": 3, "dev": 1, "test": 1}


def test_problems_become_remarks_and_other_splits_are_still_counted(files):
  data_dir = files(
    {
      "glue/CoLA/train.tsv": COLA,
      "glue/CoLA/dev.tsv": COLA + "x\t1\n",
      "glue/SST-2/dev.tsv": "sentence\tlabel\nfine\t1\n",
      "glue/SST-2/train.tsv": b"sentence\tlabel\nf\xefne\t1\n",
      "snli_1.0/snli_1.0_dev.txt": "gold_label\tsentence1\tsentence2\nneutral\tA.\tB.\n-\tC.\tD.\n",
      "race": "a file",
    }
  )
  by_name = {entry.task.name: entry[-2:] for entry in list_tasks.run(data_dir, count=True)}
  missing = "No such file or directory"
  sizes, (dev, test) = by_name["cola"]
  assert sizes == {"train": 1, "dev": None, "test": None}
  assert dev.startswith("glue/CoLA/dev.tsv:2: 2 columns, but")
  assert test == f"glue/CoLA/test.tsv: {missing}"
  sst2 = ("glue/SST-2/train.tsv:2: not UTF-8 (byte 0xef)", f"glue/SST-2/test.tsv: {missing}")
  assert by_name["sst2"] == ({"train": None, "dev": 1, "test": None}, sst2)
  assert by_name["snli"][0]["dev"] == 1
  assert (
    "snli_1.0/snli_1.0_dev.txt: 1 of 2 rows has no gold label and is left out" in by_name["snli"][1]
  )
  no_sizes = {"train": None, "dev": None, "test": None}
  assert by_name["rte"] == (no_sizes, ("no folder 'glue/RTE' here",))
  assert by_name["race"] == (no_sizes, ("no folder 'race' here",))
  assert by_name["story-next"][0]["train"] > 0


def test_without_a_count_the_first_rows_are_read(files):
  data_dir = files({"glue/CoLA/train.tsv": COLA * 3, "glue/CoLA/dev.tsv": COLA + "x\t1\n"})
  cola = next(entry for entry in list_tasks.run(data_dir) if entry.task.name == "cola")
  assert cola.sizes == {"train": 1, "dev": 1, "test": None}
  assert cola.remarks == ("glue/CoLA/test.tsv: No such file or directory",)


def test_an_unexpected_error_becomes_a_remark(files, monkeypatch):
  def broken(*_, **__):
    raise ZeroDivisionError("bug")

  data_dir = files({"glue/SST-2/dev.tsv": "sentence\tlabel\nfine\t1\n"})
  monkeypatch.setattr("gpt_jax.tasks.trec.read_lines", broken)
  files({"trec/train_5500.label": ""})
  assert "dev: ZeroDivisionError: bug" in entry_of("trec", data_dir).remarks
  assert entry_of("sst2", data_dir).sizes["dev"] == 1


def test_a_data_dir_that_is_no_folder_is_refused(tmp_path):
  refused(r"^data_dir=.*nowhere: no such folder$", list_tasks.run, str(tmp_path / "nowhere"))


def test_the_command_prints_a_table(files, launch):
  data_dir = files({"glue/CoLA/train.tsv": COLA * 1200, "glue/CoLA/dev.tsv": DEV})
  code, out, err = launch("tasks", f"--data={data_dir}", "--count")
  assert (code, err) == (0, "")
  header, *rows, note = out.splitlines()
  names = "task transform labels metrics paper TFDS train dev test"
  assert header.split() == names.split()
  assert [row.split()[0] for row in rows] == [task.name for task in all_tasks()]
  cola = ["cola", "classification", "unacceptable, acceptable", "matthews, accuracy", "45.4"]
  cola.append("glue/cola")
  row = rows[[task.name for task in all_tasks()].index("cola")]
  assert [row[header.index(word) :].split("  ")[0] for word in header.split()[:6]] == cola
  assert (
    row.split("glue/cola")[1].split()
    == "1,200 1 - glue/CoLA/test.tsv: No such file or directory".split()
  )
  assert note.startswith("paper: ")
  (row,) = re.findall("^cola .*", launch("tasks", f"--data={data_dir}")[1], re.MULTILINE)
  assert row.split("glue/cola")[1].split()[:4] == ["there", "there", "-", "glue/CoLA/test.tsv:"]
  assert launch("tasks", "--count")[2].startswith("error: --count: of which folder?")


def test_a_closed_pipe_ends_the_command_silently():
  reading, writing = os.pipe()
  os.close(reading)
  command = [sys.executable, str(ROOT / "launch" / "tasks.py")]
  environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
  process = subprocess.Popen(
    command, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True
  )
  os.close(writing)
  assert process.communicate()[1] == ""
  assert process.returncode == 141


def test_rows_of_the_training_set_are_counted(files):
  data_dir = files({"glue/CoLA/train.tsv": COLA * 3, "glue/CoLA/dev.tsv": COLA + DEV + COLA})
  entry = entry_of("cola", data_dir)
  assert entry.sizes["dev"] == 3
  assert "2 dev rows have the texts of a training row" in entry.remarks
