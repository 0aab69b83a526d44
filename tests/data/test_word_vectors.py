"""Word vectors from a text file: which pieces get one, and files that are none."""

import gzip

import numpy as np
import pytest
from refused import refused

from gpt_jax.training.word_vectors import read_word_vectors


def test_words_get_their_vectors_and_other_pieces_zeros(tiny_tokenizer, tmp_path):
  ids = range(tiny_tokenizer.vocab_size)
  words = {tiny_tokenizer.decode([i]).strip(): i for i in ids if tiny_tokenizer.begins_word[i]}
  (first, i), (second, j), *_ = [(w, i) for w, i in words.items() if w.isalpha()]
  lines = f"{first} 1 2.5 -3\nneverseen 7 8 9\n. . . 4 5 6\n\u3000 7 8 9\n{second} 1e-1 0 2\n"
  plain, packed = tmp_path / "vectors.txt", tmp_path / "vectors.vec.gz"
  plain.write_text(lines)
  packed.write_bytes(gzip.compress(f"4 3\n{lines}".encode()))
  vectors = read_word_vectors(str(plain), tiny_tokenizer, 3)
  np.testing.assert_array_equal(vectors[i], np.float32([1, 2.5, -3]))
  np.testing.assert_array_equal(vectors[j], np.float32([0.1, 0, 2]))
  assert vectors.shape == (tiny_tokenizer.vocab_size, 3)
  assert (vectors.any(1) == [n in (i, j) for n in ids]).all()
  np.testing.assert_array_equal(read_word_vectors(str(packed), tiny_tokenizer, 3), vectors)


@pytest.mark.parametrize(
  "text, message",
  [
    ("the 1 2\n", r":1: 2 numbers after the word; the trunk's embeddings have 3"),
    ("the 1 2 3 4\n", r":1: 4 numbers after the word"),
    ("xyz 1 2 3\nthe 1 2 x\n", r":2: could not convert string to float: 'x'; a word is followed"),
    ("the 1 2 nan\n", r":1: a number that is not finite"),
    ("xyzzy 1 2 3\n", r": has none of the vocabulary's words"),
    ("", r": has none of the vocabulary's words"),
  ],
)
def test_files_that_are_none(tiny_tokenizer, tmp_path, text, message):
  path = tmp_path / "vectors.txt"
  path.write_text(text)
  assert str(path) in refused(message, read_word_vectors, str(path), tiny_tokenizer, 3)
