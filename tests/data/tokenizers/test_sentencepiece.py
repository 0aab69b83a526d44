"""Vocabularies: training on counts, exact ids, round trips, and damaged folders."""

import collections
import io
import re

import numpy as np
import pytest
import sentencepiece
from refused import refused

from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer, plain
from gpt_jax.data.word_counts import counts_of

TEXT = [
  "The old man walked slowly to the sea, and the sea was calm.",
  "She asked the old man why he walked; he said nothing at all.",
  "Nothing was said about the calm old sea, nor about the walking man.",
] * 3


@pytest.fixture(scope="module")
def tokenizer() -> SentencePieceTokenizer:
  return SentencePieceTokenizer.train(TEXT, 330)


def test_counts_train_the_same_model_as_the_text():
  model = io.BytesIO()
  settings = {"model_type": "bpe", "vocab_size": 330, "character_coverage": 1.0}
  settings |= {"normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True}
  settings |= {"unk_id": 0, "bos_id": -1, "eos_id": -1, "pad_id": -1}
  settings |= {"control_symbols": ["<line>"], "minloglevel": 2}
  train = sentencepiece.SentencePieceTrainer.train
  train(sentence_iterator=iter(TEXT), model_writer=model, **settings)
  direct = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
  counted = SentencePieceTokenizer.train(collections.Counter(" ".join(TEXT).split()), 330).processor
  assert [counted.id_to_piece(i) for i in range(330)] == [direct.id_to_piece(i) for i in range(330)]


def test_the_order_of_words_is_no_matter(tokenizer):
  words = counts_of(TEXT, SentencePieceTokenizer.training_words)
  assert SentencePieceTokenizer.train(dict(reversed(words.items())), 330).model == tokenizer.model


def test_ids(tokenizer):
  assert tokenizer.vocab_size == 330
  assert dict(tokenizer.special.items()) == {"start": 330, "delimiter": 331, "extract": 332}
  assert tokenizer.encode("\n").tolist() == [tokenizer.line_id] == [1]
  assert min(tokenizer.encode("the")) > 257  # the unknown id, the line and 256 bytes come first
  assert tokenizer.byte_fallback.sum() == 257  # the unknown id and 256 bytes


ROUND_TRIPS = ["the sea was calm", "the sea\nwas calm", "\nthe\n\nsea\n", "", "\n"]
ROUND_TRIPS += ["<line> <unk> is text", "日本 ☃ x\x00y", "naïve $5"]


def test_round_trips(tokenizer):
  for text, ids in zip(ROUND_TRIPS, tokenizer.encode_many(ROUND_TRIPS), strict=True):
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert np.count_nonzero(ids == tokenizer.line_id) == text.count("\n")
    assert ids.max(initial=0) < tokenizer.vocab_size
    assert tokenizer.decode(ids) == text
    np.testing.assert_array_equal(tokenizer.encode(text), ids)
  assert tokenizer.encode_many([]) == []


def test_words_never_merge_across_spaces(tokenizer):
  """A long paragraph may be cut at any space, and the ids put together again."""
  left, right = "the old man walked", "slowly to the sea"
  together = tokenizer.encode(f"{left} {right}")
  np.testing.assert_array_equal(
    together, np.concatenate([tokenizer.encode(left), tokenizer.encode(right)])
  )


def words_of(tokenizer, text):
  ids = tokenizer.encode(text)
  starts = np.flatnonzero(tokenizer.word_starts(ids))
  return ["".join(map(tokenizer.piece, part)) for part in np.split(ids, starts[1:])]


def test_where_words_begin(tokenizer):
  assert words_of(tokenizer, "the cat, a mat\nsat") == "▁the ▁cat , ▁a ▁mat <line> ▁sat".split()
  *_, word = words_of(tokenizer, "the 🚢s")
  assert word.startswith("▁<0x") and word.endswith("s")  # bytes of a character go on with its word
  ids = tokenizer.encode("the cat")
  assert tokenizer.word_starts(ids[-1:]).all()  # the first one, wherever the text was cut


def test_normalization(tokenizer):
  assert tokenizer.decode(tokenizer.encode("  The   SEA—was “calm”…")) == 'the sea - was "calm"...'
  assert plain("‘a’ “b” c—d e--f g -- h i-j") == "'a' \"b\" c - d e - f g - h i-j"
  assert plain("nothing to do") == "nothing to do"
  # Bytes of a command line that are no text.
  np.testing.assert_array_equal(tokenizer.encode("caf\udce9 \ud800"), tokenizer.encode("caf? ?"))


def test_save_and_load(tokenizer, tmp_path):
  tokenizer.save(tmp_path)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer.model"]
  loaded = load_tokenizer(tmp_path)
  assert loaded == tokenizer and loaded.hash == tokenizer.hash
  assert loaded.hash != SentencePieceTokenizer.train(TEXT, 331).hash
  damaged = tokenizer.model[:100] + b"\0" + tokenizer.model[101:]
  (tmp_path / "tokenizer.model").write_bytes(damaged)
  refused(r"tokenizer\.model: damaged", load_tokenizer, tmp_path)


@pytest.mark.parametrize(
  ("size", "fault", "further"),
  [
    (5000, r"vocab_size 5000 is more .* most is vocab_size=(\d+)", 1),
    (100, r"vocab_size 100 is too small .* least is vocab_size=(\d+)", -1),
  ],
)
def test_train_says_how_large_a_vocabulary_may_be(size, fault, further):
  possible = int(re.search(fault, refused(fault, SentencePieceTokenizer.train, TEXT, size))[1])
  assert SentencePieceTokenizer.train(TEXT, possible).vocab_size == possible
  refused("vocab_size", SentencePieceTokenizer.train, TEXT, possible + further)


def test_texts_without_spaces_or_words_are_named():
  fault = "longer than 65,536 bytes.* spaces between the words"
  refused(fault, SentencePieceTokenizer.train, ["a" * 70_000], 300)
  refused("no text", SentencePieceTokenizer.train, [], 300)
