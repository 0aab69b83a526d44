import errno
import itertools
import multiprocessing.synchronize
import os

import pytest

from gpt_jax.data.passes import map_in_order, worker_pool
from gpt_jax.data.word_counts import WordCounts


@pytest.mark.parametrize("count", [1, 2])
def test_results_come_in_order_and_few_tasks_are_held(count):
  taken = 0

  def tasks():
    nonlocal taken
    for taken in itertools.count(1):
      yield f"{taken}"

  with worker_pool(count) as pool:
    results = itertools.islice(map_in_order(pool, int, tasks()), 40)
    assert list(results) == [(f"{i}", i) for i in range(1, 41)]
    assert taken <= 40 + 20
    pids = {pid for _, pid in map_in_order(pool, _pid, range(4))}
  assert (os.getpid() in pids) == (count == 1)


def _pid(_) -> int:
  return os.getpid()


def test_without_shared_memory_one_process_does_the_work(monkeypatch):
  """Semaphores are files of /dev/shm, which some containers lack or cannot write."""

  def refuse(*_, **__):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))

  monkeypatch.setattr(multiprocessing.synchronize.SemLock, "__init__", refuse)
  with pytest.warns(UserWarning, match="one process does the work.*Read-only file system"):
    with worker_pool(2) as pool:
      assert list(map_in_order(pool, _pid, range(2))) == [(i, os.getpid()) for i in range(2)]


def test_word_counts_are_bounded_and_keep_the_frequent():
  counts = WordCounts(max_characters=1000)
  for start in range(0, 2000, 100):
    counts.add({f"w{i:05}": 1 for i in range(start, start + 100)} | {"often": 5, "sometimes": 2})
  assert sum(map(len, counts.words)) <= 1000
  assert counts.words["often"] == 100 and counts.words["sometimes"] == 40
  kept = [int(word[1:]) for word in counts.words if word.startswith("w")]
  assert min(kept) < 700 < 1300 < max(kept)  # not only the newest
