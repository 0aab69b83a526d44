"""Token files: what is written is read, and damage is never silent."""

import json
import zlib

import numpy as np
import pytest
from token_files import write

from gpt_jax.data.token_file import BLOCK, TokenFile, TokenWriter, unigram_entropy
from gpt_jax.errors import InputError


@pytest.mark.parametrize(("vocab_size", "width"), [(1000, 2), (65_536, 2), (65_537, 4)])
def test_what_is_written_is_read(tmp_path, vocab_size, width):
  documents = [[1, 2, vocab_size - 1], [], [7], [8, 9]]
  file = write(tmp_path, documents, vocab_size)
  assert (tmp_path / "train.bin").stat().st_size == 6 * width
  np.testing.assert_array_equal(file.read(0, 6), [1, 2, vocab_size - 1, 7, 8, 9])
  np.testing.assert_array_equal(file.read(2, 2), [vocab_size - 1, 7])
  np.testing.assert_array_equal(file.offsets, [0, 3, 4, 6])  # the empty document leaves no trace
  assert (file.n_documents, file.n_tokens, file.n_bytes, file.n_words) == (3, 6, 18, 2)
  assert (file.vocab_size, file.tokenizer_hash) == (vocab_size, "abc")
  assert file.unigram_entropy == pytest.approx(np.log(6))
  assert unigram_entropy(np.array([0, 4, 4, 8])) == pytest.approx(1.5 * np.log(2))
  assert unigram_entropy(np.zeros(3)) == 0


def test_a_document_may_be_written_in_pieces(tmp_path):
  writer = TokenWriter(tmp_path, "train", 100)
  writer.add(np.array([1, 2]), 2, 1, last=False)
  writer.add(np.array([3]), 1, 1, last=True)
  writer.add(np.array([4]), 1, 1)
  writer.close(tokenizer_hash="")
  np.testing.assert_array_equal(TokenFile(tmp_path, "train").offsets, [0, 3, 4])
  many = write(tmp_path, [[1]] * 12_345)  # they fit the header that was written first
  np.testing.assert_array_equal(many.offsets, np.arange(12_346))


@pytest.fixture
def written(tmp_path) -> TokenFile:
  """A file of four blocks, the last one not full."""
  return write(tmp_path, np.split(np.arange(100_000) % 1000, [10, 400, 40_000]))


def forge(folder, documents=None, **entries):
  """Changes a split, with the checksums that go with it."""
  header = json.loads((folder / "train.json").read_text()) | entries
  if documents is not None:
    np.save(folder / "train.documents.npy", documents, allow_pickle=True)
    content = (folder / "train.documents.npy").read_bytes()
    header["documents_checksum"] = zlib.crc32(content)
  del header["checksum"]
  checksum = zlib.crc32(json.dumps(header, sort_keys=True).encode())
  (folder / "train.json").write_text(json.dumps(header | {"checksum": checksum}))


def refused(folder, match):
  with pytest.raises(InputError, match=match):
    TokenFile(folder, "train").verify()


def test_missing_and_cut_files(tmp_path, written):
  refused(tmp_path / "nowhere", r"train\.json: missing; .* made by prepare.run")
  ids = (tmp_path / "train.bin").read_bytes()
  (tmp_path / "train.bin").write_bytes(ids[:-2])
  refused(tmp_path, r"train\.bin: truncated, 199998 bytes instead of 200000; prepare the text ag")
  (tmp_path / "train.bin").write_bytes(ids + b"\0\0")
  refused(tmp_path, "longer than its header")
  (tmp_path / "train.bin").write_bytes(bytes(len(ids)))
  refused(tmp_path, r"train\.bin: wrong checksum of the bytes from 0 on")
  (tmp_path / "train.bin").write_bytes(ids)
  documents = (tmp_path / "train.documents.npy").read_bytes()
  (tmp_path / "train.documents.npy").write_bytes(documents[:-8])
  refused(tmp_path, r"train\.documents\.npy: the checksum does not match")
  (tmp_path / "train.documents.npy").write_bytes(documents)
  TokenFile(tmp_path, "train").verify()


