"""Sources: found by file name, glob, folder and data set name, and what they give: the documents of
text files, JSON lines, tables and TFDS, and damaged ones."""

import gzip
import itertools
import json
import os
import sys
import tarfile

import pytest
from refused import refused

from gpt_jax.data import sources
from gpt_jax.data.sources import source, table, text, utf8
from gpt_jax.data.sources.source import (
  Source,
  chunked_documents,
  documents,
  find,
  find_all,
  is_plain_text,
  usage,
)


@pytest.mark.filterwarnings("ignore:.*without 1 file")
def test_files_globs_and_folders(tmp_path):
  (tmp_path / "deep").mkdir()
  for name in ("b.txt", "a.txt", "deep/c.txt", "notes.md", "authors.csv"):
    (tmp_path / name).write_text(f"text of {name}")
  with gzip.open(tmp_path / "d.txt.gz", "wt") as file:
    file.write("zipped")
  texts = ["text of a.txt", "text of b.txt", "zipped", "text of deep/c.txt"]
  assert list(documents(str(tmp_path))) == texts
  assert list(documents(str(tmp_path / "*.txt"))) == ["text of a.txt", "text of b.txt"]
  assert list(documents(str(tmp_path / "notes.md"))) == ["text of notes.md"]
  assert find(str(tmp_path / "b.txt")) == [Source(str(tmp_path / "b.txt"), 13)]


def test_missing_sources(tmp_path):
  refused(r"gone\.txt: no such file", find, str(tmp_path / "gone.txt"))
  refused(r"\*\.txt: no file matches", find, str(tmp_path / "*.txt"))
  (tmp_path / "notes.md").write_text("x")
  refused(r"no \.jsonl, .*\.txt, .* file in this folder", find, str(tmp_path))


def test_pipes_and_devices_are_refused(tmp_path):
  os.mkfifo(tmp_path / "pipe.txt")
  (tmp_path / "link.jsonl").symlink_to("/dev/zero")
  for name in ("/dev/zero", tmp_path / "pipe.txt", tmp_path / "link.jsonl"):
    refused(rf"^{name}: a pipe or a device, .*; write it to a file", find, str(name))
    chunks = itertools.chain.from_iterable(chunked_documents(str(name), "text"))
    refused(rf"^{name}: cannot be read \(not a regular file\)$", list, chunks)  # it may become one
  refused(r"no .* file in this folder", find, str(tmp_path))


SHOUTED = """
USAGE = "shouted text (.shout)"
FOLDER_SUFFIXES = (".shout",)

def reads(name):
  return name.endswith(".shout")

def documents(name, field):
  with open(name, newline="") as file:
    for line in file:
      yield [line.upper(), field]
"""


def test_a_new_source_is_one_new_file(tmp_path, monkeypatch):
  (tmp_path / "room").mkdir()
  (tmp_path / "room" / "shouted.py").write_text(SHOUTED)
  monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(tmp_path / "room")])
  (tmp_path / "texts").mkdir()
  (tmp_path / "texts" / "a.shout").write_bytes(b"one\r\ntwo\n")
  (tmp_path / "texts" / "b.txt").write_text("three")
  try:
    assert list(documents(str(tmp_path / "texts"), field="x")) == ["ONE\nx", "TWO\nx", "three"]
    assert "Parquet (.parquet) or shouted text (.shout) or tables (.csv, .tsv) or text" in usage()
  finally:
    sys.modules.pop("gpt_jax.data.sources.shouted", None)


def test_several_sources_and_data_sets(tmp_path):
  (tmp_path / "a.txt").write_text("text")
  path = str(tmp_path / "a.txt")
  assert find_all(f"{path}, embedded,tfds:glue/cola/test") == [
    Source(path, 4),
    Source("embedded", 0),
    Source("tfds:glue/cola/test", 0),
  ]


@pytest.mark.parametrize(("before", "block_size"), [(10, 1 << 19), (5000, 100), (5000, 1 << 19)])
def test_invalid_utf8_names_the_byte(tmp_path, monkeypatch, before, block_size):
  monkeypatch.setattr(text, "BLOCK_SIZE", block_size)
  good = "grün und\r\n".encode() * before
  path = tmp_path / "old.txt"
  path.write_bytes(good + "Fräulein".encode("latin-1"))
  fault = rf"old\.txt: not UTF-8 at byte {len(good) + 2};.*iconv -f ENCODING"
  refused(fault, list, documents(str(path)))


