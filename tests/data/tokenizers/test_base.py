"""Special tokens, and finding the file that reads a folder."""

import copy
import json
import pickle
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from refused import refused

from gpt_jax.data import tokenizers
from gpt_jax.data.tokenizers.base import SpecialTokens, load_released, load_tokenizer
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer
from gpt_jax.errors import InputError

REVERSED = """
import dataclasses
import hashlib
import numpy as np
from gpt_jax.data.tokenizers.base import DEFAULT_SPECIAL, Tokenizer

KINDS = ("reversed",)

@dataclasses.dataclass(frozen=True)
class Reversed(Tokenizer):
  special_names: tuple[str, ...] = DEFAULT_SPECIAL
  kind, normalizer, line_id, vocab_size, hash = "reversed", "none", 10, 128, "r"
  files, metadata, byte_fallback = {"reversed.txt": b""}, {}, np.zeros(128, bool)

  def encode_many(self, texts):
    return [np.array([*text[::-1].encode("ascii")], np.int32) for text in texts]

  def decode(self, ids):
    return bytes(np.asarray(ids).tolist()).decode()[::-1]

  def piece(self, i):
    return chr(i)

def detect(folder):
  return (folder / "released.txt").exists()

def load(folder, metadata):
  return Reversed()
"""


def test_special_tokens_have_names_and_ids_above_the_vocabulary(tiny_tokenizer):
  special, size = tiny_tokenizer.special, tiny_tokenizer.vocab_size
  assert (special.start, special.delimiter, special["extract"]) == (size, size + 1, size + 2)
  assert list(special) == list(special.names) == ["start", "delimiter", "extract"]
  assert special.count == len(special) == 3
  assert special.items() == [("start", size), ("delimiter", size + 1), ("extract", size + 2)]
  assert "start" in special and "mask" not in special
  assert copy.deepcopy(special) == pickle.loads(pickle.dumps(special)) == special
  special = SpecialTokens(10)  # an unknown one names those that are known
  for ask in (lambda: special.mask, lambda: special["mask"]):
    refused("'mask'; the tokenizer has start, delimiter, extract$", ask)
  assert not hasattr(special, "mask")
  with pytest.raises(AttributeError):
    special.first = 3
  refused("special token 'a-b': should be an identifier", SpecialTokens, 10, ("a-b",))


def test_a_tokenizer_carries_and_saves_more_special_tokens(tiny_tokenizer, tmp_path):
  more = tiny_tokenizer.with_special("mask", "start", "cls", "mask", "sep")
  size = tiny_tokenizer.vocab_size
  assert more.special.names == ("start", "delimiter", "extract", "mask", "cls", "sep")
  assert (more.special.start, more.special.mask, more.special.sep) == (size, size + 3, size + 5)
  assert more.hash == tiny_tokenizer.hash and more.vocab_size == size
  assert type(more) is type(tiny_tokenizer) and more != tiny_tokenizer
  assert more.with_special("cls") == more
  assert [more.spelling(i) for i in (1, size, size + 3)] == ["<line>", "<start>", "<mask>"]
  assert tiny_tokenizer.special.count == 3
  more.save(tmp_path)
  metadata = json.loads((tmp_path / "tokenizer.json").read_text())
  assert metadata["special"] == list(more.special.names)
  assert load_tokenizer(tmp_path) == more
  del metadata["special"], metadata["checksum"]  # as earlier versions wrote it
  (tmp_path / "tokenizer.json").write_text(json.dumps(metadata))
  assert load_tokenizer(tmp_path) == tiny_tokenizer


@pytest.mark.parametrize(
  ("names", "fault"),
  [
    (["start", "a b"], "special token 'a b': should be an identifier"),
    (["start", "first"], "special token 'first': should be an identifier"),
    (["start", "count"], "special token 'count': should be"),
    (["start", 3], "special token 3: should be"),
    (["start", "start"], "a name occurs twice"),
    (3, "special = 3: "),
  ],
)
def test_damaged_special_tokens(tiny_tokenizer, tmp_path, names, fault):
  tiny_tokenizer.save(tmp_path)
  metadata = json.loads((tmp_path / "tokenizer.json").read_text()) | {"special": names}
  del metadata["checksum"]
  (tmp_path / "tokenizer.json").write_text(json.dumps(metadata))
  error = refused(fault, load_tokenizer, tmp_path)
  assert error.startswith(f"{tmp_path}/tokenizer.json: ")


