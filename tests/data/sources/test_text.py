"""Text files: damaged and wrongly encoded ones."""

import gzip

import pytest

from gpt_jax.data.sources import text, utf8
from gpt_jax.data.sources.source import documents
from gpt_jax.errors import InputError


@pytest.mark.parametrize(("before", "block_size"), [(10, 1 << 19), (5000, 100), (5000, 1 << 19)])
def test_invalid_utf8_names_the_byte(tmp_path, monkeypatch, before, block_size):
  monkeypatch.setattr(text, "BLOCK_SIZE", block_size)
  good = "grün und\r\n".encode() * before
  (tmp_path / "old.txt").write_bytes(good + "Fräulein".encode("latin-1"))
  with pytest.raises(
    InputError, match=rf"old\.txt: not UTF-8 at byte {len(good) + 2};.*iconv -f WINDOWS-1252"
  ):
    list(documents(str(tmp_path / "old.txt")))


def test_utf16_is_read(tmp_path, monkeypatch):
  (tmp_path / "wide.txt").write_bytes("some größer text".encode("utf-16"))
  assert list(documents(str(tmp_path / "wide.txt"))) == ["some größer text"]
  monkeypatch.setattr(utf8, "_MAX_UTF16", 20)
  with pytest.raises(InputError, match="UTF-16 of more than 20 bytes"):
    list(documents(str(tmp_path / "wide.txt")))


def test_a_truncated_gzip_is_an_error(tmp_path):
  whole = gzip.compress(b'{"text": "text and more text"}\n' * 1000)
  flipped = whole[:10] + b"\xff" * 9 + whole[19:]  # after the header
  for name in ("cut.txt.gz", "cut.jsonl.gz", "cut.json.gz"):
    for damaged in (whole[:-20], flipped):
      (tmp_path / name).write_bytes(damaged)
      with pytest.raises(InputError, match=f"{name}: cannot be read to its end"):
        list(documents(str(tmp_path / name)))
