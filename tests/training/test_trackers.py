"""What the trackers write, read back by their own packages; resuming; trackers that fail."""

import importlib.util
import io
import json
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from refused import refused

from gpt_jax.files import find_files
from gpt_jax.programs.config_files import load_config
from gpt_jax.training import trackers
from gpt_jax.training.reporter import Reporter
from gpt_jax.training.trackers import Trackers, parse_trackers

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


# How to read what each wrote: folder -> {name of a run: ({metric: [(step, value)]}, settings)}.
def tensorboard(root):
  module = "tensorboard.backend.event_processing.event_accumulator"
  accumulator = pytest.importorskip(module, reason="needs tensorboard").EventAccumulator
  runs = {}
  for folder in sorted(root.rglob("tensorboard")):
    events = accumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()
    runs[folder.parent.relative_to(root).as_posix()] = (
      {tag: [(at.step, at.value) for at in events.Scalars(tag)] for tag in tags["scalars"]},
      events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode(),
    )
  return runs


def wandb(root):
  from wandb.proto.wandb_internal_pb2 import Record

  runs, names = {}, {}
  for path in sorted(root.glob("wandb/offline-run-*/*.wandb")):
    for data in records(path.read_bytes()):
      record = Record.FromString(data)
      if record.HasField("run"):
        names[path] = record.run.display_name, record.run.run_id
        runs.setdefault(names[path], ({}, {}))[1].update(
          {update.key: json.loads(update.value_json) for update in record.run.config.update}
        )
      elif record.HasField("history"):
        items = {(i.key or i.nested_key[0]): json.loads(i.value_json) for i in record.history.item}
        for metric, value in items.items():
          if not metric.startswith("_"):
            points = runs[names[path]][0].setdefault(metric, [])
            points.append((record.history.step.num, value))
  assert len({name for name, _ in runs}) == len(runs)  # one id for each name
  return {name: run for (name, _), run in runs.items()}


def records(data):
  """The records of a log in LevelDB's format, after wandb's header of 7 bytes."""
  at, part = 7, b""
  while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
      at += 32768 - at % 32768
      continue
    _, length, kind = struct.unpack_from("<IHB", data, at)
    part += data[at + 7 : at + 7 + length]
    at += 7 + length
    if kind in (1, 4):
      yield part
      part = b""


def report(workdir, steps):
  """What a run with a tracker prints."""
  log, opened = io.StringIO(), Trackers(("wandb",), str(workdir))
  with Reporter(workdir, 100, stream=log, trackers=opened) as reporter:
    for step in steps:
      reporter.progress(step, {"loss": 100 - step}, tokens=1)
      reporter.results(step, {"valid_loss": 200.0 + step})
  return log.getvalue()


PROGRAM = """
import json, sys
from gpt_jax.programs.config_files import load_config
from gpt_jax.training.reporter import Reporter
from gpt_jax.training.trackers import parse_trackers
names, root = sys.argv[1:3]
opened, config = parse_trackers(names, root), load_config("story")
for folder, start, steps in json.loads(sys.argv[3]):
  with Reporter(f"{root}/{folder}", 100, start, trackers=opened, config=config) as reporter:
    for step in steps:
      reporter.progress(step, {"loss": 100 - step}, tokens=1)
      reporter.results(step, {"valid_loss": 200.0 + step})
"""


def run_python(program, *arguments, paths=(ROOT,), environment=os.environ, **options):
  """The finished process of a program, whose output is kept."""
  path = os.pathsep.join(map(str, [*paths, *sys.path]))
  return subprocess.run(
    [sys.executable, "-c", program, *map(str, arguments)],
    env={**environment, "PYTHONPATH": path},
    capture_output=True,
    text=True,
    **options,
  )


