"""Rows of whole sentences: BERT's and ALBERT's pairs, RoBERTa's packed rows, on any hosts."""

import numpy as np
import pytest
from refused import refused

from gpt_jax.data.draws import Draw, hash64
from gpt_jax.data.sentence_windows import (
  IN_ORDER,
  NOT_IN_ORDER,
  SENTENCE_END,
  PackedSentenceWindows,
  PairWindows,
)
from gpt_jax.data.token_file import TokenFile, TokenWriter
from gpt_jax.data.windows import Windows, WindowsConfig

LENGTH = 64
CONFIG = WindowsConfig(batch_size=16, length=LENGTH)
ACROSS = WindowsConfig(batch_size=16, length=LENGTH, sampling="across_documents")


def write(folder, documents) -> TokenFile:
  """Documents as lists of sentence lengths; ids count up, so that a row tells what it holds."""
  writer, offset = TokenWriter(folder, "train", 100_000, sentences=True), 0
  for sizes in documents:
    ends = np.cumsum(sizes)
    ids = offset + np.arange(ends[-1])
    writer.add(ids, 1, 1, sentence_ends=ends)
    offset += len(ids)
  writer.close(tokenizer_hash="abc")
  return TokenFile(folder, "train")


def random_documents(count, sentences=60, longest=25, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.integers(1, longest, rng.integers(1, sentences)).tolist() for _ in range(count)]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> TokenFile:
  return write(tmp_path_factory.mktemp("text"), random_documents(60))


def parts(row):
  """(A, B, mark) of a row of a pair."""
  [middle] = np.flatnonzero(row < -1)
  size = int((row != -1).sum())
  assert (row[size:] == -1).all()
  return row[:middle], row[middle + 1 : size], int(row[middle])


def all_rows(windows, epochs=1):
  return np.concatenate([windows(step) for step in range(epochs * windows.steps_per_epoch)])


def bert_pairs(text, capacity, swapped):
  """create_instances_from_document of bert and albert (google-research), with given numbers."""
  begins = np.searchsorted(text.sentences, text.offsets)
  sentences = np.split(np.arange(text.n_tokens), text.sentences[1:-1])
  documents = [sentences[a:b] for a, b in zip(begins[:-1], begins[1:], strict=True)]
  number = 0
  for d, document in enumerate(documents):
    i = 0
    while i < len(document):
      u = Draw(0, 0, np.array([number]))("pair", (8,))[0]
      number += 1
      target = capacity if u[0] >= 0.1 else 2 + int(u[1] * (capacity - 1))
      chunk, size = [], 0
      while i < len(document):
        chunk.append(document[i])
        size += len(document[i])
        i += 1
        if size >= target:
          break
      a_end = 1 if len(chunk) == 1 else 1 + int(u[2] * (len(chunk) - 1))
      a, b, label = [*np.concatenate(chunk[:a_end])], [], IN_ORDER
      if len(chunk) == 1 or (not swapped and u[3] < 0.5):
        label = NOT_IN_ORDER
        others = [other for other in range(len(documents)) if other != d]
        other = documents[others[int(u[4] * len(others))]]
        for sentence in other[int(u[5] * len(other)) :]:
          b.extend(sentence)
          if len(b) >= target - len(a):
            break
        i -= len(chunk) - a_end
      else:
        b.extend(np.concatenate(chunk[a_end:]))
        if swapped and u[3] < 0.5:
          a, b, label = b, a, NOT_IN_ORDER
      fronts = {}
      counts = {"a": 0, "b": 0}
      sizes = {"a": len(a), "b": len(b)}
      while sizes["a"] + sizes["b"] > capacity:  # truncate_seq_pair
        longer = "a" if sizes["a"] > sizes["b"] else "b"
        sizes[longer] -= 1
        counts[longer] += 1
      for name, coin in zip("ab", u[6:], strict=True):
        faces = hash64(np.arange(counts[name]), int(coin * 2**53)) & np.uint64(1)
        fronts[name] = int(faces.sum())
      a = a[fronts["a"] : fronts["a"] + sizes["a"]]
      b = b[fronts["b"] : fronts["b"] + sizes["b"]]
      yield a, b, label


