"""metrics.jsonl and the progress line, also after an interruption."""

import io
import json
import time

import jax
import pytest
from refused import refused

from gpt_jax.training.reporter import PEAK_FLOPS, Reporter, mfu, peak_flops
from gpt_jax.training.run_log import Baselines, curve, cut_back


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def clock(monkeypatch):
  """A clock that stands still until it is advanced."""

  class Clock:
    now = 100.0

    def advance(self, seconds):
      self.now += seconds

  clock = Clock()
  monkeypatch.setattr(time, "monotonic", lambda: clock.now)
  return clock


def entries(workdir):
  def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")

  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line, parse_constant=refuse) for line in lines]


@pytest.mark.parametrize(
  "metric, losses, shown",
  [
    ("loss", {"loss": 5.5}, "loss 5.5000 (unigram 6.60)"),
    (
      "masked_loss",  # the loss per token
      {"loss": 6.2, "masked_loss": 5.5, "pair_loss": 0.7},
      "loss 6.2000  masked_loss 5.5000 (unigram 6.60)",
    ),
  ],
)
def test_a_report_is_one_strict_json_line_and_one_console_line(
  tmp_path, clock, metric, losses, shown
):
  log = io.StringIO()
  with Reporter(tmp_path, 1000, baselines=Baselines((6.6, 6.7), metric), stream=log) as reporter:
    clock.advance(2)
    reporter.progress(10, {**losses, "gradient_norm": float("nan")}, tokens=4000)
    (entry,) = entries(tmp_path)  # flushed already
    names = ("step", metric, "gradient_norm", "tokens_per_second")
    assert [entry[name] for name in names] == [10, 5.5, None, 2000]
  assert log.getvalue() == f"step 10/1,000  {shown}  2,000 tokens/s  3 min left\n"


def test_rate_and_remaining_time_exclude_compilation_and_evaluation(tmp_path, clock):
  log = io.StringIO()
  with Reporter(tmp_path, 100, stream=log) as reporter:
    clock.advance(50)  # compiling
    reporter.progress(10, {}, tokens=100)
    with reporter.paused():
      clock.advance(1000)
    clock.advance(10)
    reporter.progress(20, {}, tokens=100)
  assert log.getvalue().splitlines()[-1] == "step 20/100  10 tokens/s  80 s left"


def test_a_terminal_shows_one_line(tmp_path):
  screen = Terminal()
  with Reporter(tmp_path, 100, stream=screen) as reporter:
    reporter.progress(1, {"loss": 2}, tokens=1)
    reporter.progress(2, {"loss": 1}, tokens=1)
    reporter.say("evaluating")
    reporter.results(2, {"valid/loss": 1.25})
    reporter.progress(3, {"loss": 1}, tokens=1)
  rows = [row.rsplit("\r\x1b[K", 1)[-1] for row in screen.getvalue().split("\n")]
  assert rows[:2] == ["evaluating", "step 2  valid/loss 1.25"]
  assert rows[2].startswith("step 3/100") and rows[3:] == [""]
  assert [entry["step"] for entry in entries(tmp_path)] == [1, 2, 2, 3]


def write_run(tmp_path, torn='{"step": 4, "lo'):
  with Reporter(tmp_path, 100, stream=io.StringIO()) as reporter:
    for step in (0, 10, 20, 30):
      reporter.progress(step, {"loss": step}, tokens=1)
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write(torn)  # killed


@pytest.mark.parametrize("start, left", [(20, [0, 10, 20]), (0, [])])
@pytest.mark.parametrize("torn", ['{"step": 4, "lo', '{"step": 4}'])
def test_a_resumed_run_repeats_no_entry(tmp_path, start, left, torn):
  write_run(tmp_path, torn)
  with Reporter(tmp_path, 100, start_step=start, stream=io.StringIO()) as reporter:
    reporter.progress(25, {}, tokens=1)
  assert [entry["step"] for entry in entries(tmp_path)] == [*left, 25]
  assert not list(tmp_path.glob("*.partial*"))


