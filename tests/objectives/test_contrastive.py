"""Contrastive learning: pairs, InfoNCE against NumPy, equal gradients on any mesh, refusals."""

import dataclasses
import functools
import json
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import token_files
from refused import refused

from gpt_jax.batch import Batch, Mean, Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import from_json, to_json
from gpt_jax.data.draws import Draw
from gpt_jax.data.sentence_windows import SENTENCE_END
from gpt_jax.data.token_file import TokenFile, TokenWriter
from gpt_jax.data.windows import Windows, WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.inference.evaluate import make_text_measure
from gpt_jax.models.heads.contrastive import ContrastiveHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import States
from gpt_jax.objectives.contrastive import DropoutViews, NeighborSentences, NeighborSpans
from gpt_jax.ops.dropout import step_key
from gpt_jax.parallel import memory
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import replicate, to_device
from gpt_jax.programs import evaluate, pretrain
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.pretrain_start import from_checkpoint
from gpt_jax.training.hooks import Interval, StepContext
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.run import Run
from gpt_jax.training.run_log import curve

LENGTH = 8
DRAW = Draw(0, 0, np.arange(4))
TRUNK = TransformerConfig(vocab_size=60, context=16, layers=1, width=16, heads=2)


def windows():
  """Rows of Windows: a long text, one of 5 tokens, one token, and a row that fills the batch."""
  rows = np.arange(4 * (LENGTH + 1), dtype=np.int32).reshape(4, -1)
  rows[1, 5:], rows[2, 1:], rows[3] = -1, -1, -1
  return rows


def texts(batch):
  """The ids of each row, without padding."""
  assert (np.diff(batch.rows.segments, axis=1) <= 0).all()  # padding is at the end
  pairs = zip(batch.rows.inputs, batch.rows.segments, strict=True)
  return [row[inside > 0].tolist() for row, inside in pairs]


def test_views_are_the_same_text_twice():
  batch = DropoutViews().bind(None, LENGTH)(windows(), DRAW)
  assert batch.rows.inputs.shape == (8, LENGTH)
  whole, short = list(range(8)), list(range(9, 14))
  assert texts(batch) == [whole, whole, short, short, [18], [18], [], []]
  assert batch.rows.positions[3].tolist() == whole


