"""Parquet and zstd: documents as from plain files, damage with its place, memory bounded."""

import datetime
import io
import json
import sys

import pytest
from refused import refused

from gpt_jax.apps.corpus.sources import parquet
from gpt_jax.data.file_kinds import typed_rows
from gpt_jax.data.sources.source import documents, find, is_plain_text
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.tasks.readers import Table

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
zstandard = pytest.importorskip("zstandard")
TEXTS = [f"text {i}, größer" for i in range(250)]


def write_parquet(path, columns, rows=100, **options) -> str:
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
  path = write_parquet(tmp_path / "a.parquet", {"text": TEXTS})
  asked, read = [], pq.ParquetFile.iter_batches

  def iter_batches(file, *arguments, **options):
    asked.append(options["row_groups"])
    return read(file, *arguments, **options)

  monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
  rows = documents(path)
  assert [next(rows) for _ in range(101)] == TEXTS[:101]
  assert asked == [[0], [1]]


def test_rows_are_decoded_by_their_mean_size(tmp_path, monkeypatch):
  columns = {"long": [str(i) + 5000 * "x" for i in range(250)], "text": TEXTS}
  path = write_parquet(tmp_path / "a.parquet", columns, use_dictionary=False)
  sizes, read = [], pq.ParquetFile.iter_batches

  def iter_batches(file, rows, **options):
    sizes.append(rows)
    return read(file, rows, **options)

  monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
  assert list(documents(path)) == TEXTS
  monkeypatch.setattr(parquet, "BATCH_BYTES", 10 * 5100)
  assert list(documents(path)) == TEXTS
  assert sizes == 3 * [parquet.ROWS] + 3 * [10]


def test_a_text_that_a_dictionary_repeats_is_limited(tmp_path, monkeypatch):
  monkeypatch.setattr(parquet, "MAX_CELL", 1000)
  texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 0, 1]), ["é" * 500, "b" * 1001])
  rows = documents(write_parquet(tmp_path / "a.parquet", {"text": texts}))
  assert [len(next(rows)), len(next(rows))] == [500, 500]
  refused(r"a\.parquet: row group 0, row 2: 1,001 bytes of text, more than .* 1,000$", next, rows)
  huge = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 10**6), ["a" * 999])  # 1 GB
  before = pyarrow.total_allocated_bytes()
  columns = {"text": huge, "label": range(10**6)}
  path = write_parquet(tmp_path / "a.parquet", columns, rows=10**6, store_schema=False)
  monkeypatch.setattr(parquet, "ROWS", 10**6)
  rows = documents(path), typed_rows(path)
  assert next(rows[0]) == next(rows[1])["text"] == "a" * 999
  assert pyarrow.total_allocated_bytes() - before < 10**8


def test_pairs_of_a_translation(tmp_path):
  columns = {"id": ["0", "1", "2"], "de": ["eine Katze", "c", "d"], "en": ["a cat", "e", "f"]}
  write_parquet(tmp_path / "train.parquet", columns)
  (tmp_path / "more.tsv").write_text("en\tde\nx\ty\n")
  task = PairsTask(train="train.parquet", synthetic="more.tsv", upsample=2).build("")
  pairs = task.examples(str(tmp_path), "train")
  real = [("a cat", "eine Katze"), ("e", "c"), ("f", "d")]
  assert [(pair.text, pair.label) for pair in pairs] == [*real, *real, ("x", "y")]
  swapped = PairsTask(train="more.tsv", synthetic="train.parquet", source="de", target="en")
  pairs = swapped.build("").examples(str(tmp_path), "train")
  assert [pair.text for pair in pairs] == ["y", *columns["de"]]
  write_parquet(tmp_path / "train.parquet", {"en": ["a", "c"], "de": ["b", None]})
  told = r"train.parquet:2: no translation"
  refused(told, PairsTask(train="train.parquet").build("").examples, str(tmp_path), "train")


TEXT = pyarrow.array(["a"])