@pytest.mark.parametrize("second", ["random_document", "swapped"])
def test_text_in_order_is_paired_as_in_the_authors_code(text, second):
  windows = PairWindows(text, CONFIG, second=second)
  rows = np.concatenate(list(windows.sequential()))
  expected = list(bert_pairs(text, LENGTH - 3, second == "swapped"))
  assert len(rows) == -(-len(expected) // 16) * 16
  assert (rows[len(expected) :] == -1).all()
  for row, (a, b, label) in zip(rows, expected, strict=False):
    got = parts(row)
    assert (got[0].tolist(), got[1].tolist(), got[2]) == (a, b, label)


def check_pair(text, row, swapped):
  """What holds for every pair; returns (mark, whether it was shortened)."""
  a, b, mark = parts(row)
  assert len(a) and len(b) and len(a) + len(b) <= LENGTH - 3
  for stretch in (a, b):
    assert (np.diff(stretch) == 1).all()
  where = np.searchsorted(text.offsets, [a[0], a[-1], b[0], b[-1]], side="right")
  assert where[0] == where[1] and where[2] == where[3], "a text crosses documents"
  if mark == IN_ORDER:
    assert where[0] == where[2] and a[-1] < b[0]
  elif where[0] == where[2]:
    assert swapped and b[-1] < a[0]
  full = len(a) + len(b) == LENGTH - 3
  if not full:  # nothing was cut, so both are whole sentences
    edges = [a[0], a[-1] + 1, b[0], b[-1] + 1]
    assert np.isin(edges, text.sentences).all()
    if mark == IN_ORDER:
      assert b[0] == a[-1] + 1
  return mark, full


@pytest.mark.parametrize("second", ["random_document", "swapped"])
def test_half_of_the_pairs_are_in_order(text, tmp_path, second):
  """No sentence fills a row, so that only chance decides: 4,000 pairs, four standard errors."""
  for row in all_rows(PairWindows(text, CONFIG, seed=1), 2):  # of documents of any size
    check_pair(text, row, swapped=False)
  rng = np.random.default_rng(1)
  text = write(tmp_path, [rng.integers(3, 9, 400).tolist() for _ in range(40)])
  windows = PairWindows(text, CONFIG, seed=3, second=second)
  rows = all_rows(windows, 3)[:4000]
  assert len(rows) == 4000
  marks, full = zip(*(check_pair(text, row, second == "swapped") for row in rows), strict=True)
  assert np.mean(np.array(marks) == IN_ORDER) == pytest.approx(0.5, abs=0.032)
  assert np.mean(full) > 0.8  # 90 % are as long as a row, unless B met a document's end
  if second == "random_document":
    documents = [np.searchsorted(text.offsets, parts(row)[1][0], "right") for row in rows]
    others = np.array(documents)[np.array(marks) == NOT_IN_ORDER]
    assert len(np.unique(others)) == 40  # all of them are drawn


def test_a_chunk_of_one_sentence_is_paired_with_another_document(tmp_path):
  text = write(tmp_path, [[100, 5], [7], [8, 9, 10]])
  for second in ("random_document", "swapped"):
    rows = np.concatenate(list(PairWindows(text, CONFIG, second=second).sequential()))
    _, b, mark = parts(rows[0])  # the sentence of 100 tokens fills the row
    assert mark == NOT_IN_ORDER and (b >= 105).all()
    assert len(rows[0][rows[0] != -1]) - 1 == LENGTH - 3


def test_a_single_document_is_paired_with_itself_elsewhere(tmp_path):
  text = write(tmp_path, [[10] * 40])
  windows = PairWindows(text, CONFIG, second="random_document")
  rows = np.concatenate([all_rows(windows, 20), *windows.sequential()])
  pairs = [parts(row) for row in rows if (row != -1).any()]
  assert {mark for _, _, mark in pairs} == {IN_ORDER, NOT_IN_ORDER}
  for a, b, mark in pairs:
    assert not set(a) & set(b)
    if mark == NOT_IN_ORDER:
      assert b[0] - a[-1] > 1 or b[-1] < a[0]


KINDS = {
  "next_sentence": lambda text, copies=0: PairWindows(text, CONFIG, 5, copies),
  "sentence_order": lambda text, copies=0: PairWindows(text, CONFIG, 5, copies, "swapped"),
  "full_sentences": lambda text, copies=0: PackedSentenceWindows(text, ACROSS, 5, copies),
  "doc_sentences": lambda text, copies=0: PackedSentenceWindows(text, CONFIG, 5, copies),
  "windows": lambda text, copies=0: Windows(text, CONFIG, 5, copies),
  "windows_across": lambda text, copies=0: Windows(text, ACROSS, 5, copies),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hosts", [2, 4])
def test_rows_do_not_depend_on_hosts_or_on_what_was_read_before(text, kind, hosts):
  windows = KINDS[kind](text)
  steps = [3, 0, 17]
  whole = {step: windows(step) for step in steps}
  for host in np.split(np.arange(16), hosts):
    fresh = KINDS[kind](text)  # as a process that resumes
    for step in reversed(steps):
      np.testing.assert_array_equal(fresh(step, host), whole[step][host])
      noise = fresh.draw(step, host)("name", (7,))
      np.testing.assert_array_equal(noise, windows.draw(step, np.arange(16))("name", (7,))[host])
    for got, rows in zip(fresh.sequential(host), windows.sequential(), strict=True):
      np.testing.assert_array_equal(got, rows[host])
  assert (whole[3] != whole[17]).any()
  np.testing.assert_array_equal(KINDS[kind](text)(4, slice(3, 5)), windows(4)[3:5])
  assert windows(0, slice(2, 2)).shape == (0, LENGTH + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_fixed_versions_of_each_text(text, kind):
  windows = KINDS[kind](text, copies=2)
  size, batch = windows.spans_per_epoch, CONFIG.batch_size

  def epoch(number):
    """Its rows, each with its noise, in any order."""
    found = []
    for step in range(number * size // batch, -(-(number + 1) * size // batch)):
      inside = np.arange(step * batch, (step + 1) * batch) // size == number
      rows = np.arange(batch)[inside]
      noise = windows.draw(step, rows)("masks", (3,))
      found += [(*row, *u) for row, u in zip(windows(step, rows).tolist(), noise, strict=True)]
    return found

  epochs = [epoch(number) for number in range(4)]
  assert sorted(epochs[0]) == sorted(epochs[2]) and sorted(epochs[1]) == sorted(epochs[3])
  assert epochs[0] != epochs[2]  # the order is new
  assert not set(epochs[0]) & set(epochs[1])


def packed_sentences(text, row):
  """The stretches of text between the marks of a row."""
  ids = row[row != -1]
  assert (row[len(ids) :] == -1).all() and len(ids) <= LENGTH - 1 and ids[-1] == SENTENCE_END
  return np.split(ids, np.flatnonzero(ids == SENTENCE_END) + 1)[:-1]


@pytest.mark.parametrize("config", [CONFIG, ACROSS], ids=["within", "across"])
def test_packed_rows_hold_whole_sentences_in_order(text, config):
  windows = PackedSentenceWindows(text, config)
  rows = np.concatenate(list(windows.sequential()))
  rows = rows[(rows != -1).any(axis=1)]
  np.testing.assert_array_equal(rows[rows >= 0], np.arange(text.n_tokens))  # each token once
  crossing = 0
  for row in [*rows, *all_rows(windows)]:
    previous = None
    for stretch in packed_sentences(text, row):
      if len(stretch) == 1:  # a mark more, between documents
        assert previous + 1 in text.offsets
        crossing += 1
        continue
      begin, last = stretch[0], stretch[-2]
      assert begin in text.sentences and last + 1 in text.sentences
      if previous is not None:
        assert begin == previous + 1
      previous = last
  assert (crossing > 20) == (config is ACROSS)
  if config is ACROSS:  # full, but for a sentence that did not fit
    assert ((rows[:-1] != -1).sum(axis=1) >= LENGTH - 1 - 25).all()


def test_marks_between_documents_and_sentences_longer_than_a_row(tmp_path):
  text = write(tmp_path, [[3, 4], [5], [60]])
  [row] = [row for row in next(PackedSentenceWindows(text, ACROSS).sequential()) if row[0] == 0]
  e = SENTENCE_END
  assert row[: 3 + 4 + 5 + 4].tolist() == [0, 1, 2, e, 3, 4, 5, 6, e, e, 7, 8, 9, 10, 11, e]
  assert (row[16:] == -1).all()  # the mark between documents belongs to a row that goes on
  text = write(tmp_path, [[5, 200, 5], [300]])
  for config in (CONFIG, ACROSS):
    windows = PackedSentenceWindows(text, config)
    rows = np.concatenate(list(windows.sequential()))
    np.testing.assert_array_equal(rows[rows >= 0], np.arange(510))
    assert ((rows != -1).sum(axis=1) <= LENGTH - 1).all()
  seen = np.unique(all_rows(PackedSentenceWindows(text, CONFIG), 60))
  assert len(seen[seen >= 0]) > 480  # its tail is trained on, too


@pytest.mark.parametrize(
  ("kind", "config", "match"),
  [
    (PairWindows, ACROSS, "data.sampling=across_documents: a pair is cut from one document"),
    (PairWindows, WindowsConfig(4, 7), "data.length=7: must be at least 8"),
    (PackedSentenceWindows, WindowsConfig(4, 2), "data.length=2: must be at least 3"),
  ],
)
def test_configs_that_do_not_suit(text, kind, config, match):
  refused(match, kind, text, config)


def test_texts_that_do_not_suit(tmp_path):
  text = write(tmp_path, [[10] * 20])
  refused(r"train\.bin: one document of 200 tokens, so that there", PairWindows, text, CONFIG)
  writer = TokenWriter(tmp_path, "train", 100)
  writer.add(np.arange(90), 1, 1)
  writer.close(tokenizer_hash="abc")
  text = TokenFile(tmp_path, "train")
  for kind in (PairWindows, PackedSentenceWindows):
    refused("no sentence ends.*PrepareConfig.sentences=True", kind, text, WindowsConfig(4, 16))


@pytest.mark.parametrize("second", ["random_document", "swapped"])
@pytest.mark.parametrize("documents", [[[3, 3, 3, 3]] * 9, [[3] * 40]])
def test_what_follows_is_never_called_random(tmp_path, second, documents):
  """In a text that repeats itself all sentences, or all documents, are equal."""
  writer = TokenWriter(tmp_path, "train", 100, sentences=True)
  for sizes in documents:
    writer.add(np.tile([5, 6, 7], len(sizes)), 1, 1, sentence_ends=np.cumsum(sizes))
  writer.close(tokenizer_hash="abc")
  windows = PairWindows(TokenFile(tmp_path, "train"), WindowsConfig(8, 15), 0, second=second)
  for row in all_rows(windows, 4):
    a, b, mark = parts(row)
    if mark == NOT_IN_ORDER:  # only where nothing follows, or the rest of a document is shorter
      assert a.tolist() != b.tolist()


def test_what_follows_a_single_sentence(tmp_path):
  """Not the next document; and the next sentence is not called random."""
  text = write(tmp_path, [[4], [4]])
  for row in all_rows(PairWindows(text, WindowsConfig(4, 16), 0), 4):
    assert parts(row)[2] == NOT_IN_ORDER
  text = write(tmp_path, [[20] * 9])  # each is a chunk
  seen = set()
  for row in all_rows(PairWindows(text, WindowsConfig(4, 16), 0), 20):
    a, b, mark = parts(row)
    follows = b[0] // 20 == a[0] // 20 + 1
    assert follows == (mark == IN_ORDER)
    seen.add(mark)
  assert len(seen) == 2
