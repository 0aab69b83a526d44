"""What the attacks share: their budget, their ledger, and a model in every format."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from outcomes import describe_data, describe_model, describe_page, describe_program, describe_result
from small_runs import PRETRAIN, complete, finetune_flags, results
from tiny_runs import write_config

from gpt_jax.apps.interop.formats import hf, onnx, stablehlo
from gpt_jax.checkpoints.formats import npz, safetensors
from gpt_jax.checkpoints.load import load_model
from gpt_jax.errors import InputError
from gpt_jax.programs import prepare

ROOT = Path(__file__).parents[2]


@pytest.fixture
def attempts(request):
  """attempts(n): n times the budget; skips the test if that is less than one."""

  def count(share):
    number = round(share * request.config.getoption("--budget") + 1e-9)
    return number or pytest.skip("needs a larger --budget")

  return count


@pytest.fixture
def ledger(request):
  """ledger(kind, outcomes): counts the outcomes for the closing table, and fails at a failure.

  An outcome is "refused", "harmless", or what went wrong.
  """

  def write(kind, outcomes):
    failures = [outcome for outcome in outcomes if outcome not in ("refused", "harmless")]
    request.node.user_properties.append(("attack", (kind, len(outcomes), len(failures))))
    assert outcomes and not failures, failures[:5]

  return write


@pytest.fixture(scope="session")
def sharded_data(tmp_path_factory):
  """A prepared text whose ids are in several files."""
  folder = tmp_path_factory.mktemp("sharded")
  (folder / "text.txt").write_text(
    "the cat sat on the mat, and the dog ran to the barn.\n\n\n" * 9000
  )
  config = prepare.PrepareConfig(
    str(folder / "text.txt"), vocab_size=290, valid_share=0.4, shard_tokens=1
  )
  prepare.run(config, str(folder / "out"))
  assert len(list((folder / "out").glob("*-0000?.bin"))) > 4
  return folder / "out", describe_data


@pytest.fixture(scope="session")
def programs(finetuned, tmp_path_factory):
  """programs(format): an export that runs without gpt_jax."""
  loaded = load_model(f"{finetuned.workdir}/seed_0")

  def export(format):
    folder = tmp_path_factory.mktemp("program") / "export"
    format.save(str(folder), loaded.params, loaded.meta, loaded.step, loaded.tokenizer)
    return folder, describe_program

  return export


@pytest.fixture(scope="session")
def stablehlo_export(programs):
  return programs(stablehlo)


@pytest.fixture(scope="session")
def onnx_export(programs):
  return programs(onnx)


@pytest.fixture(scope="session")
def finetuned_report(finetuned, tmp_path_factory):
  folder = tmp_path_factory.mktemp("reported") / "run"
  return Path(shutil.copytree(f"{finetuned.workdir}/seed_0", folder)), describe_page


@pytest.fixture(scope="session")
def pretrained_report(finetuned, tmp_path_factory):
  """Of a run of pretrain that has logged its losses, and written samples."""
  folder = tmp_path_factory.mktemp("reported") / "run"
  shutil.copytree(finetuned.pretrained, folder)
  for name, entries in {
    "metrics": [{"step": n, "loss": 5 / n, "valid_loss": 6 / n, "time": n} for n in range(1, 8)],
    "samples": [{"step": n, "prompt": "the", "text": " cat sat"} for n in (2, 4, 7)],
  }.items():
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
  return folder, describe_page


@pytest.fixture(scope="session")
def kinds(finetuned, prepared, release, tmp_path_factory):
  """Name -> (folder, function that reads it) of every kind of file that a program writes."""
  place = tmp_path_factory.mktemp("kinds")
  run = Path(shutil.copytree(f"{finetuned.workdir}/seed_0", place / "run"))
  loaded = load_model(str(run))
  parts = loaded.params, loaded.meta, loaded.step, loaded.tokenizer
  kinds = {"data": (Path(prepared), describe_data), "run": (run, describe_model)}
  kinds["result"] = run, describe_result
  npz.save(str(place / "npz"), *parts)
  kinds["npz export"] = place / "npz", describe_model
  with contextlib.suppress(InputError):  # needs the extra
    safetensors.save(str(place / "safetensors"), *parts)
    kinds["safetensors export"] = place / "safetensors", describe_model
    hf.save(str(place / "hf"), *parts)
    kinds["hf export"] = place / "hf", describe_model
  return kinds


@pytest.fixture
def victim(request, kinds, tmp_path):
  """victim(kind): a copy to damage, its files, the function that reads it, and what it reads."""

  def make(kind):
    fixture = kind.replace(" ", "_")  # of a kind that few tests need
    folder, read = kinds.get(kind) or request.getfixturevalue(fixture)
    copy = Path(shutil.copytree(folder, tmp_path / kind.replace(" ", "_")))
    files = [path for path in sorted(copy.rglob("*")) if path.is_file()]
    if kind == "result":
      files = [copy / "result.json"]
    if read is describe_page:
      files = [path for path in files if path.parent == copy and ".json" in path.suffix]
    files = [path for path in files if path.name != "lock"]
    return SimpleNamespace(folder=copy, files=files, read=lambda: read(copy), expected=read(copy))

  return make


@pytest.fixture
def random():
  return np.random.default_rng(0)


@pytest.fixture
def start():
  """start(program, *flags, …): launch/<program>.py in a process of its own.

  devices: how many it has; before: shell commands that come first, such as a limit; packages: a
  folder whose modules hide the installed ones.
  """
  processes = []

  def run(program, *flags, devices=1, before="", packages=ROOT):
    environment = {**os.environ, "PYTHONPATH": f"{packages}:{ROOT}"}
    environment["XLA_FLAGS"] = environment["XLA_FLAGS"].replace("count=8", f"count={devices}")
    command = [sys.executable, str(ROOT / "launch" / f"{program}.py"), *flags]
    if before:
      command = ["bash", "-c", f'{before}; exec "$@"', "bash", *command]
    process = subprocess.Popen(
      command,
      cwd=ROOT,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    processes.append(process)
    return process

  yield run
  for process in processes:
    if process.poll() is None:
      process.kill()
      process.communicate()


@pytest.fixture
def make(start, prepared, finetuned, tmp_path):
  """make(program, workdir): a run of a few seconds, started."""
  often = [("train.epochs", "3"), ("train.checkpoint_every", "4"), ("train.log_every", "1")]
  flags = {
    "pretrain": (write_config(tmp_path / "pretrain.py", PRETRAIN), f"--data={prepared}"),
    "finetune": finetune_flags(finetuned, tmp_path / "finetune.py", often),
  }
  return lambda program, workdir: start(program, *flags[program], f"--workdir={workdir}")


@pytest.fixture
def whole(make, make_once):
  """whole(program): the results of an undisturbed run on a disk, and how many seconds it took."""

  def run(program):
    def make_run(folder):
      began = time.monotonic()
      complete(make(program, str(folder / "run")))
      (folder / "seconds").write_text(str(time.monotonic() - began))

    folder = make_once(f"whole_{program}", make_run)
    return results(program, str(folder / "run")), float((folder / "seconds").read_text())

  return run


@pytest.fixture
def distributed():
  """distributed(n): the flags of each of the n processes of one run."""

  def flags(count):
    with socket.create_server(("127.0.0.1", 0)) as server:
      address = f"127.0.0.1:{server.getsockname()[1]}"
    shared = "--distributed", f"--coordinator={address}", f"--num_processes={count}"
    return [(*shared, f"--process_id={index}") for index in range(count)]

  return flags
