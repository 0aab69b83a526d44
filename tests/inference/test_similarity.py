"""Embeddings as the checkpoint's head reads them, and STS-B by their cosine, without labels."""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.stats
from refused import refused

import gpt_jax
from gpt_jax.batch import Rows
from gpt_jax.errors import InputError
from gpt_jax.models.heads.contrastive import ContrastiveHead
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import evaluate
from gpt_jax.programs.evaluate import cosines

TEXTS = ["the cat sat on the mat", "dog", "the dog ran to the old red barn by the sea"]


@pytest.fixture(scope="module")
def checkpoint(make_run, tiny_tokenizer, tmp_path_factory):
  """checkpoint(head, trunk="transformer", attention="causal"): a folder, with random parameters.

  Its tokenizer has cls and sep.
  """
  tokenizer = tiny_tokenizer.with_special("cls", "sep")
  sizes = {"vocab_size": tokenizer.vocab_size, "context": 32, "width": 16, "special_tokens": 5}
  trunks = {
    "transformer": TransformerConfig(**sizes, layers=1, heads=2),
    "lstm": LSTMConfig(**sizes, units=8),
  }

  def make(head, trunk="transformer", attention="causal"):
    spec = ModelConfig(trunks[trunk], (head,), attention)
    return make_run(tmp_path_factory.mktemp("embed") / "run", spec, tokenizer=tokenizer)

  return make


@functools.partial(jax.jit, static_argnums=0)
def _hidden(model, params, ids):
  rows = Rows(ids, np.arange(ids.shape[1], dtype=np.int32)[None])
  return model.apply({"params": params}, rows, method="states").hidden


@pytest.mark.parametrize(
  "pooling, trunk, attention",
  [
    ("mean", "transformer", "bidirectional"),
    ("last", "transformer", "causal"),
    ("cls", "transformer", "bidirectional"),
    ("last", "lstm", "causal"),
  ],
)
def test_embed_reads_what_the_head_reads(checkpoint, pooling, trunk, attention):
  """Against each text by itself, without padding; the layer before the cosine is left out."""
  model = gpt_jax.load(checkpoint(ContrastiveHead(pooling, mlp=True), trunk, attention))
  found = model.embed(TEXTS)
  assert (found.shape, found.dtype) == ((3, 16), np.float32)
  tokenizer, spec = model.loaded.tokenizer, model.loaded.spec
  trunk_alone = ModelConfig(spec.trunk, (), spec.attention).build()
  for text, vector in zip(TEXTS, found, strict=True):
    ids = tokenizer.encode(text)
    if pooling == "cls":
      ids = np.array([tokenizer.special["cls"], *ids, tokenizer.special["sep"]])
    hidden = _hidden(trunk_alone, {"trunk": model.loaded.params["trunk"]}, ids[None])[0]
    expected = {"mean": hidden.mean(0), "last": hidden[-1], "cls": hidden[0]}[pooling]
    np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_long_texts_are_cut_on_request(checkpoint):
  model = gpt_jax.load(checkpoint(ContrastiveHead("cls")))
  ids = model.loaded.tokenizer.encode("the cat sat on the mat " * 9)
  kept = model.loaded.tokenizer.decode(ids[:30])  # the context without cls and sep
  with pytest.raises(InputError, match="text 1: .* tokens, and the model's context is 32"):
    model.embed(["the cat sat on the mat " * 9])
  with pytest.warns(UserWarning, match="1 of 1 rows is longer than the context of 32 tokens: "):
    cut = model.embed("the cat sat on the mat " * 9, truncate=True)
  np.testing.assert_allclose(cut, model.embed(kept), atol=1e-6)


@pytest.fixture(scope="module")
def stsb(tmp_path_factory):
  """A folder with STS-B as GLUE has it: 40 pairs."""
  folder = tmp_path_factory.mktemp("glue") / "STS-B"
  folder.mkdir()
  rng = np.random.default_rng(0)
  words = "the cat sat on mat and dog ran to old red barn by sea".split()
  lines = ["index\tsentence1\tsentence2\tscore"]
  for i in range(40):
    a, b = (" ".join(rng.choice(words, rng.integers(2, 9))) for _ in range(2))
    lines.append(f"{i}\t{a}\t{b}\t{rng.uniform(0, 5):.3f}")
  (folder / "dev.tsv").write_text("\n".join(lines) + "\n")
  unlabeled = [line.rpartition("\t")[0] for line in lines]
  (folder / "test.tsv").write_text("\n".join(unlabeled) + "\n")
  return str(folder.parent), [line.split("\t") for line in lines[1:]]


def test_stsb_is_scored_by_cosines(checkpoint, stsb, tmp_path):
  data, rows = stsb
  folder = checkpoint(ContrastiveHead("mean"))
  measures = evaluate.run(folder, data, task="stsb")
  model = gpt_jax.load(folder)
  first, second = (np.stack([model.embed(row[i]) for row in rows]) for i in (1, 2))
  found = [a @ b / np.sqrt(a @ a * (b @ b)) for a, b in zip(first, second, strict=True)]
  np.testing.assert_allclose(cosines(first, second), found, rtol=1e-5)
  scores = [float(row[3]) for row in rows]
  assert measures["examples"] == 40
  assert measures["spearman"] == pytest.approx(scipy.stats.spearmanr(scores, found)[0], abs=1e-3)
  assert measures["pearson"] == pytest.approx(np.corrcoef(scores, found)[0, 1], abs=1e-4)
  assert evaluate.run(folder, data, task="stsb") == measures  # the same bits
  (tmp_path / "STS-B").mkdir()
  text = Path(data, "STS-B", "dev.tsv").read_text()
  (tmp_path / "STS-B" / "dev.tsv").write_text(text + f"40\t{'the cat ' * 40}\tthe dog\t1.5\n")
  with pytest.warns(UserWarning, match="^1 of 82 rows is longer than the context of 32 tokens: "):
    evaluate.run(folder, str(tmp_path), task="stsb")


def test_what_has_no_cosine_to_compare(checkpoint, stsb, tmp_path):
  data, _ = stsb
  folder = checkpoint(ContrastiveHead("mean"))
  for task, message in (
    ("rte", "task=rte: .*is a language model without a head; this program"),
    ("mrpc", "task=mrpc: .*on similarity scores such as stsb"),
    ("stbs", "no task 'stbs'; did you mean stsb"),
  ):
    refused(message, evaluate.run, folder, data, task=task)
  refused("no label", evaluate.run, folder, data, "test", "stsb")
