"""What a run needs of a store: its lock, its log, and one line where it cannot go on."""

import errno
import logging
import re
import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax import files
from gpt_jax.checkpoints import remote
from gpt_jax.checkpoints.remote import Lease, check_workdir
from gpt_jax.checkpoints.restore import restore_step, saved_meta
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.errors import InputError, Unavailable
from gpt_jax.programs.pretrain_samples import SAMPLES, Sample, read_samples
from gpt_jax.training.run_log import cut_back, open_to_append, read_lines


def failing(error):
  """A function that raises this error, whatever it is given."""

  def fail(*_, **__):
    raise error

  return fail


def test_a_store_that_is_gone_is_one_line(store, stores, monkeypatch):
  gone = ConnectionResetError(104, "Connection reset by peer")
  monkeypatch.setattr(files._store(store), "exists", failing(gone))
  with pytest.raises(files.StoreError, match="reset by peer") as raised:
    files.exists(f"{store}/x")
  assert raised.value.errno == errno.EIO


@pytest.mark.parametrize("kind", ["Forbidden: gs://b", "rights", "HEAD", "sign-in", 401, 503])
def test_a_store_that_refuses_the_user_is_no_outage(gs, monkeypatch, kind):
  """The error of gcsfs for 403, those of s3fs, of google-auth, that of gcsfs for other codes."""
  from gcsfs.retry import HttpError
  from google.auth.exceptions import RefreshError

  error = {
    "rights": PermissionError("Access Denied"),
    "HEAD": OSError(errno.EINVAL, "Bad Request"),  # of a token that has run out
    "sign-in": RefreshError("invalid_grant"),
  }.get(kind, OSError(kind))
  if isinstance(kind, int):
    error = HttpError({"code": kind, "message": "no"})
  monkeypatch.setattr(files._store(gs), "exists", failing(error))
  with pytest.raises(files.StoreError) as raised:
    files.exists(f"{gs}/x")
  is_refusal = "; sign in (gcloud auth application-default login)" in raised.value.strerror
  assert is_refusal == (kind != 503)
  assert raised.value.errno == (errno.EACCES if is_refusal else errno.EIO)


@pytest.mark.parametrize(
  "problem", ["PERMISSION_DENIED: no", "UNAUTHENTICATED: no", "UNAVAILABLE: 503", "errno"]
)
def test_a_refused_save_is_no_outage(store, monkeypatch, problem):
  """The user's rights are for the user to mend; what passes is tried again by a scheduler."""
  error = files.StoreError(errno.EACCES, "Forbidden; sign in", store)
  if problem != "errno":
    error = ValueError(problem)
  with pytest.raises(InputError, match="cannot be written .*; the same command") as raised:
    with Checkpoints(store) as checkpoints:
      monkeypatch.setattr(checkpoints._manager, "save", failing(error))
      checkpoints.save(1, {"params": {"kernel": np.zeros(3, np.float32)}}, {})
  is_outage = isinstance(raised.value, Unavailable)
  assert is_outage == problem.startswith("UNAVAILABLE") == ("; sign in" not in str(raised.value))


def test_a_save_that_fails_is_written_again(store, monkeypatch, capsys):
  """Of the copy that was made, since the run goes on with the state's memory."""
  state, expected = ({"params": {"kernel": jax.numpy.arange(6.0)}} for _ in range(2))
  with Checkpoints(store) as checkpoints:
    fail_at_first(1, monkeypatch)
    checkpoints.save(1, state, {"note": 1})
    state["params"]["kernel"].delete()
    checkpoints.save(2, expected, {"note": 2})
  for step in (1, 2):
    restored = restore_step(store, step, expected)
    assert saved_meta(store, step) == {"note": step}
    np.testing.assert_array_equal(restored["params"]["kernel"], np.arange(6.0))
  assert capsys.readouterr().err == f"{store}/checkpoints/1: not written; trying again\n"


def test_an_old_step_that_is_not_deleted_ends_no_run(store, monkeypatch, capsys):
  state, error = {"params": {"kernel": np.zeros(3, np.float32)}}, files.StoreError(5, "no", store)
  with Checkpoints(store, newest=1) as checkpoints:
    with monkeypatch.context() as patch:
      patch.setattr(checkpoints._manager, "delete", failing(error))
      for step in (1, 2, 3):
        checkpoints.save(step, state, {})
      checkpoints.wait()
    assert checkpoints.steps() == [1, 2, 3]
    checkpoints.save(4, state, {})
    checkpoints.wait()
    assert checkpoints.steps() == [3, 4]
  assert f"{store}/checkpoints: an old step is not deleted" in capsys.readouterr().err