def run_program(root, runs, here, environment):
  """PROGRAM in a process of its own, in the folder `here`, with all trackers that are installed."""
  installed = [name for name in trackers.names() if is_installed(name)]
  given = ",".join(installed), root, json.dumps(runs)
  done = run_python(PROGRAM, *given, environment=environment, cwd=here)
  assert done.returncode == 0 and "warning" not in done.stderr.lower(), done.stderr
  assert not done.stdout
  return installed


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """A folder in whose "run" two seeds have logged, one of which was resumed; "home" is $HOME.

  Each start is a process of its own. All trackers that are installed get the same.
  """
  folder = tmp_path_factory.mktemp("written")
  for name in ("home", "here"):
    (folder / name).mkdir()
  theirs = ("WANDB_", "XDG_", "HF_")
  variables = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
  variables |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "here")}
  # The checkpoint that it is resumed from was at step 20.
  for runs in [("seed_1", 0, [10, 20, 30])], [("seed_1", 20, [30, 40]), ("seed_2", 0, [5])]:
    run_program(folder / "run", runs, folder / "here", variables)
  return folder


def is_installed(name):
  return importlib.util.find_spec(trackers.find_tracker(name).PACKAGE) is not None


@pytest.mark.parametrize("name", sorted(trackers.names()))
def test_a_resumed_run_is_one_run_with_every_step_once(written, name):
  if not is_installed(name):
    pytest.skip(f"needs the extra {name!r}: pip install -e .[{name}]")
  runs = {"tensorboard": tensorboard, "wandb": wandb}[name](written / "run")
  assert sorted(key.removeprefix("run").strip("/-") for key in runs) == ["seed_1", "seed_2"]
  metrics, settings = next(run for key, run in runs.items() if key.endswith("seed_1"))
  assert metrics["loss"] == [(10, 90), (20, 80), (30, 70), (40, 60)]
  assert metrics["valid_loss"] == [(10, 210), (20, 220), (30, 230), (40, 240)]
  assert [step for step, _ in metrics["memory_bytes"]] == [10, 20, 30, 40]
  assert "optim.learning_rate" in settings and "trunk.width" in settings
  other, _ = next(run for key, run in runs.items() if key.endswith("seed_2"))
  assert other["loss"] == [(5, 95)]


def test_trackers_write_into_the_folder_of_the_run_only(written):
  paths = [path.relative_to(written) for path in written.rglob("*") if path.is_file()]
  assert paths and [path for path in paths if path.parts[0] != "run"] == []


class Recorder:
  """A tracker of the tests; `fails` is called before each report."""

  id = "7"

  def __init__(self, fails=lambda: None):
    self.got, self.closed, self._fails = [], None, fails

  def log(self, step, values):
    self._fails()
    self.got.append((step, values))

  def close(self, failed):
    self.closed = failed


@pytest.fixture
def use(monkeypatch):
  """use(start): the function that makes the tracker of the run."""
  return lambda start: monkeypatch.setattr(
    trackers, "find_tracker", lambda name: SimpleNamespace(start=start)
  )


def raise_disk_full(*_):
  raise OSError(28, "No space left on device")


@pytest.mark.parametrize("when", ["start", "log"])
def test_a_tracker_that_fails_is_turned_off_with_one_line(tmp_path, use, when):
  recorder = Recorder(raise_disk_full)
  use(raise_disk_full if when == "start" else lambda run: recorder)
  lines = report(tmp_path, range(1, 20)).splitlines()
  warnings = [line for line in lines if line.startswith("warning")]
  assert len(warnings) == 1 and "tracker=wandb: OSError" in warnings[0]
  assert "No space left" in warnings[0] and recorder.got == []
  assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 38


def test_a_tracker_that_does_not_end_is_left(tmp_path, use, monkeypatch):
  monkeypatch.setattr(trackers, "_CLOSING", 0.1)
  recorder, forever = Recorder(), threading.Event()
  monkeypatch.setattr(recorder, "close", lambda failed: forever.wait())
  use(lambda run: recorder)
  log = report(tmp_path, [1])
  assert "tracker=wandb: did not end within" in log and log.count("warning") == 1
  forever.set()


def test_a_run_that_is_killed_repeats_no_report(tmp_path, use):
  """What was given is recorded before it is given."""
  killed = Recorder(raise_disk_full)
  use(lambda run: killed)
  report(tmp_path, [10])
  starts, resumed = [], Recorder()
  use(lambda run: starts.append(run) or resumed)
  report(tmp_path, [10, 20])
  assert [run.id for run in starts] == ["7"]
  given = [(step, name) for step, values in resumed.got for name in values if "loss" in name]
  assert given == [(20, "loss"), (20, "valid_loss")]


