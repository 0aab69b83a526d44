"""Pieces add up to their documents, of which a share is held out; and what works on them."""

import errno
import itertools
import multiprocessing.synchronize
import os

import pytest
from paragraphs import PARAGRAPHS, wrap

from gpt_jax.data import passes, pieces
from gpt_jax.data.cleaning import clean, clean_piece
from gpt_jax.data.passes import map_in_order, worker_pool
from gpt_jax.data.pieces import Piece, read_pieces, split_document
from gpt_jax.data.sources import text as text_source
from gpt_jax.data.splits import held_out
from gpt_jax.data.word_counts import WordCounts


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


@pytest.mark.parametrize(
  "text, joint",
  [(" ".join(f"wörd{i}" for i in range(5000)), " "), ("雪国の長いトンネルを抜けると" * 2000, "")],
)
def test_a_long_paragraph_is_cut_between_words_or_else_characters(read, text, joint):
  found = read(text, 2000)
  assert len(found) > 8 and {piece.joint for piece in found[:-1]} == {joint}
  assert join(found) == text


def test_about_the_share_is_held_out_but_never_all(monkeypatch):
  for sizes in ([10] * 50, list(range(1, 60)), [1000, 1], [5, 5]):
    is_valid = held_out(sizes, len(sizes), 0.1)
    chosen = [size for number, size in enumerate(sizes) if is_valid(number)]
    assert 1 <= len(chosen) < len(sizes)
    assert sum(chosen) <= max(0.1 * sum(sizes), min(sizes))
  assert not held_out([2000] * 20 + [1], 21, 0.01)(20)  # a stub is not all that is held out
  # Many documents are drawn.
  monkeypatch.setattr(passes, "FEW", 10)
  chosen = [number for number in range(5000) if held_out([], 5000, 0.1)(number)]
  assert 400 < len(chosen) < 600 and min(chosen) < 100
  (first,) = (number for number in range(20) if held_out([], 20, 1e-9)(number))
  assert first < 10  # one is always held out


def test_a_single_document_is_split_after_a_paragraph():
  texts = ["one\ntwo\n", "three\nfour\nfive"]
  parts = [(0, Piece(text, None, "\n", text is texts[-1])) for text in texts]
  assert [(number, piece.text, piece.last) for number, piece in split_document(parts, 16)] == [
    (0, "one\ntwo\n", False),
    (0, "three\n", True),
    (1, "four\nfive", True),
  ]


def test_a_single_document_without_paragraphs_is_split_between_words():
  text = "a title\n" + "word " * 100
  part = (0, Piece(text, None, "", True))
  (_, first), (_, second) = split_document([part], 400, slack=20)
  assert first.text + second.text == text and len(first.text) == 398


@pytest.mark.parametrize("count", [1, 2])
def test_results_come_in_order_and_few_tasks_are_held(count):
  taken = 0

  def tasks():
    nonlocal taken
    for taken in itertools.count(1):
      yield f"{taken}"

  with worker_pool(count) as pool:
    results = itertools.islice(map_in_order(pool, int, tasks()), 40)
    assert list(results) == [(f"{i}", i) for i in range(1, 41)]
    assert taken <= 40 + 20
    pids = {pid for _, pid in map_in_order(pool, _pid, range(4))}
  assert (os.getpid() in pids) == (count == 1)


def _pid(_) -> int:
  return os.getpid()


def test_without_shared_memory_one_process_does_the_work(monkeypatch):
  """Semaphores are files of /dev/shm, which some containers lack or cannot write."""

  def refuse(*_, **__):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))

  monkeypatch.setattr(multiprocessing.synchronize.SemLock, "__init__", refuse)
  with pytest.warns(UserWarning, match="one process does the work.*Read-only file system"):
    with worker_pool(2) as pool:
      assert list(map_in_order(pool, _pid, range(2))) == [(i, os.getpid()) for i in range(2)]


def test_word_counts_are_bounded_and_keep_the_frequent():
  counts = WordCounts(max_characters=1000)
  for start in range(0, 2000, 100):
    counts.add({f"w{i:05}": 1 for i in range(start, start + 100)} | {"often": 5, "sometimes": 2})
  assert sum(map(len, counts.words)) <= 1000
  assert counts.words["often"] == 100 and counts.words["sometimes"] == 40
  kept = [int(word[1:]) for word in counts.words if word.startswith("w")]
  assert min(kept) < 700 < 1300 < max(kept)  # not only the newest
