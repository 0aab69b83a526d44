import gzip
import json

import pytest

from gpt_jax.data.sources import utf8
from gpt_jax.data.sources.source import documents
from gpt_jax.errors import InputError


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_json_lines(tmp_path, suffix):
  path = tmp_path / f"rows{suffix}"
  opener = gzip.open if suffix.endswith("gz") else open
  with opener(path, "wt", encoding="utf-8") as file:
    for text in ("one\nof two", "", "  ", "zwölf"):
      file.write(json.dumps({"id": 1, "story": text}) + "\n\n")
  assert list(documents(str(path), field="story")) == ["one\nof two", "zwölf"]
  with pytest.raises(
    InputError,
    match=r"rows\S+:1: no text in field 'text' \(its fields: 'id', 'story'\).*text_column=",
  ):
    list(documents(str(path)))


@pytest.mark.parametrize(
  ("line", "fault"),
  [
    ("[1, 2]", "not an object"),
    ('{"text": 3}', "no text in field 'text'"),
    ('{"text": ', "not JSON"),
  ],
)
def test_bad_json_lines(tmp_path, line, fault):
  (tmp_path / "rows.jsonl").write_text('{"text": "good"}\n' + line)
  with pytest.raises(InputError, match=rf"rows\.jsonl:2: .*{fault}"):
    list(documents(str(tmp_path / "rows.jsonl")))


def test_json_is_never_read_as_text(tmp_path):
  (tmp_path / "shard.json").write_text('{"text": "one"}\n{"text": "two"}\n')
  assert list(documents(str(tmp_path / "*.json"))) == ["one", "two"]


def test_a_line_is_limited(tmp_path, monkeypatch):
  monkeypatch.setattr(utf8, "MAX_LINE", 100)
  line = json.dumps({"text": "a" * 87})
  assert len(line) == 99
  (tmp_path / "a.jsonl").write_text(f"{line}\n{line}b\n")
  rows = documents(str(tmp_path / "a.jsonl"))
  assert next(rows) == "a" * 87
  with pytest.raises(InputError, match=r"a\.jsonl:2: the line has more than 100 bytes"):
    next(rows)
