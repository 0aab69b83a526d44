"""RoBERTa's byte-level BPE: its ids in released files, and training."""

import json
import os

import pytest
from refused import refused

from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.gpt2 import ByteBPETokenizer, GPT2Tokenizer

pytestmark = pytest.mark.parity("released")

TEXT = "The old man walked slowly to the sea, and the sea was calm. She asked why he walked!\n" * 3
TEXTS = [
  "",
  "The sea\n\n was  calm",
  "naïve 日本 x\x00y",
  "<s>the</s> <mask><pad> <unk>madeupword0000",
]


@pytest.fixture(scope="module")
def tokenizer():
  return ByteBPETokenizer.train([TEXT], 300)


@pytest.fixture
def roberta(small, tmp_path):
  """GPT-2's pieces in RoBERTa's order, in the files that transformers has."""
  gpt2 = load_tokenizer(small["gpt2"])
  pieces = [*gpt2.pieces[::-1], "madeupword0000", "madeupword0001"]
  pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"]
  folder = tmp_path / "roberta"
  folder.mkdir()
  (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
  lines = ["#version: 0.2", *map(" ".join, gpt2.merges), ""]
  (folder / "merges.txt").write_text("\n".join(lines))
  return folder


def test_robertas_ids(roberta, small):
  tokenizer, gpt2 = load_tokenizer(roberta), load_tokenizer(small["gpt2"])
  last = tokenizer.vocab_size - 1
  assert isinstance(tokenizer, ByteBPETokenizer) and type(gpt2) is GPT2Tokenizer
  assert tokenizer.special.items() == [("cls", 0), ("pad", 1), ("sep", 2), ("mask", last)]
  assert tokenizer.special.count == 0
  for text in TEXTS:
    ids = tokenizer.encode(text)
    expected = [gpt2.piece(i) for i in gpt2.encode(text).tolist()]
    assert [tokenizer.piece(i) for i in ids.tolist()] == expected
    assert tokenizer.decode(ids) == text
    assert not set(ids.tolist()) & {0, 1, 2, 3, last}
  assert tokenizer.byte_fallback[3] and tokenizer.piece(tokenizer.line_id) == "Ċ"


def test_a_saved_folder_is_the_same_and_transformers_too(roberta, tmp_path):
  tokenizer = load_tokenizer(roberta)
  tokenizer.with_special("start").save(tmp_path / "saved")
  assert load_tokenizer(tmp_path / "saved") == tokenizer.with_special("start")
  os.remove(tmp_path / "saved" / "tokenizer.json")
  assert load_tokenizer(tmp_path / "saved") == tokenizer


def test_training(tokenizer):
  assert tokenizer.vocab_size == 300 and tokenizer.pieces[:4] == ("<s>", "<pad>", "</s>", "<unk>")
  assert tokenizer.pieces[-1] == "<mask>" and tokenizer.special.mask == 299
  assert "Ġsea" in tokenizer.pieces
  for text in TEXTS:
    assert tokenizer.decode(tokenizer.encode(text)) == text
  counts: dict[str, int] = {}
  for word in reversed(TEXT.split()):
    counts[word] = counts.get(word, 0) + 1
  assert ByteBPETokenizer.train(counts, 300) == tokenizer
  fault = (
    "vocab_size 200 is too small .* the least is vocab_size=261"  # the bytes, and the special ones
  )
  refused(fault, ByteBPETokenizer.train, [TEXT], 200)


def test_a_piece_that_no_merge_makes_is_refused(roberta):
  pieces = json.loads((roberta / "vocab.json").read_text())
  (roberta / "vocab.json").write_text(json.dumps({**pieces, "<extra>": len(pieces)}))
  refused("ends before '<extra>' is made", load_tokenizer, roberta)


@pytest.mark.parity
def test_ids_are_those_of_transformers(tokenizer, roberta, tmp_path):
  from transformers import RobertaTokenizer

  tokenizer.save(tmp_path)
  os.remove(tmp_path / "tokenizer.json")
  for folder in (tmp_path, roberta):
    ours, theirs = load_tokenizer(folder), RobertaTokenizer.from_pretrained(folder)
    for text in [TEXT, *(text for text in TEXTS if "<" not in text)]:
      assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)
