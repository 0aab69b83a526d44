"""ALBERT's and T5's SentencePiece models."""

import io
import json
import os

import pytest
import sentencepiece
from refused import refused

from gpt_jax.apps.interop.formats.hf_tokenizer import read_vocabulary
from gpt_jax.data.tokenizers.base import load_tokenizer

TEXT = "The old man walked slowly to the sea, and the sea was calm.\nShe asked why he walked!\n" * 9
ALBERT = {"pad_id": 0, "unk_id": 1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2}


def write(folder, text=TEXT, **settings):
  """A folder as it is released."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(text.splitlines()),
    model_writer=model,
    model_type="unigram",
    vocab_size=60,
    bos_id=-1,
    minloglevel=2,
    hard_vocab_limit=False,
    **settings,
  )
  folder.mkdir()
  (folder / "spiece.model").write_bytes(model.getvalue())
  return folder


@pytest.fixture(scope="module")
def albert(tmp_path_factory):
  return write(tmp_path_factory.mktemp("albert") / "released", TEXT.lower(), **ALBERT)


def test_alberts(albert, tmp_path):
  tokenizer = load_tokenizer(albert)
  assert tokenizer.special.items() == [("pad", 0), ("cls", 2), ("sep", 3), ("mask", 4)]
  assert tokenizer.special.count == 0
  plain = tokenizer.processor.encode('the sea was "calm" ee')
  assert tokenizer.encode("The SEA \n was ``calm'' éè").tolist() == plain
  ids = tokenizer.encode("the [MASK] sea [CLS] <pad>")
  assert not set(ids.tolist()) & {0, 2, 3, 4} and tokenizer.byte_fallback[1]
  tokenizer.with_special("start").save(tmp_path)
  assert load_tokenizer(tmp_path) == tokenizer.with_special("start")
  os.remove(tmp_path / "tokenizer.json")
  assert load_tokenizer(tmp_path) == tokenizer
  (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
  other = load_tokenizer(tmp_path)
  assert not other.lower_case and other.hash != tokenizer.hash


def test_t5s_sentinels_are_the_last_ids_downwards(tmp_path):
  tokenizer = load_tokenizer(write(tmp_path / "t5", **T5))
  size = tokenizer.vocab_size
  special = tokenizer.special
  assert (special.pad, special.sep, special.count) == (0, 1, 100)
  assert (special.sentinel_0, special.sentinel_99) == (size + 99, size)
  assert tokenizer.encode("The Sea").tolist() == tokenizer.processor.encode("The Sea")
  tokenizer.save(tmp_path / "saved")
  assert load_tokenizer(tmp_path / "saved") == tokenizer


def test_a_damaged_model(albert, tmp_path):
  (tmp_path / "spiece.model").write_bytes((albert / "spiece.model").read_bytes()[:99])
  refused(r"spiece.model: no SentencePiece model", load_tokenizer, tmp_path)


@pytest.mark.parity
def test_ids_are_those_of_transformers(albert):
  from transformers import AlbertTokenizer

  ours, theirs = load_tokenizer(albert), AlbertTokenizer.from_pretrained(albert)
  for text in ("The old SEA was calm, ``so'' calm. Naïve ½ ﬁ 日本", "\n the\u00a0sea\n\nwalked 9,"):
    assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["Albert", "T5"])
def test_special_tokens_that_a_text_spells_are_those_of_transformers(kind, albert, tmp_path):
  transformers = pytest.importorskip("transformers")
  folder = albert if kind == "Albert" else write(tmp_path / "t5", **T5)
  ours = read_vocabulary(str(folder), 1000)
  theirs = getattr(transformers, f"{kind}Tokenizer").from_pretrained(folder)
  for text in ("the [MASK] sea [SEP]was", "</s> the <pad></s>  sea", "<unk> [CLS]the", "", " "):
    assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False), text
  ours.save(tmp_path / "saved")
  assert load_tokenizer(tmp_path / "saved") == ours


def test_a_token_added_to_a_model_is_one_line(tmp_path):
  folder = write(tmp_path / "t5", **T5)
  (folder / "added_tokens.json").write_text(json.dumps({"<extra_id_0>": 159, "[E1]": 160}))
  refused(r"spiece.model: the token '\[E1\]' is added to it; save", load_tokenizer, folder)
