"""Windows: each span comes once an epoch, and batches depend on the step only."""

import collections
import json
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pytest
from refused import refused
from token_files import numbered, write

from gpt_jax.data.token_file import BLOCK, TokenFile
from gpt_jax.data.windows import Windows, WindowsConfig

SIZES = (1, 2, 5, 16, 17, 18, 32, 33, 40, 100, 257)  # around one and several windows of 16
ROOT = Path(__file__).parents[2]


@pytest.fixture
def tokens(tmp_path) -> TokenFile:
  return write(tmp_path, numbered(SIZES))


def rows_of_epochs(windows: Windows, epochs: int) -> np.ndarray:
  """All rows of the first epochs, in order."""
  steps = -(-epochs * windows.spans_per_epoch // windows.config.batch_size)
  rows = np.concatenate([windows(step) for step in range(steps)])
  return rows[: epochs * windows.spans_per_epoch]


def test_within_documents_covers_each_span_once_an_epoch(tokens):
  length = 16
  windows = Windows(tokens, WindowsConfig(batch_size=7, length=length), seed=1)
  assert windows.spans_per_epoch == sum(max(1, (size - 1) // length) for size in SIZES if size > 1)
  for epoch in np.split(rows_of_epochs(windows, 3), 3):
    spans = collections.defaultdict(list)
    for row in epoch:
      ids = row[row >= 0]
      assert (row[len(ids) :] == -1).all()
      np.testing.assert_array_equal(ids, np.arange(ids[0], ids[0] + len(ids)))
      document = np.searchsorted(tokens.offsets, ids[0], side="right") - 1
      assert ids[-1] < tokens.offsets[document + 1], "a row crosses a document"
      spans[document].append((ids[0], ids[-1]))
    for document, size in enumerate(SIZES):
      got = sorted(spans[document])
      assert len(got) == (max(1, (size - 1) // length) if size > 1 else 0)
      for (_, end), (begin, _) in zip(got, got[1:], strict=False):
        assert begin == end  # neighbours share a token, so each is a target once
      if got and size <= length + 1:
        assert got == [(tokens.offsets[document], tokens.offsets[document + 1] - 1)]
      elif got:
        assert got[-1][1] - got[0][0] == len(got) * length
        assert size - 1 - len(got) * length < length  # the phase leaves out less than a window


def test_phases_reach_every_token_and_steps_per_epoch_see_everything(tokens):
  windows = Windows(tokens, WindowsConfig(batch_size=8, length=16), seed=1)
  assert (windows.steps_per_epoch - 1) * 8 < windows.spans_per_epoch <= windows.steps_per_epoch * 8
  rows = rows_of_epochs(windows, 150)
  targets = set(rows[:, 1:][rows[:, 1:] >= 0].tolist())
  firsts = set(tokens.offsets[:-1].tolist())
  assert targets == set(range(tokens.n_tokens)) - firsts


def test_the_order_depends_on_epoch_and_seed(tmp_path):
  # 20 spans and no slack: phases are 0, only the order can differ.
  tokens = write(tmp_path, [np.arange(321)])
  one, two = np.split(rows_of_epochs(Windows(tokens, WindowsConfig(4, 16), seed=1), 2), 2)
  other = rows_of_epochs(Windows(tokens, WindowsConfig(4, 16), seed=2), 1)
  orders = [rows[:, 0].tolist() for rows in (one, two, other)]
  assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2]) == list(range(0, 320, 16))
  assert orders[0] != orders[1] != orders[2] != orders[0]


def test_across_documents_is_one_document(tokens, tmp_path):
  config = WindowsConfig(batch_size=3, length=16, sampling="across_documents")
  (tmp_path / "one").mkdir()
  one = write(tmp_path / "one", [np.arange(tokens.n_tokens)])
  np.testing.assert_array_equal(
    rows_of_epochs(Windows(tokens, config, seed=4), 2),
    rows_of_epochs(Windows(one, WindowsConfig(3, 16), seed=4), 2),
  )


@pytest.mark.parametrize("sampling", ["within_documents", "across_documents"])
@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_sequential_predicts_every_token_once(tokens, sampling, batch_size):
  windows = Windows(tokens, WindowsConfig(batch_size, 16, sampling))
  batches = list(windows.sequential())
  assert {batch.shape for batch in batches} == {(batch_size, 17)}
  rows = np.concatenate(batches)
  targets = rows[:, 1:][rows[:, 1:] >= 0]
  firsts = tokens.offsets[:-1] if sampling == "within_documents" else [0]
  np.testing.assert_array_equal(targets, np.setdiff1d(np.arange(tokens.n_tokens), firsts))
  following = rows[:, 1:] == rows[:, :-1] + 1
  assert (following | (rows[:, 1:] == -1)).all()


def test_the_last_batch_may_be_padded_beyond_the_file(tmp_path):
  """Its empty rows would begin in a block of 64 KiB that the file does not have."""
  write(tmp_path, [np.arange(200)] * 150)
  windows = Windows(TokenFile(tmp_path, "train"), WindowsConfig(64, 512))
  rows = np.concatenate(list(windows.sequential()))
  assert rows.shape == (192, 513) and (rows[:, 1:] >= 0).sum() == 150 * 199


def test_shuffled_gives_the_full_batches_of_an_epoch(tokens):
  windows = Windows(tokens, WindowsConfig(5, 16))
  batches = list(windows.shuffled())
  assert len(batches) == windows.spans_per_epoch // 5 and windows.spans_per_epoch % 5
  first_ids = np.concatenate(batches)[:, 0]
  assert len(np.unique(first_ids)) == len(first_ids)
  assert (np.diff(first_ids) < 0).any()
  halves = zip(windows.shuffled(slice(0, 1)), windows.shuffled(slice(1, None)), strict=True)
  for batch, (one, rest) in zip(batches, halves, strict=True):
    np.testing.assert_array_equal(np.concatenate([one, rest]), batch)
  windows = Windows(tokens, WindowsConfig(1000, 16))  # without a full batch
  for shuffled, sequential in zip(windows.shuffled(), windows.sequential(), strict=True):
    np.testing.assert_array_equal(shuffled, sequential)


def test_a_text_shorter_than_a_window_is_refused(tmp_path):
  tokens = write(tmp_path, [np.arange(16)])
  fault = r"16 tokens are less than one window of length \+ 1 = 17"
  refused(fault, Windows, tokens, WindowsConfig(4, 16, "across_documents"))
  Windows(tokens, WindowsConfig(4, 15, "across_documents"))(0)
  assert (Windows(tokens, WindowsConfig(4, 16))(0)[:, -1] == -1).all()
  # Documents of one token.
  refused("nothing to predict", Windows, write(tmp_path, [[1], [2]]), WindowsConfig(4, 16))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_windows_over_ten_gigabytes_stay_below_200_megabytes(tmp_path):
  n_tokens, n_documents = 5 * 10**9, 100_000
  documents = tmp_path / "train.documents.npy"
  np.save(documents, np.arange(n_documents + 1) * (n_tokens // n_documents))
  block, last_block = zlib.crc32(bytes(BLOCK)), zlib.crc32(bytes(2 * n_tokens % BLOCK))
  header = {
    **{"n_tokens": n_tokens, "n_documents": n_documents, "n_bytes": 1, "n_words": 1},
    "unigram_entropy": 1.0,
    "vocab_size": 100,
    "dtype": "uint16",
    "tokenizer_hash": "",
    "block_bytes": BLOCK,
    "block_checksums": f"{block:08x}" * (2 * n_tokens // BLOCK) + f"{last_block:08x}",
    "documents_checksum": zlib.crc32(documents.read_bytes()),
  }
  header["checksum"] = zlib.crc32(json.dumps(header, sort_keys=True).encode())
  (tmp_path / "train.json").write_text(json.dumps(header))
  with open(tmp_path / "train.bin", "wb") as file:
    file.truncate(2 * n_tokens)  # sparse
  program = """
    import itertools, sys
    from gpt_jax.data.token_file import TokenFile
    from gpt_jax.data.windows import Windows, WindowsConfig
    windows = Windows(TokenFile(sys.argv[1], "train"), WindowsConfig(64, 512))
    for step in range(300):
      windows(step * 1000)
    for batch in itertools.islice(windows.sequential(), 300):
      pass
    # Not ru_maxrss, which begins with that of the process that started this one.
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
  """
  command = [sys.executable, "-c", textwrap.dedent(program), tmp_path]
  done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
  assert int(done.stdout) < 200 * 1024
