"""Hugging Face's tokenizer.json: the package's own ids, saved folders, prepared text, bad files."""

import hashlib
import json
import sys

import numpy as np
import pytest
from refused import refused

from gpt_jax.apps.interop.tokenizers.tokenizer_json import detect
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.programs import prepare

pytestmark = pytest.mark.parity("released")

TEXT = [
  "The old man walked slowly to the sea, and the sea was calm.",
  "She asked the old man why he walked; he said nothing at all.",
  "Nothing was said about the calm old sea, nor about the walking man.",
]
TEXTS = ["", "\n", "The old sea\nwas calm.", " the  sea\n\n\tman ", "naïve 日本 ☃\x00y", "a" * 999]
KINDS = ("bpe", "wordpiece", "unigram", "llama")


def train(kind: str):
  """A tiny tokenizer as GPT-2, BERT, ALBERT or Llama have it."""
  from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
  from tokenizers import pre_tokenizers as splitters

  if kind == "bpe":
    tokenizer = Tokenizer(models.BPE(dropout=0.5))
    tokenizer.pre_tokenizer = splitters.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = splitters.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
      vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet
    )
  elif kind == "wordpiece":
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = splitters.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=special)
  elif kind == "unigram":
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = splitters.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=70, special_tokens=special, unk_token="<unk>")
  else:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    replace = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", *(f"<0x{value:02X}>" for value in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, show_progress=False)
  trainer.show_progress = False
  tokenizer.train_from_iterator(TEXT, trainer)
  if kind == "wordpiece":
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(7)
    tokenizer.enable_padding(length=7)
  return tokenizer


@pytest.fixture(params=KINDS)
def kind(request):
  return request.param


@pytest.fixture
def released(kind, tmp_path):
  """A folder with a tokenizer.json, and files that are no matter."""
  folder = tmp_path / "released"
  folder.mkdir()
  train(kind).save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text("{}")
  return folder


@pytest.fixture
def package(kind, released):
  """The package's own tokenizer, without truncation, padding and dropout."""
  from tokenizers import Tokenizer

  tokenizer = Tokenizer.from_file(str(released / "tokenizer.json"))
  tokenizer.no_truncation()
  tokenizer.no_padding()
  if kind == "bpe":
    tokenizer.model.dropout = None
  return tokenizer


def test_ids_and_texts_are_the_packages(released, package):
  tokenizer = load_tokenizer(released)
  for text in [*TEXTS, *TEXT]:
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert ids.tolist() == package.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == package.decode(ids.tolist(), skip_special_tokens=False)
  for many, text in zip(tokenizer.encode_many(TEXTS), TEXTS, strict=True):
    np.testing.assert_array_equal(many, tokenizer.encode(text))
  assert tokenizer.vocab_size == package.get_vocab_size()
  pieces = [tokenizer.piece(i) for i in range(tokenizer.vocab_size)]
  assert {piece: i for i, piece in enumerate(pieces)} == package.get_vocab()


def test_it_is_the_same_tokenizer_after_saving(kind, released, tmp_path):
  tokenizer = load_tokenizer(released)
  assert tokenizer.hash == hashlib.sha256((released / "tokenizer.json").read_bytes()).hexdigest()
  tokenizer.with_special("mask").save(tmp_path / "saved")
  loaded = load_tokenizer(tmp_path / "saved")
  assert loaded == tokenizer.with_special("mask") and loaded.hash == tokenizer.hash
  if kind != "wordpiece":  # BERT's mask is inside the vocabulary
    assert loaded.spelling(loaded.special.mask) == "<mask>"
    assert loaded.special.mask == tokenizer.vocab_size + 3
  np.testing.assert_array_equal(loaded.encode(TEXT[0]), tokenizer.encode(TEXT[0]))


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_bert_special_tokens_are_those_of_the_file(kind, released, package, tmp_path):
  tokenizer = load_tokenizer(released)
  pieces = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
  if kind == "unigram":
    pieces = {"pad": "<pad>"}
  inside = {name: package.token_to_id(piece) for name, piece in pieces.items()}
  assert dict(tokenizer.special.inside) == inside
  assert tokenizer.special.count == (0 if kind == "wordpiece" else 3)
  for piece in pieces.values():  # no text encodes to one
    assert not set(tokenizer.encode(f"the sea{piece} the {piece}").tolist()) & set(inside.values())
  # Folders of before, which have such names above the vocabulary, keep the ids that were trained.
  tokenizer.save(tmp_path / "old")
  metadata = json.loads((tmp_path / "old" / "tokenizer.json").read_text())
  del metadata["checksum"]
  names = ["start", "delimiter", "extract", "pad"]
  (tmp_path / "old" / "tokenizer.json").write_text(json.dumps(metadata | {"special": names}))
  old = load_tokenizer(tmp_path / "old")
  assert old.special.pad == tokenizer.vocab_size + 3 and old.special.count == 4
  assert old.hash == tokenizer.hash


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "llama"], indirect=True)
def test_text_never_becomes_a_special_token(released, kind):
  name = {"bpe": "<|endoftext|>", "wordpiece": "[SEP]", "llama": "<s>"}[kind]
  tokenizer = load_tokenizer(released)
  i = [tokenizer.piece(i) for i in range(10)].index(name)
  assert i not in tokenizer.encode(f"the sea {name} was {name}")
  assert name in tokenizer.decode([i])


