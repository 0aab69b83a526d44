"""GPT-1's tokenizer: ids as by the published procedure, written out here; without spaCy."""

import json
import random
import re
import sys
import warnings

import numpy as np
import pytest
from openai_examples import EXAMPLES, merged, mixed

from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.token_writer import TokenWriter
from gpt_jax.data.tokenizers import gpt1
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.gpt1 import REGEX, SPACY, GPT1Tokenizer
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.errors import InputError


def standardized(text: str) -> str:
  """text_utils.py: replace five characters, put spaces around runs of marks, then tidy the white
  space.
  """
  for old, new in (("—", "-"), ("–", "-"), ("―", "-"), ("…", "..."), ("´", "'")):
    text = text.replace(old, new)
  runs = "|".join(re.escape(mark) + "+" for mark in '-~!";?+,)(/*[]}{|_')
  text = re.sub(f"({runs})", r" \1 ", text)
  text = re.sub(r"\s*\n\s*", " \n ", text)
  return re.sub(r"[^\S\n]+", " ", text).strip()


def published_gpt1(texts: list[str], tokenizer: GPT1Tokenizer) -> list[list[int]]:
  import ftfy
  import spacy

  nlp, ids = spacy.blank("en"), {piece: i for i, piece in enumerate(tokenizer.pieces)}
  ranks = {pair: rank for rank, pair in enumerate(tokenizer.merges)}
  memory, results = {}, []
  for text in texts:
    found = []
    for token in nlp(standardized(ftfy.fix_text(text))):
      word = token.text.lower()
      if word not in memory:
        pieces = " ".join(merged([*word[:-1], word[-1] + "</w>"], ranks))
        memory[word] = "\n</w>" if pieces == "\n  </w>" else pieces
      found += [ids.get(piece, 0) for piece in memory[word].split(" ")]
    results.append(found)
  return results


@pytest.mark.parity("released")
def test_gpt1_ids_are_those_of_the_published_procedure(folders):
  tokenizer = load_tokenizer(folders["gpt1"])
  rng = random.Random(0)
  texts = [*EXAMPLES.values(), *(mixed(rng) for _ in range(400))]
  for text, ids, expected in zip(
    texts, tokenizer.encode_many(texts), published_gpt1(texts, tokenizer), strict=True
  ):
    assert ids.dtype == np.int32
    assert ids.tolist() == expected, repr(text[:200])


@pytest.mark.parity("released")
def test_gpt1_ids_of_novels(data_root):
  tokenizer = load_tokenizer(str(data_root / "gpt1_release"))
  novels = sorted((data_root / "novels").glob("*.txt"))[::12]
  texts = [path.read_text(encoding="utf-8")[50_000:80_000] for path in novels]
  for ids, expected in zip(
    tokenizer.encode_many(texts), published_gpt1(texts, tokenizer), strict=True
  ):
    assert ids.tolist() == expected


@pytest.mark.parity("released")
def test_the_regex_finds_the_words_of_novels(data_root):
  from_spacy = load_tokenizer(str(data_root / "gpt1_release"))
  from_regex = GPT1Tokenizer(from_spacy.pieces, from_spacy.merges, REGEX)
  novels = sorted((data_root / "novels").glob("*.txt"))[5::12]
  lines = [
    line for path in novels for line in path.read_text(encoding="utf-8")[:100_000].split("\n")
  ]
  both = zip(from_spacy.encode_many(lines), from_regex.encode_many(lines), strict=True)
  equal = [(len(ids), np.array_equal(ids, others)) for ids, others in both if len(ids)]
  assert (
    sum(n for n, same in equal if same) / sum(n for n, _ in equal) > 0.99
  )  # by line; a line has 20 tokens


def test_the_released_ids(data_root, spacy_there):
  tokenizer = load_tokenizer(str(data_root / "gpt1_release"))
  assert (tokenizer.vocab_size, tokenizer.line_id, tokenizer.unknown_id) == (40478, 40477, 0)
  assert dict(tokenizer.special.items()) == {"start": 40478, "delimiter": 40479, "extract": 40480}
  assert [tokenizer.piece(i) for i in (0, 963, 6353, 9503, 40477)] == [
    *("<unk>", "very</w>", "positive</w>", "negative</w>", "\n</w>")
  ]
  assert np.flatnonzero(tokenizer.byte_fallback).tolist() == [0]
  tokenizer = load_tokenizer(str(data_root / "gpt2_release"))
  assert (tokenizer.vocab_size, tokenizer.line_id) == (50257, 198)
  assert (tokenizer.special.start, tokenizer.special.extract) == (50257, 50259)


@pytest.mark.parity("released")
def test_line_breaks_and_unknown_letters(folders):
  tokenizer = load_tokenizer(folders["gpt1"])
  line = tokenizer.line_id
  assert [
    tokenizer.encode(text).tolist().count(line) for text in ("a", "a\nb", "\n a \n\n b\n", "\n")
  ] == [0, 1, 1, 0]
  assert (
    tokenizer.encode("\u6f22").tolist() == [0]
    and tokenizer.encode("a\u6f22b").tolist().count(0) == 1
  )


