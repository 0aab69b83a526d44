"""Run logging: metrics.jsonl, console progress, MFU, and the run's trackers."""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import jax

from gpt_jax import errors
from gpt_jax.data.progress import Console, duration
from gpt_jax.files import make_folders
from gpt_jax.parallel import memory
from gpt_jax.parallel.memory import Forecast, gigabytes
from gpt_jax.parallel.processes import is_main_process
from gpt_jax.training.run_log import (
  METRICS,
  Baselines,
  Segments,
  cut_back,
  open_to_append,
  write_end,
  write_plan,
)

if TYPE_CHECKING:
  from gpt_jax.training.trackers import OpenTracker, Trackers

_NOTHING_KNOWN = Forecast()
_NO_BASELINES = Baselines()
_FLAGS = {"dev_degenerate": "(the same prediction for every row)"}  # what a value of 1 says
_NOTABLE_WAIT = 0.02  # share of the time; less is in metrics.jsonl only


class Reporter:
  """Logs a run on process 0; on other processes every method does nothing.

  `workdir` gets metrics.jsonl, one JSON object per line, and plan.json; trackers get the same
  values, and the fields of `config`. Entries after `start_step`, from which the run resumes, are
  removed, since they will be logged again. The progress is one line rewritten in place on a
  terminal, a line per report on another stream. `flops_per_token` is for MFU; 0 if unknown.
  """

  def __init__(
    self,
    workdir: str,
    total_steps: int,
    start_step: int = 0,
    *,
    baselines: Baselines = _NO_BASELINES,
    flops_per_token: float = 0.0,
    forecast: Forecast = _NOTHING_KNOWN,
    trackers: "Trackers | None" = None,
    config: Any = None,
    stream: TextIO | None = None,
  ):
    self._writes, self._workdir = is_main_process(), workdir
    self._total, self._step, self._baselines = total_steps, start_step, baselines
    self._flops_per_token = flops_per_token
    self._console = Console(stream)
    self._reports, self._seconds_per_step, self._since = 0, 0.0, 0.0
    self._began, self._paused = time.monotonic(), 0.0
    self._start_step, self._forecast = start_step, forecast
    if not self._writes:
      return
    make_folders(workdir)
    path = os.path.join(workdir, METRICS)
    cut_back(path, start_step)
    write_plan(workdir, total_steps, start_step, baselines, forecast)
    self._file = open_to_append(path)
    self._trackers: Sequence[OpenTracker] = ()
    if trackers:
      self._trackers = trackers.open(workdir, start_step, self.say, config)
    if forecast.memory:
      there = f" of {gigabytes(forecast.limit)}" if forecast.limit else ""
      self.say(f"plan    {gigabytes(forecast.memory)}{there}")

  def progress(self, step: int, values: Mapping[str, float], tokens: float) -> None:
    """Reports the metrics of the steps since the last call, and the tokens trained on since, with
    the rate of tokens and the remaining time.
    """
    now = time.monotonic() - self._began - self._paused
    seconds, steps = max(now - self._since, 1e-9), max(step - self._step, 1)
    self._since, self._step, self._reports = now, step, self._reports + 1
    latest = seconds / steps
    # The first interval includes compilation, so the second replaces it; then a moving average.
    self._seconds_per_step = (
      latest if self._reports <= 2 else 0.8 * self._seconds_per_step + 0.2 * latest
    )
    # Of this interval alone; the moving average above is for the time that is left.
    rate = tokens / seconds
    speed = {"tokens_per_second": rate}
    utilization = mfu(rate, self._flops_per_token)
    if utilization is not None:
      speed["mfu"] = utilization
    self._record(step, {**values, **speed, **memory.figures(jax.local_devices())})
    metrics = self._format_losses(values)
    metrics.append(f"{rate:,.0f} tokens/s")
    if utilization is not None:
      metrics.append(f"MFU {utilization:.0%}")
    waited = values.get("input_wait", 0.0) / latest
    if waited >= _NOTABLE_WAIT:
      metrics.append(f"input wait {waited:.0%}")
    left = duration((self._total - step) * self._seconds_per_step)
    line = "  ".join([f"step {step:,}/{self._total:,}", *metrics, f"{left} left"])
    self._show(line, stays=False)

  def results(self, step: int, values: Mapping[str, float]) -> None:
    """Reports an evaluation; its line stays on the terminal."""
    self._record(step, values)
    told = [_FLAGS.get(name, f"{name} {value:.4g}") for name, value in values.items()]
    self._show("  ".join([f"step {step:,}", *told]), stays=True)

  def sync(self) -> None:
    """Returns when the entries so far are safe from a kill; a checkpoint never has more steps."""
    if self._writes and isinstance(self._file, Segments):
      self._file.upload()

  def say(self, text: str) -> None:
    """Prints a line, which stays above the progress."""
    self._show(errors.for_user(text), stays=True)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Excludes the time spent inside, such as an evaluation, from the training rate."""
    began = time.monotonic()
    try:
      yield
    finally:
      self._paused += time.monotonic() - began

  def close(self, failed: bool = False) -> None:
    """Closes the files; `failed`: the run has not come to its end."""
    if not self._writes:
      return
    for tracker in self._trackers:
      tracker.close(failed)
    self._console.close()
    self._file.close()

  def __enter__(self):
    return self

  def __exit__(self, kind, error, traceback):
    steps, peak = self._step - self._start_step, memory.peak(jax.local_devices())
    if self._forecast.memory and error is None and steps:
      other = f", and {duration(self._paused)} for evaluations and checkpoints"
      self.say(
        f"planned {gigabytes(self._forecast.memory)}; was {gigabytes(peak)}, "
        f"{duration(self._since)} for {errors.counted(steps, 'step')}"
        f"{other if self._paused >= 0.5 else ''}"
      )
    outcome = {"steps": steps, "memory": peak, "training": self._since, "other": self._paused}
    self.close(failed=error is not None)
    if self._writes:
      with contextlib.suppress(OSError):  # as of a full disk; the report says less then
        write_end(self._workdir, error, outcome)

  def _format_losses(self, values: Mapping[str, float]) -> list[str]:
    entropies, metric = self._baselines.entropies, self._baselines.metric
    parts = []
    for name in dict.fromkeys(("loss", metric)):
      if name in values:
        unigram = f" (unigram {entropies[0]:.2f})" if name == metric and entropies else ""
        parts.append(f"{name} {values[name]:.4f}{unigram}")
    return parts

  def _record(self, step: int, values: Mapping[str, float]) -> None:
    if not self._writes:
      return
    values = {name: float(value) for name, value in values.items()}
    # JSON has no nan or infinity.
    strict = {name: value if math.isfinite(value) else None for name, value in values.items()}
    entry = {"step": step, "time": round(time.time(), 3), **strict}
    self._file.write(json.dumps(entry, allow_nan=False) + "\n")
    self._file.flush()
    for tracker in self._trackers:
      tracker.log(step, values)

  def _show(self, line: str, stays: bool) -> None:
    if self._writes:
      self._console.show(line, stays)


# Peak dense FLOP/s of one JAX device, without sparsity, by the beginning of its device_kind; the
# longest match counts. bfloat16; float16 on V100 and T4, whose tensor cores have no bfloat16.
#
# TPU: https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm and the pages of each
# version; v4 lite (v4i): Jouppi et al. 2021, "Ten Lessons From Three Generations Shaped Google's
# TPUv4i", table 1. A JAX device is a TensorCore, half a chip, on v2, v3 and TPU7x (2,307 TFLOP/s a
# chip; https://docs.cloud.google.com/tpu/docs/tpu7x, "Dual-chiplet architecture"); a chip on all
# others.
# NVIDIA: the data sheets of V100, T4, A100, H100, H200, GH200, L4, L40, L40S, and of the HGX B200
# and GB200 NVL72 systems, whose sparse figures are halved.
PEAK_FLOPS = {
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4 lite": 138e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5e": 197e12,
  "TPU v5": 459e12,
  "TPU v6": 918e12,
  "TPU7x": 1153.5e12,
  "Tesla T4": 65e12,
  "Tesla V100": 125e12,
  "Tesla V100-PCIE": 112e12,
  "NVIDIA A100": 312e12,
  "NVIDIA H100 PCIe": 756e12,
  "NVIDIA H100": 989e12,
  "NVIDIA H200": 989e12,
  "NVIDIA GH200": 989e12,
  "NVIDIA B200": 2250e12,
  "NVIDIA GB200": 2500e12,
  "NVIDIA L40S": 362e12,
  "NVIDIA L40": 181e12,
  "NVIDIA L4": 121e12,
}


def peak_flops(device_kind: str) -> float:
  """Dense FLOP/s of one device; 0 if unknown."""
  # The longest, since "TPU v5" begins "TPU v5 lite" too.
  matches = [name for name in PEAK_FLOPS if device_kind.startswith(name)]
  return PEAK_FLOPS[max(matches, key=len)] if matches else 0.0


def mfu(tokens_per_second: float, flops_per_token: float) -> float | None:
  """Model FLOP/s utilization: the share of all devices' peak that the model's arithmetic uses, with
  the tokens of all hosts. None if the peak or the model's arithmetic (0) is unknown.
  """
  peak = peak_flops(jax.devices()[0].device_kind) * jax.device_count()
  if not peak or not flops_per_token:
    return None
  return tokens_per_second * flops_per_token / peak
