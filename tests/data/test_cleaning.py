"""Cleaning: wrapped lines become paragraphs, everything else stays as it is."""

import re
import sys

import pytest
from paragraphs import PARAGRAPHS, wrap

from gpt_jax.data import cleaning
from gpt_jax.data.cleaning import clean, cleaner, wrap_width
from gpt_jax.data.sources.source import find


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("between", ["\n\n", "\n", "\n\n\n\n"])
# At these widths no paragraph's last line happens to be full.
@pytest.mark.parametrize("width", [50, 64, 100])
def test_wrapped_lines_become_paragraphs(ending, between, width):
  text = "\ufeff" + wrap(PARAGRAPHS * 3, width, between).replace("\n", ending)
  assert clean(text).split("\n") == PARAGRAPHS * 3


def test_indented_paragraphs_need_no_blank_line():
  paragraphs = []
  for text in (text for text in PARAGRAPHS if len(text) > 64):
    # Given a full last line, so that only the indent tells.
    last = wrap([text], indent="  ").split("\n")[-1]
    paragraphs.append(f"{text} {'x' * max(1, 63 - len(last))}")
  assert clean(wrap(paragraphs, between="\n", indent="  ")).split("\n") == paragraphs


def test_one_paragraph_or_sentence_a_line_stays():
  for between in ("\n", "\n\n"):
    assert clean(between.join(PARAGRAPHS)).split("\n") == PARAGRAPHS
  # SST-2 and tokenized corpora: lower case begins every line, but lengths vary.
  sentences = [" ".join(text.lower().split()[: 3 + i]) for i, text in enumerate(PARAGRAPHS * 4)]
  assert clean("\n".join(sentences)).split("\n") == sentences


def test_verse_in_wrapped_prose_stays_verse():
  verse = [
    "The owl and the pussy-cat went to sea",
    "In a beautiful pea-green boat,",
    "They took some honey,",
  ]
  text = "\n\n".join([wrap(PARAGRAPHS), "\n".join(verse), wrap(PARAGRAPHS)])
  assert clean(text).split("\n") == PARAGRAPHS + verse + PARAGRAPHS


def test_hyphens_spaces_and_marks():
  text = wrap(PARAGRAPHS).replace("bitter rain", "bit-\nter rain", 1)
  assert "bit-ter rain" in clean(text)
  assert clean("\ufeff a \t b\u00a0c \x0c d\n\n\n   \ne  ") == "a b c d\ne"
  assert clean("") == clean(" \n\r\n") == ""


def test_mojibake_is_mended_where_ftfy_is_installed(monkeypatch):
  pytest.importorskip("ftfy")
  assert cleaner().startswith("ftfy ")
  assert clean("The cafÃ© of MÃ¼nchen &amp; the widowâ€™s") == "The café of München & the widow's"
  for other in ("", " \u00e9", " &"):  # control characters go whatever else is in a paragraph
    assert clean(f"the \x00cat\x1b[31m sat\x7f{other}") == f"the cat sat{other}"
  cleaning._ftfy.cache_clear()
  monkeypatch.setitem(sys.modules, "ftfy", None)  # as if not installed
  try:
    assert cleaner() == "none"
    assert clean("\ufeffThe cafÃ©") == "The cafÃ©"
    assert clean("a cut \ud83d and a whole \ud83d\ude00") == "a cut \ufffd and a whole 😀"
  finally:
    cleaning._ftfy.cache_clear()


def test_novels(data_root):
  """98 books, 60 of them wrapped, half of those without blank lines between paragraphs."""
  wrapped = {}
  for source in find(str(data_root / "novels")):
    with open(source.name, encoding="utf-8-sig") as file:
      text = file.read(1 << 17)
    wrapped[source.name] = wrap_width(text) is not None
    lines = [line for line in text.split("\n") if line.strip()]
    longest = sorted(map(len, lines))[len(lines) * 97 // 100]
    assert wrapped[source.name] == (longest < 120), source.name
    if wrapped[source.name]:
      paragraphs = clean(text).split("\n")
      lower = sum(paragraph[0].islower() for paragraph in paragraphs)
      cut = sum(bool(re.search(r"[\w,]$", text)) for text in paragraphs)
      assert lower < 0.06 * len(paragraphs) and cut < 0.35 * len(paragraphs), source.name
  assert sum(wrapped.values()) > 50
