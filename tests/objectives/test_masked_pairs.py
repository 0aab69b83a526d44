"""Pairs of texts as BERT lays them out, their classes, the same batch on any number of hosts."""

import contextlib
import io
import json

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax.batch import Batch, Labels, Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import from_json, to_json
from gpt_jax.data.draws import Draw
from gpt_jax.data.sentence_windows import IN_ORDER, NOT_IN_ORDER, PackedSentenceWindows, PairWindows
from gpt_jax.data.token_file import TokenFile, TokenWriter
from gpt_jax.data.windows import Windows, WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.bidirectional_lm import BothDirections
from gpt_jax.objectives.causal import Causal, PrefixLM
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.masked_sentences import FullSentences, MaskedPairs
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.parallel.placement import anchors_of_parts
from gpt_jax.programs import evaluate, prepare, pretrain
from gpt_jax.programs.prepare import PrepareConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

LENGTH = 32
CONFIG = WindowsConfig(batch_size=8, length=LENGTH)


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
  return tiny_tokenizer.with_special("cls", "sep", "mask")


@pytest.fixture(scope="module")
def text(tmp_path_factory, tiny_tokenizer):
  folder, rng = tmp_path_factory.mktemp("text"), np.random.default_rng(0)
  writer = TokenWriter(folder, "train", tiny_tokenizer.vocab_size, sentences=True)
  for _ in range(20):
    ends = np.cumsum(rng.integers(2, 9, 50))
    ids = rng.integers(tiny_tokenizer.vocab_size, size=ends[-1])
    writer.add(ids, 1, 1, sentence_ends=ends)
  writer.close(tokenizer_hash=tiny_tokenizer.hash)
  return TokenFile(folder, "train")


def row(a, mark, b):
  ids = [*a, mark, *b]
  return [*ids, *[-1] * (LENGTH + 1 - len(ids))]


def test_the_layout_of_a_pair(tokenizer):
  rows = np.array(
    [
      row([5, 6, 7], IN_ORDER, [8, 9]),
      row([0], NOT_IN_ORDER, range(10, 10 + LENGTH - 4)),  # as long as can be
      [-1] * (LENGTH + 1),  # fills the last batch of an evaluation
    ],
    np.int32,
  )
  # No position is chosen to change: all predicted tokens stay as they are.
  objective = MaskedPairs(masked=0.0, random=0.0)
  batch = objective.bind(tokenizer, LENGTH)(rows, Draw(0, 0, np.arange(3)))
  cls, sep = tokenizer.special["cls"], tokenizer.special["sep"]
  inputs, positions, segments, types, _ = batch.rows
  assert inputs[0, :8].tolist() == [cls, 5, 6, 7, sep, 8, 9, sep]
  assert types[0].tolist() == [0] * 5 + [1] * 3 + [0] * (LENGTH - 8)
  assert segments[0].tolist() == [1] * 8 + [0] * (LENGTH - 8)
  assert inputs[1].tolist() == [cls, 0, sep, *range(10, 10 + LENGTH - 4), sep]
  assert types[1].tolist() == [0] * 3 + [1] * (LENGTH - 3) and segments[1].all()
  assert not segments[2].any() and not types[2].any()
  assert (positions == np.arange(LENGTH)).all()
  assert {x.dtype for x in (inputs, positions, segments, types)} == {np.dtype(np.int32)}
  assert batch.labels.anchors.tolist() == [[0], [LENGTH], [2 * LENGTH]]
  assert batch.labels.distributions.tolist() == [[1, 0], [0, 1], [1, 0]]
  assert batch.labels.weights.tolist() == [1, 1, 0]
  # round(0.15 x 8), round(0.15 x 32), and none of padding; never [CLS] or [SEP].
  assert batch.predictions.weights.sum(axis=1).tolist() == [1, 5, 0]
  used = batch.predictions.targets[batch.predictions.weights > 0]
  assert not {cls, sep} & set(used.tolist())


@pytest.mark.parametrize("second", ["random_document", "swapped"])
def test_batches_of_a_text(text, tokenizer, second):
  objective = MaskedPairs(second=second, unit="ngram", random_ids="all")
  assert from_json(to_json(objective)) == objective
  windows = objective.windows(text, CONFIG, seed=2)
  bound = objective.bind(tokenizer, LENGTH)
  rows = np.arange(8)
  classes = []
  for step in range(100):
    batch = bound(windows(step, rows), windows.draw(step, rows))
    classes.extend(batch.labels.distributions.argmax(axis=1))
    inputs, valid = batch.rows.inputs.copy(), batch.rows.segments > 0
    np.put_along_axis(inputs, batch.predictions.at, batch.predictions.targets, axis=1)
    seps = inputs == tokenizer.special["sep"]
    assert (seps.sum(axis=1) == 2).all()
    assert (inputs[:, 0] == tokenizer.special["cls"]).all()
    assert seps[rows, valid.sum(axis=1) - 1].all()  # the last one ends the row
    first = seps.argmax(axis=1)[:, None]
    expected = valid & (np.arange(LENGTH) > first)
    np.testing.assert_array_equal(batch.rows.types, expected)
  assert np.mean(classes) == pytest.approx(0.5, abs=0.07)  # 800 pairs, four standard errors


