"""The masking rules of BERT, fairseq and ALBERT: exact counts and shares, and whole words."""

import collections
import random

import numpy as np
import pytest
from refused import refused

from gpt_jax.config import from_json, to_json
from gpt_jax.data.draws import Draw
from gpt_jax.data.tokenizers.gpt2 import ByteBPETokenizer
from gpt_jax.errors import InputError
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.masked_sentences import FullSentences, MaskedPairs
from gpt_jax.objectives.masking import choose_words

SPECIAL = ("cls", "sep", "mask")


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
  return tiny_tokenizer.with_special(*SPECIAL)


def batch_of(objective, tokenizer, rows, length, step=0):
  bound = objective.bind(tokenizer, length)
  ids = np.random.default_rng(step).integers(tokenizer.vocab_size, size=(rows, length + 1))
  ids = ids.astype(np.int32)
  return ids[:, :-1], bound(ids, Draw(1, step, np.arange(rows)))


def predicted(batch):
  """bool [B, T]: the positions that count."""
  chosen = np.zeros(batch.rows.inputs.shape, bool)
  rows, columns = np.nonzero(batch.predictions.weights)
  chosen[rows, batch.predictions.at[rows, columns]] = True
  return chosen


@pytest.mark.parametrize(
  ("count", "length", "abs"),
  [
    ("rounded", 512, 5e-4),  # 77 of 512
    ("probabilistic", 512, 1e-4),
    ("probabilistic", 125, 5e-4),
    ("probabilistic", 6, 1e-3),
  ],
)
def test_fifteen_percent_of_a_million_positions(tokenizer, count, length, abs):
  _, batch = batch_of(Masked(count=count), tokenizer, -(-(10**6) // length), length)
  chosen = predicted(batch)
  assert chosen.mean() == pytest.approx(0.15, abs=abs)
  # All positions are equally likely.
  np.testing.assert_allclose(chosen.mean(axis=0), 0.15, atol=5 * (0.13 / len(chosen)) ** 0.5)


@pytest.mark.parametrize(("length", "count"), [(64, 10), (128, 19), (256, 38), (512, 77), (3, 1)])
def test_the_counts_of_bert(tokenizer, length, count):
  _, batch = batch_of(Masked(), tokenizer, 8, length)
  assert batch.predictions.at.shape == (8, count)
  assert predicted(batch).sum(axis=1).tolist() == [count] * 8
  _, batch = batch_of(Masked(max_predictions=5), tokenizer, 8, length)
  assert predicted(batch).sum(axis=1).tolist() == [min(count, 5)] * 8


def test_the_counts_of_fairseq_are_rounded_by_chance(tokenizer):
  """Of 30 tokens 4 or 5, of 20 always 3: floor(0.15 n + u)."""
  counts = predicted(batch_of(Masked(count="probabilistic"), tokenizer, 4000, 30)[1]).sum(axis=1)
  assert set(counts) == {4, 5} and np.mean(counts == 5) == pytest.approx(0.5, abs=0.03)
  counts = predicted(batch_of(Masked(count="probabilistic"), tokenizer, 100, 20)[1]).sum(axis=1)
  assert set(counts) == {3}
  counts = predicted(batch_of(Masked(count="probabilistic"), tokenizer, 4000, 2)[1]).sum(axis=1)
  assert set(counts) == {0, 1} and counts.mean() == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("unit", ["token", "word", "ngram"])
def test_eighty_ten_ten(tokenizer, unit):
  ids, batch = batch_of(Masked(unit=unit), tokenizer, 2000, 512)
  chosen = predicted(batch)
  inputs, targets = batch.rows.inputs[chosen], ids[chosen]
  used, at = batch.predictions.weights > 0, batch.predictions.at
  original = np.take_along_axis(ids, at, axis=1)
  np.testing.assert_array_equal(batch.predictions.targets[used], original[used])
  assert (batch.rows.inputs == ids)[~chosen].all()
  n, size = len(inputs), tokenizer.vocab_size
  assert n > 140_000
  for got, share in (
    (inputs == tokenizer.special["mask"], 0.8),
    (inputs == targets, 0.1 + 0.1 / size),
    ((inputs < size) & (inputs != targets), 0.1 - 0.1 / size),
  ):
    assert np.mean(got) == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / n))


