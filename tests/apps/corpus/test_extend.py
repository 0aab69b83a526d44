"""prepare --extend: words of a text become tokens of a vocabulary and rows of a model's tables."""

import dataclasses
import io
import json
import types
from typing import Any

import numpy as np
import pytest
import sentencepiece
from flax.traverse_util import flatten_dict, unflatten_dict
from refused import refused

from gpt_jax.apps.corpus import extend
from gpt_jax.apps.corpus.corpus import CorpusConfig
from gpt_jax.apps.interop.tokenizers.spiece import ReleasedSentencePiece
from gpt_jax.apps.interop.tokenizers.tokenizer_json import HuggingFaceTokenizer
from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.gpt2 import ByteBPETokenizer, GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer
from gpt_jax.models.heads.masked import MaskedHead
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.pretrain_start import load_pretrain_start

PLAIN = ["the cat sat on the mat and the dog ran to the old red barn by the tabby egg ice seas"] * 9
NEW = "the dogcarts and the seaboard sat on a dogcart, the dogcarts by the sea"
released = pytest.mark.parity("released")


@pytest.fixture
def source(tmp_path):
  """20 documents of words that vocabularies split; dogcarts is the most frequent, most are rare."""
  rare = [f"{a}{b}{c}" for a in "bdgl" for b in ("ane", "ose", "ort") for c in ("gla", "dob", "y")]
  rows = [f"{NEW}. {n}" for n in range(19)] + [f"{NEW}. {' '.join(rare)}"]
  path = tmp_path / "text.jsonl"
  path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
  return str(path)


@pytest.fixture
def unknown(tmp_path):
  """A file with a frequent word of letters that vocabularies lack."""
  (tmp_path / "unknown.txt").write_text("жжж " * 100)
  return str(tmp_path / "unknown.txt")


def config(source, **changes):
  return CorpusConfig(source, valid_share=0.1, **changes)


def sentencepiece_unigram():
  model = io.BytesIO()
  settings = {"model_type": "unigram", "vocab_size": 30, "hard_vocab_limit": False}
  train = sentencepiece.SentencePieceTrainer.train
  train(sentence_iterator=iter(PLAIN), model_writer=model, minloglevel=2, **settings)
  return ReleasedSentencePiece(model.getvalue())


def wordpiece():
  return WordPieceTokenizer.train(PLAIN, 57)


def tokenizer_json():
  """As transformers writes BERT's, with a token above the vocabulary."""
  inner = wordpiece()._tokenizer
  inner.add_special_tokens(["<more>"])
  return HuggingFaceTokenizer(inner.to_str().encode())


def tokenizer_json_alone():
  """Without a list of added tokens, which others may leave out."""
  content = json.loads(wordpiece()._tokenizer.to_str())
  del content["added_tokens"]
  return HuggingFaceTokenizer(json.dumps(content).encode())


KINDS = {
  "SentencePiece BPE": lambda: SentencePieceTokenizer.train(PLAIN, 290),
  "SentencePiece unigram": sentencepiece_unigram,
  "WordPiece": wordpiece,
  "byte-level BPE": lambda: ByteBPETokenizer.train(PLAIN, 280),
  "tokenizer.json": tokenizer_json,
  "tokenizer.json without added tokens": tokenizer_json_alone,
}


@pytest.mark.parametrize(
  "kind", [pytest.param(name, marks=() if "Piece " in name else released) for name in KINDS]
)
def test_a_word_becomes_one_token(kind, source, tmp_path, capsys):
  old = KINDS[kind]()
  old.save(str(tmp_path / "old"))
  number = 10 if "BPE" in kind else 2
  assert extend.run(config(source), str(tmp_path / "out"), str(tmp_path / "old"), number) == ""
  new = load_tokenizer(str(tmp_path / "out" / "tokenizer"))
  assert type(new) is type(old) and new.vocab_size == old.vocab_size + number
  assert [new.piece(i) for i in range(old.vocab_size)] == [*map(old.piece, range(old.vocab_size))]
  before, after = old.encode(f"sat {NEW}"), new.encode(f"sat {NEW}")
  assert len(before) > len(after) and old.decode(before) == new.decode(after)
  assert len(new.encode(" dogcarts")) == 1 < len(old.encode(" dogcarts"))
  # Which second word gets a token depends on the old vocabulary.
  added = {new.piece(i).strip("▁") for i in range(old.vocab_size, new.vocab_size)}
  for text in ("the old red barn ran to cat, carts at", "naïve 日本"):
    others = " ".join(word for word in text.split() if word not in added)
    assert new.encode(others).tolist() == old.encode(others).tolist()
  shown = capsys.readouterr().out
  assert f"{number} new tokens, ids {old.vocab_size} to {new.vocab_size - 1}: " in shown
  assert "dogcarts" in shown and " before, " in shown
  assert TokenFile(str(tmp_path / "out"), "train").n_documents == 18


