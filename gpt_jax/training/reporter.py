"""What a run tells of itself: metrics.jsonl, its progress, and TensorBoard files where
tensorboardX is installed.
"""

import contextlib
import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import TextIO

import jax

from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file
from gpt_jax.training.flops import peak_flops


class Reporter:
  """Writes on process 0 alone; on the others every method does nothing.

  Args:
    workdir: gets `metrics.jsonl`, one object a line, and `tensorboard/`.
    total_steps: of the run.
    start_step: the step the run resumed from. What was reported of later steps will be repeated and
      is cut off; at 0 that is everything.
    unigram_entropy: nats, shown beside the loss, which a model that has learned nothing but
      frequencies stays at.
    flops_per_token: of a training step, for the share of the devices' peak; 0 where it is not
      known.
    stream: for the progress: rewritten in place on a terminal, a line a report elsewhere. Where
      none is given it is standard error, and in a notebook a bar where tqdm is installed.
  """

  def __init__(
    self,
    workdir: str,
    total_steps: int,
    start_step: int = 0,
    unigram_entropy: float | None = None,
    flops_per_token: float = 0.0,
    stream: TextIO | None = None,
  ):
    self._writes = jax.process_index() == 0
    self._total, self._step, self._unigram_entropy = total_steps, start_step, unigram_entropy
    self._flops_per_token, self._peak = (
      flops_per_token,
      peak_flops(jax.devices()[0].device_kind) * jax.device_count(),
    )
    self._bar, self._stream = None, stream or sys.stderr
    self._in_place, self._line_is_open = self._stream.isatty(), False
    self._reports, self._seconds_per_step, self._since = 0, 0.0, time.monotonic()
    if not self._writes:
      return
    os.makedirs(workdir, exist_ok=True)
    path = os.path.join(workdir, "metrics.jsonl")
    _cut_back(path, start_step)
    self._file = open(path, "a", encoding="utf-8")
    self._tensorboard = _tensorboard(workdir, start_step)
    if stream is None:
      self._bar = _bar(total_steps, start_step)

  def progress(self, step: int, values: Mapping[str, float], tokens: float) -> None:
    """After training on `tokens` tokens since the last call: their rate, and the time that
    remains, from the clock.
    """
    now = time.monotonic()
    seconds, steps = max(now - self._since, 1e-9), max(step - self._step, 1)
    self._since, self._step, self._reports = now, step, self._reports + 1
    latest = seconds / steps
    # The first interval holds the compilation, so the second replaces it; from then on a moving
    # average.
    self._seconds_per_step = (
      latest if self._reports <= 2 else 0.8 * self._seconds_per_step + 0.2 * latest
    )
    rate = tokens / seconds
    speed = {"tokens_per_second": rate}
    if self._peak and self._flops_per_token:
      speed["mfu"] = rate * self._flops_per_token / self._peak
    self._record(step, {**values, **speed})
    told = self._format_metrics(values, **speed)
    if self._bar is not None:
      self._bar.set_postfix_str("  ".join(told), refresh=False)
      self._bar.update(step - self._bar.n)
      return
    left = _duration((self._total - step) * self._seconds_per_step)
    line = "  ".join([f"step {step:,}/{self._total:,}", *told, f"{left} left"])
    self._show(line, stays=not self._in_place)

  def results(self, step: int, values: Mapping[str, float]) -> None:
    """What was measured at a step, such as an evaluation; its line stays."""
    self._record(step, values)
    self._show(
      f"step {step:,}  " + "  ".join(f"{name} {value:.4g}" for name, value in values.items()),
      stays=True,
    )

  def say(self, text: str) -> None:
    """A line that stays above the progress."""
    self._show(text, stays=True)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """What is done inside, such as an evaluation, does not count into the rate of training."""
    began = time.monotonic()
    try:
      yield
    finally:
      self._since += time.monotonic() - began

  def close(self) -> None:
    if not self._writes:
      return
    if self._line_is_open:
      print(file=self._stream, flush=True)
      self._line_is_open = False
    if self._bar is not None:
      self._bar.close()
    self._file.close()
    if self._tensorboard:
      self._tensorboard.close()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def _format_metrics(
    self, values: Mapping[str, float], tokens_per_second: float, mfu: float | None = None
  ) -> list[str]:
    parts = []
    if "loss" in values:
      beside = "" if self._unigram_entropy is None else f" (unigram {self._unigram_entropy:.2f})"
      parts.append(f"loss {values['loss']:.4f}{beside}")
    parts.append(f"{tokens_per_second:,.0f} tokens/s")
    if mfu is not None:
      parts.append(f"{mfu:.0%} of peak")
    return parts

  def _record(self, step: int, values: Mapping[str, float]) -> None:
    if not self._writes:
      return
    values = {name: float(value) for name, value in values.items()}
    # JSON has no nan or infinity.
    strict = {name: value if math.isfinite(value) else None for name, value in values.items()}
    entry = {"step": step, "time": round(time.time(), 3), **strict}
    print(json.dumps(entry, allow_nan=False), file=self._file, flush=True)
    if self._tensorboard:
      for name, value in values.items():
        self._tensorboard.add_scalar(name, value, step)

  def _show(self, line: str, stays: bool) -> None:
    if not self._writes:
      return
    if self._bar is not None:
      self._bar.write(line, file=self._stream)
      return
    if not stays:
      line = line[
        : shutil.get_terminal_size().columns - 1
      ]  # a line that wraps could not be rewritten
    begin, end = ("\r\x1b[K" if self._line_is_open else ""), ("\n" if stays else "")
    print(f"{begin}{line}", end=end, file=self._stream, flush=True)
    self._line_is_open = not stays


