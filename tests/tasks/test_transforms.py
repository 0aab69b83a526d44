"""The paper's input transformations (figure 1), token by token: from one row to a packed batch."""

import numpy as np
import pytest
from number_words import Numbers

from gpt_jax.data.tokenizers.base import SpecialTokens
from gpt_jax.tasks.packing import OrderedBatches
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import find

S, D, X = 90, 91, 92  # ids of start, delimiter, extract
CONTEXT = 16


def batch_of(name, texts, label):
  task = find(name)
  (batch,) = OrderedBatches(
    task.encode([task.example(Row(texts, label, "f:1"))], Numbers(SpecialTokens(S)), CONTEXT), 1
  )
  return batch


def test_a_single_text_stands_between_start_and_extract():
  batch = batch_of("cola", ("11 12 13",), "acceptable")
  assert batch.rows.inputs.tolist() == [[S, 11, 12, 13, X, *[0] * 11]]
  assert batch.predictions.targets.tolist() == [[11, 12, 13, X, *[0] * 12]]
  np.testing.assert_allclose(batch.predictions.weights, [[0.25] * 4 + [0] * 12])
  assert batch.rows.positions.tolist() == [[0, 1, 2, 3, 4, *[0] * 11]]
  assert batch.rows.segments.tolist() == [[1] * 5 + [0] * 11]
  assert [array.tolist() for array in batch.labels] == [[[4]], [[0, 1]], [1]]


def test_a_delimiter_separates_a_pair():
  batch = batch_of("rte", ("11 12", "21 22 23"), "not_entailment")
  assert batch.rows.inputs.tolist() == [[S, 11, 12, D, 21, 22, 23, X, *[0] * 8]]
  assert batch.predictions.targets.tolist() == [[11, 12, D, 21, 22, 23, X, *[0] * 9]]
  assert [array.tolist() for array in batch.labels] == [[[7]], [[0, 1]], [1]]


def test_similarity_has_both_orders():
  batch = batch_of("mrpc", ("11 12 13", "21"), "equivalent")
  assert batch.rows.inputs.tolist() == [[S, 11, 12, 13, D, 21, X, S, 21, D, 11, 12, 13, X, 0, 0]]
  targets = [11, 12, 13, D, 21, X, 0, 21, D, 11, 12, 13, X, 0, 0, 0]
  assert batch.predictions.targets.tolist() == [targets]
  weights = ([1 / 12] * 6 + [0]) * 2 + [0, 0]
  np.testing.assert_allclose(batch.predictions.weights, [weights], rtol=1e-6)
  assert batch.rows.positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0, 0]]
  assert batch.rows.segments.tolist() == [[1] * 7 + [2] * 7 + [0, 0]]
  assert [array.tolist() for array in batch.labels] == [[[6, 13]], [[0, 1]], [1]]


def test_four_options_follow_one_passage():
  batch = batch_of("race-middle", ("11 12", "21", "31", "32 33", "34", "35"), "C")
  # B has 8 tokens, the others 7: the longest sequence is packed first, the others in order.
  assert batch.rows.inputs.tolist() == [
    [S, 11, 12, 21, D, 32, 33, X, S, 11, 12, 21, D, 31, X, 0],
    [S, 11, 12, 21, D, 34, X, S, 11, 12, 21, D, 35, X, 0, 0],
  ]
  assert batch.rows.segments.tolist() == [[2] * 8 + [1] * 7 + [0], [3] * 7 + [4] * 7 + [0, 0]]
  anchors = [14, 7, 16 + 6, 16 + 13]
  assert [array.tolist() for array in batch.labels] == [[anchors], [[0, 0, 1, 0]], [1]]


ELEVENS, TWENTIES, THIRTIES = range(11, 20), range(21, 30), range(31, 40)  # nine ids each
ELEVEN, TWENTY, THIRTY = (" ".join(map(str, ids)) for ids in (ELEVENS, TWENTIES, THIRTIES))


@pytest.mark.parametrize(
  "name, texts, label, sequences",
  [
    # A single text may fill the context: 14 tokens, start and extract.
    ("sst2", (f"{ELEVEN} {TWENTY}",), "positive", [[S, *ELEVENS, *range(21, 26), X]]),
    # A pair that fits is whole, of another each text keeps its first 16 / 2 - 2 = 6 tokens.
    ("snli", (ELEVEN, "21"), "neutral", [[S, *ELEVENS, D, 21, X]]),
    ("snli", (ELEVEN, TWENTY), "neutral", [[S, *range(11, 17), D, *range(21, 27), X]]),
    (
      "qqp",
      (ELEVEN, "21 22"),
      "duplicate",
      [[S, *ELEVENS, D, 21, 22, X], [S, 21, 22, D, *ELEVENS, X]],
    ),
    (
      "storycloze",
      ("11 12", "13 14", "15 16", "17 18", "21", TWENTY),
      "1",
      [[S, *range(11, 19), D, 21, X], [S, *range(11, 17), D, *range(21, 27), X]],
    ),
    # Only the article is cut: to 13 tokens less question and option, for each option separately.
    (
      "race-high",
      (ELEVEN, "21 22 23", "31", "31 32", "31 32 33 34", THIRTY),
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
def test_long_texts_are_truncated(name, texts, label, sequences):
  batch = batch_of(name, texts, label)
  kept = []
  for end in batch.labels.anchors[0]:
    row, last = divmod(int(end), CONTEXT)
    first = last - batch.rows.positions[row, last]
    kept.append(batch.rows.inputs[row, first : last + 1].tolist())
  assert kept == sequences
