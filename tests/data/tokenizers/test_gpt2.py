"""GPT-2's tokenizer: ids as by the published procedure, written out here; round trips."""

import random
import re
import unicodedata

import numpy as np
import pytest
from openai_examples import EXAMPLES, merged, mixed

from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer


def published_gpt2(texts: list[str], tokenizer: GPT2Tokenizer) -> list[list[int]]:
  """encoder.py: contractions, then letters, digits and others with the space before them; merged
  as bytes.
  """
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  signs = dict(zip(printable, map(chr, printable), strict=True))
  signs |= {
    value: chr(256 + n)
    for n, value in enumerate(value for value in range(256) if value not in signs)
  }
  ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
  ranks = {pair: rank for rank, pair in enumerate(tokenizer.merges)}
  results = []
  for text in texts:
    shape, found, at = "".join(map(kind_of, text)), [], 0
    while at < len(text):
      short = [
        short
        for short in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
        if text.startswith(short, at)
      ]
      end = (
        at + len(short[0])
        if short
        else re.compile(r" ?a+| ?0+| ?!+|\s+(?!\S)|\s+").match(shape, at).end()
      )
      found += [
        ids[piece] for piece in merged([signs[value] for value in text[at:end].encode()], ranks)
      ]
      at = end
    results.append(found)
  return results


def kind_of(letter: str) -> str:
  """One letter of its kind: a space, other white space, a letter, a digit, or anything else."""
  if (
    letter in "\t\n\x0b\x0c\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
    or "\u2000" <= letter <= "\u200a"
  ):
    return "\t"
  return " " if letter == " " else {"L": "a", "N": "0"}.get(unicodedata.category(letter)[0], "!")


@pytest.mark.parity("released")
def test_gpt2_ids_and_round_trip(folders):
  tokenizer = load_tokenizer(folders["gpt2"])
  rng = random.Random(0)
  assigned = [
    c for c in map(chr, range(0x30000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")
  ]
  texts = [*EXAMPLES.values(), *(mixed(rng) for _ in range(200))]
  texts = [re.sub("[\ud800-\udfff]", "", text)[:4000] for text in texts]
  texts += ["".join(rng.choices(assigned, k=30)) for _ in range(100)]
  for text, ids, expected in zip(
    texts, tokenizer.encode_many(texts), published_gpt2(texts, tokenizer), strict=True
  ):
    assert ids.dtype == np.int32
    assert ids.tolist() == expected, repr(text[:200])
    assert tokenizer.decode(ids) == text


@pytest.mark.parity("released")
def test_gpt2_lines_and_what_is_no_character(small):
  tokenizer = load_tokenizer(small["gpt2"])
  assert tokenizer.encode("\n").tolist() == [tokenizer.line_id]
  a, b = tokenizer.encode("the sea"), tokenizer.encode("was calm")
  np.testing.assert_array_equal(tokenizer.encode("the sea\nwas calm"), [*a, tokenizer.line_id, *b])
  assert tokenizer.encode("<|endoftext|>").max() < 256
  mark = tokenizer.vocab_size - 1
  marked = tokenizer.encode_marked("the sea<|endoftext|><|endoftext|>was calm")
  np.testing.assert_array_equal(marked, [*a, mark, mark, *b])
  np.testing.assert_array_equal(tokenizer.encode_marked("the sea"), a)
  assert tokenizer.decode([tokenizer.vocab_size - 1]) == "<|endoftext|>"
  assert (
    tokenizer.decode([0xC3, 0xA9]) == "é" and tokenizer.decode([0xA9]) == "\ufffd"
  )  # here a byte is its id
  assert tokenizer.encode("\ud800").tolist() == tokenizer.encode("?").tolist()
  assert np.flatnonzero(tokenizer.byte_fallback).tolist() == list(range(128, 256))


@pytest.mark.parity("released")
def test_where_words_begin(folders):
  tokenizer = load_tokenizer(folders["gpt2"])
  ids = tokenizer.encode("The captain, émigré\nsailed 10")
  starts = np.flatnonzero(tokenizer.word_starts(ids))
  words = [tokenizer.decode(part) for part in np.split(ids, starts[1:])]
  assert words == ["The", " captain", ",", " émigré", "\n", "sailed", " 10"]
