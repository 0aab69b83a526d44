"""Sentence ends: the rule on text, and what prepare records beside the documents."""

import contextlib
import io
import json

import numpy as np
import pytest
from refused import refused

from gpt_jax.data import pieces
from gpt_jax.data.passes import encode_sentences, split_sentences
from gpt_jax.data.sources import text as text_source
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.programs import prepare
from gpt_jax.programs.prepare import PrepareConfig

STORY = """Mr. Holmes was late. "What?" said he. "Stop!" cried Watson. It was J. K. at 5 p.m. now...
He saw the sea… (No.) And I? Yes"""


@pytest.mark.parametrize(
  ("line", "sentences"),
  [
    ("A b. C d! E f? G", ["A b.", " C d!", " E f?", " G"]),
    ("Mr. X saw Mrs. Y. J. K. came.", ["Mr. X saw Mrs. Y. J. K. came."]),  # "Y." may be an initial
    ('"Stop!" He ran. "Why?" she said.', ['"Stop!"', " He ran.", ' "Why?" she said.']),
    ('He said (so.) "Then go." I went.', ["He said (so.)", ' "Then go."', " I went."]),
    ("No. 5 of Vol. 2, Fig. 3", ["No. 5 of Vol. 2, Fig. 3"]),
    ("No. He is at 5 p.m. We go.", ["No.", " He is at 5 p.m.", " We go."]),
    ("It was I. He rose.", ["It was I.", " He rose."]),
    ("It cost 3.50 a day, i.e. 3 . 5 of them.", ["It cost 3.50 a day, i.e. 3 .", " 5 of them."]),
    ("wait... what? yes", ["wait... what? yes"]),
    ("今日は。明日！", ["今日は。", "明日！"]),
    ("no stop . no capital .", ["no stop . no capital ."]),
    ("", [""]),
  ],
)
def test_where_sentences_end(line, sentences):
  assert split_sentences(line) == sentences
  assert "".join(sentences) == line
  assert split_sentences("the sea . the ship .", has_case=False) == ["the sea .", " the ship ."]


def test_sentences_are_encoded_one_by_one(tiny_tokenizer):
  text = "The cat sat. The dog ran.\nThe barn by the sea"
  [(ids, ends)] = encode_sentences(tiny_tokenizer, [text])
  np.testing.assert_array_equal(ids, tiny_tokenizer.encode(text))
  sentences = [tiny_tokenizer.decode(part) for part in np.split(ids, ends[:-1])]
  assert sentences == ["the cat sat.", "the dog ran.", "\nthe barn by the sea"]
  assert ends[-1] == len(ids)
  assert [len(ends) for _, ends in encode_sentences(tiny_tokenizer, ["", "So. No."])] == [0, 2]


def make(source, out, **changes):
  with contextlib.redirect_stdout(io.StringIO()):
    prepare.run(PrepareConfig(str(source), vocab_size=300, valid_share=0.2, **changes), str(out))
  return TokenFile(str(out), "train")


def sentences_of(file, folder):
  tokenizer = load_tokenizer(f"{folder}/tokenizer")
  bounds = zip(file.sentences[:-1].tolist(), file.sentences[1:].tolist(), strict=True)
  return [tokenizer.decode(file.read(begin, end - begin)) for begin, end in bounds]


@pytest.fixture
def book(tmp_path):
  path = tmp_path / "book.txt"
  path.write_text("\n".join(f"{STORY} number {i}." for i in range(60)))
  return path


def test_prepare_records_sentences_and_changes_no_ids(book, tmp_path):
  file = make(book, tmp_path / "with", sentences=True)
  plain = make(book, tmp_path / "without")
  np.testing.assert_array_equal(file.read(0, file.n_tokens), plain.read(0, plain.n_tokens))
  assert file.header["n_sentences"] == len(file.sentences) - 1
  assert sentences_of(file, tmp_path / "with")[:7] == [
    "mr. holmes was late.",
    '"what?" said he.',
    '"stop!" cried watson.',
    "it was j. k. at 5 p.m. now...",
    "\nhe saw the sea...",  # the vocabulary spells the ellipsis
    "(no.)",
    "and i?",
  ]
  assert file.digest != plain.digest
  assert json.loads((tmp_path / "with" / "prepare.json").read_text())["sentences"] is True
  refused(r"train\.json: this text has no sentence .*sentences=True", lambda: plain.sentences)


def test_a_folder_from_before_there_were_sentences_is_the_same(book, tmp_path):
  make(book, tmp_path / "out")
  settings = tmp_path / "out" / "prepare.json"
  entries = json.loads(settings.read_text())
  del entries["sentences"]
  settings.write_text(json.dumps(entries))
  make(book, tmp_path / "out")
  fault = "other settings \\(sentences False, now True\\)"
  refused(fault, make, book, tmp_path / "out", sentences=True)


@pytest.mark.parametrize("size", [64, 200, 1000])
def test_pieces_of_a_document_end_no_sentence(tmp_path, monkeypatch, size):
  """A book of several lines, and one of a single line, which is cut between words."""
  (tmp_path / "a.txt").write_text("\n".join([STORY] * 9))
  (tmp_path / "b.txt").write_text("He saw the sea and the ship. And she? " * 40)
  (tmp_path / "c.txt").write_text("One more. " * 5)
  whole = make(f"{tmp_path}/*.txt", tmp_path / "whole", sentences=True)
  monkeypatch.setattr(pieces, "PIECE_SIZE", size)
  monkeypatch.setattr(text_source, "BLOCK_SIZE", size)
  cut = make(f"{tmp_path}/*.txt", tmp_path / "cut", sentences=True)
  np.testing.assert_array_equal(cut.read(0, cut.n_tokens), whole.read(0, whole.n_tokens))
  assert set(cut.sentences) <= set(whole.sentences)  # the stop before a cut is not seen as one
  assert len(cut.sentences) > 0.8 * len(whole.sentences)


def test_damage_to_sentences_is_noticed(book, tmp_path):
  make(book, tmp_path / "out", sentences=True)
  path = tmp_path / "out" / "train.sentences.npy"
  content = bytearray(path.read_bytes())
  content[-3] ^= 1
  path.write_bytes(content)
  file = TokenFile(str(tmp_path / "out"), "train")
  file.read(0, 5)  # nobody asks for sentences
  for use in (file.verify, lambda: file.sentences):
    refused(r"train\.sentences\.npy: the checksum does not match", use)
  path.unlink()
  refused(r"train\.sentences\.npy: cannot be read", file.verify)