@pytest.mark.parametrize(
  "columns, fault",
  [
    ([("body", TEXT)], r"no column 'text' \(its columns: 'body'\); .*text_column="),
    ([("text", pyarrow.array([1]))], "column 'text' holds int64, not text"),
    ([("text", pyarrow.array([["a"]]))], "column 'text' holds list<.*: string>, not text"),
    ([("text", TEXT)] * 2, r"more than one column 'text' \(its columns: 'text', 'te"),
  ],
)
def test_bad_columns(tmp_path, columns, fault):
  names, arrays = zip(*columns, strict=True)
  pq.write_table(pyarrow.table(list(arrays), names=list(names)), tmp_path / "a.parquet")
  refused(rf"a\.parquet: {fault}", list, documents(str(tmp_path / "a.parquet")))


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_texts_of_any_type_nulls_and_parts_without_rows(tmp_path, kind):
  texts = pyarrow.array(["a", None, "b"], "string" if kind == "dictionary" else kind)
  column = texts.dictionary_encode() if kind == "dictionary" else texts
  write_parquet(tmp_path / "a.parquet", {"text": column, "label": [1, 2, 3]}, rows=2)
  no_rows = pyarrow.table({"text": column[:0], "label": pyarrow.array([], "int64")})
  with pyarrow.parquet.ParquetWriter(tmp_path / "b.parquet", no_rows.schema) as writer:
    writer.write_table(no_rows)  # a row group without rows, as Spark writes
  write_parquet(tmp_path / "c.parquet", {"text": [None, None]})
  assert list(documents(str(tmp_path))) == ["a", "b"]
  assert list(Table(str(tmp_path / "b.parquet")).rows(("text",), "label")) == []
  (tmp_path / "folder.parquet").mkdir()  # as Spark writes
  for name in ("a", "b"):
    (tmp_path / f"{name}.parquet").rename(tmp_path / "folder.parquet" / f"{name}.parquet")
  first, null, last = Table(str(tmp_path / "folder.parquet")).rows(("text",), "label")
  assert (first.texts, first.label, last.texts, last.label) == (("a",), "1", ("b",), "3")
  assert (null.texts, null.label) == (("",), "2") and null.location.endswith("folder.parquet:2")


def test_a_table_of_another_name(tmp_path):
  day = datetime.date(2020, 1, 2)
  columns = {"text": ["a", "b"], "day": [day, None], "label": ["x", "y"], "more": [[1.5], []]}
  path = write_parquet(tmp_path / "a.tsv", columns)
  with pytest.warns(UserWarning, match=r"a\.tsv: is read as Parquet"):
    first, second = Table(path).records(("text",))
    assert list(documents(path)) == ["a", "b"]
  assert first == {"text": "a", "day": "2020-01-02", "label": "x", "more": [1.5]}
  assert second == {"text": "b", "day": None, "label": "y", "more": []}
  refused(r"gone\.parquet: No such file", lambda: Table(str(tmp_path / "gone.parquet")).names)


def test_text_that_is_stored_as_bytes(tmp_path):
  path = str(tmp_path / "a.parquet")
  columns = {"text": ["grün".encode(), b"\xff"], "label": [b"yes", b"no"]}
  write_parquet(path, columns)
  rows = [(row.texts, row.label) for row in Table(path).rows(("text",), "label")]
  assert rows == [(("grün",), "yes"), ((str(b"\xff"),), "no")]


def test_damaged_parquet_names_the_row_group(tmp_path):
  path = tmp_path / "a.parquet"
  write_parquet(path, {"text": TEXTS}, compression="zstd", use_dictionary=False)
  column = pq.ParquetFile(path).metadata.row_group(1).column(0)
  content = bytearray(path.read_bytes())
  begin = column.data_page_offset
  content[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
  path.write_bytes(content)
  fault = r"a\.parquet: row group 1: damaged after row 0"
  assert "\n" not in refused(fault, list, documents(str(path)))
  path.write_bytes(content[:-20])
  refused(r"a\.parquet: cannot be read \(", list, documents(str(path)))
  # Metadata that abort the process when pyarrow's `row_group(0).column(0)` reads them.
  write_parquet(path, {"text": TEXTS})
  optional, required = b"\x25\x02\x18\x04text", b"\x25\x00\x18\x04text"
  content = path.read_bytes()
  assert content.count(optional) == 1
  path.write_bytes(content.replace(optional, required))
  refused("row group 0: damaged after row 0", list, documents(str(path)))


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
  refused(rf"a\.txt\.zst: .* \(truncated at compressed byte {size:,}", list, documents(str(path)))
  path.write_bytes(content[:50] + b"\x00\x01" + content[52:])
  refused(r"a\.txt\.zst: .*damaged before compressed byte", list, documents(str(path)))
  path.write_bytes(b"plain text, not zstd")
  refused(r"a\.txt\.zst: .*damaged before compressed byte", list, documents(str(path)))


def test_zst_is_a_stream(tmp_path):
  from gpt_jax.data.sources import utf8

  class Counted(io.BytesIO):
    def read(self, size=-1):
      assert 0 < size <= utf8.CHUNK
      return super().read(size)

  content = zstandard.ZstdCompressor().compress(bytes(range(256)) * 40_000)
  file = utf8.open_zstd(Counted(content), "a.zst")
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
  refused(advice, list, documents(path))