@pytest.mark.parametrize(
  "span, first, short, single",
  [
    (0, ([0, 1, 2, 3], [4, 5, 6, 7]), ([9, 10], [12, 13]), ([], [])),
    (6, ([0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7]), ([9, 10, 11], [11, 12, 13]), ([], [])),
    (2, ([0, 1], [6, 7]), ([9], [13]), ([], [])),
  ],
)
def test_neighbors_are_the_ends_of_a_window(span, first, short, single):
  batch = NeighborSpans(span=span).bind(None, LENGTH)(windows(), DRAW)
  assert batch.rows.inputs.shape == (8, span or LENGTH // 2)
  assert texts(batch) == [*first, *short, *single, [], []]


def test_neighbor_sentences_are_a_sentence_and_the_next_one():
  rows = np.full((4, LENGTH + 1), -1, np.int32)
  rows[0, :8] = [1, 2, SENTENCE_END, 3, SENTENCE_END, 4, 5, SENTENCE_END]
  rows[1, :8] = [6, 7, SENTENCE_END, 8, 9, 10, 11, SENTENCE_END]
  rows[2, :3] = [12, 13, SENTENCE_END]  # a document's last one
  batch = NeighborSentences().bind(None, LENGTH)(rows, DRAW)
  assert batch.rows.inputs.shape == (8, LENGTH // 2)
  assert texts(batch) == [[1, 2], [3], [6, 7], [8, 9, 10, 11], [], [], [], []]


def test_neighbor_sentences_of_a_text(tmp_path):
  """A pair is a sentence, and the beginning of the next one; hosts make the same ones."""
  writer = TokenWriter(str(tmp_path), "train", 100_000, sentences=True)
  sizes = np.random.default_rng(0).integers(2, 12, size=200)
  writer.add(np.arange(sizes.sum()), int(sizes.sum()), 1, sentence_ends=np.cumsum(sizes))
  writer.close(tokenizer_hash="abc")
  begins = set(np.cumsum([0, *sizes[:-1]]).tolist())
  objective = NeighborSentences()
  rows = objective.windows(TokenFile(str(tmp_path), "train"), WindowsConfig(16, 16))
  bound = objective.bind(None, 16)
  whole = bound(rows(0), DRAW)
  pairs = [(a, b) for a, b in zip(texts(whole)[::2], texts(whole)[1::2], strict=True) if a]
  assert pairs
  for first, second in pairs:
    assert {first[0], second[0]} <= begins and second[0] in range(first[-1] + 1, first[0] + 12)
    assert first[0] + len(first) == second[0] or len(first) == 8  # half of a row
  parts = [bound(rows(0, n), Draw(0, 0, n)) for n in np.split(np.arange(16), 4)]
  together = jax.tree.map(lambda *x: np.concatenate(x), *parts)
  jax.tree.map(np.testing.assert_array_equal, together, whole)


def test_cls_and_sep_enclose_each_text(tiny_tokenizer):
  tokenizer = tiny_tokenizer.with_special("cls", "sep")
  cls, sep = tokenizer.special["cls"], tokenizer.special["sep"]
  objective = DropoutViews(pooling="cls")
  assert objective.special == ("cls", "sep")
  found = texts(objective.bind(tokenizer, LENGTH)(windows(), DRAW))
  assert found[::2] == [[cls, *range(6), sep], [cls, *range(9, 14), sep], [cls, 18, sep], []]
  halves = texts(NeighborSpans(pooling="cls").bind(tokenizer, LENGTH)(windows(), DRAW))
  assert halves[:2] == [[cls, 0, 1, sep], [cls, 2, 3, sep]]


@pytest.mark.parametrize("objective", [DropoutViews(), NeighborSpans(span=3)])
def test_hosts_make_the_same_pairs(objective):
  bound, rows = objective.bind(None, LENGTH), windows()
  whole = bound(rows, DRAW)
  parts = [bound(rows[n], Draw(0, 0, n)) for n in np.split(np.arange(4), 2)]
  together = jax.tree.map(lambda *x: np.concatenate(x), *parts)
  jax.tree.map(np.testing.assert_array_equal, together, whole)
  assert from_json(to_json(objective)) == objective


def test_windows_without_room():
  with pytest.raises(InputError, match=r"objective.span=9: must not exceed data.length=8"):
    NeighborSpans(span=9).bind(None, LENGTH)
  for objective in (NeighborSpans(), DropoutViews(pooling="cls")):
    refused("data.length=1: leaves no token for a text", objective.bind, None, 1)


def reference(vectors, used, temperature, symmetric, texts):
  """InfoNCE in plain NumPy: the sum, and the number of texts that looked for a partner."""
  vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  total = count = 0
  for i in np.flatnonzero(used):
    if i % 2 and not symmetric:
      continue
    others = [j for j in np.flatnonzero(used) if (j != i if symmetric else j % 2)]
    equal = {texts[i], texts[i ^ 1]}  # no negatives
    others = [j for j in others if j == i ^ 1 or texts[j] not in equal]
    scores = np.array([vectors[i] @ vectors[j] for j in others]) / temperature
    total -= scores[others.index(i ^ 1)] - np.log(np.exp(scores).sum())
    count += 1
  return total, count


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
@pytest.mark.parametrize("mlp", [False, True])
def test_infonce_is_that_of_numpy(symmetric, pooling, mlp):
  rng = np.random.default_rng(0)
  head = ContrastiveHead(pooling, temperature=0.3, mlp=mlp, symmetric=symmetric)
  lengths = np.array([8, 6, 3, 1, 0, 0, 5, 8])  # the third pair fills the batch
  hidden = rng.normal(size=(8, LENGTH, 16)).astype(np.float32)
  ids = rng.integers(0, 9, (8, LENGTH)).astype(np.int32)
  if mlp:  # rows 1 and 6, and 0 and 7, are equal texts
    ids[7] = ids[0]
    ids[6, :5], lengths[1] = ids[1, :5], 5
  inside = np.arange(LENGTH) < lengths[:, None]
  batch = Batch(Rows(ids, ids, inside.astype(np.int32)))
  states = States(jnp.asarray(hidden), jnp.zeros((128, 16)))
  module = head.build(TRUNK)

  @jax.jit  # in one program, not one for each operation
  def loss():
    params = module.init(jax.random.key(0), states, batch).get("params", {})
    outputs = module.apply({"params": params}, states, batch)
    return params, head.loss(outputs, states, batch, 0)

  params, mean = loss()

  reads = {
    "mean": lambda row, n: row[: max(n, 1)].mean(0),
    "last": lambda row, n: row[n - 1],
    "cls": lambda row, n: row[0],
  }
  pairs = zip(hidden.astype(np.float64), lengths, strict=True)
  vectors = np.stack([reads[pooling](row, n) for row, n in pairs])
  if mlp:
    dense = params["dense"]
    vectors = np.tanh(vectors @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"]))
  texts = [tuple(row[:n].tolist()) for row, n in zip(ids, lengths, strict=True)]
  total, count = reference(vectors, lengths > 0, 0.3, symmetric, texts)
  np.testing.assert_allclose(mean.total, total, rtol=1e-5)
  assert float(mean.weight) == float(head.denominator(batch)) == count == (6 if symmetric else 3)


@pytest.mark.parametrize("symmetric", [False, True])
def test_chance_is_the_loss_of_equal_vectors(symmetric):
  head = ContrastiveHead(symmetric=symmetric)
  rows = np.broadcast_to(np.arange(2 * 5, dtype=np.int32)[:, None], (2 * 5, LENGTH))
  mean = head.loss(jnp.full((2 * 5, 4), 0.5), None, Batch(Rows(rows, rows)), 0)
  assert float(mean.total / mean.weight) == pytest.approx(head.chance(5), rel=1e-6)


def batch_of(objective, size=16):
  rows = np.random.default_rng(1).integers(60, size=(size, LENGTH + 1)).astype(np.int32)
  rows[3, 5:] = -1
  return objective.bind(None, LENGTH)(rows, Draw(0, 0, np.arange(size)))


def model_of(objective, trunk=TRUNK):
  heads = tuple(from_json(tree) for tree in objective.heads)
  return ModelConfig(trunk, heads, objective.attention).build()


@functools.cache
def params_of(mlp=False):
  """Of the models of all objectives with or without a layer in their heads."""
  objective = DropoutViews(mlp=mlp)
  return jax.jit(model_of(objective).init)(jax.random.key(0), batch_of(objective))["params"]


@pytest.mark.parametrize(
  "objective", [DropoutViews(attention="causal"), NeighborSpans(attention="bidirectional")]
)
def test_a_token_moves_the_vector_of_its_own_text_alone(objective):
  """And padding moves none: row 3 of the windows is short."""
  model, batch, params = model_of(objective), batch_of(objective), params_of()
  apply = jax.jit(lambda rows: model.apply({"params": params}, Batch(rows)).heads[0])
  rows = batch.rows
  before = np.asarray(apply(rows))
  row, padding = 6, np.argwhere(rows.segments == 0)[0]
  for place, moved in (((row, 1), [row]), (tuple(padding), [])):
    ids = np.array(rows.inputs)
    ids[place] = (ids[place] + 1) % 60
    after = np.asarray(apply(rows._replace(inputs=ids)))
    assert np.flatnonzero((after != before).any(axis=1)).tolist() == moved


@pytest.mark.parametrize(
  "objective, mesh",
  [
    (DropoutViews(mlp=True), MeshConfig(data=4, model=2)),
    pytest.param(NeighborSpans(attention="bidirectional"), MeshConfig(), marks=pytest.mark.slow),
  ],
)
def test_eight_devices_have_the_gradient_of_one(objective, mesh):
  """The negatives of all devices are gathered; dropout is on."""
  model, batch = model_of(objective), batch_of(objective)
  params = params_of(objective.mlp)
  loss, results = model_loss(model), []

  def gradient(params, batch):
    part = jax.tree.map(lambda x: x[0], batch)
    return jax.value_and_grad(lambda p: loss(p, part, step_key(3, 5))[0])(params)

  for devices in (make_mesh(MeshConfig(), jax.devices()[:1]), make_mesh(mesh)):
    with jax.set_mesh(devices):
      placed = replicate(params, devices), to_device(batch, devices)
      results.append(jax.device_get(jax.jit(gradient)(*placed)))
  (one, one_gradient), (eight, eight_gradient) = results
  np.testing.assert_allclose(eight, one, rtol=1e-4)

  def compare(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())

  jax.tree.map(compare, eight_gradient, one_gradient)
  assert np.abs(one_gradient["trunk"]["tokens"]).max() > 0.01  # so there is something to compare


def test_two_views_differ_by_dropout_alone():
  objective = DropoutViews()
  batch = batch_of(objective)
  params = params_of()

  def views(trunk, key):
    apply = jax.jit(model_of(objective, trunk).apply)
    (vectors,) = apply({"params": params}, batch, key).heads
    return np.asarray(vectors).reshape(-1, 2, 16).swapaxes(0, 1)

  np.testing.assert_array_equal(*views(TRUNK, None))
  without = dataclasses.replace(
    TRUNK, residual_dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0
  )
  np.testing.assert_array_equal(*views(without, step_key(0, 0)))
  first, second = views(TRUNK, step_key(0, 0))
  assert (np.abs(first - second).max(axis=1) > 1e-4).all()


@pytest.fixture(scope="module")
def start(make_run, tiny_tokenizer, tmp_path_factory):
  """A causal checkpoint."""
  trunk = dataclasses.replace(TRUNK, vocab_size=tiny_tokenizer.vocab_size, width=32)
  return make_run(tmp_path_factory.mktemp("start") / "run", ModelConfig(trunk))


CONFIG = PretrainConfig(
  objective=NeighborSpans(span=12),  # they overlap, so there is something to learn
  data=WindowsConfig(batch_size=16, length=16),
  optim=OptimConfig(learning_rate=3e-3, warmup_steps=5),
  train=TrainConfig(steps=20, log_every=1),
)


@pytest.fixture(scope="module")
def run(start, prepared, tmp_path_factory):
  """A contrastive run from the checkpoint: workdir, results."""
  workdir = str(tmp_path_factory.mktemp("contrastive") / "run")
  results = pretrain.run(CONFIG, prepared, workdir, make_recipe=from_checkpoint(start))
  _, losses = curve(workdir, "loss")
  return types.SimpleNamespace(workdir=workdir, results=results, losses=losses)


@pytest.mark.e2e
def test_a_run_learns_from_a_checkpoint_and_is_evaluated(run, prepared):
  loaded = load_model(run.workdir)
  assert loaded.spec.heads == (ContrastiveHead(symmetric=True),)
  assert set(run.results) == {"valid_loss"}  # no perplexity, no bits: it predicts no tokens
  (first, last) = (np.mean(run.losses[i]) for i in (slice(3), slice(-3, None)))
  assert last < first - 0.3 and run.results["valid_loss"] < first
  again = [evaluate.run(run.workdir, prepared) for _ in range(2)]
  assert again[0] == again[1]
  assert again[0]["loss"] == pytest.approx(run.results["valid_loss"], rel=1e-5)
  with open(f"{run.workdir}/plan.json") as file:
    assert json.load(file)["unigram_entropy"] is None


def test_an_evaluation_compares_texts_of_several_documents(tmp_path):
  """As training does; in the file's order, whole batches are of one book."""
  text = token_files.write(tmp_path, [np.full(400, document) for document in range(8)])
  objective, batches = NeighborSpans(), []
  bound = objective.bind(None, 16)

  def seen(rows, draw):
    batches.append(rows)
    return bound(rows, draw)

  model = model_of(objective)
  windows = Windows(text, WindowsConfig(batch_size=8, length=16))
  measure = make_text_measure(model, seen, windows, make_mesh(MeshConfig(), jax.devices()[:1]), 4)
  params = params_of()
  first, again = measure(params), measure(params)
  assert first == again and len(batches) == 8
  assert all(len(np.unique(rows[:, 0])) > 2 for rows in batches)


@pytest.mark.parametrize("loss, is_stuck", [(3.5, True), (3.4, False)])
def test_a_run_whose_vectors_stay_alike_warns(loss, is_stuck):
  """Chance is log 31 = 3.43: 16 pairs, whose 32 texts each choose between 31."""
  spec = model_of(CONFIG.objective).config
  (hook,) = pretrain.warn_when_stuck(CONFIG, spec, None, total_steps=20)
  interval = Interval()
  interval.add(11, {"finite": True, "loss": Mean(np.float32(loss), np.float32(1))})
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    hook.run(StepContext(11, 20, False, None, interval, {}))
  messages = [str(warning.message) for warning in caught]
  assert len(messages) == is_stuck
  assert all("is not below chance 3.434" in x and "are alike" in x for x in messages)


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"train": TrainConfig(steps=2, microbatches=2)}, "train.microbatches=2: the loss compares"),
    ({"mesh": MeshConfig(backend="pmap")}, "mesh.backend=pmap: the loss compares"),
    (
      {"mesh": MeshConfig(data=1, model=8), "data": WindowsConfig(batch_size=1, length=16)},
      "data.batch_size=1: the loss compares",
    ),
  ],
)
def test_a_batch_in_parts_is_refused(changes, message, prepared, tmp_path):
  trunk = dataclasses.replace(TRUNK, vocab_size=0)
  config = dataclasses.replace(CONFIG, trunk=trunk, **changes)
  refused(message, pretrain.run, config, prepared, str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


def test_no_parts_are_chosen(monkeypatch):
  """A step that does not fit stays whole."""
  mesh, bound = make_mesh(MeshConfig(), jax.devices()[:1]), CONFIG.objective.bind(None, 16)
  open_config = dataclasses.replace(CONFIG, trunk=TRUNK, train=TrainConfig(steps=10))
  run = Run(pretrain.step_recipe(open_config, bound, mesh), [])
  trainer = run.trainer
  monkeypatch.setattr(memory, "limit", lambda _: 1.0)
  with pytest.warns(UserWarning, match="config.data.length, or more devices$"):
    run.plan()
  assert run.trainer is trainer
