"""Tables as text sources: one document per row, from a column that must be named."""

import gzip

import pytest

from gpt_jax.data.sources import table, utf8
from gpt_jax.data.sources.source import documents, find, is_plain_text
from gpt_jax.errors import InputError


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


def test_tsv_has_no_quotes(tmp_path):
  (tmp_path / "a.tsv").write_text('label\ttext\nx\t"No, he said\ny\tyes, "so"\n')
  assert list(documents(str(tmp_path / "a.tsv"))) == ['"No, he said', 'yes, "so"']


def test_the_text_column_is_asked_for(tmp_path):
  (tmp_path / "tickets.csv").write_text("id,body,queue\n1,hello,billing\n")
  message = (
    r"tickets\.csv: no column 'text' \(its columns: 'id', 'body', 'queue'\); .* with text_column="
  )
  with pytest.raises(InputError, match=message):
    list(documents(str(tmp_path / "tickets.csv")))


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
  with pytest.raises(InputError, match="no column 'txt'; did you mean text"):
    list(documents(path, field="txt,other"))


def test_a_pair_has_two_texts_and_a_name_may_have_a_comma(tmp_path):
  path = tmp_path / "a.tsv"
  path.write_text("x,y\tx\ty\n1\t2\t \n")
  assert list(documents(str(path), field="x,y")) == ["1"]
  with pytest.raises(InputError, match=r"a\.tsv:2: column 'y' is empty; fill it in or remove"):
    list(documents(str(path), field="x,x,y"))


@pytest.mark.parametrize(
  "content, fault",
  [
    ("text,id\nfine,1\nbroken\n", ":3: 1 column, but the header names 2"),
    ('text,id\nfine,1\n"open,2\n', ":3: not CSV with commas"),
    ("text,text\na,b\n", ": more than one column 'text'"),
    ("", ": empty; the first line should name the columns"),
  ],
)
def test_bad_tables(tmp_path, content, fault):
  (tmp_path / "a.csv").write_text(content)
  with pytest.raises(InputError, match=rf"a\.csv{fault}"):
    list(documents(str(tmp_path / "a.csv")))


def test_a_row_is_limited(tmp_path, monkeypatch):
  for module in (table, utf8):
    monkeypatch.setattr(module, "MAX_LINE", 100)
  good = '"' + 4 * "twenty characters are\n" + '"\n'
  (tmp_path / "a.csv").write_text(f'text\n{good}{good}"' + 9 * 'open","\n' + 90 * "x\n")
  rows = documents(str(tmp_path / "a.csv"))
  assert [len(next(rows)), len(next(rows))] == [87, 87]
  with pytest.raises(InputError, match=r"a\.csv:12: the row has more than 100 characters"):
    next(rows)


def test_tables_in_a_folder_of_text_are_left_out(tmp_path):
  (tmp_path / "authors.csv").write_text("name,born\nJane,1775\n")
  (tmp_path / "novel.txt").write_text("It is a truth")
  assert [source.name for source in find(str(tmp_path))] == [str(tmp_path / "novel.txt")]
