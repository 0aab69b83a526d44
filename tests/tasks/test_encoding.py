"""Encoding, truncation and packing of labeled examples."""

import dataclasses
import time
from collections import Counter

import numpy as np
import pytest
from number_words import Numbers
from refused import refused

from gpt_jax.tasks.encoding import Example, count_repeated, encode, subset, without_labels
from gpt_jax.tasks.formats import each_half, first_field
from gpt_jax.tasks.packing import OrderedBatches, PackedBatches, _first_fit_decreasing


def words(rng, low, high):
  return " ".join(map(str, rng.integers(5, 1000, rng.integers(low, high + 1))))


def random_examples(count, sequences=1, fields=2, longest=40):
  rng = np.random.default_rng(0)
  examples = []
  for n in range(count):
    texts = [tuple(words(rng, 1, longest) for _ in range(fields)) for _ in range(sequences)]
    examples.append(Example(tuple(texts), tuple(np.eye(3)[rng.integers(3)]), f"file:{n + 1}"))
  return examples


def encoded_examples(count, context=128, truncate=each_half, **options):
  return encode(random_examples(count, **options), Numbers(), context, truncate, 3)


def unpack(batch, groups=1):
  """Each sequence of a batch, found by its extract token: ids [N][C]; and the cells they fill."""
  rows, length = batch.rows.inputs.shape
  used = np.zeros((rows, length), bool)
  found = []
  for n, anchors in enumerate(batch.labels.anchors):
    if not batch.labels.weights[n]:
      found.append(None)
      continue
    first_row = n // (len(batch.labels.anchors) // groups) * (rows // groups)
    example = []
    for end in anchors:
      row, last = first_row + end // length, end % length
      cells = np.flatnonzero(batch.rows.segments[row] == batch.rows.segments[row, last])
      assert cells[-1] == last and (np.diff(cells) == 1).all(), (
        "a sequence is contiguous and ends at its extract token"
      )
      assert not used[row, cells].any(), "segments are unique in a row"
      used[row, cells] = True
      ids = batch.rows.inputs[row, cells]
      np.testing.assert_array_equal(batch.rows.positions[row, cells], np.arange(len(cells)))
      np.testing.assert_array_equal(batch.predictions.targets[row, cells[:-1]], ids[1:])
      weights = batch.predictions.weights[row, cells]
      np.testing.assert_allclose(weights[:-1], 1 / len(anchors) / (len(ids) - 1), rtol=1e-6)
      assert weights[-1] == 0, "nothing follows the extract token"
      example.append(ids)
    found.append(example)
  return found, used


def expected(encoded):
  N, C = encoded.fields.shape[:2]
  return [tuple(tuple(encoded.sequence(n, c).tolist()) for c in range(C)) for n in range(N)]


def as_tuples(example):
  return tuple(tuple(ids.tolist()) for ids in example)