def test_a_save_that_fails_twice_is_one_line(store, monkeypatch, caplog):
  """Whenever TensorStore's other writes fail."""
  with pytest.raises(Unavailable, match=r"cannot be written \(.*Malformed"):
    with Checkpoints(store) as checkpoints:
      fail_at_first(2, monkeypatch)
      checkpoints.save(1, {"params": {"kernel": np.zeros(3, np.float32)}}, {})
  future = "<Future finished exception=ValueError('Error writing gs://b/a: Malformed …')>"
  log = logging.getLogger("asyncio")
  log.error("Future exception was never retrieved\nfuture: %s", future)
  log.error("of somebody else")
  assert [record.getMessage() for record in caplog.records] == ["of somebody else"]


def fail_at_first(failures, monkeypatch):
  """The upload of so many saves fails."""
  calls, original = [], files.upload_folder

  def unlucky(*arguments):
    calls.append(arguments)
    if len(calls) <= failures:
      raise files.StoreError(errno.EIO, "Malformed StorageGeneration", "a")
    return original(*arguments)

  monkeypatch.setattr(files, "upload_folder", unlucky)


def test_an_object_that_vanishes_is_an_error_alone(store, caplog):
  """Not in the logs of fsspec too, with a traceback."""
  files.write_json(f"{store}/a", list(range(10**4)))
  with files.open_regular(f"{store}/a") as file:
    files.remove(f"{store}/a")
    with pytest.raises(FileNotFoundError):
      file.read()
  assert not caplog.records


def test_a_lease_is_taken_over_when_it_has_run_out(store, monkeypatch):
  monkeypatch.setattr(remote, "LEASE_SECONDS", 3.0)
  monkeypatch.setattr(remote, "_machine", lambda: "elsewhere")
  Lease(store)._closed.set()  # renewed no more
  monkeypatch.setattr(remote, "_machine", lambda: "here")
  began = time.time()
  with Lease(store) as second:
    assert time.time() - began > 1
    assert files.list_folder(f"{store}/lock") == ["2"]
    assert second._read(2)["owner"] == second._owner
  with Lease(store):
    assert files.list_folder(f"{store}/lock") == ["3"]


def test_a_file_that_is_replaced_is_read_whole(store):
  """As a lease is, by whoever waits for its end."""
  path, is_done = f"{store}/lease", threading.Event()
  files.write_json(path, {"until": 0})

  def renew():
    for number in range(60):
      files.write_json(path, {"until": 10 ** (number % 20)}, overwrite=True)
    is_done.set()

  thread = threading.Thread(target=renew)
  thread.start()
  while not is_done.is_set():
    assert files.read_json(path).keys() == {"until"}
  thread.join()


def test_a_lease_that_is_renewed_is_refused(store, monkeypatch, capsys):
  monkeypatch.setattr(remote, "LEASE_SECONDS", 3.0)
  with Lease(store):
    refused("another run is at work there", Lease, store)
  assert re.search("has a lease for [1-3] s; waiting", capsys.readouterr().err)


@pytest.mark.parametrize("until", ["NaN", "Infinity", "1e18", "1060.0"])
def test_a_lease_with_a_wrong_time_is_waited_for_no_longer_than_a_right_one(
  tmp_path, monkeypatch, capsys, until
):
  write_lease(tmp_path, until)
  clock = patch_clock(monkeypatch)
  with Lease(str(tmp_path)) as second:
    assert second._number == 2
  waited = 60 if until == "1060.0" else 120
  assert waited <= clock.seconds <= waited + 2
  assert f"has a lease for {waited} s; waiting" in capsys.readouterr().err


def test_a_lease_with_a_wrong_time_that_is_renewed_is_refused(tmp_path, monkeypatch):
  write_lease(tmp_path, "1e18")

  def renew(seconds):
    if seconds > 30:
      write_lease(tmp_path, 1060.0 + seconds)

  patch_clock(monkeypatch, renew)
  refused("another run is at work there", Lease, str(tmp_path))


@pytest.mark.parametrize("owner", ['["x", 1e999, "key"]', f'["{remote._machine()}", 1, ["key"]]'])
def test_a_lease_of_no_owner_has_run_out(tmp_path, monkeypatch, owner):
  write_lease(tmp_path, 9e9, owner)
  clock = patch_clock(monkeypatch)
  Lease(str(tmp_path)).close()
  assert clock.seconds == 0


