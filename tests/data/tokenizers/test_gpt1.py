"""The vocabularies of GPT-1 and GPT-2, and their files as OpenAI released them."""

import dataclasses
import itertools
import json
import random
import re
import shutil
import sys
import unicodedata
import warnings

import numpy as np
import pytest
from openai_examples import EXAMPLES, merged, mixed, write
from refused import refused

from gpt_jax.data.token_file import TokenFile, TokenWriter
from gpt_jax.data.tokenizers import gpt1
from gpt_jax.data.tokenizers.base import AddedToken, load_tokenizer
from gpt_jax.data.tokenizers.gpt1 import REGEX, SPACY, GPT1Tokenizer
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.errors import InputError


def standardized(text: str) -> str:
  """text_utils.py: five characters replaced, spaces around marks, white space tidied."""
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


def check_ids(tokenizer, texts, published):
  all_ids, expected = tokenizer.encode_many(texts), published(texts, tokenizer)
  for text, ids, theirs in zip(texts, all_ids, expected, strict=True):
    assert ids.dtype == np.int32 and ids.tolist() == theirs, repr(text[:200])
  return all_ids


@pytest.mark.parity("released")
def test_gpt1_ids_are_those_of_the_published_procedure(folders):
  tokenizer = load_tokenizer(folders["gpt1"])
  rng = random.Random(0)
  texts = [*EXAMPLES.values(), *(mixed(rng) for _ in range(400))]
  check_ids(tokenizer, texts, published_gpt1)


@pytest.mark.parity("released")
def test_gpt1_ids_of_novels(data_root):
  tokenizer = load_tokenizer(str(data_root / "gpt1_release"))
  novels = sorted((data_root / "novels").glob("*.txt"))[::12]
  texts = [path.read_text(encoding="utf-8")[50_000:80_000] for path in novels]
  check_ids(tokenizer, texts, published_gpt1)


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
  # By line; a line has 20 tokens.
  assert sum(n for n, same in equal if same) > 0.99 * sum(n for n, _ in equal)


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
def test_gpt1_lines_unknown_letters_and_words(folders):
  tokenizer = load_tokenizer(folders["gpt1"])
  for text, count in (("a", 0), ("a\nb", 1), ("\n a \n\n b\n", 1), ("\n", 0)):
    assert tokenizer.encode(text).tolist().count(tokenizer.line_id) == count
  assert tokenizer.encode("\u6f22").tolist() == [0]
  assert tokenizer.encode("a\u6f22b").tolist().count(0) == 1
  ids = tokenizer.encode("The old man, calm:\nwalked to the sea (and said 'nothing').")
  np.testing.assert_array_equal(tokenizer.encode(tokenizer.decode(ids)), ids)
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


def test_words_that_ids_decode_to_and_what_the_hash_tells(small, spacy_there):
  tokenizer = load_tokenizer(small["gpt1"])
  pieces, merges = tokenizer.pieces, tokenizer.merges
  ids = [*map(pieces.index, ("the</w>", "se", "a</w>", ".</w>", "\n</w>", "i</w>"))]
  assert tokenizer.decode(ids) == "the sea .\ni"
  assert tokenizer.decode(np.array(ids[:2])) == "the se" and tokenizer.decode([]) == ""
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
  message = "spaCy is not installed: regex-1 splits the words"
  with pytest.warns(UserWarning, match=message) as caught:
    tokenizer = load_tokenizer(small["gpt1"])
  assert len(caught) == 1 and tokenizer.splitter == REGEX
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
  assert again == tokenizer
  assert json.loads((tmp_path / "tokenizer.json").read_text())["splitter"] == REGEX
  monkeypatch.undo()
  assert load_tokenizer(tmp_path).splitter == REGEX  # spaCy's presence changes nothing


@pytest.mark.parity("released")
def test_without_spacy_words_are_still_found(small, monkeypatch):
  text = "Mr. and Mrs. O'Hara's\nson cannot say... Dr. Lee.Then at 10:30 p.m. he'd 5% of 'em. "
  text += "We’ve 'no' wouldn't, don’t!"
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
  refused(
    "the same but with the word splitter regex-1, not spacy-en; prepare",
    TokenFile(str(tmp_path), "train").check_vocabulary,
    tokenizer,
  )
  with pytest.raises(InputError, match=f"another vocabulary, {other.hash[:12]}, not "):
    TokenFile(str(tmp_path), "train").check_vocabulary(load_tokenizer(small["gpt2"]))


SHORT = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
WORD = re.compile(r" ?a+| ?0+| ?!+|\s+(?!\S)|\s+")  # of the kinds of letters


def published_gpt2(texts: list[str], tokenizer: GPT2Tokenizer) -> list[list[int]]:
  """encoder.py: contractions, letters, digits, others, with the space before; merged as bytes."""
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  signs = dict(zip(printable, map(chr, printable), strict=True))
  others = [value for value in range(256) if value not in signs]
  signs |= {value: chr(256 + n) for n, value in enumerate(others)}
  ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
  ranks = {pair: rank for rank, pair in enumerate(tokenizer.merges)}
  results = []
  for text in texts:
    shape, found, at = "".join(map(kind_of, text)), [], 0
    while at < len(text):
      short = next((short for short in SHORT if text.startswith(short, at)), "")
      end = at + len(short) if short else WORD.match(shape, at).end()
      symbols = [signs[value] for value in text[at:end].encode()]
      found += [ids[piece] for piece in merged(symbols, ranks)]
      at = end
    results.append(found)
  return results


