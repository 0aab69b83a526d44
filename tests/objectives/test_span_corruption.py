"""Span corruption and prefix LM: exact counts, the text back, the same draws on any hosts."""

import itertools

import jax
import numpy as np
import pytest

from gpt_jax.config import from_json, to_json
from gpt_jax.data.draws import Draw
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.objectives.causal import Causal, PrefixLM
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.objective import example_batch
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.programs.pretrain import PretrainConfig

LAYOUTS = ("encoder_decoder", "prefix")
# random_spans_helper of text-to-text-transfer-transformer: text -> input, target.
T5_TABLE = {568: (512, 114), 284: (256, 58), 141: (128, 29), 70: (64, 14)}


def texts(lengths, size, vocab_size=250):
  """Rows of random ids [B, size], -1 past the given lengths."""
  rows = np.random.default_rng(0).integers(vocab_size, size=(len(lengths), size)).astype(np.int32)
  rows[np.arange(size) >= np.asarray(lengths)[:, None]] = -1
  return rows


def bind(tokenizer, layout, length, **options):
  """The bound objective, its tokenizer with special tokens, and the columns that it reads."""
  objective = SpanCorruption(layout, **options)
  tokenizer = tokenizer.with_special(*objective.special)
  return objective.bind(tokenizer, length), tokenizer, objective.text_length(length)


def pairs(batch):
  """The input and target of each row, as lists of ids, without padding."""
  found = []
  predictions = batch.predictions
  for row, (ids, used) in enumerate(zip(predictions.targets, predictions.weights, strict=True)):
    target = ids[used > 0].tolist()
    if batch.source is not None:
      source = batch.source.inputs[row][batch.source.segments[row] > 0].tolist()
    else:
      source = batch.rows.inputs[row][batch.rows.prefix[row]].tolist()
    found.append((source, target))
  return found


def restored(source, target, special):
  """The text of which a model sees `source` and writes `target`."""
  sentinels = {special[name]: name for name in special if name.startswith("sentinel_")}
  assert source.pop() == target.pop() == special["sep"]

  def spans(ids):
    """The ids before the first sentinel, and those after each."""
    parts, order = [[]], []
    for i in ids:
      if i in sentinels:
        order.append(sentinels[i])
        parts.append([])
      else:
        parts[-1].append(i)
    assert order == [f"sentinel_{n}" for n in range(len(order))]
    return parts

  kept, hidden = spans(source), spans(target)
  assert hidden[0] == [] and kept[-1] == []  # the target begins with a sentinel, the last is hidden
  assert all(kept[:-1]) and all(hidden[1:])  # no span is empty
  text = list(itertools.chain(*(a + b for a, b in zip(kept, hidden[1:], strict=False))))
  return text, [len(part) for part in kept[:-1]], [len(part) for part in hidden[1:]]


@pytest.mark.parametrize("text, lengths", T5_TABLE.items())
def test_t5s_lengths(tiny_tokenizer, text, lengths):
  objective = SpanCorruption("encoder_decoder")
  assert objective.text_length(lengths[0]) == text
  assert tuple(int(x[0]) for x in objective.lengths(np.array([text]))) == lengths
  batch = bind(tiny_tokenizer, "encoder_decoder", lengths[0])[0](
    texts([text], text), Draw(0, 0, np.arange(1))
  )
  assert batch.source.inputs.shape == (1, lengths[0]) and batch.source.segments.all()
  assert batch.rows.inputs.shape == (1, lengths[1]) and batch.predictions.weights.all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_are_exact_and_the_text_comes_back(tiny_tokenizer, layout):
  """For every length up to the longest, with padding after it."""
  objective, tokenizer, columns = bind(tiny_tokenizer, layout, 256)
  rows = texts(range(2, columns + 1), columns)
  batch = objective(rows, Draw(5, 3, np.arange(len(rows))))
  for row, pair in zip(rows, pairs(batch), strict=True):
    text, kept, hidden = restored(*pair, tokenizer.special)
    assert text == row[row >= 0].tolist()
    expected = min(max(round(0.15 * len(text)), 1), len(text) - 1)
    assert sum(hidden) == expected and len(hidden) == max(1, round(expected / 3))
    assert len(kept) == len(hidden)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_share_of_words_among_what_is_predicted(tiny_tokenizer, layout):
  bound, tokenizer, size = bind(tiny_tokenizer, layout, 64)
  batch = bound(texts([size] * 4, size), Draw(0, 0, np.arange(4)))
  special = {i for _, i in tokenizer.special.items()}
  of_text = [i not in special for _, ids in pairs(batch) for i in ids]
  assert SpanCorruption(layout).word_share(64) == np.mean(of_text) < 0.75
  assert Causal().word_share(64) == 1


@pytest.mark.parametrize("share, span", [(0.5, 1.0), (0.9, 1.0), (0.5, 10.0), (0.01, 3.0)])
def test_other_shares(tiny_tokenizer, share, span):
  objective, tokenizer, columns = bind(
    tiny_tokenizer, "prefix", 64, share=share, span=span, sentinels=60
  )
  rows = texts(range(2, columns + 1), columns)
  batch = objective(rows, Draw(0, 0, np.arange(len(rows))))
  for row, pair in zip(rows, pairs(batch), strict=True):
    text, _, hidden = restored(*pair, tokenizer.special)
    assert text == row[row >= 0].tolist()
    assert sum(hidden) == min(max(np.rint(share * len(text)), 1), len(text) - 1)


