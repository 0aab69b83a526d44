"""The paper's input transformations (figure 1), written out: a row of each family of tasks to
its batch's cells.
"""

import numpy as np
import pytest

from gpt_jax.data.tokenizers.base import SpecialTokens
from gpt_jax.tasks.packing import in_order
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import find

S, D, X = 90, 91, 92  # start, delimiter, extract
CONTEXT = 16


class Numbers:
  """Every word is its own id."""

  special = SpecialTokens(S)
  byte_fallback = np.zeros(100, bool)

  def encode_many(self, texts):
    return [np.array(text.split(), np.int32) for text in texts]


def batch_of(name, texts, label):
  task = find(name)
  (batch,) = in_order(task.encode([task.example(Row(texts, label, "f:1"))], Numbers(), CONTEXT), 1)
  return batch


def number(*ids):
  return " ".join(map(str, ids))


def test_single_text():
  batch = batch_of("cola", ("11 12 13",), "acceptable")
  assert batch.text.inputs.tolist() == [[S, 11, 12, 13, X, *[0] * 11]]
  assert batch.text.targets.tolist() == [[11, 12, 13, X, *[0] * 12]]
  np.testing.assert_allclose(batch.text.weights, [[0.25] * 4 + [0] * 12])
  assert batch.text.positions.tolist() == [[0, 1, 2, 3, 4, *[0] * 11]]
  assert batch.text.segments.tolist() == [[1] * 5 + [0] * 11]
  assert (batch.anchors.tolist(), batch.labels.tolist(), batch.weights.tolist()) == (
    [[4]],
    [[0, 1]],
    [1],
  )


def test_pair():
  batch = batch_of("rte", ("11 12", "21 22 23"), "not_entailment")
  assert batch.text.inputs.tolist() == [[S, 11, 12, D, 21, 22, 23, X, *[0] * 8]]
  assert batch.text.targets.tolist() == [[11, 12, D, 21, 22, 23, X, *[0] * 9]]
  assert (batch.anchors.tolist(), batch.labels.tolist()) == ([[7]], [[0, 1]])


def test_similarity_has_both_orders():
  batch = batch_of("mrpc", ("11 12 13", "21"), "equivalent")
  assert batch.text.inputs.tolist() == [[S, 11, 12, 13, D, 21, X, S, 21, D, 11, 12, 13, X, 0, 0]]
  assert batch.text.targets.tolist() == [[11, 12, 13, D, 21, X, 0, 21, D, 11, 12, 13, X, 0, 0, 0]]
  np.testing.assert_allclose(batch.text.weights, [([1 / 12] * 6 + [0]) * 2 + [0, 0]], rtol=1e-6)
  assert batch.text.positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0, 0]]
  assert batch.text.segments.tolist() == [[1] * 7 + [2] * 7 + [0, 0]]
  assert (batch.anchors.tolist(), batch.labels.tolist()) == ([[6, 13]], [[0, 1]])


def test_scores_are_soft_labels():
  np.testing.assert_allclose(
    batch_of("stsb", ("11", "21"), "3.4").labels, [[0, 0, 0, 0.6, 0.4, 0]], atol=1e-7
  )


def test_four_options_follow_one_passage():
  batch = batch_of("race-middle", ("11 12", "21", "31", "32 33", "34", "35"), "C")
  # 8 tokens for B and 7 for each other: the longest goes first, the others after it in their order.
  assert batch.text.inputs.tolist() == [
    [S, 11, 12, 21, D, 32, 33, X, S, 11, 12, 21, D, 31, X, 0],
    [S, 11, 12, 21, D, 34, X, S, 11, 12, 21, D, 35, X, 0, 0],
  ]
  assert batch.text.segments.tolist() == [[2] * 8 + [1] * 7 + [0], [3] * 7 + [4] * 7 + [0, 0]]
  assert batch.anchors.tolist() == [[14, 7, 16 + 6, 16 + 13]]
  assert batch.labels.tolist() == [[0, 0, 1, 0]]


def test_two_endings_follow_one_story():
  batch = batch_of("storycloze", ("11", "12", "13", "14", "21", "31 32"), "2")
  assert batch.text.inputs.tolist() == [
    [S, 11, 12, 13, 14, D, 31, 32, X, *[0] * 7],
    [S, 11, 12, 13, 14, D, 21, X, *[0] * 8],
  ]
  assert (batch.anchors.tolist(), batch.labels.tolist()) == ([[16 + 7, 8]], [[0, 1]])


ELEVENS, TWENTIES, THIRTIES = range(11, 20), range(21, 30), range(31, 40)  # nine ids each


@pytest.mark.parametrize(
  "name, texts, label, sequences",
  [
    # A single text may fill the context: 14 beside start and extract.
    ("sst2", (number(*ELEVENS, *TWENTIES),), "positive", [[S, *ELEVENS, *range(21, 26), X]]),
    # Of a pair, each keeps 16 / 2 - 2 = 6 from its head, however short the other is.
    ("snli", (number(*ELEVENS), "21"), "neutral", [[S, *range(11, 17), D, 21, X]]),
    (
      "snli",
      (number(*ELEVENS), number(*TWENTIES)),
      "neutral",
      [[S, *range(11, 17), D, *range(21, 27), X]],
    ),
    (
      "qqp",
      (number(*ELEVENS), "21 22"),
      "duplicate",
      [[S, *range(11, 17), D, 21, 22, X], [S, 21, 22, D, *range(11, 17), X]],
    ),
    (
      "storycloze",
      ("11 12", "13 14", "15 16", "17 18", "21", number(*TWENTIES)),
      "1",
      [[S, *range(11, 17), D, 21, X], [S, *range(11, 17), D, *range(21, 27), X]],
    ),
    # Of a passage with a question, the passage gives way: 13 less the others, for each option
    # alone.
    (
      "race-high",
      (number(*ELEVENS), "21 22 23", "31", "31 32", "31 32 33 34", number(*THIRTIES)),
      "D",
      [
        [S, *ELEVENS, 21, 22, 23, D, 31, X],
        [S, *range(11, 19), 21, 22, 23, D, 31, 32, X],
        [S, *range(11, 17), 21, 22, 23, D, 31, 32, 33, 34, X],
        [S, 11, 21, 22, 23, D, *THIRTIES, X],
      ],
    ),
  ],
)
def test_truncation(name, texts, label, sequences):
  batch = batch_of(name, texts, label)
  found = []
  for end in batch.anchors[0]:
    row, last = divmod(int(end), CONTEXT)
    first = last - batch.text.positions[row, last]
    found.append(batch.text.inputs[row, first : last + 1].tolist())
  assert found == sequences
