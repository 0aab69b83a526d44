"""Token files that tests write."""

import numpy as np

from gpt_jax.data.token_file import TokenFile, TokenWriter


def write(folder, documents, vocab_size=1000, split="train") -> TokenFile:
  writer = TokenWriter(folder, split, vocab_size)
  for ids in documents:
    writer.add(np.asarray(ids, int), n_bytes=3 * len(ids), n_words=len(ids) // 2)
  writer.close(tokenizer_hash="abc")
  return TokenFile(folder, split)


def numbered(sizes):
  """Documents whose ids count up, so that a row tells where it was cut."""
  anchors = np.cumsum(sizes)
  return [np.arange(end - size, end) for size, end in zip(sizes, anchors, strict=True)]
