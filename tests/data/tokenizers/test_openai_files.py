"""OpenAI's vocabulary files: save and load, other names, damaged files, missing packages."""

import json
import re
import shutil
import sys

import pytest
from openai_examples import write

from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.gpt1 import REGEX, SPACY
from gpt_jax.errors import InputError

PIECES, MERGES = "encoder_bpe_40000.json", "vocab_40000.bpe"


@pytest.mark.parametrize("kind", ["gpt1", "gpt2"])
def test_save_and_load(small, spacy_there, tmp_path, kind):
  tokenizer = load_tokenizer(small[kind])
  tokenizer.save(tmp_path / "copy")
  assert load_tokenizer(tmp_path / "copy") == tokenizer
  for name in (
    ("encoder_bpe_40000.json", "vocab_40000.bpe")
    if kind == "gpt1"
    else ("encoder.json", "vocab.bpe")
  ):
    assert (tmp_path / "copy" / name).read_text() == (tmp_path / small[kind] / name).read_text()
  metadata = json.loads((tmp_path / "copy" / "tokenizer.json").read_text())
  assert metadata["hash"] == tokenizer.hash and metadata["vocab_size"] == tokenizer.vocab_size
  assert metadata["kind"] == f"openai-{kind}" and metadata["normalizer"] == tokenizer.normalizer
  if kind == "gpt1":
    assert (metadata["splitter"], metadata["splitter_version"]) == (
      SPACY,
      tokenizer.splitter_version,
    )
    assert re.match(r"3\.\d+", tokenizer.splitter_version)


@pytest.mark.parametrize("kind", ["gpt1", "gpt2"])
def test_transformers_names_are_the_same_vocabulary(small, spacy_there, tmp_path, kind):
  tokenizer = load_tokenizer(small[kind])
  pieces = sorted(tokenizer.pieces)
  write(tmp_path, ("vocab.json", "merges.txt"), pieces, tokenizer.merges)
  (tmp_path / "vocab.json").write_text(
    json.dumps({piece: tokenizer.pieces.index(piece) for piece in pieces})
  )
  (tmp_path / "tokenizer.json").write_text(
    '{"version": "1.0", "model": {"type": "BPE"}}'
  )  # transformers' own
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
  with pytest.raises(InputError, match=rf"needs {package}: pip install 'gpt_jax\[released\]'$"):
    tokenizer.encode("")


@pytest.mark.parametrize(
  "name, old, new, message",
  [
    (PIECES, '{"', "{", "json:1: not JSON \\("),
    (PIECES, '"the</w>":', "", "json:1: not JSON \\("),
    (
      PIECES,
      '"<unk>": 0',
      '"<unk>": "0"',
      "json: piece '<unk>' has the id '0'; the ids of 162 pieces should be 0 to 161",
    ),
    (PIECES, ": 5,", ": 500,", 'json: piece "\'" has the id 500; the ids of 162 pieces'),
    (PIECES, ": 5,", ": 6,", "json: \"'\" and '\\(' have the same id, 6"),
    (PIECES, '"a"', '"b"', "json: 'b' occurs twice"),
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
  with pytest.raises(InputError, match=message) as error:
    load_tokenizer(str(folder))
  assert str(error.value).startswith(str(folder)) and "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0, 0.3, 0.999])
@pytest.mark.parametrize("name", [PIECES, MERGES])
def test_truncated_files(small, spacy_there, tmp_path, name, share):
  folder = shutil.copytree(small["gpt1"], tmp_path / "copy")
  content = (folder / name).read_bytes()
  (folder / name).write_bytes(content[: int(share * (len(content) - 2))])
  with pytest.raises(InputError, match=rf"{name}:\d+: "):
    load_tokenizer(str(folder))


@pytest.mark.parametrize("content", ["[]", "{}", "3", '[["a", 0]]'])
def test_other_json(small, tmp_path, content):
  folder = shutil.copytree(small["gpt1"], tmp_path / "copy")
  (folder / PIECES).write_text(content)
  with pytest.raises(InputError, match=f"{PIECES}: should be one JSON object that maps"):
    load_tokenizer(str(folder))


def test_missing_and_unreadable_files(small, spacy_there, tmp_path):
  for name in (PIECES, MERGES):
    folder = shutil.copytree(small["gpt1"], tmp_path / f"without {name}")
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name}: missing; both files"):
      load_tokenizer(str(folder))
    (folder / name).write_bytes(b"\xff")
    with pytest.raises(InputError, match=f"{name}: cannot be read"):
      load_tokenizer(str(folder))
  with pytest.raises(InputError, match="no tokenizer here"):
    load_tokenizer(str(tmp_path))


def test_a_folder_that_was_changed_after_saving(small, spacy_there, tmp_path):
  load_tokenizer(small["gpt1"]).save(tmp_path)
  metadata = json.loads((tmp_path / "tokenizer.json").read_text())
  del metadata["checksum"]

  def refused(message, **changes):
    (tmp_path / "tokenizer.json").write_text(json.dumps(metadata | changes))
    with pytest.raises(InputError, match=message):
      load_tokenizer(str(tmp_path))

  refused(f"{PIECES}, {MERGES}: damaged, the hash is not the one in tokenizer.json", splitter=REGEX)
  refused("splitter 'nltk' is not known; should be spacy-en or regex-1", splitter="nltk")
  refused("kind 'gpt3' is not known", kind="gpt3")
  refused("kind \\['gpt3'\\] is not known", kind=["gpt3"])
  for content, message in (
    ("{", "tokenizer.json: not JSON"),
    ("[]", "tokenizer.json: holds no JSON object"),
  ):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=message):
      load_tokenizer(str(tmp_path))
