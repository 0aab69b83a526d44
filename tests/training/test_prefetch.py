"""Batches built ahead: order, errors, how far ahead, and threads that end."""

import threading
import time
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from gpt_jax.errors import InputError
from gpt_jax.training import hooks
from gpt_jax.training.loop import AHEAD, Prefetch, fit
from gpt_jax.training.step import TrainState


def wait_until(condition):
  for _ in range(500):
    if condition():
      return
    time.sleep(0.01)
  raise AssertionError("waited for 5 s")


def threads():
  return [thread for thread in threading.enumerate() if thread.name == "batches"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
  yield
  assert not threads()


def test_each_batch_once_in_order_and_a_few_built_ahead():
  built = []
  with Prefetch(lambda step: built.append(step) or step, 3, 20) as batches:
    assert [batches.take(None)[0] for _ in range(3, 20)] == list(range(3, 20))
  assert built == list(range(3, 20))  # none beyond the end
  built.clear()
  with Prefetch(lambda step: built.append(step) or step, 0, 100) as batches:
    wait_until(lambda: len(built) == AHEAD + 1)
    batches.take(None)
    wait_until(lambda: len(built) == AHEAD + 2)
    time.sleep(0.1)
    assert len(built) == AHEAD + 2
  assert len(built) <= AHEAD + 4


def test_an_error_comes_after_the_batches_before_it():
  error = InputError("a.bin: damaged")

  def batch_at(step):
    if step == 2:
      raise error
    return step

  with pytest.raises(InputError) as raised, Prefetch(batch_at, 0, 10) as batches:
    assert [batches.take(None)[0] for _ in range(2)] == [0, 1]
    batches.take(None)
  assert raised.value is error


def test_only_time_in_which_nothing_runs_is_a_wait():
  """The second batch is not built before the running step has ended."""
  ended, built = threading.Event(), []

  class Running:
    def block_until_ready(self):
      ended.set()

  def batch_at(step):
    if step:
      assert ended.wait(10)
    built.append(step)
    return step

  with Prefetch(batch_at, 0, 2) as batches:
    wait_until(lambda: not batches._built.empty())
    assert batches.take(Running()) == (0, 0.0)
    assert not ended.is_set()  # where the batch is there, the loop runs ahead of the device
    batch, waited = batches.take(Running())
    assert batch == 1 and waited > 0


def run(batch_at, total_steps, run_hooks=()):
  """The loop on a state that counts its steps."""

  def step(state, batch):
    return state._replace(step=state.step + 1), {"finite": True, "loss": batch}

  return fit(TrainState(jnp.int32(0), {}, {}), step, batch_at, total_steps, run_hooks)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, InputError])
def test_a_run_that_a_hook_or_a_batch_ends_early(error):
  def stop(_):
    raise error

  with pytest.raises(error):
    run(lambda step: 1.0, 10**6, [hooks.Hook(stop, hooks.every(3))])
  with pytest.raises(error):
    run(lambda step: stop(step) if step == 5 else 1.0, 10)


def test_the_wait_is_a_metric():
  waits = []

  def watch(moment):
    waits.append(moment.interval.means()["input_wait"])
    moment.interval.clear()

  def batch_at(step):
    time.sleep(0.05 if step == 3 else 0)
    return 1.0

  run(batch_at, 4, [hooks.Hook(watch, hooks.every(1))])
  assert len(waits) == 4
  assert all(0 <= wait < 5 for wait in waits)


def test_without_hooks_the_last_update_is_checked():
  def step(state, batch):
    metrics = {"finite": False, "loss": SimpleNamespace(value=jnp.nan), "gradient_norm": jnp.nan}
    return state._replace(step=state.step + 1), metrics

  with pytest.raises(hooks.Diverged, match="step 10: 10 updates in a row"):
    fit(TrainState(jnp.int32(0), {}, {}), step, lambda n: 1.0, 10, ())
