import pytest

from gpt_jax.data import passes
from gpt_jax.data.pieces import Piece, split_document
from gpt_jax.data.splits import held_out


@pytest.mark.parametrize("sizes", [[10] * 50, list(range(1, 60)), [1000, 1], [5, 5]])
def test_about_the_share_is_held_out_but_never_all(sizes):
  is_valid = held_out(sizes, len(sizes), 0.1)
  chosen = [size for number, size in enumerate(sizes) if is_valid(number)]
  assert 1 <= len(chosen) < len(sizes)
  assert sum(chosen) <= max(0.1 * sum(sizes), min(sizes))


def test_many_documents_are_drawn(monkeypatch):
  monkeypatch.setattr(passes, "FEW", 10)
  chosen = [number for number in range(5000) if held_out([], 5000, 0.1)(number)]
  assert 400 < len(chosen) < 600 and min(chosen) < 100
  (first,) = (number for number in range(20) if held_out([], 20, 1e-9)(number))
  assert first < 10  # one is always held out


def test_a_single_document_is_split_after_a_paragraph():
  texts = ["one\ntwo\n", "three\nfour\nfive"]
  pieces = [(0, Piece(text, None, "\n", text is texts[-1])) for text in texts]
  assert [(number, piece.text, piece.last) for number, piece in split_document(pieces, 16)] == [
    (0, "one\ntwo\n", False),
    (0, "three\n", True),
    (1, "four\nfive", True),
  ]
