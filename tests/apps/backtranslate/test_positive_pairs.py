"""Contrastive learning from a table of texts and their paraphrases."""

import random
import types

import jax
import numpy as np
import pytest
import token_files
from refused import refused
from shared_trainers import one_device  # noqa: F401

from gpt_jax.apps.backtranslate.line_pairs import LinePairs
from gpt_jax.data.draws import Draw
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.inference.model import load
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import prepare, pretrain
from gpt_jax.programs.prepare import PrepareConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

WORDS = "cat mat old sat the on in by".split()
SYNONYMS = list(zip(WORDS, "dog barn red ran a sea to and".split(), strict=True))
CONFIG = PretrainConfig(
  objective=LinePairs(),
  trunk=TransformerConfig(
    context=16, layers=1, width=16, heads=2, residual_dropout=0.0, embedding_dropout=0.0
  ),
  data=WindowsConfig(batch_size=16, length=16),
  optim=OptimConfig(learning_rate=1e-2, warmup_steps=10),
  train=TrainConfig(steps=80, log_every=20, checkpoint_every=80),
)


LENGTH, DRAW = 8, Draw(0, 0, np.arange(4))
LINE = 1  # of tiny_tokenizer
WITH_LINES = types.SimpleNamespace(line_id=LINE, special={"cls": 70, "sep": 71})


@pytest.fixture(scope="module")
def data(tmp_path_factory, tiny_tokenizer):
  """A prepared table of sentences and the same with a synonym for each word."""
  folder, rng = tmp_path_factory.mktemp("pairs"), random.Random(0)
  tiny_tokenizer.save(str(folder / "tokenizer"))
  rows = ["id\toriginal\tsentence"]
  for number in range(200):
    words = [rng.choice(SYNONYMS) for _ in range(3)]
    first, second = (" ".join(word[side] for word in words) for side in (0, 1))
    rows.append(f"{number}\t{first}\t{second}")
  (folder / "pairs.tsv").write_text("\n".join(rows))
  config = PrepareConfig(
    source=f"{folder}/pairs.tsv",
    text_column="original,sentence",
    tokenizer=f"{folder}/tokenizer",
    valid_share=0.2,
  )
  prepare.run(config, f"{folder}/data")
  return f"{folder}/data"


@pytest.mark.slow
def test_a_text_is_near_its_paraphrase(data, tmp_path):
  """Words are to be near their synonyms, which share no context: the pairs alone say so."""
  workdir = str(tmp_path / "run")
  pretrain.run(CONFIG, data, workdir)
  model = load(workdir)
  vectors, others = (model.embed(texts) for texts in zip(*SYNONYMS, strict=True))
  nearest = (vectors @ others.T).argmax(axis=1)
  assert nearest.tolist() == list(range(len(WORDS)))


@pytest.fixture(scope="module")
def line_documents(tmp_path_factory, tiny_tokenizer):
  """Texts of up to 20 tokens with any number of line breaks at any place, as token file and ids."""
  rng = np.random.default_rng(0)
  documents = [rng.integers(60, size=n).tolist() for n in rng.integers(1, 21, size=60)]
  for ids in documents[20:]:  # lines of two texts, most of which have both
    ids[int(rng.integers(len(ids)))] = LINE
  folder = tmp_path_factory.mktemp("lines")
  tiny_tokenizer.save(str(folder / "tokenizer"))
  return token_files.write(folder, documents), documents


def texts(batch):
  """The ids of each row, without padding."""
  pairs = zip(batch.rows.inputs, batch.rows.segments, strict=True)
  return [row[inside > 0].tolist() for row, inside in pairs]


def sides(ids):
  """The first LENGTH tokens of the first line and of the rest, within what a row holds."""
  ids = ids[: 2 * LENGTH + 1]
  place = ids.index(LINE) if LINE in ids else len(ids)
  first, second = ids[:place][:LENGTH], ids[place + 1 :][:LENGTH]
  return (first, second) if first and second else ([], [])


def test_positives_are_the_two_sides_of_each_document(line_documents):
  """Once an epoch, in an order of its own; texts that are no pair have empty rows."""
  tokens, documents = line_documents
  objective = LinePairs()
  bound = objective.bind(WITH_LINES, LENGTH)
  windows = objective.windows(tokens, WindowsConfig(batch_size=6, length=LENGTH), seed=3)
  usable = [ids for ids in documents if len(ids) > 1]
  assert windows.spans_per_epoch == len(usable)
  rows = np.concatenate([windows(step) for step in range(20)])[: 2 * len(usable)]
  epochs = []
  for epoch in np.split(rows, 2):
    found = texts(bound(epoch, DRAW))
    epochs.append(list(zip(found[::2], found[1::2], strict=True)))
  assert epochs[0] != epochs[1]
  for epoch in epochs:
    assert sorted(epoch) == sorted(map(sides, usable))
  assert sum(bool(first) for first, _ in epochs[0]) > 20
  in_order = np.concatenate(list(windows.sequential()))[: len(usable)]
  found = texts(bound(in_order, DRAW))
  assert list(zip(found[::2], found[1::2], strict=True)) == list(map(sides, usable))


def test_hosts_make_the_same_line_pairs_of_a_step(line_documents):
  tokens, _ = line_documents
  objective = LinePairs(pooling="cls")
  bound, config = objective.bind(WITH_LINES, LENGTH), WindowsConfig(batch_size=8, length=LENGTH)
  whole = objective.windows(tokens, config, seed=1)
  for step in (9, 0, 13):  # a resumed run begins anywhere
    parts = []
    for rows in np.split(np.arange(8), 4):
      windows = objective.windows(tokens, config, seed=1)
      parts.append(bound(windows(step, rows), windows.draw(step, rows)))
    together = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    jax.tree.map(np.testing.assert_array_equal, together, bound(whole(step), DRAW))


def test_line_pairs_need_lines(line_documents, tmp_path, tiny_tokenizer):
  tokens, _ = line_documents
  without = types.SimpleNamespace(line_id=None)
  refused("the vocabulary has no token for the line", LinePairs().bind, without, LENGTH)
  config = WindowsConfig(batch_size=8, length=LENGTH, sampling="across_documents")
  told = "sampling=across_documents: a pair is one document"
  refused(told, LinePairs().windows, tokens, config)
  tiny_tokenizer.save(str(tmp_path / "tokenizer"))
  single = token_files.write(tmp_path, [[2, 3, 4], [5, 6]])
  told, config = "no document has two lines, a pair; prepare a", WindowsConfig(8, LENGTH)
  refused(told, LinePairs().windows, single, config)