def test_gpt1_decodes_to_words(small, spacy_there):
  tokenizer = load_tokenizer(small["gpt1"])
  ids = [
    tokenizer.pieces.index(piece)
    for piece in ("the</w>", "se", "a</w>", ".</w>", "\n</w>", "i</w>")
  ]
  assert tokenizer.decode(ids) == "the sea .\ni"
  assert tokenizer.decode(np.array(ids[:2])) == "the se" and tokenizer.decode([]) == ""


@pytest.mark.parity("released")
def test_what_is_decoded_encodes_to_the_same_ids(folders):
  tokenizer = load_tokenizer(folders["gpt1"])
  ids = tokenizer.encode("The old man, calm:\nwalked to the sea (and said 'nothing').")
  np.testing.assert_array_equal(tokenizer.encode(tokenizer.decode(ids)), ids)


@pytest.mark.parity("released")
def test_where_words_begin(folders):
  tokenizer = load_tokenizer(folders["gpt1"])
  ids = tokenizer.encode("A ship, sailed\non")
  starts = np.flatnonzero(tokenizer.word_starts(ids))
  words = ["".join(map(tokenizer.piece, part)) for part in np.split(ids, starts[1:])]
  assert words == [f"{word}</w>" for word in ("a", "ship", ",", "sailed", "\n", "on")]


@pytest.mark.parity("released")
def test_few_words_remembered_change_nothing(small, monkeypatch):
  texts = [mixed(random.Random(n)) for n in range(30)]
  expected = load_tokenizer(small["gpt1"]).encode_many(texts)
  monkeypatch.setattr(gpt1, "MAX_CACHED_WORDS", 20)
  tokenizer = load_tokenizer(small["gpt1"])
  for text, ids in zip(texts, expected, strict=True):
    np.testing.assert_array_equal(tokenizer.encode(text), ids)
    assert len(tokenizer._words[1]) <= 20 + len(text)


def test_the_hash_tells_what_decides_the_ids(small, spacy_there):
  tokenizer = load_tokenizer(small["gpt1"])
  pieces, merges = tokenizer.pieces, tokenizer.merges
  others = [
    GPT1Tokenizer(pieces, merges, REGEX),
    GPT1Tokenizer(pieces, (merges[1], merges[0], *merges[2:]), SPACY),
    GPT1Tokenizer((pieces[0], pieces[2], pieces[1], *pieces[3:]), merges, SPACY),
    GPT2Tokenizer(pieces, merges),
  ]
  assert len({tokenizer.hash, *(other.hash for other in others)}) == 5
  assert tokenizer.hash == GPT1Tokenizer(pieces, merges, SPACY, "another version").hash


def test_without_spacy_one_warning_and_its_name(small, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "spacy", None)
  with pytest.warns(
    UserWarning, match="spaCy is not installed: regex-1 splits the words"
  ) as caught:
    tokenizer = load_tokenizer(small["gpt1"])
  assert len(caught) == 1 and tokenizer.splitter == REGEX
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
  assert (
    again == tokenizer
    and json.loads((tmp_path / "tokenizer.json").read_text())["splitter"] == REGEX
  )
  monkeypatch.undo()
  assert load_tokenizer(tmp_path).splitter == REGEX  # spaCy's presence changes nothing


@pytest.mark.parity("released")
def test_without_spacy_words_are_still_found(small, monkeypatch):
  text = (
    "Mr. and Mrs. O'Hara's\nson cannot say... Dr. Lee.Then at 10:30 p.m. he'd 5% of 'em. "
    "We’ve 'no' wouldn't, don’t!"
  )
  expected = load_tokenizer(small["gpt1"]).encode(text)
  monkeypatch.setitem(sys.modules, "spacy", None)
  with pytest.warns(UserWarning, match="spaCy"):
    tokenizer = load_tokenizer(small["gpt1"])
  np.testing.assert_array_equal(tokenizer.encode(text), expected)


@pytest.mark.parity("released")
def test_another_spacy_is_warned_of(small):
  tokenizer = load_tokenizer(small["gpt1"])
  other = GPT1Tokenizer(tokenizer.pieces, tokenizer.merges, SPACY, "2.0.11")
  with pytest.warns(UserWarning, match=r"spaCy 2\.0\.11, and 3\."):
    other.encode("a")
  ours = tokenizer.splitter_version.split(".")
  with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)
    GPT1Tokenizer(tokenizer.pieces, tokenizer.merges, SPACY, f"{ours[0]}.{ours[1]}.999").encode("a")


def test_tokens_of_another_splitter_are_refused(small, spacy_there, tmp_path):
  tokenizer = load_tokenizer(small["gpt1"])
  other = GPT1Tokenizer(tokenizer.pieces, tokenizer.merges, REGEX)
  writer = TokenWriter(str(tmp_path), "train", other.vocab_size)
  writer.add(np.arange(5), 5, 5)
  writer.close(tokenizer_hash=other.hash)
  TokenFile(str(tmp_path), "train").check_vocabulary(other)
  with pytest.raises(
    InputError, match="the same but with the word splitter regex-1, not spacy-en; prepare"
  ):
    TokenFile(str(tmp_path), "train").check_vocabulary(tokenizer)
  with pytest.raises(InputError, match=f"another vocabulary, {other.hash[:12]}, not "):
    TokenFile(str(tmp_path), "train").check_vocabulary(load_tokenizer(small["gpt2"]))