def write_lease(workdir, until, owner='["elsewhere", 1, "key"]'):
  (workdir / "lock").mkdir(exist_ok=True)
  (workdir / "lock" / "1").write_text(f'{{"owner": {owner}, "until": {until}}}')


def patch_clock(monkeypatch, on_sleep=lambda seconds: None):
  """Gives leases a clock that only their sleeps move: .seconds since the time 1000."""
  clock = SimpleNamespace(seconds=0.0, time=lambda: 1000 + clock.seconds)

  def sleep(seconds):
    clock.seconds += seconds
    assert clock.seconds < 600, "waits without end"
    on_sleep(clock.seconds)

  clock.monotonic, clock.sleep = (lambda: clock.seconds), sleep
  monkeypatch.setattr(remote, "time", clock)
  return clock


def test_a_run_that_was_stopped_sees_that_another_has_been_there(store, monkeypatch, capsys):
  monkeypatch.setattr(remote, "LEASE_SECONDS", 2.0)
  renew = Lease._renew
  monkeypatch.setattr(Lease, "_renew", lambda *_: None)
  stopped = Lease(store)
  monkeypatch.setattr(Lease, "_renew", renew)
  with Lease(store):
    pass
  codes = []
  monkeypatch.setattr(remote.os, "_exit", codes.append)
  stopped._renew()
  line = f"error: {store}/lock: another run has taken this folder; ending"
  assert (codes, capsys.readouterr().err.splitlines()[-1]) == ([75], line)


@pytest.mark.parametrize("number, code", [(errno.EACCES, 2), (errno.EIO, 75)])
def test_a_lease_that_cannot_be_renewed_ends_the_run(store, monkeypatch, capsys, number, code):
  """A scheduler tries again after an outage, not where the user must sign in."""
  monkeypatch.setattr(remote, "LEASE_SECONDS", 0.4)
  codes, error = [], files.StoreError(number, "the reason", f"{store}/lock")
  owner = Lease(store)
  monkeypatch.setattr(remote.os, "_exit", lambda code: (codes.append(code), owner._closed.set()))
  monkeypatch.setattr(files, "write_json", failing(error))
  owner._thread.join()
  line = f"error: {store}/lock: the lease could not be renewed for 0 s (the reason); ending"
  assert (codes, capsys.readouterr().err.splitlines()[-1]) == ([code], line)


def test_a_lease_of_a_killed_process_of_the_same_number(store):
  killed = Lease(store)
  killed._closed.set()
  remote._held.clear()  # as in a new process
  with Lease(store) as second:
    assert second._number == 2


def test_a_lease_whose_first_answer_was_lost(store, monkeypatch):
  write = Lease._write

  def twice(*arguments, **options):
    write(*arguments, **options)
    write(*arguments, **options)

  monkeypatch.setattr(Lease, "_write", twice)
  with Lease(store):
    assert files.list_folder(f"{store}/lock") == ["1"]


def test_a_lease_that_cannot_be_given_back_runs_out(store, monkeypatch):
  owner = Lease(store)
  error = files.StoreError(errno.EIO, "Connection reset by peer", store)
  monkeypatch.setattr(files, "write_json", failing(error))
  owner.close()
  assert files.list_folder(f"{store}/lock") == ["1"]


def test_lines_are_appended_in_segments_and_read_from_a_copied_log(store, monkeypatch):
  path, copied = f"{store}/metrics.jsonl", f"{store}/copied.jsonl"
  monkeypatch.setattr("gpt_jax.training.run_log._SEGMENT", 20)
  monkeypatch.setattr("gpt_jax.training.run_log._SECONDS", 0)
  lines = [f'{{"step": {step}}}\n' for step in range(1, 10)]
  for part in (lines[:6], lines[6:]):
    with open_to_append(path) as file:
      for line in part:
        file.write(line)
        file.flush()
  with files.atomic_file(copied) as file:
    file.writelines(lines)
  assert len(files.list_folder(path)) > 3
  for log in (path, copied):
    assert list(read_lines(log)) == lines
    cut_back(log, 4)
    assert list(read_lines(log)) == lines[:4]
  assert len(files.list_folder(path)) == 1


def test_samples_of_a_run_on_a_store_are_read(store):
  assert read_samples(store) == []
  with open_to_append(f"{store}/{SAMPLES}") as file:
    file.write('{"step": 3, "prompt": "a", "text": "b"}\n')
  assert read_samples(store) == [Sample(3, "a", "b")]


def test_a_run_of_several_hosts_is_refused_on_s3_before_it_works(monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  check_workdir("gs://bucket/run")
  refused("^s3://bucket/run: the checkpoints of a run on several", check_workdir, "s3://bucket/run")