def test_a_character_that_is_cut_is_no_other_encoding(tmp_path):
  (tmp_path / "cut.txt").write_bytes("süß\nsüßgrüß".encode()[:-1])
  fault = r"cut\.txt: not UTF-8 at byte 15; it ends inside a character: iconv -c -f utf-8"
  refused(fault, list, documents(str(tmp_path / "cut.txt")))


def test_what_a_folder_leaves_out_is_told_and_a_link_repeats_nothing(tmp_path):
  folder = tmp_path / "texts"
  folder.mkdir()
  (folder / "a.txt").write_text("one")
  (folder / "README.md").write_text("about")
  os.symlink(".", folder / "0")
  assert list(documents(str(folder))) == ["one"]
  (folder / "b.csv").write_text("text\ntwo\n")
  (folder / "c.json.gz").write_bytes(b"")
  os.symlink("nowhere", folder / "old.csv")  # is no text anyway
  with pytest.warns(UserWarning, match=r"texts: without 2 files \(\.csv, \.json\), which a glob"):
    assert find(str(folder)) == [Source(str(folder / "a.txt"), 3)]
  os.symlink("nowhere", folder / "z.txt")
  refused("broken link: .*z.txt", find, str(folder))


def test_many_sources_are_a_digest(monkeypatch):
  monkeypatch.setattr(source, "MANY", 2)
  two, three = [[Source(f"{n}.txt", n) for n in range(count)] for count in (2, 3)]
  assert source.as_json(two) == [["0.txt", 0], ["1.txt", 1]]
  assert source.as_json(three)[:2] == [3, 3]
  assert source.as_json(three) != source.as_json([*two, Source("x.txt", 2)])


def test_an_archive_is_not_text(tmp_path):
  (tmp_path / "a.txt").write_text("one")
  with tarfile.open(tmp_path / "books.tar.gz", "w:gz") as archive:
    archive.add(tmp_path / "a.txt", "a.txt")
  refused("a tar archive; unpack it", list, documents(str(tmp_path / "books.tar.gz")))


def test_utf16_is_read(tmp_path, monkeypatch):
  (tmp_path / "wide.txt").write_bytes("some größer text".encode("utf-16"))
  assert list(documents(str(tmp_path / "wide.txt"))) == ["some größer text"]
  monkeypatch.setattr(utf8, "_MAX_UTF16", 20)
  refused("UTF-16 of more than 20 bytes", lambda: list(documents(str(tmp_path / "wide.txt"))))


def test_a_truncated_gzip_is_an_error(tmp_path):
  whole = gzip.compress(b'{"text": "text and more text"}\n' * 1000)
  flipped = whole[:10] + b"\xff" * 9 + whole[19:]  # after the header
  for name in ("cut.txt.gz", "cut.jsonl.gz", "cut.json.gz"):
    for damaged in (whole[:-20], flipped):
      (tmp_path / name).write_bytes(damaged)
      refused(f"{name}: cannot be read to its end", list, documents(str(tmp_path / name)))


def test_json_is_never_read_as_text(tmp_path):
  (tmp_path / "shard.json").write_text('{"text": "one"}\n{"text": "two"}\n')
  assert list(documents(str(tmp_path / "*.json"))) == ["one", "two"]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_json_lines(tmp_path, suffix):
  path = tmp_path / f"rows{suffix}"
  opener = gzip.open if suffix.endswith("gz") else open
  with opener(path, "wt", encoding="utf-8") as file:
    for text in ("one\nof two", "", "  ", "zwölf"):
      file.write(json.dumps({"id": 1, "story": text}) + "\n\n")
  assert list(documents(str(path), field="story")) == ["one\nof two", "zwölf"]
  fault = r"rows\S+:1: no text in field 'text' \(its fields: 'id', 'story'\).*text_column="
  refused(fault, list, documents(str(path)))


