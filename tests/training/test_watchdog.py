"""The watchdog: it ends what hangs, and nothing else."""

import os
import statistics
import subprocess
import sys
import threading

import numpy as np
import pytest

from gpt_jax.training import watchdog
from gpt_jax.training.watchdog import LEAST, MEDIANS, Watchdog

TICK = 5.0  # seconds between two checks


class Simulation:
  """A run on a clock of its own; `ended` has what the watchdog said."""

  def __init__(self):
    self.time, self.number, self.ended = 0.0, 0, []
    self.watchdog = Watchdog(end=self.ended.append, clock=lambda: self.time)
    self._next_check = TICK

  def wait(self, seconds):
    """Lets time pass; the watchdog's thread checks as it does."""
    end = self.time + seconds
    while self._next_check <= end:
      self.time = self._next_check
      self.watchdog.check()
      self._next_check += TICK
    self.time = end

  def step(self, seconds, stopped=0.0):
    """One that takes so long; halfway the whole process is stopped, its watchdog too."""
    self.wait(seconds / 2)
    self.time += stopped
    self._next_check = max(self._next_check, self.time)
    self.wait(seconds / 2)
    self.number += 1
    self.watchdog.step(self.number)

  def pause(self, seconds):
    with self.watchdog.paused():
      self.wait(seconds)


@pytest.mark.parametrize("seed", range(30))
def test_a_healthy_run_is_never_ended(seed):
  """Steps from milliseconds to hours, of uneven length, with all else that a run does between."""
  rng = np.random.default_rng(seed)
  run, typical = Simulation(), 10.0 ** rng.uniform(-3, 3.5)
  for seconds in rng.uniform(0, 3 * 3600), 0.01, 0.01:  # compiles; then only dispatched
    run.step(seconds)
  for _ in range(150):
    seconds = typical * rng.lognormal(0, 0.5)
    if rng.random() < 0.05:  # input that comes late, a machine that others use
      seconds = max(rng.uniform(0, LEAST - 2 * TICK), rng.uniform(0, MEDIANS / 3) * typical)
    run.step(seconds, stopped=rng.uniform(0, 12 * 3600) if rng.random() < 0.05 else 0.0)
    if rng.random() < 0.1:
      run.pause(rng.uniform(0, 5 * 3600))
  assert not run.ended


@pytest.mark.parametrize("typical", [0.001, 1, 100, 3000])
def test_a_run_that_hangs_is_ended_in_time(typical):
  rng = np.random.default_rng(0)
  run, seconds = Simulation(), []
  run.step(1000)
  run.pause(1000)
  for _ in range(50):
    seconds.append(typical * rng.lognormal(0, 0.3))
    run.step(seconds[-1])
  limit = max(LEAST, MEDIANS * statistics.median(seconds))
  run.wait(limit - 3 * TICK)
  assert not run.ended
  run.wait(0.05 * limit + 6 * TICK)
  assert run.ended
  assert "the run hangs after step 51; the same command resumes it" in run.ended[0]


@pytest.mark.parametrize("is_debugged", [False, True])
def test_a_run_that_evaluates_after_each_step_is_ended_in_time_unless_it_is_debugged(
  monkeypatch, is_debugged
):
  monkeypatch.setattr(watchdog, "_is_debugged", lambda: is_debugged)
  run = Simulation()
  for _ in range(10):
    run.step(1)
    run.pause(10 * LEAST)
  run.wait(LEAST - 3 * TICK)
  assert not run.ended
  run.wait(6 * TICK)
  assert bool(run.ended) != is_debugged


PROGRAM = """
import os, threading, time
import jax.numpy as jnp
from gpt_jax.training import hooks, loop, watchdog
from gpt_jax.training.step import TrainState

watchdog.LEAST = watchdog._INTERVAL = 0.1

class State:
  step = 0

def hang_here(number):
  time.sleep(100 if number == 20 else 0.005)

def step(state, batch):
  hang_here(batch)
  return state, {"loss": jnp.float32(1), "finite": jnp.array(True)}

def evaluate(moment):
  time.sleep(0.5)  # longer than the limit

hook = hooks.Hook(evaluate, due=lambda step: step == 12)
loop.fit(State(), step, lambda number: number, 30, [hook])
"""


def test_it_prints_every_stack_and_one_line():
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM],
    capture_output=True,
    text=True,
    timeout=120,
    env=os.environ | {"PYTHONPATH": os.getcwd()},
  )
  assert done.returncode == 1, done.stderr
  *stacks, last = done.stderr.splitlines()
  assert "in hang_here" in "\n".join(stacks)
  assert sum(line.startswith(("Thread", "Current thread")) for line in stacks) >= 3
  assert last.startswith("error: no step has ended for ")
  assert last.endswith(": the run hangs after step 20; the same command resumes it")


def test_a_notebook_is_not_watched(monkeypatch):
  def threads():
    return {thread for thread in threading.enumerate() if thread.name == "watchdog"}

  before = threads()
  with Watchdog():
    assert len(threads() - before) == 1
  monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
  before = threads()
  with Watchdog():
    assert not threads() - before
