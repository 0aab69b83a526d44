"""Runs on gs:// and s3:// whose requests fail now and then: nothing is lost, or silently other.

`bash launch/test.sh -m store tests/attack/test_bucket_errors.py --budget=40`: 800 errors and flips.
"""

import contextlib
import multiprocessing
import time
import warnings
from concurrent.futures import ProcessPoolExecutor

import pytest
from outcomes import outcome_of
from small_runs import complete, read_model, results
from stores import Faults, gcs_environment, s3_environment

from gpt_jax.checkpoints.restore import saved_steps
from gpt_jax.errors import InputError
from gpt_jax.files import StoreError

pytestmark = pytest.mark.attack


@pytest.fixture
def behind_faults(stores, monkeypatch):
  """behind_faults(store, **settings): a block in which programs reach the store through Faults."""

  @contextlib.contextmanager
  def block(store, **settings):
    environment, url = gcs_environment, stores["STORAGE_EMULATOR_HOST"]
    if store.startswith("s3://"):
      environment, url = s3_environment, stores["AWS_ENDPOINT_URL"]
    port = int(url.rpartition(":")[2])
    with Faults(port, **settings) as faults, monkeypatch.context() as patch:
      for name, value in environment(faults.port).items():
        patch.setenv(name, value)
      yield faults

  return block


def test_errors(make, whole, store, behind_faults, attempts, ledger):
  """Each run meets a few, and is the same as on a disk."""
  count, outcomes = attempts(10), []
  expected, _ = whole("pretrain")
  while len(outcomes) < count:
    workdir = f"{store}/{len(outcomes)}"
    with behind_faults(store, rate=0.04, seed=len(outcomes)) as faults:
      output = complete(make("pretrain", workdir))
    same = results("pretrain", workdir) == expected and "Traceback" not in output
    outcomes += faults.injected * ["harmless" if same else f"{workdir}: {output[-300:]}"]
  ledger(f"errors of {store[:5]} (429, 503, dropped connections)", outcomes)


@pytest.mark.parametrize("kind", ["stale", "missing"])
def test_wrong_answers(kind, make, whole, store, behind_faults, random, attempts, ledger):
  """A killed run goes on among listings of before it was killed, or objects that are not found
  once: it ends as on a disk, or with one line, and does so when it is given again.
  """
  count, outcomes = attempts(0.4), []
  expected, duration = whole("pretrain")
  while len(outcomes) < count:
    workdir = f"{store}/{len(outcomes)}"
    with behind_faults(store, rate=0, seed=len(outcomes), kinds=[kind]) as faults:
      process = make("pretrain", workdir)
      time.sleep(random.uniform(1, 2) * duration)
      process.kill()
      process.communicate()
      faults.rate = 0.2
      process = make("pretrain", workdir)
      output = complete(process, codes=(0, 2, 75))
      faults.rate = 0
      if process.returncode:
        complete(make("pretrain", workdir))
    one_line = process.returncode == 0 or output.splitlines()[-1].startswith("error: ")
    # Of a log whose parts are not listed, lines are lost.
    same = results("pretrain", workdir)[1:] == expected[1:]
    good = one_line and same and "Traceback" not in output
    outcome = "harmless" if good else f"{workdir}: same: {same}, {output[-600:]}"
    outcomes += max(1, faults.injected) * [outcome]
  ledger(f"answers of {store[:5]}, {kind}", outcomes)


def test_flipped_answers(make, store, behind_faults, attempts, ledger):
  """A model whose checkpoints are flipped on their way is read again, is an older one with a
  warning, or is refused.
  """
  count, outcomes = attempts(10), []
  complete(make("pretrain", store))
  *older, newest = saved_steps(store)
  with (
    behind_faults(store, rate=0, kinds=["flipped"]) as faults,
    # In a process of its own: what reads from a store looks for its server once.
    ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as reader,
  ):

    def read(path=store):
      try:
        value, warned = reader.submit(read_model, path).result()
      except StoreError as error:  # S3's package compares checksums
        raise InputError(str(error)) from error
      if warned:
        step = value[2]  # where two in a row are flipped, the one before them
        assert value == intact[step] and f"loaded {step} instead" in warned[0]
        warnings.warn(warned[0], stacklevel=2)
      return value

    intact = {step: read(f"{store}/checkpoints/{step}") for step in older}
    expected = read()
    assert expected[2] == newest
    while len(outcomes) < count:
      before, faults.rate = faults.injected, 0.05
      outcome = outcome_of(read, expected, f"flips {before} to")
      faults.rate = 0
      outcomes += (faults.injected - before) * [outcome]
  ledger(f"flips in answers of {store[:5]}", outcomes)


@pytest.mark.parametrize("refused", [1, 1000])
def test_a_checkpoint_that_is_refused_is_written_again(make, gs, behind_faults, refused):
  """If it is refused again, the run ends with one line."""
  with behind_faults(gs, rate=0, refuse="checkpoints/9/state", refused=refused):
    output = complete(make("pretrain", gs), codes=(0 if refused == 1 else 75,))
  _, rest = output.split(f"{gs}/checkpoints/9: not written; trying again\n")
  assert saved_steps(gs)[-1] == (24 if refused == 1 else 6)
  if refused == 1:
    return
  *_, report, error = rest.splitlines()
  assert report.startswith("report: ") and error.startswith(f"error: {gs}/checkpoints: cannot be")
  assert "Traceback" not in output and "asyncio" not in output


@pytest.mark.parametrize(
  "store, kind", [("gs", "expired"), ("gs", 403), ("s3", "expired")], indirect=["store"]
)
def test_a_sign_in_that_ends(kind, make, whole, store, behind_faults, attempts):
  """Ends the run with one line on what to do; then it goes on from its last checkpoint."""
  if kind == "expired" and store.startswith("gs"):
    attempts(0.4)  # TensorStore asks again until the lease has run out, a minute later
  login = "gcloud auth" if store.startswith("gs") else "aws sso login"
  # While it writes its third checkpoint, and while it reads the second.
  for begin in ("checkpoints(%2F|/)9(%2F|/)", "(%2F|/)state"):
    with behind_faults(store, rate=0, kinds=[kind], begin=begin):
      output = complete(make("pretrain", store), codes=(2,))
    assert saved_steps(store)[-1] == 6
    *_, error = output.splitlines()
    assert error.startswith(f"error: {store}/") and f"; sign in ({login}" in error
    assert output.count("error") == 1 and "Traceback" not in output and "damaged" not in output
  complete(make("pretrain", store))
  assert results("pretrain", store) == whole("pretrain")[0]