@pytest.mark.parametrize("context", [8, 32, 33, 512])
def test_each_half_keeps_heads(context):
  """Released train.py: max_len = n_ctx // 2 - 2 for each of a pair; n_ctx - 2 for one field."""
  assert each_half(np.array([[600, 700]]), context, 3).tolist() == [[context // 2 - 2] * 2]
  assert each_half(np.array([[600]]), context, 2).tolist() == [[context - 2]]


def test_first_field_alone_is_cut_as_long_as_that_suffices():
  rng = np.random.default_rng(0)
  lengths = rng.integers(1, 80, (2000, 3))
  kept = first_field(lengths, 64, 3)
  assert (kept.sum(axis=1) + 3 <= 64).all() and (kept >= 0).all() and (kept <= lengths).all()
  fits = lengths[:, 1:].sum(axis=1) <= 61
  assert fits.any() and not fits.all()
  np.testing.assert_array_equal(kept[fits, 1:], lengths[fits, 1:])
  np.testing.assert_array_equal(kept[fits].sum(axis=1), np.minimum(lengths[fits].sum(axis=1), 61))
  assert (kept[~fits, 1:] <= 30).all() and (kept[~fits, 1:] >= 1).all()


@pytest.mark.parametrize(
  "sequences, fields, truncate, groups",
  [(1, 1, each_half, 1), (2, 2, each_half, 4), (4, 3, first_field, 2)],
)
def test_packing_changes_nothing_and_loses_nothing(sequences, fields, truncate, groups):
  encoded = encoded_examples(70, 128, truncate, sequences=sequences, fields=fields)
  batches = PackedBatches(encoded, 8, seed=3, epochs=2, groups=groups)
  assert batches.steps_per_epoch == 8
  wanted = Counter(zip(expected(encoded), map(tuple, encoded.labels), strict=True))
  for epoch in range(2):
    seen = Counter()
    for step in range(epoch * 8, epoch * 8 + 8):
      batch = batches(step)
      assert batch.rows.inputs.shape == batches.shape, "one shape for the whole run"
      arrays = (*batch.rows[:3], *batch.predictions[:2], *batch.labels)
      assert {array.dtype for array in arrays} == {np.dtype(np.int32), np.dtype(np.float32)}
      found, used = unpack(batch, groups)
      seen.update(zip(map(as_tuples, found), map(tuple, batch.labels.distributions), strict=True))
      assert (batch.labels.weights == 1).all()
      assert not batch.predictions.weights[~used].any()
      np.testing.assert_array_equal(batch.rows.segments > 0, used)
      # 1 for each example
      np.testing.assert_allclose(batch.predictions.weights.sum(), 8, rtol=1e-5)
    assert sum(seen.values()) == 64 and seen <= wanted, (
      "every example at most once, and all but the last 6"
    )


def test_order_is_a_pure_function_of_seed_and_epoch():
  encoded = encoded_examples(64)

  def order(seed, epochs, epoch):
    batches = PackedBatches(encoded, 8, seed, epochs)
    steps = range(epoch * 8, epoch * 8 + 8)
    return [as_tuples(example) for step in steps for example in unpack(batches(step))[0]]

  assert order(1, 2, 1) == order(1, 3, 1), "the number of epochs changes nothing"
  assert len({tuple(order(seed, 2, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
  by_length = sorted(order(1, 1, 0), key=lambda example: len(example[0]))
  assert order(1, 1, 0) != by_length


def test_every_batch_has_a_like_mixture_of_lengths():
  """So that one shape fits all closely, and no batch consists of long examples only."""
  encoded = encoded_examples(640, fields=1, longest=100)
  batches = PackedBatches(encoded, 32, seed=0, epochs=1)
  tokens = [np.count_nonzero(batches(step).rows.segments) for step in range(20)]
  plain = np.random.default_rng(0).permutation(encoded.lengths[:, 0]).reshape(20, 32).sum(axis=1)
  assert np.std(tokens) < np.std(plain) / 4
  assert max(tokens) / np.prod(batches.shape) > 0.9


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_hold_the_same_examples_in_the_same_order(groups):
  encoded = encoded_examples(64, sequences=2)
  one, several = (PackedBatches(encoded, 8, 0, 1, groups=g) for g in (1, groups))
  assert several.shape[0] % groups == 0
  for step in range(one.steps_per_epoch):
    a, b = one(step), several(step)
    (whole, _), (parts, _) = unpack(a), unpack(b, groups)
    assert list(map(as_tuples, whole)) == list(map(as_tuples, parts))
    np.testing.assert_array_equal(a.labels.distributions, b.labels.distributions)
    ends = several.shape[0] // groups * several.shape[1]
    assert b.labels.anchors.max() < ends, "ends are local to the group"


def test_row_multiple_only_adds_empty_rows():
  """So that a run is the same on any number of devices."""
  encoded = encoded_examples(64, sequences=2)
  one, several = (PackedBatches(encoded, 8, 0, 1, groups=2, row_multiple=n) for n in (1, 16))
  rows = one.shape[0] // 2
  assert rows % 16 and several.shape[0] == 2 * (rows // 16 + 1) * 16
  for step in range(one.steps_per_epoch):
    a, b = one(step), several(step)
    arrays = (*a.rows[:3], *a.predictions[:2]), (*b.rows[:3], *b.predictions[:2])
    for x, y in zip(*arrays, strict=True):
      parts = y.reshape(2, -1, y.shape[1])
      np.testing.assert_array_equal(parts[:, :rows].reshape(x.shape), x)
      assert not parts[:, rows:].any()
    np.testing.assert_array_equal(a.labels.anchors, b.labels.anchors)
  assert next(iter(OrderedBatches(encoded, 8, row_multiple=16))).rows.inputs.shape[0] % 16 == 0


def test_in_order_covers_every_example_once():
  encoded = encoded_examples(21, sequences=2)
  batches = list(OrderedBatches(encoded, 8, groups=2))
  assert len({batch.rows.inputs.shape for batch in batches}) == 1 and len(batches) == 3
  found = [example for batch in batches for example in unpack(batch, 2)[0]]
  assert list(map(as_tuples, found[:21])) == expected(encoded)
  assert found[21:] == [None] * 3
  last = batches[-1]
  assert last.labels.weights.tolist() == [1] * 5 + [0] * 3
  assert (last.labels.distributions[5:] == 0).all()
  np.testing.assert_allclose(last.predictions.weights.sum(), 5, rtol=1e-5)


def test_row_length_is_chosen_within_the_context():
  assert PackedBatches(encoded_examples(64, 100), 8, 0, 1).shape[1] in (96, 100)


def test_row_length_costs_the_least_arithmetic():
  encoded = encoded_examples(64, 256, longest=30)

  def cost(shape):
    return shape[0] * shape[1] * (1 + shape[1] / (6 * 768))

  batches = PackedBatches(encoded, 8, 0, 1)
  tokens = encoded.lengths[batches._packing.order].reshape(8, -1)
  others = [(_first_fit_decreasing(tokens, T)[2], T) for T in range(64, 257, 32)]
  assert len({cost(shape) for shape in others}) > 1
  assert cost(batches.shape) == min(map(cost, others))


def test_packing_needs_few_rows():
  """First fit decreasing stays within 11/9 of the optimum, which is at least tokens / length."""
  encoded = encoded_examples(256, fields=1, longest=60)
  batches = PackedBatches(encoded, 64, 0, 1)
  tokens = max(np.count_nonzero(batches(step).rows.segments) for step in range(4))
  assert batches.shape[0] <= np.ceil(tokens / batches.shape[1]) * 11 / 9 + 1


def test_rows_are_filled_to_the_last_cell():
  examples = [Example((("7 " * 14,),), (1.0,), f"f:{n}") for n in range(8)]  # 16 tokens each
  batches = PackedBatches(encode(examples, Numbers(), 32, each_half, 1), 8, 0, 1)
  assert batches.shape == (4, 32)


def test_planning_is_fast():
  encoded = encoded_examples(8500, fields=1, longest=50)
  begin = time.perf_counter()
  PackedBatches(encoded, 32, 0, 3)
  assert time.perf_counter() - begin < 5  # 0.05 s on an idle core


def test_soft_and_missing_labels():
  examples = [Example((("7",),), (0.25, 0.75), "f:1"), Example((("8",),), None, "f:2")]
  encoded = encode(examples, Numbers(), 16, each_half, 2)
  np.testing.assert_array_equal(encoded.labels, [[0.25, 0.75], [0, 0]])


def test_report():
  examples = [
    Example((("7 8 9 1", "7"),), (1.0, 0.0), "f:1"),
    Example((("7", "8 9 9 9 9 9"),), (0.0, 1.0), "f:2"),
  ] * 2
  text = encode(examples, Numbers(), 9, each_half, 2).report("labels: balanced")
  assert "4 examples" in text and "\nlabels: balanced\n" in text
  assert "unknown or byte-fallback tokens: 9.09%" in text  # 1 of 11 in the distinct texts
  assert "field 2: truncated in 50.0% of sequences, 57.1% of its tokens" in text  # 6 -> 2, of 7
  assert "field 1" not in text
  assert "nothing truncated" in encode(examples, Numbers(), 64, each_half, 2).report()


def test_text_that_the_tokenizer_drops_names_file_and_line():
  class Dropping(Numbers):
    def encode_many(self, texts):
      return [ids[ids != 99] for ids in super().encode_many(texts)]

  examples = [Example((("7",),), (1.0,), "a.tsv:2"), Example((("99",),), (1.0,), "a.tsv:3")]
  message = r"^a\.tsv:3: text field 1 has no token: .* drops all of it, '99'"
  refused(message, encode, examples, Dropping(), 16, each_half, 1)


@pytest.mark.parametrize(
  "second, message",
  [
    (Example((("7", "8"),), (1.0, 0.0), "f:2"), "f:2: should have 1 sequences of 1 text fields"),
    (Example((("7",), ("8",)), (1.0, 0.0), "f:2"), "f:2: should have 1 sequences of 1 text fields"),
    (Example((("7",),), (1.0,), "f:2"), "f:2: should have 1 .*a label over 2 classes"),
  ],
)
def test_examples_of_another_shape(second, message):
  first = Example((("7",),), (1.0, 0.0), "f:1")
  refused(message, encode, [first, second], Numbers(), 16, each_half, 2)


def test_what_cannot_be_batched():
  few, eight = encoded_examples(5), encoded_examples(8)
  refused("5 examples: fewer than one batch; batch_size is 8", PackedBatches, few, 8, 0, 1)
  refused("cannot be divided into 3 equal parts", PackedBatches, eight, 8, 0, 1, groups=3)
  refused("context of 7 tokens is too short", encoded_examples, 8, context=7)
  refused("no examples", encode, [], Numbers(), 16, each_half, 2)


def test_repeated_texts_are_counted_whatever_their_label():
  def example(text, label, line):
    return Example(((text,),), label, f"a.tsv:{line}")

  training = [example("one", (1.0, 0.0), 1), example("two", (0.0, 1.0), 2)]
  others = [example("two", (1.0, 0.0), 7), example("three", None, 8), example("two", None, 9)]
  assert count_repeated(others, training) == 2
  assert count_repeated(others, []) == 0


def labeled(labels):
  return [Example(((f"text {n}",),), label, f"file:{n}") for n, label in enumerate(labels)]


def test_a_subset_of_no_size_is_refused():
  refused("-3 examples: should be at least 1, or 0 for all", subset, labeled([(1.0, 0.0)] * 4), -3)


def test_a_subset_has_its_share_of_each_label_whatever_the_order():
  alternating = labeled([(1.0, 0.0), (0.0, 1.0)] * 4)
  assert [e.label for e in subset(alternating, 4, by_label=True)].count((1.0, 0.0)) == 2
  uneven = labeled([(1.0, 0.0)] * 90 + [(0.0, 1.0)] * 10)
  chosen = subset(uneven, 20, by_label=True)
  assert [e.label for e in chosen].count((0.0, 1.0)) in (2, 3)
  assert [e for e in uneven if e in chosen] == chosen  # in their order
  assert {*subset(uneven[::-1], 20, by_label=True)} == {*chosen}
  rare = labeled([(1.0, 0.0)] * 99 + [(0.0, 1.0)])
  assert subset(rare, 2, by_label=True)[1].label == (0.0, 1.0)
  # Most stay when rows are added, of a plain draw all but those that new ones displace.
  grown = labeled([(1.0, 0.0)] * 90 + [(0.0, 1.0)] * 20)
  assert len({*chosen} & {*subset(grown, 22, by_label=True)}) >= 17
  plain = {*subset(uneven, 20)}
  assert {*subset(grown, 20)} & {*uneven} <= plain
  assert subset(uneven, 0) == subset(uneven, 100) == uneven
  # A further class makes all labels longer.
  longer = labeled([(1.0, 0.0, 0.0)] * 90 + [(0.0, 1.0, 0.0)] * 10 + [(0.0, 0.0, 1.0)])
  kept = {e.sequences for e in subset(longer, 21, by_label=True)}
  assert len({e.sequences for e in chosen} - kept) <= 1
  # Numbers are standardized: one row more changes all of them.
  numbers, rescaled = labeled([(n / 9,) for n in range(90)]), labeled([(n / 8,) for n in range(90)])
  assert [e.sequences for e in subset(numbers, 9)] == [e.sequences for e in subset(rescaled, 9)]


def test_examples_without_labels_are_in_a_batch_but_in_no_loss_of_labels():
  examples = random_examples(12)
  few = subset(examples, 5)
  rest = without_labels(examples, few)
  assert [e._replace(label=None) for e in examples if e not in few] == rest and len(rest) == 7
  encoded = encode([*few, *rest], Numbers(), 128, each_half, 3)
  batch = PackedBatches(dataclasses.replace(encoded, unlabeled=7), 12, 0, 1)(0)
  assert batch.labels.weights.sum() == 5
  np.testing.assert_array_equal(batch.labels.weights, batch.labels.distributions.sum(-1))
  np.testing.assert_allclose(batch.predictions.weights.sum(), 5, rtol=1e-6)
  whole = PackedBatches(encoded, 12, 0, 1)(0)
  np.testing.assert_array_equal(batch.rows.inputs, whole.rows.inputs)
  np.testing.assert_array_equal(batch.labels.anchors, whole.labels.anchors)
