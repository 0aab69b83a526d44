"""What a run needs of gs://: its lock, its log, and one line where it cannot go on."""

import time

import pytest
from hosts import Program

from gpt_jax import files
from gpt_jax.checkpoints.lease import Lease
from gpt_jax.errors import InputError
from gpt_jax.training.json_lines import cut_back, open_to_append, read_lines


def test_a_store_that_is_gone_is_one_line(gs, stores, monkeypatch):
  def gone(*_, **__):
    raise ConnectionResetError(104, "Connection reset by peer")

  monkeypatch.setattr(files._store(gs), "exists", gone)
  with pytest.raises(files.StoreError, match="reset by peer"):
    files.exists(f"{gs}/x")


def test_a_lease_is_taken_over_when_it_has_run_out(gs, monkeypatch):
  monkeypatch.setattr("gpt_jax.checkpoints.lease._machine", lambda: "elsewhere")
  Lease(gs)._closed.set()  # renewed no more
  monkeypatch.undo()
  with pytest.raises(InputError, match=r"another run is at work there.*its lease ends in \d+ s"):
    Lease(gs)
  later = time.time() + 61
  monkeypatch.setattr("time.time", lambda: later)
  with Lease(gs) as second:
    assert files.list_folder(f"{gs}/lock") == ["2"]
    assert second._read(2)["owner"] == second._owner
  assert not files.exists(f"{gs}/lock")


def test_a_lease_whose_first_answer_was_lost(gs, monkeypatch):
  write = Lease._write

  def twice(lease, number, overwrite):
    write(lease, number, overwrite)
    write(lease, number, overwrite)

  monkeypatch.setattr(Lease, "_write", twice)
  with Lease(gs):
    assert files.list_folder(f"{gs}/lock") == ["1"]


def test_a_lease_that_cannot_be_given_back_runs_out(gs, monkeypatch):
  lease = Lease(gs)

  def gone(path):
    raise files.StoreError(5, "Connection reset by peer", path)

  monkeypatch.setattr(files, "remove", gone)
  lease.close()
  assert files.list_folder(f"{gs}/lock") == ["1"]


def test_lines_are_appended_in_segments(gs, monkeypatch):
  path = f"{gs}/metrics.jsonl"
  monkeypatch.setattr("gpt_jax.training.json_lines._SEGMENT", 20)
  monkeypatch.setattr("gpt_jax.training.json_lines._SECONDS", 0)
  lines = [f'{{"step": {step}}}\n' for step in range(1, 10)]
  for part in (lines[:6], lines[6:]):
    with open_to_append(path) as file:
      for line in part:
        file.write(line)
        file.flush()
  assert len(files.list_folder(path)) > 3 and list(read_lines(path)) == lines
  cut_back(path, 4)
  assert len(files.list_folder(path)) == 1 and list(read_lines(path)) == lines[:4]


def test_run_folders_are_not_on_s3(s3, prepared, tmp_path):
  flags = "--config=gpt1_small", f"--data={prepared}", f"--workdir={s3}"
  with Program("pretrain", f"{tmp_path}/log", *flags) as program:
    program.ends(2)
  (error,) = program.errors()
  assert "checkpoints can be on gs:// or a disk" in error
