"""Ids in several files: every reader gets the same numbers as from one."""

import itertools
import json

import numpy as np
import pytest
from refused import refused

from gpt_jax.data.token_file import BLOCK, LocalArray, TokenFile, TokenWriter
from gpt_jax.files import verified, with_checksum

BLOCK_IDS = BLOCK // 2


def write(folder, shard_tokens=0, total=150_000) -> TokenFile:
  """Documents of random ids and lengths, with sentences."""
  folder.mkdir()
  rng = np.random.default_rng(0)
  writer = TokenWriter(folder, "train", 1000, True, shard_tokens)
  while writer.n_tokens < total:
    ids = rng.integers(0, 1000, rng.integers(5, 9000))
    ends = np.unique(rng.integers(1, len(ids), 40))
    writer.add(ids, 2 * len(ids), len(ids), sentence_ends=ends)
  writer.close(tokenizer_hash="abc")
  return TokenFile(folder, "train")


@pytest.fixture
def files(tmp_path) -> tuple[TokenFile, TokenFile]:
  return write(tmp_path / "one"), write(tmp_path / "many", 1)


def test_ids_documents_and_sentences_are_those_of_one_file(files, tmp_path):
  """So are all windows, which are cut from these."""
  one, many = files
  assert len(list((tmp_path / "many").glob("train-*.bin"))) == -(-one.n_tokens // BLOCK_IDS) > 3
  assert not (tmp_path / "many" / "train.bin").exists()
  assert many.header["shards"] == [BLOCK_IDS] * 4 + [one.n_tokens - 4 * BLOCK_IDS]
  np.testing.assert_array_equal(one.read(0, one.n_tokens), many.read(0, one.n_tokens))
  for begin in range(BLOCK_IDS - 3, one.n_tokens - 9, BLOCK_IDS):  # across the ends of shards
    np.testing.assert_array_equal(one.read(begin, 9), many.read(begin, 9))
  assert one.digest == many.digest  # so that a run resumes with either
  many.verify()
  for name in ("train.documents.npy", "train.sentences.npy"):
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()
  joined = b"".join(p.read_bytes() for p in sorted((tmp_path / "many").glob("train-*.bin")))
  assert joined == (tmp_path / "one" / "train.bin").read_bytes()
  write(tmp_path / "large", 10**9)  # a single shard has the same layout as none
  contents = [
    {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
    for name in ("one", "large")
  ]
  assert contents[0] == contents[1]


def test_damage_names_the_shard(files, tmp_path):
  shards = sorted((tmp_path / "many").glob("train-*.bin"))
  content = bytearray(shards[2].read_bytes())
  content[77] ^= 1
  shards[2].write_bytes(content)
  file = TokenFile(tmp_path / "many", "train")
  refused(r"wrong checksum of the bytes from 131,072 on", file.verify)
  shards[2].write_bytes(content[:-2])
  fault = r"train-00002\.bin: truncated, 65534 bytes instead of"
  refused(fault, TokenFile, tmp_path / "many", "train")
  shards[2].unlink()
  refused(r"train-00002\.bin: missing", TokenFile, tmp_path / "many", "train")


def test_a_shard_that_ends_within_a_block_is_refused(files, tmp_path):
  """It would be read, but not from a store."""
  path = tmp_path / "many" / "train.json"
  header = verified(json.loads(path.read_text()))
  first, second, *others = header["shards"]
  path.write_text(json.dumps(with_checksum(header | {"shards": [first - 1, second + 1, *others]})))
  refused(r"train\.json: a shard ends within a block", TokenFile, tmp_path / "many", "train")


def test_files_read_as_one_array(tmp_path):
  numbers = np.arange(20)
  paths = [str(tmp_path / name) for name in "abcd"]
  for path, part in zip(paths, np.split(numbers, [3, 3, 11]), strict=True):
    part.tofile(path)
  array = LocalArray(paths, numbers.dtype)
  assert (len(array), array.n_bytes) == (20, 160)
  for begin, end in itertools.combinations_with_replacement(range(22), 2):
    np.testing.assert_array_equal(array[begin:end], numbers[begin:end])
