"""What files are taken for, and that tables are read as they were written."""

import csv
import gzip
import io
import json
import warnings

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from refused import refused

from gpt_jax.data.file_kinds import write_table
from gpt_jax.data.sources.source import documents, find_all
from gpt_jax.data.sources.table import table_rows
from gpt_jax.files import split_names
from gpt_jax.tasks.readers import Row, Table, read_table

ROWS = [("She said, hi", "good"), ("Then; a lamp", "bad"), ("It broke", "good")]
NASTY = st.text(st.sampled_from("ab \"\t\n\r,;|#\\'{[\u2028\x1c\x85\ufeff\xa0é"), max_size=6)
FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def written(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return str(path)


def usable(path, columns=("text",), label="label"):
  rows = list(Table(path).rows(columns, label))
  return [(*row.texts, row.label) if isinstance(row, Row) else str(row) for row in rows]


def as_table(rows, names=("text", "label"), **options):
  file = io.StringIO()
  csv.writer(file, lineterminator="\n", **options).writerows([names, *rows])
  return file.getvalue()


def as_json(rows):
  return [dict(zip(("text", "label"), row, strict=True)) for row in rows]


JSON_LINES = "".join(json.dumps(row) + "\n" for row in as_json(ROWS))
QUOTED = as_table([('a "b" c', "x"), ("d", "y")], delimiter="\t")


@pytest.mark.filterwarnings("ignore:.* is read as ")
@given(
  table=st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(NASTY, min_size=width, max_size=width), max_size=4)
  ),
  suffix=st.sampled_from([".tsv", ".csv", ".TSV", ".csv.gz", ".utf16.tsv"]),
)
@example([["\r\\"], ["\n\\"]], ".csv")
@FEW
def test_tables_are_read_as_they_were_written(tmp_path, table, suffix):
  rows = [row for row in table if any(map(str.strip, row))]  # blank rows are none
  assume(rows)
  names = ["text", "b,c", 'd "e"'][: len(rows[0])]
  file = io.StringIO()
  write_table(file, [names, *rows], "," if ".csv" in suffix else "\t")
  content = file.getvalue().encode("utf-16" if "utf16" in suffix else "utf-8")
  path = tmp_path / f"a{suffix}"
  path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
  expected = [dict(zip(names, row, strict=True)) for row in rows]
  assert list(Table(str(path)).records()) == expected
  assert [cells for _, cells in table_rows(str(path))] == [names, *rows]
  assert not Table.with_texts(str(path), ("text",))[0].unnamed