def test_a_curve_has_every_measured_step(tmp_path):
  write_run(tmp_path)
  with Reporter(tmp_path, 100, start_step=20, stream=io.StringIO()) as reporter:
    reporter.progress(30, {"loss": float("nan")}, tokens=1)
    reporter.results(30, {"valid_loss": 1.5})
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write('{"step": 4, "lo')  # killed
  assert curve(str(tmp_path), "loss") == ([0, 10, 20], [0, 10, 20])
  assert curve(str(tmp_path), "valid_loss") == ([30], [1.5])
  names = "loss, memory_bytes, peak_memory_bytes, tokens_per_second, valid_loss"
  refused(f"has no 'accuracy'; it has {names}$", curve, str(tmp_path), "accuracy")
  refused("should be the folder of a run", curve, str(tmp_path / "elsewhere"), "loss")


def test_a_flag_of_an_evaluation_is_told_in_words(tmp_path):
  log = io.StringIO()
  with Reporter(tmp_path, 100, stream=log) as reporter:
    reporter.results(1, {"dev_loss": 0.5, "dev_degenerate": 1.0})
  assert "step 1  dev_loss 0.5  (the same prediction for every row)\n" in log.getvalue()
  assert entries(tmp_path)[-1]["dev_degenerate"] == 1


def test_other_processes_write_nothing(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  log = io.StringIO()
  with Reporter(tmp_path / "run", 100, stream=log) as reporter:
    reporter.progress(1, {"loss": 1}, tokens=1)
    reporter.results(1, {"valid/loss": 1})
    reporter.say("evaluating")
  assert log.getvalue() == "" and not (tmp_path / "run").exists()


def test_mfu_is_reported(tmp_path, clock, monkeypatch):
  assert mfu(100.0, 4000.0) is None  # without a peak
  monkeypatch.setitem(PEAK_FLOPS, jax.devices()[0].device_kind, 1e6)
  log = io.StringIO()
  with Reporter(tmp_path, 10, flops_per_token=4000 * jax.device_count(), stream=log) as reporter:
    clock.advance(1)
    reporter.progress(1, {}, tokens=100)
  assert "100 tokens/s  MFU 40%" in log.getvalue()
  assert entries(tmp_path)[0]["mfu"] == pytest.approx(0.4)
  assert mfu(100.0, 0.0) is None


@pytest.mark.parametrize(
  "device_kind, peak",  # names that begin with one another, and unknown ones
  [
    ("TPU v4 lite", 138e12),
    ("TPU v4", 275e12),
    ("TPU v5 lite", 197e12),
    ("TPU v5p", 459e12),
    ("TPU v6e", 918e12),
    ("TPU7x", 2307e12 / 2),  # a JAX device is one of two cores
    ("Tesla V100-SXM2-16GB", 125e12),
    ("Tesla V100-PCIE-16GB", 112e12),
    ("NVIDIA H100 80GB HBM3", 989e12),
    ("NVIDIA H100 PCIe", 756e12),
    ("NVIDIA L40S", 362e12),
    ("NVIDIA L40", 181e12),
    ("NVIDIA L4", 121e12),
    ("cpu", 0.0),
    ("NVIDIA GeForce RTX 3090", 0.0),
  ],
)
def test_peak_of_a_device_kind(device_kind, peak):
  assert peak_flops(device_kind) == peak


def test_lines_that_are_no_entries_are_cut(tmp_path):
  good = '{"step": 1, "loss": 2.0}\n'
  damaged = ["[1]", "5", "null", '{"suep": 1}', '{"step": "1"}', '{"step": null}', "{"]
  path = tmp_path / "metrics.jsonl"
  path.write_text("\n".join(damaged) + "\n" + good)
  cut_back(str(path), 2)
  assert path.read_text() == good