def test_a_tracker_learns_how_the_run_ended(tmp_path, use):
  recorder = Recorder()
  use(lambda run: recorder)
  report(tmp_path, [1])
  assert recorder.closed is False
  with pytest.raises(KeyboardInterrupt):
    with Reporter(tmp_path, 9, trackers=Trackers(("wandb",), str(tmp_path))):
      raise KeyboardInterrupt
  assert recorder.closed is True


def test_a_damaged_record_of_the_trackers_begins_anew(tmp_path, use):
  recorder, starts = Recorder(), []
  use(lambda run: starts.append(run) or recorder)
  for damage in ("[1]", "{", '{"step": [2]}', '{"step": "a"}'):
    (tmp_path / "tracker_wandb.json").write_text(damage)
    report(tmp_path, [10])
  assert [run.id for run in starts] == [""] * 4 and len(recorder.got) == 8


def test_other_processes_start_no_tracker(tmp_path, use, monkeypatch):
  starts = []
  use(starts.append)
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  report(tmp_path / "run", [1])
  assert starts == [] and not (tmp_path / "run").exists()


def test_names_are_checked_at_the_door(monkeypatch):
  message = "tracker=wandbb: .*tensorboard.*; did you mean wandb"
  refused(message, parse_trackers, "tensorboard, wandbb", "run")
  real = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util, "find_spec", lambda name: None if name == "wandb" else real(name)
  )
  refused(r"needs wandb: .*\[wandb\]", parse_trackers, "wandb", "run")
  assert parse_trackers("", "run").names == ()
  found = ("tensorboard",) if is_installed("tensorboard") else ()
  assert parse_trackers("auto", "run").names == found
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  assert parse_trackers("auto", "run").names == ()


def test_files_that_a_store_cannot_hold_are_refused(monkeypatch):
  monkeypatch.delenv("WANDB_API_KEY", raising=False)
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
  message = "tracker=wandb: .* gs://bucket/run; set WANDB_API_KEY, or"
  refused(message, parse_trackers, "tensorboard,wandb", "gs://bucket/run")
  monkeypatch.setenv("WANDB_API_KEY", "somewhere")
  assert parse_trackers("wandb", "gs://bucket/run").names == ("wandb",)


def test_a_workdir_on_a_store(store, tmp_path):
  """TensorBoard's events are in it, other files where the environment says; none are here."""
  (tmp_path / "here").mkdir()
  settings = {"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "offline", "TMPDIR": str(tmp_path)}
  runs = [("seed_1", 0, [10, 20])]
  installed = run_program(f"{store}/run", runs, tmp_path / "here", {**os.environ, **settings})
  assert not list((tmp_path / "here").iterdir())
  if "tensorboard" in installed:
    assert list(find_files(f"{store}/run/seed_1/tensorboard"))


def test_tensorboard_does_not_import_torch(tmp_path):
  """Which would take seconds at each start; in a process of its own, that has not imported it."""
  pytest.importorskip("tensorboardX", reason="needs tensorboardX")
  (tmp_path / "torch.py").write_text("print('imported')")
  program = (
    "import sys; from gpt_jax.training.reporter import Reporter; "
    "from gpt_jax.training.trackers import parse_trackers as parse; run = sys.argv[1]; "
    "Reporter(run, 9, trackers=parse('tensorboard', run)).close(); "
    "print('torch' in sys.modules, 'tensorboardX' in sys.modules); import torch"
  )
  done = run_python(program, tmp_path / "run", paths=(tmp_path,))
  assert done.stdout.splitlines() == ["False True", "imported"]


def test_a_config_is_told_as_numbers_and_text(tmp_path, use):
  """The fields of a config, flat; what is no number or text is told as text."""
  starts, config = [], load_config("story")
  use(lambda run: starts.append(run) or Recorder())
  Trackers(("wandb",), str(tmp_path)).open(str(tmp_path), 0, print, config)
  assert starts[0].settings["data.batch_size"] == config.data.batch_size
  assert all(isinstance(value, (int, float, str)) for value in starts[0].settings.values())