def kind_of(letter: str) -> str:
  """One letter of its kind: a space, other white space, a letter, a digit, or anything else."""
  spaces = "\t\n\x0b\x0c\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
  if letter in spaces or "\u2000" <= letter <= "\u200a":
    return "\t"
  return " " if letter == " " else {"L": "a", "N": "0"}.get(unicodedata.category(letter)[0], "!")


@pytest.mark.parity("released")
def test_gpt2_ids_round_trip_and_words(folders):
  tokenizer = load_tokenizer(folders["gpt2"])
  rng = random.Random(0)
  letters = map(chr, range(0x30000))
  assigned = [c for c in letters if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
  texts = [*EXAMPLES.values(), *(mixed(rng) for _ in range(200))]
  texts = [re.sub("[\ud800-\udfff]", "", text)[:4000] for text in texts]
  texts += ["".join(rng.choices(assigned, k=30)) for _ in range(100)]
  for text, ids in zip(texts, check_ids(tokenizer, texts, published_gpt2), strict=True):
    assert tokenizer.decode(ids) == text
  ids = tokenizer.encode("The captain, émigré\nsailed 10")
  starts = np.flatnonzero(tokenizer.word_starts(ids))
  words = [tokenizer.decode(part) for part in np.split(ids, starts[1:])]
  assert words == ["The", " captain", ",", " émigré", "\n", "sailed", " 10"]


@pytest.mark.parity("released")
def test_gpt2_lines_and_what_is_no_character(small):
  tokenizer = load_tokenizer(small["gpt2"])
  assert tokenizer.encode("\n").tolist() == [tokenizer.line_id]
  a, b = tokenizer.encode("the sea"), tokenizer.encode("was calm")
  np.testing.assert_array_equal(tokenizer.encode("the sea\nwas calm"), [*a, tokenizer.line_id, *b])
  assert tokenizer.encode("<|endoftext|>").max() < 256
  mark = tokenizer.vocab_size - 1
  spelling = dataclasses.replace(tokenizer, spelled=(AddedToken("<|endoftext|>"),))
  marked = spelling.encode("the sea<|endoftext|><|endoftext|>was calm")
  np.testing.assert_array_equal(marked, [*a, mark, mark, *b])
  np.testing.assert_array_equal(spelling.encode("the sea"), a)
  assert tokenizer.decode([tokenizer.vocab_size - 1]) == "<|endoftext|>"
  # Here a byte is its id.
  assert (tokenizer.decode([0xC3, 0xA9]), tokenizer.decode([0xA9])) == ("é", "\ufffd")
  assert tokenizer.encode("\ud800").tolist() == tokenizer.encode("?").tolist()
  assert np.flatnonzero(tokenizer.byte_fallback).tolist() == list(range(128, 256))


PIECES, MERGES = "encoder_bpe_40000.json", "vocab_40000.bpe"


@pytest.mark.parametrize("kind", ["gpt1", "gpt2"])
def test_save_and_load(small, spacy_there, tmp_path, kind):
  tokenizer = load_tokenizer(small[kind])
  tokenizer.save(tmp_path / "copy")
  assert load_tokenizer(tmp_path / "copy") == tokenizer
  for name in (PIECES, MERGES) if kind == "gpt1" else ("encoder.json", "vocab.bpe"):
    assert (tmp_path / "copy" / name).read_text() == (tmp_path / small[kind] / name).read_text()
  metadata = json.loads((tmp_path / "copy" / "tokenizer.json").read_text())
  assert metadata["hash"] == tokenizer.hash and metadata["vocab_size"] == tokenizer.vocab_size
  assert metadata["kind"] == f"openai-{kind}" and metadata["normalizer"] == tokenizer.normalizer
  if kind == "gpt1":
    assert metadata["splitter"] == SPACY
    assert metadata["splitter_version"] == tokenizer.splitter_version
    assert re.match(r"3\.\d+", tokenizer.splitter_version)


@pytest.mark.parametrize("kind", ["gpt1", "gpt2"])
def test_transformers_names_are_the_same_vocabulary(small, spacy_there, tmp_path, kind):
  tokenizer = load_tokenizer(small[kind])
  pieces = sorted(tokenizer.pieces)
  write(tmp_path, ("vocab.json", "merges.txt"), pieces, tokenizer.merges)
  ids = {piece: tokenizer.pieces.index(piece) for piece in pieces}
  (tmp_path / "vocab.json").write_text(json.dumps(ids))
  theirs = '{"version": "1.0", "model": {"type": "BPE"}}'
  (tmp_path / "tokenizer.json").write_text(theirs)
  assert load_tokenizer(tmp_path) == tokenizer and load_tokenizer(tmp_path).hash == tokenizer.hash


@pytest.mark.parity("released")
@pytest.mark.parametrize(
  "kind, package",
  [("gpt1", "spacy"), ("gpt1", "ftfy"), ("gpt1", "tokenizers"), ("gpt2", "tokenizers")],
)
def test_a_missing_package_is_one_line(small, tmp_path, monkeypatch, kind, package):
  load_tokenizer(small[kind]).save(tmp_path)
  monkeypatch.setitem(sys.modules, package, None)
  tokenizer = load_tokenizer(tmp_path)  # where tokens are already made, none is needed
  assert tokenizer.decode([5, 6])
  refused(rf"needs {package}: pip install 'gpt_jax\[released\]'", tokenizer.encode, "")


@pytest.mark.parametrize(
  "name, old, new, message",
  [
    (PIECES, '{"', "{", "json: not JSON, or damaged \\(Expecting .*: line 1 column 2"),
    (
      PIECES,
      '"<unk>": 0',
      '"<unk>": "0"',
      "json: piece '<unk>' has the id '0'; the ids of 162 pieces should be 0 to 161",
    ),
    (PIECES, ": 5,", ": 500,", 'json: piece "\'" has the id 500; the ids of 162 pieces'),
    (PIECES, ": 5,", ": 6,", "json: \"'\" and '\\(' have the same id, 6"),
    (PIECES, '"a"', '"b"', "json: not JSON, or damaged \\(two entries named 'b'"),
    (PIECES, "<unk>", "<UNK>", "json: neither GPT-1's vocabulary, .* nor GPT-2's"),
    (PIECES, '"the</w>"', '"The</w>"', "bpe:3: makes 'the</w>', which is not in .*json$"),
    (PIECES, '"h"', '"\u0442"', "bpe:2: merges 'h', which is not in .*json$"),
    (MERGES, "#version: 0.2\n", "", "bpe:1: 'h e</w>': should be '#version: 0.2'"),
    (
      MERGES,
      "h e</w>\n",
      "h e </w>\n",
      "bpe:2: 'h e </w>': should be two pieces separated by a space",
    ),
    (MERGES, "h e</w>\n", "h\n", "bpe:2: 'h': should be two pieces"),
    (MERGES, "h e</w>\n", "h e</w>\nh e</w>\n", "bpe:3: makes 'he</w>', which exists already"),
    (MERGES, "h e</w>\n", "", "bpe:2: merges 'he</w>', which no line above makes"),
    (
      MERGES,
      "no r</w>\n",
      "",
      "bpe:50: ends before 'nor</w>' is made, one of 1 such pieces of .*json: truncated",
    ),
  ],
)
def test_files_that_are_no_vocabulary(small, spacy_there, tmp_path, name, old, new, message):
  folder = shutil.copytree(small["gpt1"], tmp_path / "copy")
  text = (folder / name).read_text()
  assert old in text
  (folder / name).write_text(text.replace(old, new, 1))
  error = refused(message, load_tokenizer, str(folder))
  assert error.startswith(str(folder))


def test_truncated_unreadable_and_missing_files_and_other_json(small, spacy_there, tmp_path):
  folder = shutil.copytree(small["gpt1"], tmp_path / "copy")
  for name, share in itertools.product((PIECES, MERGES), (0, 0.3, 0.999)):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(share * (len(content) - 2))])
    refused(rf"{name}(:\d+|: not JSON, or damaged .*line 1 )", load_tokenizer, str(folder))
    (folder / name).write_bytes(content)
  for other in ("[]", "{}", "3", '[["a", 0]]'):
    (folder / PIECES).write_text(other)
    refused(f"{PIECES}: should be one JSON object that maps", load_tokenizer, str(folder))
  for name in (MERGES, PIECES):
    shutil.copy(f"{small['gpt1']}/{PIECES}", folder)
    (folder / name).write_bytes(b"\xff")
    refused(f"{name}: not UTF-8", load_tokenizer, str(folder))
    (folder / name).unlink()
    refused(rf"{name}: cannot be read \(No such file", load_tokenizer, str(folder))
    shutil.copy(f"{small['gpt1']}/{MERGES}", folder)


def test_a_folder_that_was_changed_after_saving(small, spacy_there, tmp_path):
  load_tokenizer(small["gpt1"]).save(tmp_path)
  metadata = json.loads((tmp_path / "tokenizer.json").read_text())
  del metadata["checksum"]

  def refuses(message, **changes):
    (tmp_path / "tokenizer.json").write_text(json.dumps(metadata | changes))
    refused(message, load_tokenizer, str(tmp_path))

  refuses(f"{PIECES}, {MERGES}: damaged, the hash is not the one in tokenizer.json", splitter=REGEX)
  refuses("splitter 'nltk' is not known; should be spacy-en or regex-1", splitter="nltk")
  refuses("kind 'gpt3' is not known", kind="gpt3")
  refuses("kind \\['gpt3'\\] is not known", kind=["gpt3"])
  faults = {"{": "tokenizer.json: not JSON", "[]": "tokenizer.json: holds no JSON object"}
  for content, message in faults.items():
    (tmp_path / "tokenizer.json").write_text(content)
    refused(message, load_tokenizer, str(tmp_path))
