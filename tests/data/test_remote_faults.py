"""A store that fails now and then: requests are repeated, then the message is one line."""

import asyncio

import numpy as np
import pytest
from range_server import serve_ranges

from gpt_jax import files
from gpt_jax.data.remote_array import BLOCK, RemoteArray
from gpt_jax.errors import InputError

pytestmark = pytest.mark.store
VALUES = np.arange(40 * BLOCK // 2).astype("<u2")


@pytest.fixture
def faults(monkeypatch):
  """The Faults of a server that has VALUES as gs://bucket/values.bin; no back-off is waited for."""
  content, sleep = VALUES.tobytes(), asyncio.sleep
  sizes = {"values.bin": len(content)}
  with serve_ranges(sizes, lambda name, start, stop: content[start:stop]) as (url, faults):
    from gcsfs.core import GCSFileSystem

    store = GCSFileSystem(token="anon", endpoint_url=url, skip_instance_cache=True)
    monkeypatch.setattr(files, "_file_system", lambda scheme: store)
    faults.waits = []

    async def no_wait(seconds, *more):
      if seconds:
        faults.waits.append(seconds)
      await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", no_wait)
    yield faults


def test_faults_are_not_noticed(faults):
  """Of all kinds, three for each request."""
  rng = np.random.default_rng(0)
  for _ in range(20):
    faults.pending = rng.choice([429, 503, 0], 3).tolist()
    array = RemoteArray(["gs://bucket/values.bin"], np.dtype("<u2"))
    start = int(rng.integers(len(VALUES) - 600))
    np.testing.assert_array_equal(array[start : start + 513], VALUES[start : start + 513])
    assert not faults.pending
  assert len(faults.waits) >= 40
  assert max(faults.waits) > 1.5 * min(faults.waits)  # longer each time


def test_a_store_that_stays_away_is_one_line(faults):
  array = RemoteArray(["gs://bucket/values.bin"], np.dtype("<u2"))
  faults.pending = [503] * 1000
  with pytest.raises(InputError, match=r"^gs://bucket/values.bin: cannot be read \(") as raised:
    array[:10]
  assert "\n" not in str(raised.value)
  faults.pending = []
  np.testing.assert_array_equal(array[:10], VALUES[:10])
