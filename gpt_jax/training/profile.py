"""profile=START:STOP: a trace of some steps of a run, for XProf and Perfetto."""

import contextlib
import glob
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax

from gpt_jax.errors import InputError
from gpt_jax.training.hooks import Hook, RunContext, StepContext
from gpt_jax.training.reporter import Reporter

FOLDER = "profile"


class Span(NamedTuple):
  """The steps that are traced: those after update `start`, up to update `stop`."""

  start: int
  stop: int

  def check(self, total_steps: int) -> None:
    """Refuses a run of a length that does not have these steps."""
    if not 1 <= self.start < self.stop <= total_steps:
      raise InputError(
        f"profile={self.start}:{self.stop}: must be START:STOP with 1 <= START < STOP <= "
        f"{total_steps}, the updates of this run; its first step is not traced, since it is "
        "compiled"
      )

  @contextlib.contextmanager
  def traced(self, run_hooks: Sequence[Hook], context: RunContext) -> Iterator[Sequence[Hook]]:
    """The hooks of a run, with those around them that trace its steps into WORKDIR/profile.

    Every process writes its own trace. A run that ends within the steps writes those it has made.
    """
    if self.start <= context.first:
      raise InputError(
        f"profile={self.start}:{self.stop}: the run has made {context.first:,} updates already; "
        f"START must be above {context.first}"
      )
    trace = _Trace(self, context.reporter, context.workdir)
    try:
      yield [
        Hook(trace.stop, lambda step: step == self.stop, at_end=False, on_stop=True),
        *run_hooks,
        Hook(trace.start, lambda step: step == self.start, at_end=False),
      ]
    finally:
      trace.close()


def parse_span(text: str) -> Span | None:
  """The steps that START:STOP names; None if the text is empty."""
  if not text:
    return None
  match = re.fullmatch(r"(\d{1,12}):(\d{1,12})", text)
  if not match:
    raise InputError(f"profile={text}: must be START:STOP, two numbers of updates, such as 10:13")
  return Span(*map(int, match.groups()))


class _Trace:
  def __init__(self, span: Span, reporter: Reporter, workdir: str):
    self._span, self._reporter = span, reporter
    self._folder = os.path.join(workdir, FOLDER)
    if jax.process_count() > 1:  # processes of one host would write the same file
      self._folder = os.path.join(self._folder, f"process_{jax.process_index()}")
    self._running, self._written = False, ""  # which steps

  def start(self, moment: StepContext) -> None:
    if moment.stopping:
      return
    # Steps before may still run; they would be in the trace.
    jax.block_until_ready(moment.state)
    options = jax.profiler.ProfileOptions()
    # Calls of Python functions would fill the trace and slow the host down.
    options.python_tracer_level = 0
    jax.profiler.start_trace(self._folder, profiler_options=options)
    self._running = True

  def stop(self, moment: StepContext) -> None:
    if self._running:
      jax.block_until_ready(moment.state)
      self._write(f"step {moment.step}")

  def close(self) -> None:
    """Writes an unfinished trace, and logs where the profile is."""
    if self._running:
      self._write("the end of the run")
    if not self._written:
      self._reporter.say(f"no profile: the run ended before step {self._span.start + 1}")
      return
    traces = os.path.join(self._folder, "plugins", "profile", "*", "*.trace.json.gz")
    newest = max(glob.glob(traces), key=os.path.getmtime, default=self._folder)
    self._reporter.say(
      f"profile of step {self._span.start + 1} to {self._written}: pip install xprof, then xprof "
      f"--logdir={self._folder}; or open {newest} at https://ui.perfetto.dev"
    )

  def _write(self, last: str) -> None:
    self._running, self._written = False, last
    with self._reporter.paused():
      jax.profiler.stop_trace()
