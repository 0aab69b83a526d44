"""Programs connect to nothing, and write only where they were told to."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import programs
from small_runs import PRETRAIN
from test_kills_of_systems import TRANSLATOR
from tiny_runs import write_config

from gpt_jax.config import to_json
from gpt_jax.models.model import ModelConfig
from gpt_jax.tasks.pairs import PairsTask

pytestmark = [pytest.mark.attack, pytest.mark.slow]
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
TASK = """task: choose
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: ["sat", "ran"]
doc_to_target: 0
metric_list: [{metric: acc}]
"""
WORDS = "the cat sat on the mat and the dog ran to the old red barn by the sea. "
LOCAL = ("127.0.0.1", "::1", "localhost")
LEFT_OUT = {"quickstart"}  # it takes minutes, and calls what the others call


def commands(finetuned, prepared, release, cola, translator):
  """Every program at its smallest, in the folder `given`; cola, translator: models of tasks."""
  classifier = f"--checkpoint={finetuned.workdir}/seed_0"
  lm = finetuned.pretrained
  language = f"--checkpoint={lm}"
  data, data_prepared = f"--data={finetuned.data_dir}", f"--data={prepared}"
  with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
  sizes = ("--config.trunk.layers=1", "--config.trunk.width=16", "--config.trunk.heads=2")
  return [
    ("prepare", "--source=text.txt", "--vocab_size=290", "--valid_share=0.1", "--out=data"),
    ("prepare", "--source=text.txt", f"--extend={lm}", "--add_tokens=1", "--out=extended"),
    ("pretrain", "--config=tiny.py", data_prepared, "--workdir=lm"),
    ("finetune", "--config=table.py", data, language, "--workdir=labels"),
    ("evaluate", "--checkpoint=lm", data_prepared),
    ("evaluate", classifier, data),
    ("predict", classifier, f"--input={finetuned.data_dir}/dev.tsv", "--out=predicted.tsv"),
    ("generate", language, "--prompt=the cat", "--max_tokens=3"),
    ("visualize", classifier, "--text=the cat", "--out=page.html"),
    *(
      ("export", classifier, f"--format={name}", f"--out=export/{name}")
      for name in ("npz", "safetensors", "hf", "stablehlo", "onnx")
    ),
    ("export", classifier, "--format=onnx_int8", data, "--keep=0.5", "--out=export/int8"),
    ("import_weights", "--format=openai", f"--checkpoint={release.folder}", "--out=imported"),
    ("verify", "--checkpoint=export/npz", "--checkpoint=export/hf", "--text=the cat"),
    ("tasks", data),
    ("label", "tickets.csv", "--label=team", language, "--workdir=team", "--skip_finetuning"),
    ("search", language, "--source=tickets.csv", "--query=cat"),
    ("report", "--workdir=labels"),
    ("plot", "--workdir=labels"),
    ("plan", "--config=gpt1:small", "--topology=h100:8", *sizes),
    (
      "diagnose",
      data_prepared,
      language,
      "--workdir=limits",
      "--parts=gradients",
      "--budget=smoke",
    ),
    ("benchmark", "--config=tiny.py", "--only=attention", "--out=numbers.json"),
    ("harness", language, "--tasks=choose", "--include_path=."),
    (
      "backtranslate",
      f"--checkpoint={translator}",
      "--input=text.txt",
      "--temperature=1",
      "--ratio=99",
      "--out=pairs.tsv",
    ),
    ("compare", "--budget=tiny", f"--corpus={prepared}", "--objectives=none", "--workdir=compared"),
    ("glue", f"--checkpoint={cola}", "--data=.", "--out=submission.zip"),
    ("glue", "--check=submission.zip"),
    ("reproduce", "--table=4", "--tasks=cola", language, "--data=.", "--workdir=tables"),
    ("zero_shot", "--tasks=cola", language, "--data=.", "--out=scores.json"),
    ("serve", language, f"--port={port}"),
  ]


@pytest.fixture
def watched(tmp_path):
  """watched(commands): runs them in tmp_path/given; what they wrote and reached, by command."""
  for name in ("home/.cache", "temporary"):
    (tmp_path / name).mkdir(parents=True)
  (tmp_path / "log").touch()
  environment = {name: os.environ[name] for name in os.environ if not name.startswith("XDG_")}
  for name in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "HF_UPDATE_DOWNLOAD_COUNTS"):
    environment.pop(name, None)  # of this process
  environment |= {
    "HF_HOME": f"{tmp_path}/given/hub",
    "HOME": f"{tmp_path}/home",
    "TMPDIR": f"{tmp_path}/temporary",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "PYTHONDONTWRITEBYTECODE": "1",
    "WATCHED": f"{tmp_path}/log",
  }
  if sys.platform == "linux" and shutil.which("cc"):
    library = f"{tmp_path}/watched_libc.so"
    source = str(HERE / "watched_libc.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    environment["LD_PRELOAD"] = library

  def run(calls):
    (tmp_path / "given" / "commands.json").write_text(json.dumps(calls))
    process = subprocess.run(
      [sys.executable, HERE / "watched_programs.py"],
      cwd=tmp_path / "given",
      env=environment,
      capture_output=True,
      text=True,
    )
    print(process.stdout)
    assert process.returncode == 0, process.stderr[-3000:]
    return (tmp_path / "log").read_text().splitlines()

  return run


def test_no_program_is_forgotten(finetuned, prepared, release):
  given = {name for name, *_ in commands(finetuned, prepared, release, "", "")}
  assert set(programs()) == LEFT_OUT | given


@pytest.fixture
def given(finetuned, tmp_path):
  """The folder in which the commands are given, with what they read."""
  given = tmp_path / "given"
  given.mkdir()
  (given / "text.txt").write_text(f"{WORDS * 3}\n\n\n" * 40)
  rows = [f"{animal} {n},{animal}s" for animal in ("cat", "dog") for n in range(60)]
  (given / "tickets.csv").write_text("\n".join(["text,team", *rows]) + "\n")
  (given / "choose.yaml").write_text(TASK)
  (given / "rows.jsonl").write_text('{"text": "the cat"}\n')
  write_config(given / "tiny.py", PRETRAIN)
  write_config(given / "table.py", finetuned.config, [("train.epochs", "1")])
  (given / "glue/CoLA").mkdir(parents=True)
  rows = (f"{n}\tthe cat sat\n" for n in range(1063))
  (given / "glue/CoLA/test.tsv").write_text("index\tsentence\n" + "".join(rows))
  for split in ("train", "dev"):
    rows = (f"x\t{n % 2}\t\tthe {('cat', 'dog')[n % 2]} ran\n" for n in range(32))
    (given / f"glue/CoLA/{split}.tsv").write_text("".join(rows))
  return given


def test_nothing_is_reached_or_written_outside(
  watched, given, finetuned, prepared, release, model_of, make_run, tiny_tokenizer, tmp_path
):
  tokenizer = tiny_tokenizer.with_special("pad", "sep")
  spec = ModelConfig(TRANSLATOR.with_vocabulary(tokenizer))
  meta = {"task": to_json(PairsTask()), "sequence_format": {"type": "text_to_text"}}
  meta["trained_special"] = ["pad", "sep"]
  translator = make_run(tmp_path / "translator", spec, tokenizer=tokenizer, **meta)
  calls = commands(finetuned, prepared, release, model_of("cola"), translator)
  places = tuple(
    str(path)
    for path in (
      given,
      tmp_path / "temporary",
      tmp_path / "home/.cache/gpt_jax",
      os.environ["JAX_COMPILATION_CACHE_DIR"],
      "/dev/null",
      "/dev/shm/sem.",
      "/proc/",
      "/var/lib/libuuid/",  # a clock, of a system that has one: an ONNX package makes a UUID
    )
  )
  faults, command = [], "the first"
  for line in watched(calls):
    if line.startswith("== "):
      command = line[3:]
    elif line.startswith("write "):
      if not line.removeprefix("write ").startswith(places):
        faults.append((command, line))
    elif not line.endswith(LOCAL):
      faults.append((command, line))
  assert faults == []
  assert [*(tmp_path / "home").glob("*"), *(tmp_path / "home").glob(".cache/*")] == [
    tmp_path / "home/.cache",
    tmp_path / "home/.cache/gpt_jax",
  ]
  assert list((tmp_path / "temporary").iterdir()) == []
