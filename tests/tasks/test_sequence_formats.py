"""Sequences of BERT, RoBERTa and GPT: ids, token types, anchors, truncation, packing."""

import numpy as np
import pytest
from number_words import Numbers
from test_encoding import random_examples

from gpt_jax.config import from_json, to_json
from gpt_jax.data.tokenizers.base import SpecialTokens
from gpt_jax.tasks.encoding import encode
from gpt_jax.tasks.formats import (
  BERTFormat,
  GPTFormat,
  PlainFormat,
  RoBERTaFormat,
  TextToText,
  first_field,
  longer_first,
)
from gpt_jax.tasks.packing import OrderedBatches
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import find

CLS, SEP = 0, 2  # inside the vocabulary, as RoBERTa has them
SPECIAL = SpecialTokens(1000, (), (("cls", CLS), ("sep", SEP)))
A, B, C = np.array([7, 8, 9]), np.array([5, 6]), np.array([4])


@pytest.mark.parametrize(
  ("format", "fields", "ids", "types"),
  [
    (BERTFormat(), [A], [CLS, 7, 8, 9, SEP], [0] * 5),
    (BERTFormat(), [A, B], [CLS, 7, 8, 9, SEP, 5, 6, SEP], [0] * 5 + [1] * 3),
    (BERTFormat(), [A, B, C], [CLS, 7, 8, 9, SEP, 5, 6, 4, SEP], [0] * 5 + [1] * 4),
    (RoBERTaFormat(), [A], [CLS, 7, 8, 9, SEP], None),
    (RoBERTaFormat(), [A, B], [CLS, 7, 8, 9, SEP, SEP, 5, 6, SEP], None),
    (RoBERTaFormat(), [A, B, C], [CLS, 7, 8, 9, SEP, SEP, 5, 6, 4, SEP], None),
  ],
)
def test_sequences(format, fields, ids, types):
  joined = format.join(fields, SPECIAL)
  assert joined.dtype == np.int32 and joined.tolist() == ids
  lengths = [len(field) for field in fields]
  assert sum(lengths) + format.overhead(len(fields)) == len(ids)
  found = format.types(lengths)
  assert found is None if types is None else found.tolist() == types
  assert format.anchor(joined) == 0
  spread = format.spread(fields, fill=-1)
  assert (spread == np.where(np.isin(joined, [CLS, SEP]), -1, joined)).all()
  assert from_json(to_json(format)) == format


def test_plain_sequences_are_read_before_their_padding():
  format = PlainFormat(padding=6)
  for fields, anchor in (([A], 2), ([A, B], 3), ([B], 0), ([np.array([6, 6])], 0)):
    joined = format.join(fields, SPECIAL)
    assert joined.tolist() == np.concatenate(fields).tolist()
    assert format.overhead(len(fields)) == 0 and format.types([3, 2]) is None
    assert format.anchor(joined) == anchor
  assert PlainFormat().anchor(np.array([7, 6, 6])) == 2
  assert from_json(to_json(format)) == format


def longest_first_pair(first, second, room):
  """As "longest_first" of the package `tokenizers`: an odd token stays in the longer text."""
  longer_is_first = first > second
  while first + second > room:
    if first > second or first == second and not longer_is_first:
      first -= 1
    else:
      second -= 1
  return first, second


def test_the_longer_text_is_cut():
  rng = np.random.default_rng(0)
  for _ in range(300):
    lengths, context = rng.integers(1, 30, (5, 2)), int(rng.integers(8, 60))
    expected = [longest_first_pair(*pair, context - 3) for pair in lengths.tolist()]
    np.testing.assert_array_equal(longer_first(lengths, context, 3), expected)
    np.testing.assert_array_equal(BERTFormat().truncate(lengths, context), expected)
    three = np.concatenate([lengths, rng.integers(1, 9, (5, 1))], axis=1)
    kept = RoBERTaFormat().truncate(three, context)
    pairs = [(a, b + c) for a, b, c in three.tolist()]
    expected = [longest_first_pair(*pair, context - 4) for pair in pairs]
    np.testing.assert_array_equal(np.stack([kept[:, 0], kept[:, 1:].sum(axis=1)], 1), expected)
    assert (kept <= three).all() and ((kept[:, 2] == 0) | (kept[:, 1] == three[:, 1])).all()
  assert longer_first(np.array([[9]]), 8, 2).tolist() == [[6]]


