"""BERT's WordPiece: transformers' ids, training, folders as released, bad files."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from refused import refused

from gpt_jax.apps.interop.tokenizers.tokenizer_json import HuggingFaceTokenizer
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer

pytestmark = pytest.mark.parity("released")

TEXT = "The old man walked slowly to the sea, and the sea was calm. She asked why he walked!\n" * 3
TEXTS = [
  "",
  " \n",
  "The old SEA\nwas calm",
  "Café naïve ÅNGSTRÖM İstanbul ǅ ß ﬁ",
  "日本語 text, x\x00y\u200d\ufffd tab\tand\r\n",
  "don't -- (stop)... [CLS] sea[SEP] [MASK][PAD] ##sea",
  "a" * 99 + " " + "a" * 101,
  "sea\u2028sea\u00a0sea\u3000sea",
]


@pytest.fixture(scope="module")
def tokenizer():
  return WordPieceTokenizer.train([TEXT], 60)


def test_special_tokens_are_pieces_and_no_text_encodes_to_them(tokenizer):
  assert tokenizer.special.items() == [("pad", 0), ("cls", 2), ("sep", 3), ("mask", 4)]
  assert tokenizer.special.count == 0 and tokenizer.vocab_size == 60
  more = tokenizer.with_special("mask", "start", "cls", "extract")
  assert more.special.names == ("start", "extract") and more.special.count == 2
  assert (more.special.start, more.special.cls) == (60, 2) and more.hash == tokenizer.hash
  assert [more.spelling(i) for i in (4, 60)] == ["[MASK]", "<start>"]
  for ids in tokenizer.encode_many(TEXTS):
    assert ids.dtype == np.int32 and not set(ids.tolist()) & {0, 2, 3, 4}


def test_words_are_cut_into_the_longest_pieces():
  pieces = ("[UNK]", "un", "##aff", "##able", "##a", "able", ",")
  tokenizer = WordPieceTokenizer(pieces)
  assert tokenizer.begins_word.tolist() == [True, True, False, False, False, True, True]
  ids = tokenizer.encode("Unaffable, ÄBLE\nunaffx")  # as in Google's tokenization.py
  assert ids.tolist() == [1, 2, 3, 6, 5, 0]
  assert tokenizer.decode(ids) == "unaffable, able [UNK]"
  assert tokenizer.byte_fallback.tolist() == [True] + [False] * 6
  accents = WordPieceTokenizer(("[UNK]", "é", "e"), strip_accents=False)
  assert accents.encode("É é e").tolist() == [1, 1, 2]
  cased = WordPieceTokenizer(pieces, lower_case=False, strip_accents=False)
  assert cased.encode("Unaffable able").tolist() == [0, 5]
  assert cased.hash != tokenizer.hash


def test_training_depends_on_the_counts_alone(tokenizer):
  counts: dict[str, int] = {}
  for word in reversed(TEXT.split()):
    counts[word] = counts.get(word, 0) + 1
  assert WordPieceTokenizer.train(counts, 60) == tokenizer
  code = (
    "from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer; "
    f"print(WordPieceTokenizer.train([{TEXT!r}], 60).hash)"
  )  # another process hashes in another order
  again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert again.stdout.strip() == tokenizer.hash


@pytest.mark.parametrize(
  ("texts", "size", "fault"),
  [
    ([TEXT], 20, "vocab_size 20 is too small .* the least is vocab_size=34"),
    ([TEXT], 5000, r"vocab_size 5000 is more .* the most is vocab_size=\d+$"),
    ([" "], 100, "no text"),
  ],
)
def test_a_size_that_the_text_does_not_support(texts, size, fault):
  refused(fault, WordPieceTokenizer.train, texts, size)


def test_saved_and_released_folders(tokenizer, tmp_path):
  tokenizer.with_special("start").save(tmp_path)
  assert load_tokenizer(tmp_path) == tokenizer.with_special("start")
  os.remove(tmp_path / "tokenizer.json")  # what is left is a folder as transformers writes it
  assert load_tokenizer(tmp_path) == tokenizer
  config = tmp_path / "tokenizer_config.json"
  config.write_text(json.dumps({"do_lower_case": False, "strip_accents": None}))
  cased = load_tokenizer(tmp_path)
  assert not cased.lower_case and not cased.strip_accents
  config.unlink()  # as Google writes it
  assert load_tokenizer(tmp_path) == tokenizer
  content = (tmp_path / "vocab.txt").read_bytes()
  (tmp_path / "vocab.txt").write_bytes(b"\xef\xbb\xbf" + content)  # as some editors write it
  assert load_tokenizer(tmp_path) == tokenizer
  with open(tmp_path / "vocab.txt", "a") as file:
    file.write("Sea\n")
  assert not load_tokenizer(tmp_path).lower_case


def test_a_vocabulary_without_a_special_token_is_refused_where_it_is_needed(tokenizer):
  pieces = tuple(piece for piece in tokenizer.pieces if piece != "[MASK]")
  without = WordPieceTokenizer(pieces).with_special("cls", "start")
  refused(r"a wordpiece vocabulary without \[MASK\], the special", without.with_special, "mask")


@pytest.mark.parametrize(
  ("name", "content", "fault"),
  [
    ("vocab.txt", "[UNK]\nsea\nsea\n", r"vocab.txt:3: 'sea', which is also in line 2"),
    ("vocab.txt", "sea\nthe\n", r"vocab.txt: no line \[UNK\]"),
    ("vocab.txt", b"[UNK]\n\xff\n", r"vocab.txt: not UTF-8"),
    ("tokenizer_config.json", '{"do_lower_case": "no"}', "do_lower_case = 'no': should be true or"),
    ("tokenizer_config.json", '{"tokenize_chinese_chars": false}', "chars = False: should be true"),
    ("tokenizer_config.json", "[", r"tokenizer_config.json: cannot be read"),
  ],
)
def test_bad_files(tokenizer, tmp_path, name, content, fault):
  tokenizer.save(tmp_path)
  os.remove(tmp_path / "tokenizer.json")
  data = content if isinstance(content, bytes) else content.encode()
  (tmp_path / name).write_bytes(data)
  refused(fault, load_tokenizer, tmp_path)


@pytest.mark.parity
@pytest.mark.parametrize("lower_case", [True, False])
def test_ids_are_those_of_transformers(tokenizer, lower_case, tmp_path):
  from transformers import BertTokenizer
  from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

  tokenizer = WordPieceTokenizer(tokenizer.pieces, lower_case, lower_case)
  tokenizer.save(tmp_path)
  os.remove(tmp_path / "tokenizer.json")
  fast = BertTokenizer.from_pretrained(tmp_path)
  slow = BertTokenizerLegacy(tmp_path / "vocab.txt", do_lower_case=lower_case)
  for text in [TEXT, *(text for text in TEXTS if "[" not in text)]:
    ids = tokenizer.encode(text).tolist()
    assert ids == fast.encode(text, add_special_tokens=False)
    assert ids == slow.encode(text, add_special_tokens=False)
  # The folder as transformers saves it has a tokenizer.json, which is read instead.
  fast.save_pretrained(tmp_path / "fast")
  of_json = load_tokenizer(tmp_path / "fast")
  assert isinstance(of_json, HuggingFaceTokenizer)
  assert of_json.special.items() == tokenizer.special.items() and of_json.special.count == 0
  for text in TEXTS:
    assert of_json.encode(text).tolist() == tokenizer.encode(text).tolist()


@pytest.mark.parity
def test_ids_of_real_text_are_those_of_transformers(data_root, tmp_path):
  from transformers import BertTokenizer

  novel = sorted((data_root / "novels").iterdir())[0].read_text(encoding="utf-8-sig")[:50_000]
  cola = (data_root / "glue" / "CoLA" / "dev.tsv").read_text()
  tokenizer = WordPieceTokenizer.train([novel], 2000)
  tokenizer.save(tmp_path)
  os.remove(tmp_path / "tokenizer.json")
  theirs = BertTokenizer.from_pretrained(tmp_path)
  for text in (novel, cola):
    assert tokenizer.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)