def test_line_breaks(released, kind):
  tokenizer = load_tokenizer(released)
  spelled = {"bpe": "Ċ", "wordpiece": None, "unigram": None, "llama": "<0x0A>"}[kind]
  if spelled is None:
    assert tokenizer.line_id is None
  else:
    assert tokenizer.piece(tokenizer.line_id) == spelled
    assert tokenizer.encode("sea\nsea").tolist().count(tokenizer.line_id) == 1


@pytest.mark.parametrize("kind", ["wordpiece"], indirect=True)
def test_a_line_break_that_no_text_encodes_to_is_none(released):
  content = json.loads((released / "tokenizer.json").read_text())
  content["model"]["vocab"]["\n"] = len(content["model"]["vocab"])
  (released / "tokenizer.json").write_text(json.dumps(content))
  assert load_tokenizer(released).line_id is None


def test_unknown_and_byte_ids(released, kind):
  tokenizer = load_tokenizer(released)
  masked = np.flatnonzero(tokenizer.byte_fallback).tolist()
  pieces = [tokenizer.piece(i) for i in masked]
  if kind == "bpe":  # bytes that are not a character
    assert len(pieces) == 128 and not any(piece.isascii() for piece in pieces)
  elif kind == "llama":
    assert sorted(pieces) == sorted(
      ["<unk>", *(f"<0x{value:02X}>" for value in range(256) if value != 10)]
    )
  else:
    assert pieces == [{"wordpiece": "[UNK]", "unigram": "<unk>"}[kind]]
  assert set(tokenizer.encode("☃").tolist()) & set(masked)


def test_words_begin_where_the_text_has_a_space(released, kind):
  if kind == "llama":
    pytest.skip("this tiny one merges across spaces")
  tokenizer = load_tokenizer(str(released))
  ids = tokenizer.encode("the old man, the sea")
  starts = tokenizer.word_starts(ids)
  words = np.split(ids, np.flatnonzero(starts)[1:])
  texts = ["".join(map(tokenizer.piece, word)).replace("##", "").strip("▁Ġ") for word in words]
  assert texts == ["the", "old", "man", ",", "the", "sea"]
  assert (tokenizer.word_starts(np.stack([ids, ids])) == starts).all()


def test_surrogates(released):
  tokenizer = load_tokenizer(released)
  np.testing.assert_array_equal(tokenizer.encode("the \udce9 sea"), tokenizer.encode("the ? sea"))


def test_prepare(released, tmp_path):
  tokenizer = load_tokenizer(released)
  (tmp_path / "text.jsonl").write_text(
    "\n".join(json.dumps({"text": f"{TEXT[i % 3]}\n{TEXT[0]}"}) for i in range(40))
  )
  source, out = str(tmp_path / "text.jsonl"), tmp_path / "out"
  prepare.run(prepare.PrepareConfig(source, tokenizer=str(released), valid_share=0.1), str(out))
  file = TokenFile(out, "train")
  loaded = load_tokenizer(out / "tokenizer")
  file.check_vocabulary(loaded)
  assert loaded == tokenizer
  first = file.read(0, int(file.offsets[1])).tolist()
  assert first in [tokenizer.encode(f"{text}\n{TEXT[0]}").tolist() for text in TEXT]


@pytest.mark.parametrize(
  ("content", "fault"),
  [
    ('{"version": "1.0", "model": {"type": "BPE"}}', "no tokenizer.json that `tokenizers` reads"),
    ('{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}', "no tokenizer.js"),
    ('{"version": "1.0"}', "no tokenizer here"),
    ("[]", "no JSON object"),
    ('{"version": "1.0", ', "not JSON"),
  ],
)
def test_bad_files_are_one_line(tmp_path, content, fault):
  (tmp_path / "tokenizer.json").write_text(content)
  error = refused(fault, load_tokenizer, tmp_path)
  assert error.startswith(str(tmp_path))


@pytest.mark.parametrize("kind", ["bpe"], indirect=True)
def test_a_class_of_another_model_is_refused(released):
  (released / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
  refused("model.type is 'BPE': only 'WordPiece' fits .* 'bert'", load_tokenizer, released)


@pytest.mark.parametrize("kind", ["bpe"], indirect=True)
def test_damaged_folders_and_a_missing_package(released, tmp_path, monkeypatch):
  load_tokenizer(released).save(tmp_path / "saved")
  path = tmp_path / "saved" / "huggingface.json"
  content = path.read_text()
  path.write_text(content.replace("Ġ", "Ģ"))
  refused(r"huggingface\.json: ", load_tokenizer, tmp_path / "saved")
  path.write_text(content + " ")
  refused(r"huggingface\.json: damaged", load_tokenizer, tmp_path / "saved")
  path.unlink()
  refused(r"huggingface\.json: cannot be read", load_tokenizer, tmp_path / "saved")
  monkeypatch.setitem(sys.modules, "tokenizers", None)
  refused(r"needs tokenizers: pip install 'gpt_jax\[released\]'", load_tokenizer, released)


def test_openais_files_come_first(released):
  (released / "merges.txt").write_text("")
  assert not detect(released)
  refused(r"vocab.json: cannot be read \(No such file", load_tokenizer, released)
