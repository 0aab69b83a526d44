"""The training loop: given a state, a step, a batch per step and hooks. It knows no model, task or
objective.
"""

import contextlib
import dataclasses
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils

from gpt_jax.config import Config, option, register
from gpt_jax.errors import InputError
from gpt_jax.models.trunk import POLICIES
from gpt_jax.training.hooks import Hook, Interval, StepContext
from gpt_jax.training.signals import SAVING, handle, leave_closed_terminal
from gpt_jax.training.step import TrainState
from gpt_jax.training.watchdog import Watchdog

AHEAD = 2  # batches that wait for their step; one more is being built


@register("train")
@dataclasses.dataclass(frozen=True)
class TrainConfig(Config):
  """Length of a run, and how often it logs, evaluates and saves."""

  steps: int = option(0, "updates; 0 if epochs is set", unit="steps", low=0)
  epochs: int = option(0, "passes over the data; 0 if steps is set", low=0, high=10**6)
  seed: int = option(0, "random seed of initialization, batches and dropout", low=0, high=2**32 - 1)
  microbatches: int = option(
    0, "parts of a batch whose gradients are accumulated, to save memory; 0: as few as fit", low=0
  )
  remat: str = option(
    "none",
    "recomputed in the backward pass to save memory: none; dots: all but matrix products; "
    "full: each block",
    choices=POLICIES,
    resumable=True,
  )
  log_every: int = option(20, "interval of progress reports", unit="steps", low=1, resumable=True)
  evaluate_every: int = option(
    0, "interval of evaluations; 0: at the end only", unit="steps", low=0
  )
  checkpoint_every: int = option(
    1000, "interval of checkpoints; 0: with evaluations only", unit="steps", low=0, resumable=True
  )
  keep_checkpoints: int = option(
    3, "newest checkpoints kept, beside the best one and the milestones", low=1, resumable=True
  )
  milestone: int = option(
    0,
    "never delete the checkpoints at this step and at 2, 4, 8, … times it; 0: none",
    unit="steps",
    low=0,
    resumable=True,
  )

  @property
  def parts(self) -> int:
    """Microbatches: the number that is set or, where a program chooses none, 1."""
    return self.microbatches or 1

  def total_steps(self, steps_per_epoch: int) -> int:
    """Raises InputError unless exactly one of steps and epochs is given."""
    if bool(self.steps) == bool(self.epochs):
      change = "; set the other one to 0, such as config.train.steps=0" if self.steps else ""
      raise InputError(
        f"train.steps={self.steps} and train.epochs={self.epochs}: "
        f"exactly one of them must be above 0{change}"
      )
    return self.steps or self.epochs * steps_per_epoch


def fit(
  state: TrainState,
  step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Any]]],
  batch_at: Callable[[int], Any],
  total_steps: int,
  hooks: Sequence[Hook],
) -> tuple[TrainState, dict[str, float]]:
  """Trains from the step of a state, whose memory is reused, to `total_steps`.

  Returns the last state and its evaluation, {} if the run had ended before.

  Metrics are fetched one step late, and a thread calls the pure function `batch_at` ahead of its
  step, to keep the device busy. Before a hook runs metrics are fetched at once, so that no hook
  sees an unchecked state. `input_wait`, the seconds that the device waited for the batch, is added
  to the metrics of each step. A Watchdog ends a run that hangs.

  Raises:
    SystemExit: with code 143 after a SIGTERM (129 after SIGHUP, 138 after SIGUSR1), once the hooks
      of that step have run.
    KeyboardInterrupt: after Ctrl-C, likewise.
  """
  interval, pending = Interval(), None  # pending: metrics still on the device
  evaluation: dict[str, float] = {}
  # Fetched once, before the loop: later steps are counted on the host.
  first = int(state.step)
  batches_ahead = Prefetch(batch_at, first, total_steps)
  with Termination() as termination, Watchdog() as watchdog, batches_ahead as batches:
    for number in range(first + 1, total_steps + 1):
      # The step before still runs. Only a batch that is late makes the device wait.
      batch, waited = batches.take(pending)
      with jax.profiler.StepTraceAnnotation("train", step_num=number):
        state, metrics = step(state, batch)
      # Dispatch is asynchronous. Fetching the metrics of this step would wait for its end and leave
      # the device idle; those of the step before cost nothing.
      if pending:
        interval.add(*pending)
      pending = number, {**metrics, "input_wait": waited}
      stopping = termination.requested(number)
      hooks_due = [hook for hook in hooks if hook.is_due(number, total_steps, stopping)]
      # A hook may save or evaluate the state, so the update is checked first: add raises Diverged
      # if too many were refused.
      if hooks_due:
        interval.add(*pending)
        pending = None
      # A step counts when it is dispatched; the metrics above waited for the one before.
      watchdog.step(number)
      # Only an evaluation of the last step describes the state that is returned.
      evaluation = {}
      if hooks_due:
        with watchdog.paused():  # an evaluation may take longer than any step
          for hook in hooks_due:
            moment = StepContext(number, total_steps, stopping, state, interval, evaluation)
            evaluation = evaluation | (hook.run(moment) or {})  # the save records it
      if stopping:
        termination.exit()
    if pending:  # no hook was due at the last step
      interval.add(*pending)
    if termination.asked:  # during the last evaluation; another run may follow this one
      termination.exit()
  return state, evaluation


