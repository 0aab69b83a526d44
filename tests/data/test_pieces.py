"""Pieces add up to their documents."""

import pytest
from paragraphs import PARAGRAPHS, wrap

from gpt_jax.data import pieces
from gpt_jax.data.cleaning import clean, clean_piece
from gpt_jax.data.pieces import Piece, read_pieces
from gpt_jax.data.sources import text as text_source


@pytest.fixture
def read(tmp_path, monkeypatch):
  """read(content, size): the pieces of a file of this content, read in blocks of that size."""

  def read(content: bytes | str, size: int) -> list[Piece]:
    monkeypatch.setattr(pieces, "PIECE_SIZE", size)
    monkeypatch.setattr(text_source, "BLOCK_SIZE", size)
    path = tmp_path / "text8"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_pieces(str(path)))

  return read


def join(found: list[Piece]) -> str:
  return "".join(clean_piece(piece.text, piece.width) + piece.joint for piece in found)


@pytest.mark.parametrize("between", ["\n\n", "\n"])
@pytest.mark.parametrize("width", [None, 64])
def test_pieces_add_up_to_the_document(read, width, between):
  paragraphs = [f"{i} {text} " + "Wörter" * (i % 3) for i, text in enumerate(PARAGRAPHS * 60)]
  text = wrap(paragraphs, width, between) if width else between.join(paragraphs)
  found = read(("\ufeff\r\n" + text.replace("\n", "\r\n")).encode(), 5000)
  assert len(found) > 8 and all(len(piece.text) <= 10_000 for piece in found)
  assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]
  assert [piece.joint for piece in found] == ["\n"] * (len(found) - 1) + [""]
  assert join(found) == clean(text)


def test_a_file_of_several_books_may_change_its_layout(read):
  found = read("\n".join(PARAGRAPHS * 15) + "\n" + wrap(PARAGRAPHS * 15), 5000)
  assert found[0].width is None and found[-1].width is not None
  lines = join(found).split("\n")
  # Lines go wrong only in the one piece that has both layouts.
  assert lines[: 10 * len(PARAGRAPHS)] == PARAGRAPHS * 10
  assert lines[-10 * len(PARAGRAPHS) :] == PARAGRAPHS * 10


def test_a_paragraph_longer_than_a_piece_is_cut_between_words(read):
  text = " ".join(f"wörd{i}" for i in range(5000))
  found = read(text, 3000)
  assert len(found) > 8 and {piece.joint for piece in found[:-1]} == {" "}
  assert join(found) == text


def test_text_without_spaces_is_cut_between_characters(read):
  text = "雪国の長いトンネルを抜けると" * 2000
  found = read(text, 1000)
  assert len(found) > 8 and {piece.joint for piece in found} == {""}
  assert "".join(piece.text for piece in found) == text