@released
def test_gpt1s_merges_go_on_from_the_ends_of_words(openai_tokenizer, source, unknown, tmp_path):
  """Where the mark is: in "dogcartsy" there is no end of a word before its y."""
  old = dataclasses.replace(openai_tokenizer, splitter="regex-1")  # as where spaCy is missing
  old.save(str(tmp_path / "old"))
  extend.run(config(f"{source},{unknown}"), str(tmp_path / "out"), str(tmp_path / "old"), 7)
  new = load_tokenizer(str(tmp_path / "out" / "tokenizer"))
  assert new.piece(new.vocab_size - 1) == "dogcarts</w>"
  assert new.piece(new.vocab_size - 7) == "ts</w>"
  assert len(new.encode("dogcarts")) == 1
  for text in ("dogcartsy", "the cat"):
    assert new.encode(text).tolist() == old.encode(text).tolist()


@released
def test_a_word_that_is_split_although_it_is_a_piece_is_left_out(tmp_path):
  """ "ab" is merged first, so that nothing is cut into "Ġa" and "b"."""
  pieces = (*BYTES, "ab", "Ġa", "Ġab", "<|endoftext|>")
  GPT2Tokenizer(pieces, (("a", "b"), ("Ġ", "a"), ("Ġa", "b"))).save(str(tmp_path / "old"))
  (tmp_path / "text.txt").write_text("ab ab ab cd\n\nab cd\n" * 20)
  extend.run(config(str(tmp_path / "text.txt")), str(tmp_path / "out"), str(tmp_path / "old"), 2)
  new = load_tokenizer(str(tmp_path / "out" / "tokenizer"))
  assert [new.piece(i) for i in new.encode(" ab cd")] == ["Ġ", "ab", "Ġcd"]


@pytest.fixture
def model(tiny_tokenizer, tmp_path):
  """A masked language model with special tokens above its vocabulary; random numbers."""
  tokenizer = tiny_tokenizer.with_special("pad", "cls", "sep", "mask")
  trunk = TransformerConfig(context=16, layers=1, width=16, heads=2, pooler=True)
  spec = ModelConfig(trunk.with_vocabulary(tokenizer), (MaskedHead(),), "bidirectional")
  rng = np.random.default_rng(0)
  arrays = {name: rng.normal(size=shape) for name, shape in parameter_shapes(spec).items()}
  meta = {"model": to_json(spec), "tokenizer_hash": tokenizer.hash, "trained_special": ["mask"]}
  folder = str(tmp_path / "old")
  npz.save(folder, unflatten_dict(arrays, sep="/"), meta, 7, tokenizer)
  return folder


def test_new_rows_are_means_and_special_ones_move(model, source, unknown, tmp_path):
  out = str(tmp_path / "out")
  path = extend.run(config(f"{source},{unknown}"), out, model, 93)
  old, new = load_model(model), load_model(path)
  size, special = old.tokenizer.vocab_size, old.spec.trunk.special_tokens
  assert new.spec.trunk.vocab_size == size + 93 == new.tokenizer.vocab_size
  assert new.tokenizer.special.mask == old.tokenizer.special.mask + 93
  word = new.tokenizer.encode(" dogcarts").item()
  parts = old.tokenizer.encode(" dogcarts")
  arrays = flatten_dict(old.params, sep="/")
  for name, array in flatten_dict(new.params, sep="/").items():
    before = arrays[name]
    if name not in ("trunk/tokens", "masked/bias"):
      np.testing.assert_array_equal(array, before, err_msg=name)
      continue
    assert len(array) == new.spec.trunk.rows > len(before)
    np.testing.assert_array_equal(array[:size], before[:size])
    np.testing.assert_allclose(array[word], before[parts].mean(axis=0), rtol=1e-6)
    moved = array[size + 93 : size + 93 + special]
    np.testing.assert_array_equal(moved, before[size : size + special])
  # As pretrain.run starts on the prepared text; the masked head is not new.
  text = load_tokenizer(str(tmp_path / "out" / "tokenizer"))
  objective = types.SimpleNamespace(
    attention="bidirectional", special=["mask"], format={"type": "gpt_format"}
  )
  settings: Any = types.SimpleNamespace(trunk=TransformerConfig(pooler=True), objective=objective)
  start = load_pretrain_start(path, settings, text)
  assert start.trunk == new.spec.trunk and start.trained_special == ("mask",)
  assert start.new_heads(parameter_shapes(new.spec)) == []


def test_what_is_no_vocabulary_to_extend(source, tmp_path, tiny_tokenizer):
  tiny_tokenizer.save(str(tmp_path / "old"))
  out, old = str(tmp_path / "out"), str(tmp_path / "old")
  for changes, to, name, number, fault in (
    ({}, out, old, 5000, "add_tokens=5000: the words of this text .* give"),
    ({}, out, old, 0, "add_tokens=0: how many tokens to add"),
    ({"tokenizer": old}, out, old, 5, "leave --tokenizer"),
    ({"source": "nowhere.txt"}, old, old, 5, "old is there already; choose another place"),
    ({}, out, str(tmp_path), 5, "no tokenizer here"),
  ):
    refused(fault, extend.run, config(**{"source": source} | changes), to, name, number)
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(PLAIN), model_writer=model, model_type="char", minloglevel=2
  )
  ReleasedSentencePiece(model.getvalue()).save(old)
  refused("kind spiece cannot be extended", extend.run, config(source), out, old, 5)
  assert not (tmp_path / "out").exists()