@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize(
  "objective",
  [
    Masked(),
    Masked(copies=3, unit="word"),
    MaskedPairs(unit="ngram", random_ids="all"),
    MaskedPairs(copies=3, unit="word"),
    FullSentences(unit="sentence", count="probabilistic"),
    FullSentences(copies=3, unit="word"),
    BothDirections(),
    SpanCorruption("encoder_decoder"),
    SpanCorruption("prefix"),
    PrefixLM(),
    Causal(),
  ],
  ids=lambda objective: f"{type(objective).__name__}",
)
def test_hosts_and_a_resumed_run_make_the_same_batch(text, tiny_tokenizer, objective, hosts):
  tokenizer = tiny_tokenizer.with_special(*objective.special)
  windows = objective.windows(text, CONFIG, seed=2)
  for step in range(8):  # a run from the beginning
    whole = make_batch(objective, windows, tokenizer, step, np.arange(8))
  for rows in np.split(np.arange(8), hosts):
    resumed = objective.windows(text, CONFIG, seed=2)
    part = make_batch(objective, resumed, tokenizer, 7, rows)
    for got, expected in zip(leaves(part), leaves(whole), strict=True):
      np.testing.assert_array_equal(got, expected[rows])


def make_batch(objective, windows, tokenizer, step, rows):
  """As pretrain makes it."""
  bound = objective.bind(tokenizer, LENGTH)
  batch = bound(windows(step, rows), windows.draw(step, rows))
  return anchors_of_parts(batch, rows, CONFIG.batch_size)


def leaves(batch):
  parts = [batch.rows, batch.source, batch.predictions, batch.labels]
  return [x for part in parts if part is not None for x in part if x is not None]


def test_anchors_count_the_rows_of_their_part():
  """16 rows in 2 microbatches over 4 processes, the second of which has rows 2, 3, 10 and 11."""
  rows = np.array([2, 3, 10, 11])
  ids = np.zeros((4, LENGTH), np.int32)
  labels = Labels(np.arange(4, dtype=np.int32)[:, None] * LENGTH + 5, None, None)
  batch = anchors_of_parts(Batch(Rows(ids, ids), labels=labels), rows, 8)
  assert batch.labels.anchors.tolist() == [[2 * LENGTH + 5], [3 * LENGTH + 5]] * 2
  assert batch.labels.anchors.dtype == np.int32
  assert anchors_of_parts(Batch(Rows(ids, ids)), rows, 8).labels is None


def test_which_rows_an_objective_reads(text, tiny_tokenizer):
  kinds = {
    Causal(): Windows,
    Masked(copies=2): Windows,
    MaskedPairs(second="swapped"): PairWindows,
    FullSentences(): PackedSentenceWindows,
  }
  for objective, kind in kinds.items():
    windows = objective.windows(text, CONFIG, seed=4)
    assert type(windows) is kind and windows.seed == 4
    assert windows.copies == getattr(objective, "copies", 0)
  refused("no special token 'cls'", MaskedPairs().bind, tiny_tokenizer.with_special("mask"), LENGTH)


@pytest.mark.e2e
def test_each_head_is_evaluated_and_parts_of_a_batch_change_nothing(tmp_path):
  source = tmp_path / "rows.jsonl"
  lines = ["The cat sat. The dog ran! Was it late? It was. The sea is old. He went on." * 3] * 30
  source.write_text("\n".join(json.dumps({"text": line}) for line in lines))
  with contextlib.redirect_stdout(io.StringIO()):
    settings = PrepareConfig(str(source), vocab_size=300, valid_share=0.3, sentences=True)
    prepare.run(settings, str(tmp_path / "data"))
  parts = dict.fromkeys(("residual_dropout", "attention_dropout", "embedding_dropout"), 0.0)
  parts |= {"norm": "pre", "token_types": 2, "pooler": True}
  results = []
  for name, microbatches in (("one", 1), ("parts", 2)):
    config = PretrainConfig(
      TransformerConfig(context=LENGTH, layers=1, width=16, heads=2, **parts),
      MaskedPairs(unit="word"),
      WindowsConfig(16, LENGTH),
      OptimConfig(learning_rate=1e-2, warmup_steps=2),
      train=TrainConfig(steps=4, microbatches=microbatches),
    )
    results.append(pretrain.run(config, str(tmp_path / "data"), str(tmp_path / name)))
  one, two = results
  assert two == pytest.approx(one, rel=1e-5)
  both = one["valid_masked_loss"] + one["valid_sentence_pair_loss"]
  assert one["valid_loss"] == pytest.approx(both, rel=1e-4)
  assert one["valid_perplexity"] == pytest.approx(np.exp(one["valid_masked_loss"]))
  assert one["valid_sentence_pair_accuracy"] == accuracy_of_rows(tmp_path)
  again = evaluate.run(str(tmp_path / "one"), str(tmp_path / "data"))
  assert again["sentence_pair_accuracy"] == one["valid_sentence_pair_accuracy"]
  assert again["sentence_pair_loss"] == pytest.approx(one["valid_sentence_pair_loss"], rel=1e-5)


def accuracy_of_rows(folder):
  """Of the held-out pairs, one at a time."""
  loaded = load_model(str(folder / "one"))
  bound = loaded.config.objective.bind(loaded.tokenizer, LENGTH)
  text, right = TokenFile(str(folder / "data"), "valid"), []
  apply = jax.jit(loaded.model.apply)
  windows = loaded.config.objective.windows(text, WindowsConfig(16, LENGTH))
  for number, rows in enumerate(windows.sequential()):
    batch = bound(rows, Draw(0, number, np.arange(16)))
    scores = apply({"params": loaded.params}, batch).heads[1]
    for row, two in zip(rows, np.asarray(scores), strict=True):
      if (row != -1).any():
        right.append((two[1] > two[0]) == (NOT_IN_ORDER in row))
  assert 20 < len(right) and 0 < np.mean(right) < 1
  return np.mean(right)
