"""Duplicates and contamination: recall on planted documents, no false alarms, and the reasons."""

import json
import random

import numpy as np
import pytest

from gpt_jax.apps.corpus import contamination, duplicates
from gpt_jax.apps.corpus.contamination import index_rows, load_rows
from gpt_jax.apps.corpus.duplicates import grams, normalized_words, word_hashes
from gpt_jax.apps.corpus.removal import PRINT, Removing, RemovingPasses, removals
from gpt_jax.data import pieces
from gpt_jax.data.pieces import Corpus
from gpt_jax.data.progress import Progress
from gpt_jax.data.sources import text as text_source
from gpt_jax.data.sources.source import find_all

pytest.importorskip("datasketch")
WORDS = [f"w{number}" for number in range(3000)]


def prose(rng, count) -> list[str]:
  return rng.choices(WORDS, k=count)


def replaced(rng, words, share) -> list[str]:
  words = list(words)
  for position in rng.sample(range(len(words)), round(share * len(words))):
    words[position] = f"new{rng.randrange(1000)}"
  return words


def hashes_of(text):
  return word_hashes(normalized_words(text))


def made(tmp_path, texts, near=True, rows=()) -> np.ndarray:
  path = tmp_path / "texts.jsonl"
  path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
  index = ""
  if rows:
    index = str(tmp_path / f"rows{len(list(tmp_path.iterdir()))}.npz")
    with open(index, "wb") as file:
      file.write(index_rows(rows).save())
  passes = RemovingPasses(Removing("near" if near else "exact", "", ""), None)
  corpus = Corpus(find_all(str(path)), "text", np.empty((0, 2), np.int64))
  return np.array(list(passes.prints(corpus, index, Progress(""))), PRINT)


def test_words_are_compared_without_case_and_punctuation():
  assert normalized_words("It 's a “Test”, isn't_it?") == normalized_words("it's A test isn't it")
  assert normalized_words("東京 tower") == ["東", "京", "tower"]
  # Vowels of Hindi and Thai are marks.
  assert normalized_words("मेरा नाम, Cafe\u0301_x") == ["मेरा", "नाम", "café", "x"]
  assert normalized_words("मेरा") != normalized_words("मेरी") and normalized_words("น้ำใส") == ["น้ําใส"]
  hashes = word_hashes(list("abcabc"))
  assert grams(hashes, 3)[0] == grams(hashes, 3)[3] != grams(hashes, 3)[1]
  assert len(grams(hashes, 6)) == 1 and len(grams(hashes, 7)) == 0
  # Text without spaces is not kept as words.
  kept = duplicates._kept_hash.cache_info().currsize
  long = [f"{number:065}" for number in range(3)]
  assert len(set(word_hashes(long).tolist())) == 3
  assert duplicates._kept_hash.cache_info().currsize == kept