def test_texts_of_less_than_two_tokens_predict_nothing(tiny_tokenizer):
  for layout in LAYOUTS:
    objective, _, columns = bind(tiny_tokenizer, layout, 32)
    batch = objective(texts([0, 1], columns), Draw(0, 0, np.arange(2)))
    assert not batch.predictions.weights.any() and not batch.rows.segments.any()


def test_all_divisions_are_equally_likely():
  """Ten tokens of which five are hidden in two spans: four divisions of each kind."""
  objective = SpanCorruption(share=0.5, span=2.5)
  assert from_json(to_json(objective)) == objective
  count = 8000
  hidden, span = objective.divide(np.full(count, 10), 10, Draw(0, 0, np.arange(count)))
  assert (hidden.sum(axis=1) == 5).all() and not hidden[:, 0].any() and hidden[:, -1].all()
  _, frequency = np.unique(hidden, axis=0, return_counts=True)
  assert len(frequency) == 16
  assert abs(frequency - count / 16).max() < 5 * np.sqrt(count / 16)
  assert (np.diff(span, axis=1) >= 0).all() and (span[:, -1] == 1).all()


def test_the_prefix_layout(tiny_tokenizer):
  """The end of the input predicts the target's first token; each of its tokens the next."""
  objective, _, columns = bind(tiny_tokenizer, "prefix", 64)
  batch = objective(texts([columns, 20], columns), Draw(0, 0, np.arange(2)))
  rows, predictions = batch.rows, batch.predictions
  assert rows.inputs.shape == (2, 64)
  for n in range(2):
    used = predictions.weights[n] > 0
    at, targets = predictions.at[n][used], predictions.targets[n][used]
    assert at[0] == rows.prefix[n].sum() - 1  # the last position of the input
    assert (np.diff(at) == 1).all()
    np.testing.assert_array_equal(rows.inputs[n][at[1:]], targets[:-1])
    assert rows.segments[n].sum() == min(64, at[-1] + 2)  # the end itself is read where it fits


def test_the_decoders_rows_are_shifted_right(tiny_tokenizer):
  objective, tokenizer, columns = bind(tiny_tokenizer, "encoder_decoder", 64)
  batch = objective(texts([columns, 20], columns), Draw(0, 0, np.arange(2)))
  used = batch.predictions.weights > 0
  assert (batch.rows.inputs[:, 0] == tokenizer.special["pad"]).all()
  np.testing.assert_array_equal(
    batch.rows.inputs[:, 1:][used[:, 1:]], batch.predictions.targets[:, :-1][used[:, 1:]]
  )
  np.testing.assert_array_equal(batch.rows.segments, used)


def test_prefix_lm_cuts_anywhere():
  """Of n tokens the n - 1 cuts are equally likely; what is after the cut is predicted."""
  bound = PrefixLM().bind(None, 8)
  rows = texts([9] * 4000 + [3, 2, 1, 0], 9)
  batch = bound(rows, Draw(0, 0, np.arange(4004)))
  cuts = batch.rows.prefix[:4000].sum(axis=1)
  _, frequency = np.unique(cuts, return_counts=True)
  assert len(frequency) == 8 and abs(frequency - 500).max() < 5 * np.sqrt(500)
  np.testing.assert_array_equal(batch.predictions.weights[:4000].sum(axis=1), 9 - cuts)
  first = batch.predictions.weights[:4000].argmax(axis=1)
  np.testing.assert_array_equal(first, cuts - 1)
  assert batch.predictions.weights[4000:].sum(axis=1).tolist() in ([2, 1, 0, 0], [1, 1, 0, 0])


@pytest.mark.parametrize(
  "objective, columns",
  [
    (SpanCorruption("encoder_decoder"), 34),
    (SpanCorruption(), 29),
    (PrefixLM(), 33),
    (Causal(), 33),
    (Masked(), 33),
  ],
)
def test_a_row_of_text_is_as_long_as_the_objective_says(
  prepared, tiny_tokenizer, objective, columns
):
  """A batch that is made before there is a text has the shapes of all others."""
  windows = objective.windows(TokenFile(prepared, "train"), WindowsConfig(3, 32), seed=2)
  rows = windows(0)
  assert rows.shape == (3, columns) and (rows >= 0).all(axis=1).any()
  bound = objective.bind(tiny_tokenizer.with_special(*objective.special), 32)
  batch = bound(rows, windows.draw(0, np.arange(3)))
  example = example_batch(objective, bound, 32, 3)
  shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), x) for x in (batch, example)]
  assert shapes[0] == shapes[1] and batch.rows.inputs.shape[0] == 3


def test_an_encoders_rows_need_an_encoder():
  """The layout must be that of the trunk."""
  with pytest.raises(InputError, match="SpanCorruption as configured needs an encoder-decoder"):
    PretrainConfig(objective=SpanCorruption("encoder_decoder"))
  for objective in (Causal(), SpanCorruption()):
    with pytest.raises(InputError, match="has nothing for an encoder to read; the trunk is a T5C"):
      PretrainConfig(T5Config(), objective)


def test_bad_lengths(tiny_tokenizer):
  with pytest.raises(InputError, match="data.length=2: too short"):
    SpanCorruption().text_length(2)
  objective = SpanCorruption("encoder_decoder", sentinels=27)
  with pytest.raises(InputError, match="sentinels=27: data.length=512 .* 28 spans; use 28"):
    objective.bind(tiny_tokenizer.with_special(*objective.special), 512)