def test_every_flipped_bit_is_noticed(tiny_tokenizer, tmp_path):
  """Those of the names of special tokens too, which are no part of the hash."""
  tiny_tokenizer.with_special("sentinel_0").save(tmp_path)
  path, expected = tmp_path / "tokenizer.json", load_tokenizer(tmp_path)
  content = path.read_bytes()
  begin = content.index(b"special")
  for bit in range(8 * begin, 8 * len(content)):
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(damaged)
    try:
      same = load_tokenizer(tmp_path) == expected
    except InputError as error:
      same = str(error).startswith(f"{path}: ") and "\n" not in str(error)
    assert same, bytes(damaged)


def test_a_new_tokenizer_is_one_new_file(tmp_path, monkeypatch):
  (tmp_path / "room").mkdir()
  (tmp_path / "room" / "reversed.py").write_text(REVERSED)
  monkeypatch.setattr(tokenizers, "__path__", [*tokenizers.__path__, str(tmp_path / "room")])
  (tmp_path / "released.txt").touch()
  try:
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.kind == "reversed" and tokenizer.decode(tokenizer.encode("abc")) == "abc"
    assert load_released(tmp_path) == tokenizer
    tokenizer.with_special("mask").save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").special.mask == 131
  finally:
    sys.modules.pop("gpt_jax.data.tokenizers.reversed", None)
  monkeypatch.undo()
  fault = "kind 'reversed' is not known; should be one of byte-bpe, "
  refused(fault, load_tokenizer, tmp_path / "saved")


def test_a_folder_without_tokenizer(tmp_path):
  for folder in (tmp_path, tmp_path / "missing"):
    refused("no tokenizer here; give", load_tokenizer, folder)
  SentencePieceTokenizer.train(["a text of a few words"], 270).save(tmp_path)
  (tmp_path / "tokenizer.model").unlink()
  refused(r"tokenizer\.model: cannot be read", load_tokenizer, tmp_path)


@pytest.fixture(scope="module")
def families(small, tiny_tokenizer):
  letters = tuple("abcdefghijklmnopqrstuvwxyz")
  bert = WordPieceTokenizer(("[UNK]", "[CLS]", "[SEP]", *letters, *("##" + c for c in letters)))
  return [*(load_tokenizer(small[kind]) for kind in ("gpt1", "gpt2")), tiny_tokenizer, bert]


WORDS = st.text(st.characters(exclude_categories=("Cs", "Zs", "Zl", "Zp")), min_size=1, max_size=12)


@pytest.mark.parity("released")
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(word=WORDS.filter(lambda word: not any(c.isspace() for c in word)))
@example(word="\u4e70\u4e86\u4e00\u76cf\u706f\uff0c")
@example(word="\u201cold\u201d")
@example(word="caf\u00e9\u2026--x")
@pytest.mark.parametrize("space", ["", " "])
def test_ids_are_of_characters_in_their_order(families, word, space):
  for tokenizer in families:
    spans = tokenizer.offsets(space + word)
    assert len(spans) == len(tokenizer.encode(space + word))
    begins, ends = spans.T
    assert (begins >= 0).all() and (ends <= len(space + word)).all() and (begins < ends).all()
    assert (np.diff(begins) >= 0).all() and (np.diff(ends) >= 0).all()
    if (space + word).isascii() and tokenizer is not families[0]:
      # Of ASCII nothing is dropped but control characters.
      covered = {i for begin, end in spans.tolist() for i in range(begin, end)}
      visible = {i for i, c in enumerate(space + word) if c.isprintable() and c != " "}
      assert visible <= covered
