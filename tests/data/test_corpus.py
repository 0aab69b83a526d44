"""Reading and cleaning text: every kind of source, wrapped lines made paragraphs, pieces that
add up to the whole.
"""

import gzip
import json
import re
import sys
import textwrap

import pytest

from gpt_jax.data import corpus
from gpt_jax.errors import InputError

PARAGRAPHS = [
  "The lamplighter had gone his round an hour before, and the long street lay empty under a thin and bitter rain that "
  "nobody in the town could afterwards remember the beginning of.",
  '"You are late," said the widow, without turning from the window where she had been standing since the clock of the '
  "old church struck nine.",
  '"I walked."',
  "He laid his hat upon the table, looked at the fire, which wanted coal, and then at the four chairs, of which three "
  "were new; and it seemed to him that somebody had been expected, though hardly he, and that whoever it was had "
  "already come and gone.",
  "Neither of them spoke of it again.",
  "In the spring the house was sold. The new people cut down the walnut tree, painted the door green, and let the two "
  "upper rooms to a piano tuner from Leeds, who stayed eleven years.",
]


def wrap(paragraphs, width=64, between="\n\n", indent="") -> str:
  return between.join(
    textwrap.fill(text, width, initial_indent=indent, break_on_hyphens=False) for text in paragraphs
  )


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("between", ["\n\n", "\n", "\n\n\n\n"])
@pytest.mark.parametrize(
  "width", [50, 64, 100]
)  # at these no paragraph's last line happens to be full
def test_wrapped_lines_become_paragraphs(ending, between, width):
  text = "\ufeff" + wrap(PARAGRAPHS * 3, width, between).replace("\n", ending)
  assert corpus.clean(text).split("\n") == PARAGRAPHS * 3


def test_indented_paragraphs_need_no_blank_line():
  paragraphs = []
  for text in filter(
    lambda text: len(text) > 64, PARAGRAPHS
  ):  # given a full last line, so that only the indent tells
    last = wrap([text], indent="  ").split("\n")[-1]
    paragraphs.append(f"{text} {'x' * max(1, 63 - len(last))}")
  assert corpus.clean(wrap(paragraphs, between="\n", indent="  ")).split("\n") == paragraphs


@pytest.mark.parametrize("between", ["\n", "\n\n"])
def test_one_paragraph_a_line_stays(between):
  assert corpus.clean(between.join(PARAGRAPHS)).split("\n") == PARAGRAPHS


def test_lower_case_sentences_a_line_stay():
  """SST-2 and tokenized corpora: lower case begins every line, but lengths vary."""
  sentences = [" ".join(text.lower().split()[: 3 + i]) for i, text in enumerate(PARAGRAPHS * 4)]
  assert corpus.clean("\n".join(sentences)).split("\n") == sentences


def test_verse_in_wrapped_prose_stays_verse():
  verse = [
    "The owl and the pussy-cat went to sea",
    "In a beautiful pea-green boat,",
    "They took some honey,",
  ]
  text = "\n\n".join([wrap(PARAGRAPHS), "\n".join(verse), wrap(PARAGRAPHS)])
  assert corpus.clean(text).split("\n") == PARAGRAPHS + verse + PARAGRAPHS


def test_a_hyphen_at_the_end_of_a_line_stays_in_its_word():
  text = wrap(PARAGRAPHS).replace("bitter rain", "bit-\nter rain", 1)
  assert "bit-ter rain" in corpus.clean(text)


def test_spaces_and_marks():
  assert corpus.clean("\ufeff a \t b\u00a0c \x0c d\n\n\n   \ne  ") == "a b c d\ne"
  assert corpus.clean("") == corpus.clean(" \n\r\n") == ""


def test_mojibake_is_mended_where_ftfy_is_installed(monkeypatch):
  pytest.importorskip("ftfy")
  assert corpus.cleaner().startswith("ftfy ")
  assert (
    corpus.clean("The cafÃ© of MÃ¼nchen &amp; the widowâ€™s") == "The café of München & the widow's"
  )
  corpus._ftfy.cache_clear()
  monkeypatch.setitem(sys.modules, "ftfy", None)  # as if not installed
  try:
    assert corpus.cleaner() == "none"
    assert corpus.clean("\ufeffThe cafÃ©") == "The cafÃ©"
  finally:
    corpus._ftfy.cache_clear()


