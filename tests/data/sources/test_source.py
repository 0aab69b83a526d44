"""Finding sources by file name, glob, folder and data set name."""

import gzip
import os
import sys

import pytest

from gpt_jax.data import sources
from gpt_jax.data.sources.source import (
  Source,
  chunked_documents,
  documents,
  find,
  find_all,
  usage,
)
from gpt_jax.errors import InputError


def test_files_globs_and_folders(tmp_path):
  (tmp_path / "deep").mkdir()
  for name in ("b.txt", "a.txt", "deep/c.txt", "notes.md"):
    (tmp_path / name).write_text(f"text of {name}")
  with gzip.open(tmp_path / "d.txt.gz", "wt") as file:
    file.write("zipped")
  assert list(documents(str(tmp_path))) == [
    "text of a.txt",
    "text of b.txt",
    "zipped",
    "text of deep/c.txt",
  ]
  assert list(documents(str(tmp_path / "*.txt"))) == ["text of a.txt", "text of b.txt"]
  assert list(documents(str(tmp_path / "notes.md"))) == ["text of notes.md"]
  assert find(str(tmp_path / "b.txt")) == [Source(str(tmp_path / "b.txt"), 13)]


def test_missing_sources(tmp_path):
  with pytest.raises(InputError, match=r"gone\.txt: no such file"):
    find(str(tmp_path / "gone.txt"))
  with pytest.raises(InputError, match=r"\*\.txt: no file matches"):
    find(str(tmp_path / "*.txt"))
  (tmp_path / "notes.md").write_text("x")
  with pytest.raises(InputError, match=r"no \.jsonl, .*\.txt, .* file in this folder"):
    find(str(tmp_path))


def test_pipes_and_devices_are_refused(tmp_path):
  os.mkfifo(tmp_path / "pipe.txt")
  (tmp_path / "link.jsonl").symlink_to("/dev/zero")
  for name in ("/dev/zero", tmp_path / "pipe.txt", tmp_path / "link.jsonl"):
    with pytest.raises(InputError, match=rf"^{name}: a pipe or a device, .*; write it to a file"):
      find(str(name))
    with pytest.raises(InputError, match=rf"^{name}: cannot be read \(not a regular file\)$"):
      list(chunked_text(str(name)))  # it may become one later
  with pytest.raises(InputError, match=r"no .* file in this folder"):
    find(str(tmp_path))


def chunked_text(name):
  for chunks in chunked_documents(name, "text"):
    yield from chunks


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