def test_the_estimate_is_the_jaccard_similarity():
  rng = random.Random(0)
  a = prose(rng, 1000)
  for share in (0.0, 0.02, 0.1, 0.5):
    b = replaced(rng, a, share)
    sets = [{tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (a, b)]
    exact = len(sets[0] & sets[1]) / len(sets[0] | sets[1])
    signatures = [duplicates.signature(word_hashes(words)) for words in (a, b)]
    estimate = (signatures[0] == signatures[1]).mean()
    assert estimate == pytest.approx(exact, abs=4 * 0.5 / duplicates.PERMUTATIONS**0.5)


def test_planted_duplicates(tmp_path):
  rng = random.Random(1)
  originals = [prose(rng, rng.randint(200, 700)) for _ in range(150)]
  copies = [replaced(rng, words, 0.05) for words in originals[:60]]
  texts = [" ".join(words) for words in originals + copies]
  texts += [texts[3], texts[4].upper()]
  result = removals(made(tmp_path, texts), exact=True, near=True)
  assert {removal.document for removal in result if removal.document < 150} == set()
  near = {r.document: r for r in result if r.rule == "near-duplicate"}
  hits = [copy for copy in range(60) if 150 + copy in near and near[150 + copy].other == copy]
  assert len(hits) >= 0.95 * 60
  assert all(0.5 <= removal.score <= 1 for removal in near.values())
  assert result[-2] == (210, "exact duplicate", 3, 1.0)
  assert result[-1][:2] == (211, "near-duplicate") and result[-1].score == 1.0
  only_exact = removals(made(tmp_path, texts, near=False), exact=True, near=False)
  assert [removal.document for removal in only_exact] == [210]


def test_boilerplate_costs_no_pair_of_each_with_each():
  same = np.repeat(duplicates.signature(hashes_of("a b c d e f g"))[None], 500, axis=0)
  pairs, scores = duplicates.near_pairs(same, np.arange(500))
  assert len(pairs) < 500 * duplicates.FIRST and (scores == 1).all()
  assert set(pairs[:, 1]) == set(range(1, 500))


def row_of(rng, count):
  return [f"r{rng.randrange(10**6)}" for _ in range(count)]


@pytest.mark.parametrize("length", [5, 6, 7, 8, 12, 13, 14, 20, 25, 26, 40])
def test_rows_are_found(length):
  rng = random.Random(length)
  row = row_of(rng, length)
  rows = index_rows([" ".join(row_of(rng, length)), " ".join(row)])
  before, after = prose(rng, 30), prose(rng, 30)

  def found(words):
    return rows.find(hashes_of(" ".join(before + words + after)))

  verbatim = found(row)
  assert verbatim.row == 1 and verbatim.score == 1 and verbatim.rule
  assert found([f"{word.upper()}," for word in row])[1:] == (1, 1.0)
  for position in range(length):
    changed = [*row[:position], "other", *row[position + 1 :]]
    assert (found(changed).row == 1) == (length >= contamination.ONE_REPLACED), position
  part = row[: min(contamination.RUN - 1, length - 2)]  # without two words
  assert found(part).rule == 0
  assert rows.find(hashes_of(" ".join(part))).rule == 0  # at the end of a text


def test_the_index_survives_its_file_and_what_is_not_a_row(tmp_path):
  rng = random.Random(0)
  texts = [" ".join(row_of(rng, length)) for length in (5, 9, 30)]
  (tmp_path / "rows.npz").write_bytes(index_rows(texts).save())
  loaded = load_rows(str(tmp_path / "rows.npz"))
  assert [loaded.find(hashes_of(text)).row for text in texts] == [0, 1, 2]
  rows = index_rows([" ".join(row_of(rng, 10)), "yes it was so"])
  assert rows.find(hashes_of("well yes it was so " * 5)).rule == 0  # too short to be told
  words = row_of(rng, 10)
  rows = index_rows([" ".join(words)])
  words[2] = words[8] = "other"
  assert rows.find(hashes_of(" ".join(words))).rule == 0
  assert index_rows([]).find(hashes_of("a b c")).rule == 0


def test_contaminated_documents_come_first_and_keep_no_copy(tmp_path):
  rng = random.Random(5)
  row, text = " ".join(row_of(rng, 30)), prose(rng, 300)
  dirty = " ".join([*text[:100], row, *text[100:]])
  records = made(tmp_path, [dirty, " ".join(text), dirty, " ".join(text)], rows=[row])
  result = removals(records, exact=True, near=True)
  assert [(r.document, r.rule, r.other) for r in result] == [
    (0, "13-gram", 0),
    (2, "13-gram", 0),
    (3, "exact duplicate", 1),
  ]


def test_pieces_of_a_long_document_are_one(tmp_path, monkeypatch):
  rng = random.Random(2)
  row = row_of(rng, 20)
  words = prose(rng, 3000)
  texts = [" ".join([*words[:at], *row, *words[at:]]) for at in range(90, 200, 3)]
  whole = made(tmp_path, texts, rows=[" ".join(row)])
  monkeypatch.setattr(pieces, "PIECE_SIZE", 700)
  monkeypatch.setattr(text_source, "BLOCK_SIZE", 700)
  cut = made(tmp_path, texts, rows=[" ".join(row)])
  assert (whole["rule"] > 0).all() and (cut["rule"] > 0).all()
  assert (whole["signature"] == cut["signature"]).all()


def test_removed_documents_leave_no_gap(tmp_path):
  path = tmp_path / "texts.jsonl"
  path.write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(7)))
  sources = find_all(str(path))
  for removed in ([], [0], [6], [0, 1, 4], [1, 2, 3, 5, 6]):
    corpus = Corpus(sources, "text", np.array([(0, i) for i in removed], np.int64))
    kept = [f"text {i}" for i in range(7) if i not in removed]
    assert [(number, piece.text) for number, piece in corpus.pieces()] == list(enumerate(kept))