@pytest.mark.parametrize("between", ["\n\n", "\n"])
@pytest.mark.parametrize("width", [None, 64])
def test_pieces_add_up_to_the_document(tmp_path, monkeypatch, width, between):
  paragraphs = [f"{i} {text} " + "Wörter" * (i % 3) for i, text in enumerate(PARAGRAPHS * 60)]
  text = wrap(paragraphs, width, between) if width else between.join(paragraphs)
  path = tmp_path / "book.txt"
  path.write_bytes(("\ufeff\r\n" + text.replace("\n", "\r\n")).encode())
  monkeypatch.setattr(corpus, "PIECE", 5000)
  pieces = list(corpus.pieces(str(path)))
  assert len(pieces) > 8 and all(len(piece.text) <= 10_000 for piece in pieces)
  assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
  assert [piece.joint for piece in pieces] == ["\n"] * (len(pieces) - 1) + [""]
  assert "".join(
    corpus.clean_piece(piece.text, piece.width) + piece.joint for piece in pieces
  ) == corpus.clean(text)


def test_a_file_of_several_books_may_change_its_layout(tmp_path, monkeypatch):
  monkeypatch.setattr(corpus, "PIECE", 5000)
  (tmp_path / "books.txt").write_text("\n".join(PARAGRAPHS * 15) + "\n" + wrap(PARAGRAPHS * 15))
  pieces = list(corpus.pieces(str(tmp_path / "books.txt")))
  assert pieces[0].width is None and pieces[-1].width is not None
  text = "".join(corpus.clean_piece(piece.text, piece.width) + piece.joint for piece in pieces)
  # Lines go wrong only in the one piece that has both layouts.
  assert text.split("\n")[: 10 * len(PARAGRAPHS)] == PARAGRAPHS * 10
  assert text.split("\n")[-10 * len(PARAGRAPHS) :] == PARAGRAPHS * 10


def test_a_paragraph_longer_than_a_piece_is_cut_between_words(tmp_path, monkeypatch):
  text = " ".join(f"wörd{i}" for i in range(5000))
  (tmp_path / "text8").write_text(text, encoding="utf-8")
  monkeypatch.setattr(corpus, "PIECE", 3000)
  pieces = list(corpus.pieces(str(tmp_path / "text8")))
  assert len(pieces) > 8 and {piece.joint for piece in pieces[:-1]} == {" "}
  assert (
    "".join(corpus.clean_piece(piece.text, piece.width) + piece.joint for piece in pieces) == text
  )


def test_text_without_spaces_is_cut_between_characters(tmp_path, monkeypatch):
  text = "雪国の長いトンネルを抜けると" * 2000
  (tmp_path / "snow.txt").write_text(text, encoding="utf-8")
  monkeypatch.setattr(corpus, "PIECE", 1000)
  pieces = list(corpus.pieces(str(tmp_path / "snow.txt")))
  assert len(pieces) > 8 and {piece.joint for piece in pieces} == {""}
  assert "".join(piece.text for piece in pieces) == text


def test_files_globs_and_folders(tmp_path):
  (tmp_path / "deep").mkdir()
  for name in ("b.txt", "a.txt", "deep/c.txt", "notes.md"):
    (tmp_path / name).write_text(f"text of {name}")
  with gzip.open(tmp_path / "d.txt.gz", "wt") as file:
    file.write("zipped")
  assert list(corpus.documents(str(tmp_path))) == [
    "text of a.txt",
    "text of b.txt",
    "zipped",
    "text of deep/c.txt",
  ]
  assert list(corpus.documents(str(tmp_path / "*.txt"))) == ["text of a.txt", "text of b.txt"]
  assert list(corpus.documents(str(tmp_path / "notes.md"))) == ["text of notes.md"]
  assert corpus.find(str(tmp_path / "b.txt")) == [corpus.Source(str(tmp_path / "b.txt"), 13)]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_json_lines(tmp_path, suffix):
  path = tmp_path / f"rows{suffix}"
  opener = gzip.open if suffix.endswith("gz") else open
  with opener(path, "wt", encoding="utf-8") as file:
    for text in ("one\nof two", "", "  ", "zwölf"):
      file.write(json.dumps({"id": 1, "story": text}) + "\n\n")
  assert list(corpus.documents(str(path), field="story")) == ["one\nof two", "zwölf"]
  with pytest.raises(
    InputError, match=r"rows\S+:1: no text in field 'text' \(its fields: 'id', 'story'\).*--field"
  ):
    list(corpus.documents(str(path)))


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
    list(corpus.documents(str(tmp_path / "rows.jsonl")))