@given(st.lists(st.tuples(*[st.text('a ",\r\u2028', min_size=1, max_size=5)] * 2), min_size=1))
@FEW
def test_quotation_marks_of_sentences_stay(tmp_path, rows):
  cells = [cell for row in rows for cell in row]
  assume(all(cell.strip() and '""' not in cell and cell[-1] != "\r" for cell in cells))
  path = written(tmp_path / "a.tsv", "text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
  assert usable(path) == rows
  assert [tuple(cells) for _, cells in table_rows(path)][1:] == rows


def test_a_quotation_over_two_sentences_is_no_cell(tmp_path):
  rows = [("1", '"I came home'), ("0", 'and left"'), ("1", '"All of it."')]
  path = written(tmp_path / "a.tsv", "label\ttext\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
  assert usable(path) == [(text, label) for label, text in rows]


@pytest.mark.parametrize(
  "content, rows",
  [
    (QUOTED, [('a "b" c', "x"), ("d", "y")]),
    (as_table([("a\tb", "x"), ("c\nd", "y")], delimiter="\t"), [("a\tb", "x"), ("c\nd", "y")]),
    (as_table([("a", "x")], delimiter="\t", quoting=csv.QUOTE_ALL), [("a", "x")]),
    # As R's write.table, and one row that somebody added.
    ('"text"\t"label"\n"say \\"a\\""\t"x"\nb\n', [('say "a"', "x"), "3: 1 column, but"]),
  ],
)
def test_a_quoted_tsv_is_read_without_its_quotes(tmp_path, content, rows):
  path = written(tmp_path / "a.tsv", content)
  with pytest.warns(UserWarning, match=r"a\.tsv: is read as a table with tabs .*quotation marks"):
    found = usable(path)
  assert len(found) == len(rows)
  for row, expected in zip(found, rows, strict=True):
    assert expected in row if isinstance(expected, str) else row == expected
  # The official files of tasks are what their names say.
  plain = list(read_table(written(tmp_path / "b.tsv", QUOTED), ("text",), "label"))
  assert plain[0].texts == ('"a ""b"" c"',)


@pytest.mark.parametrize(
  "name, content, told",
  [
    ("a.ndjson", JSON_LINES, ""),
    ("A.JSONL", JSON_LINES, ""),
    ("a.txt", JSON_LINES, "JSON lines"),
    ("a.csv", JSON_LINES, "JSON lines"),
    ("a.jsonl.gz", gzip.compress(JSON_LINES.encode(), mtime=0), ""),
    ("a.json", json.dumps(as_json(ROWS)), ""),
    ("a.json", json.dumps(as_json(ROWS), indent=1), ""),
    ("a.txt", json.dumps(as_json(ROWS)), "a JSON array"),
    ("A.CSV", as_table(ROWS), ""),
    ("a.csv.gz", gzip.compress(as_table(ROWS).encode(), mtime=0), ""),
    ("a.csv", as_table(ROWS, delimiter=";"), "a table with semicolons"),
    ("a.csv", as_table(ROWS, delimiter="\t"), "a table with tabs"),
    ("a.csv", "sep=;\r\n" + as_table(ROWS, delimiter=";"), "a table with semicolons"),
    ("a.tsv", as_table(ROWS, delimiter="\t").replace("\n", "\r"), ""),  # as on old Macs
    ("a.csv", as_table(ROWS, delimiter=";").replace("\n", "\r"), "a table with semicolons"),
    ("a.jsonl", JSON_LINES.replace("\n", "\r"), ""),
    ("A.TSV", as_table(ROWS, delimiter="\t"), ""),
    ("a.tsv", as_table(ROWS), "a table with commas"),
    ("a.tsv", as_table(ROWS, delimiter="\t").encode("utf-16"), ""),
    ("a.csv", ("\ufeff" + as_table(ROWS, delimiter=";")).encode("utf-16-be"), "a table"),
  ],
)
def test_rows_and_documents_of_any_name(tmp_path, name, content, told):
  path = written(tmp_path / name, content)
  with warnings.catch_warnings(record=True) as shown:
    warnings.simplefilter("always")
    assert usable(path) == ROWS
    assert Table(path).names == ["text", "label"]
    assert list(documents(path)) == [text for text, _ in ROWS]
  messages = {str(one.message) for one in shown}
  assert bool(messages) == bool(told)
  assert all(message.startswith(f"{path}: is read as ") for message in messages)
  assert all(told in message for message in messages)


@pytest.mark.parametrize(
  "name, content, fault",
  [
    ("a.json", '[{"text": "a"},', r"a\.json:1: not JSON"),
    ("a.csv", "text\tlabel\n", "no rows"),
    ("a.csv", 'text;label\na;"b" c\n', "a.csv:2: not CSV with semicolons"),
    ("a.tsv", "text\tlabel\na\tb\tc\n", "no rows that can be used: .*:2: 3 columns, but the head"),
    ("a.tsv", "text\tlabel".encode("utf-32"), "UTF-32"),
    ("a.tsv", b"\xff\xfea\0\0\xd8", "not UTF-16"),
    ("a.csv", "text,label".encode("utf-16-le"), "UTF-16 without its byte-order mark"),
    ("a.csv", "text,label".encode("utf-16-be"), "UTF-16 without its byte-order mark"),
    ("a.jsonl", b"BZh91AY&SY", "compressed by bzip2"),
    ("a.arrow", b"ARROW1\0\0", "an Arrow file; write it as Parquet"),
    ("a.jsonl", '{\n"text": "a"}\n', "a.jsonl:1: not JSON: .*; should be one JSON object per line"),
  ],
)
@pytest.mark.filterwarnings("ignore:.* is read as ")
def test_the_reason_of_a_refusal_is_told(tmp_path, name, content, fault):
  refused(fault, lambda: Table(written(tmp_path / name, content)).names)
  path = written(tmp_path / "b.json", '[{"text": "a"}, 3]')
  fault = f"{path}:2: should be one JSON object per line"
  assert usable(path, label=None) == [("a", None), fault]


def test_a_csv_may_have_backslashes_before_quotation_marks(tmp_path):
  """As of Spark, or R's write.table."""
  rows = [('He said "no", ok', "x"), ("C:\\new", "y")]
  path = written(tmp_path / "a.csv", 'text,label\n"He said \\"no\\", ok",x\n"C:\\new",y\n')
  with pytest.warns(UserWarning, match=r"a\.csv: is read as a table with commas .* backslashes"):
    assert usable(path) == rows
  assert [tuple(cells) for _, cells in table_rows(path)][1:] == rows
  folder = as_table([("C:\\", "x"), ('a\\"b', "y")], quoting=csv.QUOTE_ALL)
  assert usable(written(tmp_path / "b.csv", folder)) == [("C:\\", "x"), ('a\\"b', "y")]


WESTERN = """\
Sehr geehrte Damen und Herren, die Rechnung über 20 € ist falsch. „Schöne Grüße“; äöü fehlen, Größe
La facture n’est pas arrivée à l’école. « Être » déjà vu, œuvre, ça va, Noël ! Reçu à 9 h : merci
¿Dónde está mi pedido? El señor Muñoz pidió la devolución; ¡qué vergüenza! Artículo 3º, camión
Não recebi a encomenda, é uma situação péssima. Vocês têm previsão? Ação, órgão
Perché il pacco non è arrivato? Così non va, più tardi, città, virtù
Jeg har ikke fået min pakke på grund af en fejl. Køb, æble, Århus
Lasku on väärä, hyvää päivää, öljy
Góðan dag, þetta er rangt. Hvað er að? Ísland, mjög
It’s not working – the “login” page… I can’t sign in."""
ELSEWHERE = """\
cp1250 Dobrý den, zboží nepřišlo, prosím řešte.
iso8859-2 Dobrý den, zboží nepřišlo, prosím řešte.
cp1250 Dzień dobry, faktura jest błędna. Proszę o wyjaśnienie
cp1250 Jó napot, a számla hibás. Kérem, ellenőrizze, köszönöm
cp1250 Dobar dan, račun je pogrešan. Riješite što prije
cp1254 Merhaba, fatura yanlış. Lütfen kontrol ediniz, teşekkürler
cp1257 Laba diena, sąskaita neteisinga. Prašau patikrinti, ačiū
cp1251 Здравствуйте, счёт неверный
cp1251 login fails: да
cp1253 το τιμολόγιο είναι λάθος
shift_jis 請求書が間違っています。
gbk 发票错误，请检查。
cp850 Die Rechnung über 20 ist falsch, Größe
mac_roman Die Rechnung über 20 € ist falsch, Größe
cp850 La facture est arrivée à Noël
iso8859-15 Die Rechnung über 20 € ist falsch"""


@pytest.mark.filterwarnings("ignore:.* is read as a table")
@pytest.mark.parametrize("text", WESTERN.splitlines())
def test_windows_1252_of_western_languages_is_read(tmp_path, text):
  rows = [(text, "x"), ("the cat", "y")]
  path = written(tmp_path / "a.csv", as_table(rows, delimiter=";").encode("cp1252"))
  with pytest.warns(UserWarning, match="a.csv: is read as Windows-1252, as it is not") as told:
    assert usable(path) == rows
  word = str(told[0].message).rpartition(": ")[2][1:-1]
  assert word in text and not word.isascii()


@pytest.mark.parametrize("line", ELSEWHERE.splitlines() + ["utf-8 café\udcc3", "utf-8 it’s \udce9"])
def test_what_may_be_another_encoding_is_refused(tmp_path, line):
  encoding, _, text = line.partition(" ")
  errors = "surrogateescape" if encoding == "utf-8" else "strict"
  path = written(tmp_path / "a.csv", f"text,label\n{text}\n".encode(encoding, errors))
  refused("a.csv:2: not UTF-8 .*; convert it: iconv -f ENCODING -t utf-8", Table, path)


@pytest.mark.filterwarnings("ignore:.* is read as ")
@pytest.mark.parametrize(
  "text, names",
  [
    ("id;net price;text\n1;3,50;a\n2;4,00;b\n", ["id", "net price", "text"]),
    ("id;price, net;text\n1;3,50;a\n2;4,00;b\n", ["id", "price, net", "text"]),
    ("id;subject;body\n1;a;b, c; d\n2;b;c; d; e\n3;c;d\n", ["id", "subject", "body"]),
    ("id\tsubject\tbody\n1\ta\tb\tc\n2\tb\tc\td\n", ["id", "subject", "body"]),
    ("text\nYes; no, or\tso\nNo; yes, or\tso\n", ["text"]),
    ("what do you think; in short\nYes, sure\nNo, never\n", ["what do you think; in short"]),
  ],
)
def test_the_first_line_of_a_csv_says_what_separates_columns(tmp_path, text, names):
  table = Table(written(tmp_path / "a.csv", text))
  assert table.first_row(table.kind) == names


@pytest.mark.filterwarnings("ignore:.* is read as a table with semicolons")
def test_one_column_of_a_spreadsheet_with_semicolons(tmp_path):
  path = written(tmp_path / "a.csv", 'text\nHallo, wo ist sie?\nDanke\n"Ein; anderer"\n')
  texts = ["Hallo, wo ist sie?", "Danke", "Ein; anderer"]
  assert usable(path, label=None) == [(text, None) for text in texts]
  assert list(documents(path)) == texts
  # The names of two columns were cut off, or the marks are commas.
  for content in ("text\na,1\nb,0\n", 'text\n"Yes", he said\nNo\n'):
    assert "2 columns, but" in usable(written(tmp_path / "b.csv", content), label=None)[0]


def test_columns_are_named_with_commas_or_one_by_one(tmp_path):
  content = as_table([("x", "y", "z", "v")], ("a", "b", "a,c", " d"))
  table = Table(written(tmp_path / "a.csv", content))
  for names in (["a,b"], ["a", "b"], ["a", " b "]):
    assert table.split(names) == ("a", "b")
  assert table.split(["a,c", "a"]) == table.split(["a,c,a"]) == ("a,c", "a")
  assert table.split(["b, d"]) == ("b", " d") and table.split(["e,f"]) == ("e", "f")


def test_texts_with_marks_have_no_header(tmp_path):
  """One text a line is no table, whatever is in it."""
  path = written(tmp_path / "a.tsv", '"Yes, sir"\n"No, sir"\n')
  records = Table.with_texts(path, ("text",))[0].records()
  assert [record["text"] for record in records] == ['"Yes, sir"', '"No, sir"']
  for text in ("{ begins a block.\n[1] is a note; so is [2]", '{"id": 1}\nis an object.'):
    assert list(documents(written(tmp_path / "a.txt", text))) == [text]


def test_what_is_no_unicode_or_null_and_names_of_any_case(tmp_path):
  for name in ("a.TXT", "b.NDJSON", "c.txt"):
    written(tmp_path / name, '{"text": "b"}\n' if "b" in name else name)
  assert list(documents(str(tmp_path))) == ["a.TXT", "b", "c.txt"]
  with open(tmp_path / "a.csv", "w", encoding="utf-8") as file:
    write_table(file, [["text"], ["a\ud800b"], [None]])
  assert list(Table(str(tmp_path / "a.csv")).records()) == [{"text": "a?b"}]
  path = written(tmp_path / "a.jsonl", '{"text": null}\n{"text": "b"}\n{"txt": null}\n')
  rows = documents(path)
  assert next(rows) == "b"
  refused(r"a\.jsonl:3: no text in field 'text'", next, rows)


def test_paths_with_commas(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a, b").mkdir()
  written(tmp_path / "a, b" / "my, text.txt", "one")
  written(tmp_path / "c.txt", "two")
  whole = "a, b/my, text.txt"
  assert split_names(whole) == [whole]
  names = split_names(f"c.txt, {whole},x,a, b/my*, c.txt")
  assert names == ["c.txt", whole, "x", "a, b/my*", "c.txt"]
  assert split_names("a, b,embedded,gs://x/y") == ["a, b", "embedded", "gs://x/y"]
  assert split_names("c.txt,,") == ["c.txt", "", ""]
  assert [source.name for source in find_all(f"{whole},c.txt")] == [whole, "c.txt"]
