"""Readers of tables in every format, and their messages about malformed files."""

import io
import re
import sys

import pytest
from refused import refused

from gpt_jax.tasks import readers
from gpt_jax.tasks.readers import Row, Table, find_folder, read_table, with_label_name


def write(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return str(path)


def read(path, columns=("text",), label="label", **kwargs):
  return list(read_table(path, columns, label, **kwargs))


def test_tsv_has_no_quoting_and_may_have_bom_and_crlf(tmp_path):
  path = write(
    tmp_path / "a.tsv", '\ufefflabel\ttext\r\nyes\t"one\x85 quote\u2028\r\n\r\nno\ttwo, "three"\r\n'
  )
  assert read(path) == [
    Row(('"one\x85 quote\u2028',), "yes", f"{path}:2"),
    Row(('two, "three"',), "no", f"{path}:4"),
  ]


def test_csv_cells_may_be_quoted_and_hold_documents(tmp_path):
  path = write(tmp_path / "a.csv", 'text,label\r\n"a, ""b""\nc",yes\r\n\r\nd,no\r\n')
  assert read(path) == [Row(('a, "b"\nc',), "yes", f"{path}:2"), Row(("d",), "no", f"{path}:5")]
  path = write(tmp_path / "a.csv", "text,label\n" + "word " * 50_000 + ",yes\n")
  assert len(read(path)[0].texts[0]) == 250_000


def test_jsonl_labels_may_be_numbers_and_truth_values(tmp_path):
  path = write(
    tmp_path / "a.jsonl",
    '{"text": "a\\nb", "label": 1}\n{"label": true, "text": "c", "more": []}\n'
    '{"text": "d", "label": NaN}\n'  # pandas' missing number
    '{"text": "e", "label": 1.0}\n{"text": "f", "label": 1.5}\n',
  )
  rows = read(path)
  assert [row.texts for row in rows] == [("a\nb",), ("c",), ("d",), ("e",), ("f",)]
  assert [row.label for row in rows] == ["1", "true", None, "1", "1.5"]
  assert [row.location for row in rows] == [f"{path}:{n}" for n in range(1, 6)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("content", ["b\ttext\n7\thello\n", '{"text": "hello", "b": "7"}\n'])
def test_standard_input_is_tsv_or_jsonl(monkeypatch, content, encoding):
  stdin = io.TextIOWrapper(io.BytesIO(content.encode(encoding)))
  monkeypatch.setattr(sys, "stdin", stdin)
  readers._read_pipe.cache_clear()
  (row,) = read("-", ("text", "b"), None)
  assert (row.texts, row.label) == (("hello", "7"), None)


def test_columns_are_reordered_and_the_label_may_be_absent(tmp_path):
  path = write(tmp_path / "a.tsv", "b\ta\n1\t2\n")
  assert read(path, ("a", "b"), None)[0].texts == ("2", "1")
  assert read(path, ("a", "b"), "label", unlabeled=True)[0].label is None


def test_numeric_labels_are_given_their_names(tmp_path):
  path = write(tmp_path / "a.tsv", "text\tlabel\na\t1\nb\t0\n")
  assert [row.label for row in read(path, label_names=("no", "yes"))] == ["yes", "no"]
  assert read(path, label=None, label_names=("no", "yes"))[0].label is None
  refused(r"a\.tsv:2: label '1': should be 0$", read, path, label_names=("no",))


def test_json_may_leave_out_a_text_of_several(tmp_path):
  rows = '{"body": "a"}\n{"body": "b", "subject": "c"}\n{"id": 1}\n'
  table = Table(write(tmp_path / "a.jsonl", rows))
  first, second, third = table.rows(("subject", "body"))
  assert first.texts == ("", "a") and second.texts == ("c", "b")
  assert re.search(r"a\.jsonl:3: no column 'subject'", str(third))
  assert "no column 'subjct'" in str(next(table.rows(("subjct", "body"))))


def test_names_that_come_again_are_numbered(tmp_path):
  path = write(tmp_path / "a.csv", "text,c,c.1,c,c,,\na,1,2,3,4,,\n")
  cells = {"text": "a", "c": "1", "c.1": "2", "c.2": "3", "c.3": "4", "": ""}
  assert next(Table(path).records()) == cells
  assert read(path, ("text",), "c.2")[0].label == "3"
  refused(r"a\.csv:1: two columns named 'c'", read, path, ("text",), "c")


@pytest.mark.parametrize(
  "name, content, message",
  [
    ("a.csv", 'text,label\n"a\nb",yes\nc\n', r"a\.csv:4: 1 column, but the header names 2"),
    ("a.csv", "\nText,x\na,yes\n", r"\.csv: no column 'text'; did you mean Text\? .the col"),
    ("a.jsonl", '{"text": "a", "label": 1}\n{"label": 0}\n', r"a\.jsonl:2: no column 'text'"),
    ("a.jsonl", '{"text": "a", "label": 1}\n{"text"\n', r"a\.jsonl:2: not JSON"),
    ("a.jsonl", "[1]\n", r"a\.jsonl:1: should be one JSON object per line"),
    ("a.jsonl", '{"text": 0, "label": 1}\n', r"a\.jsonl:1: column 'text' should be text, not 0"),
    ("a.tsv", "", r"a\.tsv: empty"),
    ("a.tsv", "text\tlabel\tlabel\na\t0\t1\n", r"a\.tsv:1: two columns named 'label'"),
    ("a.jsonl", '{"text": "a", "label": 1, "label": 2}\n', "not JSON: two entries named 'label'"),
    ("a.jsonl", "[" * 100_000 + "\n", r"a\.jsonl:1: not JSON: nested too deeply"),
  ],
)
def test_errors_name_file_and_line(tmp_path, name, content, message):
  refused(message, read, write(tmp_path / name, content))


def test_a_folder_is_found_from_its_parent_and_from_inside_the_collection(tmp_path):
  rte = tmp_path / "glue" / "RTE"
  rte.mkdir(parents=True)
  assert find_folder(str(tmp_path), "glue", "RTE") == str(rte)
  assert find_folder(str(tmp_path / "glue"), "glue", "RTE") == str(rte)
  race = tmp_path / "race"
  race.mkdir()
  found = {find_folder(str(folder), "race").rstrip("/") for folder in (tmp_path, race)}
  assert found == {str(race)}
  message = "no folder 'glue/CoLA' here; give the folder above glue/, with the official files"
  refused(message, find_folder, str(tmp_path), "glue", "CoLA")
  refused("no folder 'race' here", find_folder, str(tmp_path / "glue"), "race")


def test_a_number_that_names_a_label():
  row = Row(("a",), "1.0", "F:3")
  assert with_label_name(row, ("no", "yes")).label == "yes"
  assert with_label_name(row._replace(label=None), ("no", "yes")).label is None
  for label in ("-1", "-1.0"):
    message = (
      f"F:3: label '{label}': should be 0 or 1; for rows without labels leave the column out"
    )
    refused(message, with_label_name, row._replace(label=label), ("no", "yes"))