@pytest.mark.parity("released")
def test_the_longer_text_is_cut_as_by_tokenizers():
  import tokenizers

  reader = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "u": 2}, "u"))
  reader.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  rng = np.random.default_rng(0)
  for first, second, room in rng.integers(1, 40, (300, 3)).tolist():
    reader.enable_truncation(room)
    ids = reader.encode("a " * first, "b " * second).ids
    kept = longer_first(np.array([[first, second]]), room, 0)[0].tolist()
    if min(kept):  # the package's own result where a text would vanish
      assert kept == [ids.count(0), ids.count(1)]


def test_nothing_is_cut_where_everything_fits():
  rng = np.random.default_rng(0)
  for format in (GPTFormat(), BERTFormat(), RoBERTaFormat(), TextToText()):
    for first, second, context in rng.integers(1, 60, (200, 3)).tolist():
      room = context + 8 - format.overhead(2)
      kept = format.truncate(np.array([[first, second]]), context + 8)[0]
      fits = first + second <= room
      assert kept.tolist() == [first, second] if fits else 0 < kept.sum() < first + second
  kept = GPTFormat().truncate(np.array([[50, 9], [70, 9], [70, 70]]), 64)
  assert kept.tolist() == [[50, 9], [30, 9], [30, 30]]


@pytest.mark.parametrize("format", [BERTFormat(), RoBERTaFormat(), GPTFormat(), PlainFormat(9)])
@pytest.mark.parametrize("sequences", [1, 4])
def test_packed_rows_have_types_and_anchors(format, sequences):
  tokenizer = Numbers(SpecialTokens(1000) if isinstance(format, GPTFormat) else SPECIAL)
  examples = random_examples(9, sequences, longest=20)
  encoded = encode(examples, tokenizer, 32, None, 3, format)
  (batch,) = OrderedBatches(encoded, 9)
  if not isinstance(format, BERTFormat):
    assert batch.rows.types is None
  flat = batch.rows.inputs.reshape(-1)
  for n in range(9):
    for c in range(sequences):
      ids, anchor = encoded.sequence(n, c), batch.labels.anchors[n, c]
      begin = anchor - format.anchor(ids)
      assert flat[begin : begin + len(ids)].tolist() == ids.tolist()
      if isinstance(format, BERTFormat):
        assert flat[anchor] == CLS
        types = batch.rows.types.reshape(-1)[begin : begin + len(ids)]
        assert types.tolist() == encoded.sequence_types(n, c).tolist() and types[-1] == 1
  if isinstance(format, BERTFormat):
    assert not batch.rows.types[batch.rows.segments == 0].any()


def test_tasks_follow_the_format():
  """Similarity is one sequence; multiple choice has one a choice; RACE keeps its own truncation."""
  mrpc, race = find("mrpc"), find("race")
  pair = mrpc.example(Row(("7 8", "9"), "equivalent", "f:1"))
  encoded = mrpc.encode([pair], Numbers(SPECIAL), 16, BERTFormat())
  assert encoded.fields.shape == (1, 1, 2)
  assert encoded.sequence(0, 0).tolist() == [CLS, 7, 8, SEP, 9, SEP]
  assert mrpc.encode([pair], Numbers(), 16).fields.shape == (1, 2, 2)
  texts = (" ".join("7" * 30), "5 6 " * 4, "11", "12", "13", "14")
  passage = race.example(Row(texts, "A", "f:1"))
  encoded = race.encode([passage], Numbers(SPECIAL), 16, BERTFormat())
  expected = first_field(np.array([[30, 8, 1]] * 4), 16, BERTFormat().overhead(3))
  np.testing.assert_array_equal(encoded.kept[0], expected)
  assert encoded.sequence(0, 1).tolist() == [CLS, *[7] * 4, SEP, *[5, 6] * 4, 12, SEP]