def test_missing_sources(tmp_path):
  with pytest.raises(InputError, match=r"gone\.txt: no such file"):
    corpus.find(str(tmp_path / "gone.txt"))
  with pytest.raises(InputError, match=r"\*\.txt: no file matches"):
    corpus.find(str(tmp_path / "*.txt"))
  (tmp_path / "notes.md").write_text("x")
  with pytest.raises(InputError, match=r"no \.txt, .* file in this folder"):
    corpus.find(str(tmp_path))


@pytest.mark.parametrize(("before", "piece"), [(10, 1 << 19), (5000, 100), (5000, 1 << 19)])
def test_invalid_utf8_names_the_byte(tmp_path, monkeypatch, before, piece):
  monkeypatch.setattr(corpus, "PIECE", piece)
  good = "grün und\r\n".encode() * before
  (tmp_path / "old.txt").write_bytes(good + "Fräulein".encode("latin-1"))
  with pytest.raises(
    InputError, match=rf"old\.txt: not UTF-8 at byte {len(good) + 2};.*iconv -f WINDOWS-1252"
  ):
    list(corpus.documents(str(tmp_path / "old.txt")))


def test_utf16_is_recognized(tmp_path):
  (tmp_path / "wide.txt").write_bytes("some text".encode("utf-16"))
  with pytest.raises(InputError, match=r"not UTF-8 at byte 0;.*iconv -f UTF-16"):
    list(corpus.documents(str(tmp_path / "wide.txt")))


def test_a_truncated_gzip_is_an_error(tmp_path):
  whole = gzip.compress(b'{"text": "text and more text"}\n' * 1000)
  flipped = whole[:10] + b"\xff" * 9 + whole[19:]  # behind the header
  for name in ("cut.txt.gz", "cut.jsonl.gz", "cut.json.gz"):
    for damaged in (whole[:-20], flipped):
      (tmp_path / name).write_bytes(damaged)
      with pytest.raises(InputError, match=f"{name}: cannot be read to its end"):
        list(corpus.documents(str(tmp_path / name)))


def test_json_is_never_read_as_text(tmp_path):
  (tmp_path / "shard.json").write_text('{"text": "one"}\n{"text": "two"}\n')
  assert list(corpus.documents(str(tmp_path / "*.json"))) == ["one", "two"]


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
      return {
        "train": self._generate_examples("train"),
        "validation": self._generate_examples("validation"),
      }

    def _generate_examples(self, split):
      for i in range(3):
        yield i, {"story": f"{split} story {i}, naïve"}

  expected = {f"train story {i}, naïve" for i in range(3)}
  assert set(corpus.documents("tfds:pocket_stories", field="story")) == expected
  assert all(
    text.startswith("valid")
    for text in corpus.documents("tfds:pocket_stories/validation", field="story")
  )
  with pytest.raises(InputError, match="no field 'text'; its fields: story"):
    list(corpus.documents("tfds:pocket_stories"))
  with pytest.raises(InputError, match="tfds:pocket_stories/test"):
    list(corpus.documents("tfds:pocket_stories/test", field="story"))
  with pytest.raises(
    InputError, match="tfds:no_such_stories: TFDS has no data set 'no_such_stories'; its catalog"
  ):
    list(corpus.documents("tfds:no_such_stories"))
  assert "tensorflow" not in sys.modules


def test_novels(data_root):
  """98 books, 60 of them wrapped, half of those without blank lines between paragraphs."""
  wrapped = {}
  for source in corpus.find(str(data_root / "novels")):
    with open(source.name, encoding="utf-8-sig") as file:
      text = file.read(1 << 17)
    wrapped[source.name] = corpus.wrap_width(text) is not None
    lines = [line for line in text.split("\n") if line.strip()]
    assert wrapped[source.name] == (sorted(map(len, lines))[len(lines) * 97 // 100] < 120), (
      source.name
    )
    if wrapped[source.name]:
      paragraphs = corpus.clean(text).split("\n")
      assert sum(map(str.islower, (paragraph[0] for paragraph in paragraphs))) < 0.06 * len(
        paragraphs
      ), source.name
      assert sum(bool(re.search(r"[\w,]$", text)) for text in paragraphs) < 0.35 * len(
        paragraphs
      ), source.name
  assert sum(wrapped.values()) > 50