@pytest.mark.parametrize(
  ("random_ids", "names", "unknown"),
  [("text", (), None), ("text_and_mask", ("mask",), 0), ("all", SPECIAL, None)],
)
def test_where_random_tokens_come_from(tokenizer, random_ids, names, unknown):
  objective = FullSentences(masked=0.0, random=1.0, random_ids=random_ids)
  _, batch = batch_of(objective, tokenizer, 500, 512)
  text = [i for i in range(tokenizer.vocab_size) if i != unknown]
  check_uniform(batch, [*text, *(tokenizer.special[name] for name in names)])


def check_uniform(batch, allowed):
  """Predicted positions hold these ids, ascending, all equally often."""
  ids, counts = np.unique(batch.rows.inputs[predicted(batch)], return_counts=True)
  assert ids.tolist() == allowed
  expected = counts.mean()
  assert abs(counts - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.parity("released")
@pytest.mark.parametrize(
  ("random_ids", "allowed"),
  [
    ("text_and_mask", range(4, 270)),  # all but the first four of fairseq's dictionary
    ("text", range(3, 269)),
    ("all", range(270)),
  ],
)
def test_random_tokens_of_a_vocabulary_that_holds_the_special_ones(random_ids, allowed):
  """RoBERTa's: <s> 0, <pad> 1, </s> 2, <unk> 3, and <mask> last."""
  roberta = ByteBPETokenizer.train(["the cat sat on the mat"], 270)
  objective = FullSentences(masked=0.0, random=1.0, random_ids=random_ids)
  _, batch = batch_of(objective, roberta, 500, 512)
  check_uniform(batch, [*allowed])


def words_of(tokenizer, ids):
  """Lists of positions of one row, a list a word."""
  starts = np.flatnonzero(tokenizer.word_starts(ids))
  return np.split(np.arange(len(ids)), starts[1:])


@pytest.mark.parametrize("unit", ["word", "ngram"])
def test_words_are_never_split(tokenizer, unit):
  ids, batch = batch_of(Masked(unit=unit), tokenizer, 300, 128)
  chosen, several = predicted(batch), 0
  assert chosen.sum(axis=1).max() == 19
  for row, marked in zip(ids, chosen, strict=True):
    for word in words_of(tokenizer, row):
      assert marked[word].all() or not marked[word].any()
      several += len(word) > 1 and marked[word[0]]
  assert several > 100
  chosen, split = predicted(batch_of(Masked(), tokenizer, 300, 128)[1]), []
  for row, marked in zip(ids, chosen, strict=True):
    split += [0 < marked[word].mean() < 1 for word in words_of(tokenizer, row)]
  assert np.mean(split) > 0.05  # single tokens do split them


def albert(words, noise, sizes, count):
  """create_masked_lm_predictions of google-research/albert; words are lists of positions."""
  turns = sorted(range(len(words)), key=lambda word: noise[words[word][0]])
  taken = set()
  for word in turns:
    if len(taken) >= count:
      break
    grams = [[i for w in words[word : word + n] for i in w] for n in (1, 2, 3)]
    n = sizes[words[word][0]]
    gram = grams[n - 1]
    while len(taken) + len(gram) > count:
      if n == 1:
        break
      n -= 1
      gram = grams[n - 1]
    if len(taken) + len(gram) > count or taken & set(gram):
      continue
    taken |= set(gram)
  return taken


def test_ngrams_are_chosen_as_in_alberts_code():
  draw = random.Random(0)
  for _ in range(300):
    words, position = [], draw.randint(0, 2)
    numbers = [-1] * position
    for word in range(draw.randint(1, 30)):
      size = draw.choice((1, 1, 1, 2, 3, 6))
      words.append(list(range(position, position + size)))
      numbers += [word] * size
      position += size
      if draw.random() < 0.1:  # a special token
        numbers.append(-1)
        position += 1
    noise = [draw.random() for _ in numbers]
    sizes = [draw.choice((1, 2, 3)) for _ in numbers]
    count = draw.randint(0, len(numbers))
    chosen = choose_words(np.array(numbers), np.array(noise), np.array(sizes), count)
    assert set(np.flatnonzero(chosen)) == albert(words, noise, sizes, count)


def test_the_shares_of_ngrams(tokenizer):
  """Every token a word, and few of them masked, so that n-grams hardly meet: 6/11, 3/11, 2/11."""
  line = np.full((4000, 513), tokenizer.line_id, np.int32)
  batch = Masked(unit="ngram", share=0.04).bind(tokenizer, 512)(line, Draw(0, 0, np.arange(4000)))
  sizes = collections.Counter()
  for row in predicted(batch):
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row, [0]])))
    sizes.update((edges[1::2] - edges[::2]).tolist())
  total = sum(sizes.values())
  # A row's last n-gram is cut to fit, of about 12; neighbors look like longer ones.
  for n, share in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
    assert sizes[n] / total == pytest.approx(share, abs=0.03)