class Prefetch:
  """The batches batch_at(step) of steps first to end - 1, built by a thread until the block ends.

  What `batch_at` raises is raised by `take`, after the batches before it.
  """

  def __init__(self, batch_at: Callable[[int], Any], first: int, end: int):
    self._batch_at, self._steps = batch_at, range(first, end)
    self._built: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(AHEAD)
    self._stopped = threading.Event()
    self._thread = threading.Thread(target=self._build, name="batches", daemon=True)

  def __enter__(self):
    if self._steps:
      self._thread.start()
    return self

  def __exit__(self, *_):
    self._stopped.set()
    while self._thread.is_alive():
      self._discard()  # makes room for a batch that the thread wants to hand over
      self._thread.join(0.01)
    self._discard()

  def take(self, running: Any) -> tuple[Any, float]:
    """The next batch, and the seconds that the device, which computes the arrays `running`, had
    nothing to do because of it.
    """
    seconds = 0.0
    try:
      batch, error = self._built.get_nowait()  # usually the next batch is ready
    except queue.Empty:
      jax.block_until_ready(running)  # until then the device is busy
      began = time.perf_counter()
      batch, error = self._built.get()
      seconds = time.perf_counter() - began
    if error is not None:
      raise error
    return batch, seconds

  def _build(self) -> None:
    try:
      for step in self._steps:
        if self._stopped.is_set():
          return
        self._built.put((self._batch_at(step), None))
    except BaseException as error:  # the loop raises it
      self._built.put((None, error))

  def _discard(self) -> None:
    try:
      while True:
        self._built.get_nowait()
    except queue.Empty:
      pass


class Termination:
  """Ctrl-C or a signal of signals.SAVING asks for a last checkpoint.

  A second Ctrl-C or SIGTERM ends the run at once. The others may come twice, and before a SIGTERM.
  """

  def __enter__(self):
    # The handler only notes the signal, and the loop ends after the step: no update is cut in half.
    self._asked, self._handlers = 0, contextlib.ExitStack()  # the signal's number
    if threading.current_thread() is threading.main_thread():
      ask, numbers = self._ask, (signal.SIGINT, *SAVING)
      if jax.process_count() > 1:
        # jax.distributed catches SIGTERM and makes all processes save the same step.
        ask, numbers = self._ask_all, SAVING[1:]
      self._handlers.enter_context(handle(ask, numbers))  # a later run installs its own
    return self

  def __exit__(self, *_):
    self._handlers.close()

  def _ask(self, number, _):
    again = {self._asked, number} <= {signal.SIGTERM, signal.SIGINT}
    if again and number == signal.SIGINT:
      raise KeyboardInterrupt  # a notebook's kernel lives on
    if again:
      os._exit(128 + number)  # at once: SystemExit would wait for threads and saves
    if self._asked in (0, *SAVING[1:]):
      self._asked = number
    leave_closed_terminal()
    os.write(2, b"stopping after this step; repeat to stop at once\n")

  def _ask_all(self, *_):
    leave_closed_terminal()
    os.kill(os.getpid(), signal.SIGTERM)

  def requested(self, step: int) -> bool:
    """Whether the run should end after this step; the same answer on every process."""
    if jax.process_count() == 1:
      return self.asked
    return multihost_utils.reached_preemption_sync_point(step)

  @property
  def asked(self) -> bool:
    """Whether this process was asked to end."""
    return bool(self._asked)

  def exit(self) -> NoReturn:
    """Ends the run as the signal would have: KeyboardInterrupt, or SystemExit with 128 + number."""
    if self._asked == signal.SIGINT:
      raise KeyboardInterrupt
    raise SystemExit(128 + (self._asked or signal.SIGTERM))