def curve(workdir: str, name: str) -> tuple[list[int], list[float]]:
  """The steps at which a run measured something, such as "loss" or "valid_loss", and what it found,
  for a plot.

  Raises:
    InputError: no metrics.jsonl there, or nothing of that name in it.
  """
  path, entries = os.path.join(workdir, "metrics.jsonl"), []
  try:
    with open(path, encoding="utf-8") as file:
      for line in file:
        with contextlib.suppress(ValueError):  # torn by a kill
          entries.append(json.loads(line))
  except OSError as error:
    raise InputError(
      f"{path}: {error.strerror}; {workdir!r} should be the folder of a run"
    ) from error
  points = [(entry["step"], entry[name]) for entry in entries if entry.get(name) is not None]
  if not points:
    names = sorted({key for entry in entries for key in entry} - {"step", "time"})
    raise InputError(f"{path}: has no {name!r}; it has {', '.join(names)}")
  steps, values = zip(*points, strict=True)
  return list(steps), list(values)


def _cut_back(path: str, step: int) -> None:
  """Leaves the entries up to a step, all of them or none if this is interrupted; a line torn by
  a kill goes too.
  """
  if not os.path.exists(path):
    return
  with open(path, encoding="utf-8", errors="replace") as file, atomic_file(path) as kept:
    for line in file:
      with contextlib.suppress(ValueError):
        if step and line.endswith("\n") and json.loads(line)["step"] <= step:
          kept.write(line)


def _tensorboard(workdir: str, start_step: int):
  try:
    from tensorboardX import SummaryWriter
  except ImportError:  # metrics.jsonl has the same
    return None
  return SummaryWriter(
    os.path.join(workdir, "tensorboard"), purge_step=start_step + 1 if start_step else 0
  )


def _bar(total_steps: int, start_step: int):
  """A bar where this is a notebook and tqdm is there, else None."""
  ipython = sys.modules.get("IPython")
  if ipython is None or not hasattr(
    ipython.get_ipython(), "kernel"
  ):  # IPython on a terminal has none
    return None
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # without ipywidgets it is a bar of characters, which will do
      from tqdm.auto import tqdm
  except ImportError:  # lines will do
    return None
  return tqdm(total=total_steps, initial=start_step, unit="step")


def _duration(seconds: float) -> str:
  minutes = round(seconds / 60)
  if seconds < 99.5:
    return f"{seconds:.0f} s"
  return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