def full_sentences(tokenizer, objective, rows=2000, length=64):
  """A batch of rows "<s> 10 ids </s> 10 ids </s> …", and where special tokens are."""
  ids = np.random.default_rng(0).integers(tokenizer.vocab_size, size=(rows, length + 1))
  ids[:, 10::11] = -2
  ids[:, 55:] = -1
  batch = objective.bind(tokenizer, length)(ids.astype(np.int32), Draw(0, 0, np.arange(rows)))
  is_special = np.zeros((rows, length), bool)
  is_special[:, 0] = is_special[:, 11:56:11] = True
  return batch, is_special


def test_special_tokens_are_predicted_only_if_asked(tokenizer):
  batch, is_special = full_sentences(tokenizer, FullSentences())
  assert not (predicted(batch) & is_special).any()
  sep, cls = tokenizer.special["sep"], tokenizer.special["cls"]
  assert (batch.rows.inputs[:, 0] == cls).all() and (batch.rows.inputs[:, 11:56:11] == sep).all()
  assert (batch.rows.segments == (np.arange(64) < 56)).all()
  # The count is of the length with special tokens.
  assert predicted(batch).sum(axis=1).tolist() == [round(0.15 * 56)] * 2000
  objective = FullSentences(special_too=True, count="probabilistic")
  batch, is_special = full_sentences(tokenizer, objective)
  chosen = predicted(batch)
  assert not chosen[:, 56:].any()
  for where in (is_special, ~is_special & (np.arange(64) < 56)):
    assert chosen[where].mean() == pytest.approx(0.15, abs=0.01)
  assert {cls, sep} <= set(batch.predictions.targets[batch.predictions.weights > 0].tolist())


@pytest.mark.parametrize("unit", ["word", "ngram"])
def test_a_word_ends_at_a_special_token(tokenizer, unit):
  """Most pieces of the rows go on with a word, also those that come after a special token."""
  batch, is_special = full_sentences(tokenizer, FullSentences(unit=unit, masked=0.0, random=0.0))
  chosen = predicted(batch)
  assert not (chosen & is_special).any()
  for ids, marked in zip(batch.rows.inputs[:200], chosen, strict=False):
    for begin in range(1, 56, 11):
      stretch = slice(begin, begin + 10)
      for word in words_of(tokenizer, ids[stretch]):
        assert len(set(marked[stretch][word])) == 1


def test_whole_sentences_are_chosen(tokenizer):
  objective = FullSentences(unit="sentence", share=0.4)
  batch, is_special = full_sentences(tokenizer, objective)
  chosen = predicted(batch)
  assert not (chosen & is_special).any()
  stretches = np.stack([chosen[:, begin : begin + 10] for begin in range(1, 56, 11)], axis=1)
  counts = stretches.sum(axis=2)
  assert set(counts.ravel().tolist()) == {0, 10}
  assert (counts.sum(axis=1) == 20).all()  # two fit into 0.4 * 56 tokens
  assert (counts > 0).mean(axis=0) == pytest.approx(np.full(5, 0.4), abs=0.05)  # any of the five


@pytest.mark.parametrize("kind", [Masked, MaskedPairs])
def test_rows_without_marks_have_no_sentences_to_choose(kind):
  refused("unit=sentence: the rows of this objective do not tell", kind, unit="sentence")


def test_a_config_is_saved_and_refuses_what_cannot_be(tokenizer, openai_tokenizer):
  objective = Masked(count="probabilistic", unit="ngram", random_ids="all", copies=10)
  assert from_json(to_json(objective)) == objective
  assert from_json({"type": "masked", "share": 0.2}) == Masked(share=0.2)  # of an older run
  refused(r"masked=0.8 and objective.random=0.5: shares of the same", Masked, random=0.5)
  with pytest.raises(InputError, match="special_too=true: needs unit=token, not unit=word"):
    FullSentences(special_too=True, unit="word")
  Masked(unit="word").bind(openai_tokenizer.with_special("mask"), 8)