@pytest.mark.parametrize("name", ["train.bin", "train.documents.npy", "train.json"])
def test_every_flipped_bit_is_noticed(tmp_path, written, name):
  whole = (tmp_path / name).read_bytes()
  random = np.random.default_rng(0)
  values = json.loads(whole) if name == "train.json" else None
  for bit in random.choice(8 * len(whole), 200, replace=False):
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << (bit % 8)
    (tmp_path / name).write_bytes(damaged)
    try:
      TokenFile(tmp_path, "train").verify()
    except InputError:
      continue
    assert values and json.loads(damaged) == values, bit  # white space between the entries


def test_a_run_notices_damage_where_it_reads(tmp_path, written):
  damaged = bytearray((tmp_path / "train.bin").read_bytes())
  damaged[BLOCK + 100] ^= 16
  (tmp_path / "train.bin").write_bytes(damaged)
  file = TokenFile(tmp_path, "train")
  np.testing.assert_array_equal(file.read(0, 1000), np.arange(1000))
  ids_of_a_block = BLOCK // 2
  np.testing.assert_array_equal(file.read(2 * ids_of_a_block, 2), [536, 537])
  for offset in (ids_of_a_block - 1, ids_of_a_block + 50):
    with pytest.raises(InputError, match=r"train\.bin: wrong checksum of the bytes from 65,536"):
      file.read(offset, 2)


@pytest.mark.parametrize(
  ("entries", "match"),
  [
    ({"vocab_size": 900}, r"train\.bin: it has the id 999, and its vocabulary ends at 899"),
    ({"n_tokens": "100000"}, r"train\.json: not a token file's header \('100000' should be"),
    ({"n_tokens": 1e5}, "should be a number of items"),
    ({"n_bytes": True}, "should be a number of items"),
    ({"n_documents": -4}, "-4 should be a number of items"),
    ({"dtype": "float16"}, r"header \('float16'\)"),
    ({"block_checksums": "00"}, "header"),
    ({"block_checksums": "00000000"}, "not a checksum for every block"),
    ({"block_bytes": 1}, "block_bytes should be 65536"),
    ({"documents": np.array([0, 400, 10, 40_000, 100_000])}, r"documents\.npy: does not fit"),
    ({"documents": np.array([0, 10, 10, 40_000, 100_000])}, "does not fit"),
    ({"documents": np.array([0, 5])}, "does not fit"),
    ({"documents": np.array([0, 10, 400, 40_000, 100_000.0])}, "does not fit"),
    ({"documents": np.array([[0, 10, 400, 40_000, 100_000]])}, "does not fit"),
    ({"documents": np.array([0, None], object)}, r"documents\.npy: "),
  ],
)
def test_files_that_no_writer_makes(tmp_path, written, entries, match):
  forge(tmp_path, **entries)
  refused(tmp_path, match)


def test_headers_of_another_kind(tmp_path, written):
  kinds = {"[]": "not a token file's header", "[" * 100_000: "cannot be read"}
  kinds['{"n_tokens": 100000}'] = "not a token file's header"
  for header, match in kinds.items():
    (tmp_path / "train.json").write_text(header)
    refused(tmp_path, rf"train\.\S+: {match}")


def test_the_digest_identifies_the_text(tmp_path, written):
  folders = [tmp_path / str(number) for number in range(3)]
  for folder in folders:
    folder.mkdir()
  ids = np.arange(100_000) % 1000
  same = write(folders[0], np.split(ids, [10, 400, 40_000]))
  other_documents = write(folders[1], np.split(ids, [10, 401, 40_000]))
  other_ids = write(folders[2], np.split(ids[::-1], [10, 400, 40_000]))
  assert same.digest == written.digest
  assert len({written.digest, other_documents.digest, other_ids.digest}) == 3