@pytest.mark.parametrize(
  ("name", "content", "fault"),
  [
    ("a.jsonl", '{"text": "good"}\n[1, 2]', ":2: .*not an object"),
    ("a.jsonl", '{"text": "good"}\n{"text": 3}', ":2: .*no text in field 'text'"),
    ("a.jsonl", '{"text": "good"}\n{"text": ', ":2: .*not JSON"),
    ("a.csv", "text,id\nfine,1\nbroken\n", ":3: 1 column, but the header names 2"),
    ("a.csv", 'text,id\nfine,1\n"open,2\n', ":3: not CSV with commas"),
    ("a.csv", "text,text\na,b\n", ": more than one column 'text'"),
    ("a.csv", "", ": empty; the first line should name the columns"),
    (
      "a.csv",
      "id,body,queue\n1,hello,billing\n",
      r": no column 'text' \(its columns: 'id', 'body', 'queue'\); .* with text_column=",
    ),
  ],
)
def test_bad_rows(tmp_path, name, content, fault):
  (tmp_path / name).write_text(content)
  refused(rf"{name}{fault}", list, documents(str(tmp_path / name)))


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_csv(tmp_path, suffix):
  path = tmp_path / f"tickets{suffix}"
  opener = gzip.open if suffix.endswith("gz") else open
  rows = 'id,body\r\n1,"two\r\nlines, ""quoted"""\r\n\r\n2,zwölf\r\n3,\r\n'
  with opener(path, "wb") as file:
    file.write(b"\xef\xbb\xbf" + rows.encode())
  assert list(documents(str(path), field="body")) == ['two\nlines, "quoted"', "zwölf"]
  assert list(documents(str(path), field="id")) == ["1", "2", "3"]
  assert not is_plain_text(str(path))


@pytest.mark.parametrize(
  "name, cell", [("a.csv", '"two\nlines, here"'), ("a.tsv", "two  lines, here")]
)
def test_several_columns_are_a_line_each(name, cell, tmp_path):
  between = "," if name == "a.csv" else "\t"
  rows = [("id", "text", "other"), ("1", cell, " b c"), ("2", "d", "e")]
  (tmp_path / name).write_text("".join(f"{between.join(row)}\n" for row in rows))
  path = str(tmp_path / name)
  assert list(documents(path, field="text,other")) == ["two lines, here\nb c", "d\ne"]
  assert list(documents(path, field="other,id")) == ["b c\n1", "e\n2"]
  refused("no column 'txt'; did you mean text", lambda: list(documents(path, field="txt,other")))


def test_an_empty_column_has_no_line_and_a_name_may_have_a_comma(tmp_path):
  path = tmp_path / "a.tsv"
  path.write_text("x,y\tx\ty\n1\t2\t \n3\t \t\n")
  assert list(documents(str(path), field="x,y")) == ["1", "3"]
  assert list(documents(str(path), field="y,x")) == ["2"]
  assert list(documents(str(path), field="x,x,y")) == ["2\n1", "3"]


def test_a_line_and_a_row_are_limited(tmp_path, monkeypatch):
  for module in (table, utf8):
    monkeypatch.setattr(module, "MAX_LINE", 100)
  line = json.dumps({"text": "a" * 87})
  assert len(line) == 99
  (tmp_path / "a.jsonl").write_text(f"{line}\n{line}b\n")
  rows = documents(str(tmp_path / "a.jsonl"))
  assert next(rows) == "a" * 87
  refused(r"a\.jsonl:2: the line has more than 100 bytes", next, rows)
  good = '"' + 4 * "twenty characters are\n" + '"\n'
  (tmp_path / "a.csv").write_text(f'text\n{good}{good}"' + 9 * 'open","\n' + 90 * "x\n")
  rows = documents(str(tmp_path / "a.csv"))
  assert [len(next(rows)), len(next(rows))] == [87, 87]
  refused(r"a\.csv:12: the row has more than 100 characters", next, rows)


def test_tfds(tmp_path, monkeypatch):
  """A data set made here and read as any other, without TensorFlow."""
  tfds = pytest.importorskip("tensorflow_datasets")
  monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))

  class PocketStories(tfds.core.GeneratorBasedBuilder):
    pkg_dir_path = tmp_path  # this test is no package
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      return self.dataset_info_from_configs(
        features=tfds.features.FeaturesDict({"story": tfds.features.Text()})
      )

    def _split_generators(self, dl_manager):
      return {name: self._generate_examples(name) for name in ("train", "validation")}

    def _generate_examples(self, split):
      for i in range(3):
        yield i, {"story": f"{split} story {i}, naïve"}

  expected = {f"train story {i}, naïve" for i in range(3)}
  assert set(documents("tfds:pocket_stories", field="story")) == expected
  validation = documents("tfds:pocket_stories/validation", field="story")
  assert all(text.startswith("valid") for text in validation)
  refused("no field 'text'; its fields: story", lambda: list(documents("tfds:pocket_stories")))
  refused("tfds:pocket_stories/test", list, documents("tfds:pocket_stories/test", field="story"))
  fault = "tfds:no_such_stories: TFDS has no data set 'no_such_stories'; see its catalog"
  refused(fault, list, documents("tfds:no_such_stories"))
  assert "tensorflow" not in sys.modules
