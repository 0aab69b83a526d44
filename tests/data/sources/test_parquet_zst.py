"""Parquet and zstd: documents as from plain files, damage with its place, memory bounded."""

import io
import json
import sys

import pytest

from gpt_jax.data.sources import parquet
from gpt_jax.data.sources.source import documents, find, is_plain_text
from gpt_jax.errors import InputError

pyarrow = pytest.importorskip("pyarrow")
zstandard = pytest.importorskip("zstandard")
TEXTS = [f"text {i}, größer" for i in range(250)]


def write_parquet(path, columns, rows=100, **options) -> str:
  from pyarrow import parquet as pq

  pq.write_table(pyarrow.table(columns), path, row_group_size=rows, **options)
  return str(path)


def test_parquet_by_row_group(tmp_path, monkeypatch):
  monkeypatch.setattr(parquet, "ROWS", 7)
  path = write_parquet(tmp_path / "a.parquet", {"id": range(250), "body": TEXTS})
  assert list(documents(path, field="body")) == TEXTS
  assert [source.name for source in find(str(tmp_path))] == [path]
  codes = pyarrow.array(["a", "b", "a"]).dictionary_encode()
  assert list(documents(write_parquet(tmp_path / "c.parquet", {"text": codes}))) == ["a", "b", "a"]


def test_parquet_is_read_no_further_than_needed(tmp_path, monkeypatch):
  from pyarrow import parquet as pq

  path = write_parquet(tmp_path / "a.parquet", {"text": TEXTS})
  asked = []
  read = pq.ParquetFile.iter_batches
  monkeypatch.setattr(
    pq.ParquetFile,
    "iter_batches",
    lambda self, *a, **k: asked.append(k["row_groups"]) or read(self, *a, **k),
  )
  rows = documents(path)
  assert [next(rows) for _ in range(101)] == TEXTS[:101]
  assert asked == [[0], [1]]


@pytest.mark.parametrize(
  "columns, fault",
  [
    ({"body": ["a"]}, r"no column 'text' \(its columns: 'body'\); .*--text_column"),
    ({"text": [1]}, "column 'text' holds int64, not text"),
    ({"text": ["a", None]}, r"row group 0, row 1: no text \(null\)"),
  ],
)
def test_bad_columns(tmp_path, columns, fault):
  path = write_parquet(tmp_path / "a.parquet", columns)
  with pytest.raises(InputError, match=rf"a\.parquet: {fault}"):
    list(documents(path))


def test_damaged_parquet_names_the_row_group(tmp_path):
  path = tmp_path / "a.parquet"
  write_parquet(path, {"text": TEXTS}, compression="zstd", use_dictionary=False)
  from pyarrow import parquet as pq

  column = pq.ParquetFile(path).metadata.row_group(1).column(0)
  content = bytearray(path.read_bytes())
  begin = column.data_page_offset
  content[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
  path.write_bytes(content)
  with pytest.raises(InputError, match=r"a\.parquet: row group 1: damaged after row 0") as error:
    list(documents(str(path)))
  assert "\n" not in str(error.value)
  path.write_bytes(content[:-20])
  with pytest.raises(InputError, match=r"a\.parquet: cannot be read \("):
    list(documents(str(path)))


def test_zst(tmp_path):
  lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
  compress = zstandard.ZstdCompressor().compress
  path = tmp_path / "a.jsonl.zst"
  path.write_bytes(compress(lines[:5000]) + compress(lines[5000:]))  # two frames
  assert list(documents(str(path))) == TEXTS
  (tmp_path / "b.txt.zst").write_bytes(compress("\ufeffone\r\ntwo".encode()))
  assert list(documents(str(tmp_path))) == [*TEXTS, "one\ntwo"]
  assert not is_plain_text(str(tmp_path / "b.txt.zst"))
  (tmp_path / "c.csv.zst").write_bytes(compress(b"text\nx\n"))
  assert list(documents(str(tmp_path / "c.csv.zst"))) == ["x"]


def test_damaged_zst_names_the_byte(tmp_path):
  path = tmp_path / "a.txt.zst"
  content = zstandard.ZstdCompressor(write_checksum=True).compress(" ".join(TEXTS).encode())
  path.write_bytes(content[:-30])
  size = len(content) - 30
  with pytest.raises(InputError, match=rf"a\.txt\.zst: .* \(truncated at compressed byte {size:,}"):
    list(documents(str(path)))
  path.write_bytes(content[:50] + b"\x00\x01" + content[52:])
  with pytest.raises(InputError, match=r"a\.txt\.zst: .*damaged before compressed byte"):
    list(documents(str(path)))
  path.write_bytes(b"plain text, not zstd")
  with pytest.raises(InputError, match=r"a\.txt\.zst: .*damaged before compressed byte"):
    list(documents(str(path)))


def test_zst_is_a_stream(tmp_path):
  from gpt_jax.data.sources import zstd

  class Counted(io.BytesIO):
    def read(self, size=-1):
      assert 0 < size <= zstd.CHUNK
      return super().read(size)

  content = zstandard.ZstdCompressor().compress(bytes(range(256)) * 40_000)
  file = zstd.open_zstd(Counted(content), "a.zst")
  assert file.read(3) == b"\x00\x01\x02"
  assert sum(map(len, iter(lambda: file.read(1000), b""))) == 256 * 40_000 - 3


@pytest.mark.parametrize(
  "name, package, advice",
  [
    ("a.parquet", "pyarrow", "pip install pyarrow"),
    ("a.txt.zst", "zstandard", r"pip install 'gpt_jax\[zstd\]'"),
    ("hf://owner/set", "huggingface_hub", r"pip install 'gpt_jax\[hub\]'"),
  ],
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, package, advice):
  monkeypatch.setitem(sys.modules, package, None)
  monkeypatch.setitem(sys.modules, f"{package}.parquet", None)
  (tmp_path / "a.parquet").write_bytes(b"x")
  (tmp_path / "a.txt.zst").write_bytes(b"x")
  path = name if name.startswith("hf") else str(tmp_path / name)
  with pytest.raises(InputError, match=advice):
    list(documents(path))
