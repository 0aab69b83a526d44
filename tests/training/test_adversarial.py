"""Adversarial losses against NumPy and finite differences, packed or not, in any parts."""

import dataclasses
import functools
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.batch import Batch, Labels, Predictions, Rows
from gpt_jax.data.tokenizers.base import SpecialTokens
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.heads.regress import RegressHead
from gpt_jax.models.loss import ModelLoss, model_loss
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.perturbation import (
  no_perturbation,
  normal,
  of_length,
  sequence_norms,
  uniform,
  within,
)
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.dropout import dropout, step_key
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.training.adversarial import FGM, FreeLB, VirtualAdversarial, ascent
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.trainer import Trainer

NO_DROPOUT = {"residual_dropout": 0, "attention_dropout": 0, "embedding_dropout": 0}
TRUNK = TransformerConfig(60, context=32, layers=1, width=16, heads=2, **NO_DROPOUT)
KEY = step_key(0, 0)
METHODS = [
  FGM(radius=0.5),
  VirtualAdversarial(radius=0.5),
  FreeLB(steps=2, step_size=0.2, radius=0.3, start=0.2),
]
IDS = ["fgm", "virtual", "freelb"]


def examples(count, sequences=1, classes=3, longest=8):
  """Random examples of sequences of two fields each."""
  rng = np.random.default_rng(0)
  texts = [rng.integers(2, 60, rng.integers(1, longest + 1)).astype(np.int32) for _ in range(99)]
  fields = rng.integers(99, size=(count, sequences, 2))
  kept = np.array([len(text) for text in texts])[fields]
  labels = np.eye(classes, dtype=np.float32)[rng.integers(classes, size=count)]
  special = SpecialTokens(60)
  return Encoded(texts, fields, kept, labels, [f"x:{i}" for i in range(count)], 32, special, 0.0)


def packed(count=8, groups=1, **options):
  return PackedBatches(examples(count, **options), count, 0, 1, groups=groups)(0)


def one_per_row(batch):
  """The batch with each sequence in a row of its own."""
  rows, (count, choices) = batch.rows, batch.labels.anchors.shape
  arrays = [*rows[:3], *batch.predictions[:2]]
  new = [np.zeros((count * choices, arrays[0].shape[1]), x.dtype) for x in arrays]
  anchors = np.zeros_like(batch.labels.anchors)
  for i, anchor in enumerate(batch.labels.anchors.reshape(-1)):
    row, column = divmod(anchor, rows.inputs.shape[1])
    cells = np.flatnonzero(rows.segments[row] == rows.segments[row, column])
    for x, to in zip(arrays, new, strict=True):
      to[i, : len(cells)] = x[row, cells]
    anchors[divmod(i, choices)] = i * rows.inputs.shape[1] + column - cells[0]
  labels = batch.labels._replace(anchors=anchors)
  return Batch(Rows(*new[:3]), predictions=Predictions(*new[3:]), labels=labels)


def model_of(trunk=TRUNK, lm_weight=0.0, **head):
  heads = (ClassifyHead(num_classes=3, dropout=0.0, **head),)
  return ModelConfig(trunk, (LanguageHead(lm_weight), *heads) if lm_weight else heads).build()


def params_of(model, batch, scale=1.0):
  """Parameters of a model that is not indifferent, as a fresh head is."""
  params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda p: p + scale * rng.normal(size=p.shape).astype(np.float32) / 5, params)


@functools.partial(jax.jit, static_argnums=0)
def gradient(loss, params, batch, denominators=None):
  def total(params):
    return loss(params, batch, KEY, denominators)

  (value, metrics), grads = jax.value_and_grad(total, has_aux=True)(params)
  return value, metrics, grads


def assert_equal(got, want, **tolerance):
  tolerance = tolerance or {"rtol": 2e-4, "atol": 2e-6}
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, want)


# A linear model, whose gradients can be written down.


class LinearTrunk(nn.Module):
  dropout: float
  is_deaf: bool

  @nn.compact
  def __call__(self, rows, key=None, layers=False):
    table = self.param("tokens", nn.initializers.normal(1.0), (128, 6))
    x = table[rows.inputs]
    x = x if self.is_deaf else self.perturb("embedded", x)
    return States(dropout(x, self.dropout, key), table)


@dataclasses.dataclass(frozen=True)
class Linear(TrunkConfig):
  vocab_size: int = 60
  special_tokens: int = 3
  width: int = 6
  dtype: str = "float32"
  dropout: float = 0.0
  is_deaf: bool = False

  def build(self, attention, remat):
    return LinearTrunk(self.dropout, self.is_deaf)


@pytest.fixture(scope="module")
def linear():
  """Mean-pooled tokens times W_y, and its parts in NumPy, float64."""
  batch = packed()
  model = model_of(Linear(), pooling="mean")
  params = params_of(model, batch)
  table, kernel, bias = (
    np.asarray(x, np.float64)
    for x in (params["trunk"]["tokens"], params["head"]["kernel"], params["head"]["bias"])
  )
  segments = np.asarray(batch.rows.segments)
  x = [table[batch.rows.inputs[segments == n + 1]] for n in range(8)]  # [t, D] of each example

  def log_probs(n, r=0.0):
    scores = (x[n] + r).mean(0) @ kernel + bias
    return scores - np.log(np.exp(scores).sum())

  return SimpleNamespace(
    batch=batch,
    model=model,
    params=params,
    kernel=kernel,
    x=x,
    labels=np.asarray(batch.labels.distributions, np.float64),
    log_probs=log_probs,
    cells=[segments == n + 1 for n in range(8)],
  )


def test_fgm_on_a_linear_model_equals_numpy(linear):
  loss = jax.jit(FGM(0.7, 0.4).wrap(model_loss(linear.model)))
  total, metrics = loss(linear.params, linear.batch, None)
  clean, attacked = [], []
  for n in range(8):
    g = (np.exp(linear.log_probs(n)) - linear.labels[n]) @ linear.kernel.T  # of each token, [D]
    g = np.broadcast_to(g / len(linear.x[n]), linear.x[n].shape)
    r = 0.7 * g / np.linalg.norm(g)
    clean.append(-linear.labels[n] @ linear.log_probs(n))
    attacked.append(-linear.labels[n] @ linear.log_probs(n, r))
  np.testing.assert_allclose(total, np.mean(clean) + 0.4 * np.mean(attacked), rtol=1e-5)
  assert np.mean(attacked) > np.mean(clean) + 0.01
  values = {name: float(mean.value) for name, mean in metrics.items()}
  want = {"loss": total, "task_loss": np.mean(clean), "adversarial_loss": np.mean(attacked)}
  assert values == pytest.approx({name: float(x) for name, x in want.items()}, rel=1e-5)


def test_virtual_adversarial_training_on_a_linear_model_equals_numpy(linear):
  method = VirtualAdversarial(0.7, 0.4, probe=0.3)
  total, metrics = jax.jit(method.wrap(model_loss(linear.model)))(linear.params, linear.batch, KEY)
  zero = no_perturbation(linear.model, linear.params, linear.batch)
  noise = np.asarray(jax.jit(normal)(zero, KEY, linear.batch.rows), np.float64)
  clean, divergences = [], []
  for n in range(8):
    d = noise[linear.cells[n]]
    d = 0.3 * d / np.linalg.norm(d)
    p = np.exp(linear.log_probs(n))
    g = (np.exp(linear.log_probs(n, d)) - p) @ linear.kernel.T  # of KL(p || p(e + d))
    r = np.broadcast_to(g, d.shape)
    r = 0.7 * r / np.linalg.norm(r)
    divergences.append(p @ (linear.log_probs(n) - linear.log_probs(n, r)))
    clean.append(-linear.labels[n] @ linear.log_probs(n))
  np.testing.assert_allclose(metrics["adversarial_loss"].value, np.mean(divergences), rtol=1e-4)
  np.testing.assert_allclose(total, np.mean(clean) + 0.4 * np.mean(divergences), rtol=1e-5)


def test_freelb_on_a_linear_model_equals_numpy(linear):
  method = FreeLB(steps=3, step_size=0.4, radius=0.6, start=0.5)
  total, _ = jax.jit(method.wrap(model_loss(linear.model)))(linear.params, linear.batch, KEY)
  zero = no_perturbation(linear.model, linear.params, linear.batch)
  noise = np.asarray(jax.jit(uniform)(zero, KEY, linear.batch.rows), np.float64)
  losses, shortened = [], 0
  for n in range(8):
    r = noise[linear.cells[n]] * 0.5 / np.sqrt(linear.x[n].size)
    for _ in range(3):
      losses.append(-linear.labels[n] @ linear.log_probs(n, r))
      g = (np.exp(linear.log_probs(n, r)) - linear.labels[n]) @ linear.kernel.T
      g = np.broadcast_to(g, r.shape)
      r = r + 0.4 * g / np.linalg.norm(g)
      shortened += np.linalg.norm(r) > 0.6
      r = r * min(1, 0.6 / np.linalg.norm(r))
  assert shortened
  np.testing.assert_allclose(total, np.mean(losses), rtol=1e-5)


# Perturbations.


def test_a_norm_is_that_of_a_sequence_not_of_a_row():
  batch = packed()
  rows = batch.rows
  assert len(rows.inputs) < 8  # packed
  rng = np.random.default_rng(1)
  x = rng.normal(size=(*rows.inputs.shape, 5)).astype(np.float32)
  x *= 10.0 ** -rng.integers(6, size=(*rows.inputs.shape, 1))
  x[rows.segments == 3] *= 1e-28  # whose squares are no numbers
  scaled, norms, shortened = map(jax.jit, (of_length, sequence_norms, within))
  r = np.asarray(scaled(x, 0.7, rows))
  for n in range(8):
    cells = rows.segments == n + 1
    assert np.linalg.norm(r[cells]) == pytest.approx(0.7, rel=1e-5)
    wanted = 0.7 * x[cells] / np.linalg.norm(x[cells].astype(np.float64))
    np.testing.assert_allclose(r[cells], wanted, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(np.asarray(norms(r, rows))[cells], 0.7, rtol=1e-5)
  assert not np.any(scaled(np.zeros_like(x), 0.7, rows))
  short = np.asarray(shortened(np.where(rows.segments[..., None] == 1, r, r / 7), 0.2, rows))
  lengths = [np.linalg.norm(short[rows.segments == n + 1]) for n in range(8)]
  assert lengths == pytest.approx([0.2] + [0.1] * 7, rel=1e-5)
  # Without segments each row is a sequence.
  r = np.asarray(scaled(x, 2.0, Rows(*rows[:2])))
  np.testing.assert_allclose(np.linalg.norm(r.reshape(len(r), -1), axis=1), 2, rtol=1e-5)


def test_noise_is_uniform_and_normal_and_differs_by_step_sequence_and_position():
  ids = np.zeros((40, 25), np.int32)
  positions = np.broadcast_to(np.arange(25, dtype=np.int32), ids.shape)
  rows = Rows(ids, positions, np.arange(1, 41, dtype=np.int32)[:, None] + ids)
  like = np.zeros((40, 25, 50), np.float32)
  draw = jax.jit(lambda key: (uniform(like, key, rows), normal(like, key, rows)))
  u, z = map(np.asarray, draw(KEY))
  assert np.abs(u).max() < 1
  np.testing.assert_allclose([u.mean(), u.std(), z.mean(), z.std()], [0, 3**-0.5, 0, 1], atol=0.02)
  assert len(np.unique(u[..., 0])) > 990
  assert np.abs(np.corrcoef(u[0].ravel(), u[1].ravel())[0, 1]) < 0.1
  assert np.mean(u == draw(step_key(0, 1))[0]) < 0.01


@pytest.mark.parametrize(
  "trunk", [TRUNK, LSTMConfig(60, width=16, units=16)], ids=["transformer", "lstm"]
)
def test_the_gradient_is_that_of_finite_differences_and_its_direction_raises_the_loss(trunk):
  batch, model = packed(), model_of(trunk)
  loss, params = model_loss(model), params_of(model, batch)
  zero = no_perturbation(model, params, batch)
  g = np.asarray(jax.jit(lambda p: ascent(loss, p, batch, None, None, zero))(params))
  at = jax.jit(lambda r: loss(params, batch, None, None, r)[0])
  scaled = jax.jit(of_length)
  direction = np.random.default_rng(0).normal(size=g.shape).astype(np.float32)
  slope = (at(0.01 * direction) - at(-0.01 * direction)) / 0.02
  np.testing.assert_allclose(slope, (g * direction).sum(), rtol=0.02)
  assert not g[batch.rows.segments == 0].any() and g[batch.rows.segments > 0].any(-1).all()
  radii = [0, 0.01, 0.1, 0.3]
  losses = [float(at(scaled(g, radius, batch.rows))) for radius in radii]
  assert losses == sorted(losses) and losses[-1] > losses[0] + 0.01


def test_a_trunk_without_perturbations_is_refused():
  batch, model = packed(), model_of(Linear(is_deaf=True))
  loss = FGM().wrap(model_loss(model))
  with pytest.raises(InputError, match="a Linear takes no perturbation"):
    jax.eval_shape(lambda: loss(params_of(model, batch), batch, None))


# Losses.


@pytest.mark.parametrize(
  "method, trunk", [*zip(METHODS, ["linear", "linear", "transformer"], strict=True)], ids=IDS
)
def test_packed_or_one_sequence_per_row(method, trunk):
  """The three differ in their perturbations; a trunk with attention is there once."""
  batch = packed(sequences=2)
  model = model_of() if trunk == "transformer" else model_of(Linear(), pooling="mean")
  alone = one_per_row(batch)
  missing = len(alone.rows.inputs) - len(batch.rows.inputs)
  assert missing > 0
  # Empty rows, so that both layouts are of one shape and share a program.
  pad = lambda x: np.pad(x, ((0, missing), (0, 0)))
  predictions = Predictions(*map(pad, batch.predictions[:2]))
  batch = batch._replace(rows=Rows(*map(pad, batch.rows[:3])), predictions=predictions)
  loss, params = method.wrap(model_loss(model)), params_of(model, batch)
  assert_equal(gradient(loss, params, alone), gradient(loss, params, batch))


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_two_microbatches_have_the_gradient_of_one(method):
  whole, halves = packed(), packed(groups=2)
  model = model_of(Linear(), lm_weight=0.5, pooling="mean")
  loss, params = method.wrap(model_loss(model)), params_of(model, whole)
  weights = np.float32([1, 1, 0, 1, 0, 0, 0, 1])  # the halves do not count the same
  whole, halves = (
    batch._replace(labels=batch.labels._replace(weights=weights)) for batch in (whole, halves)
  )
  total, metrics, grads = gradient(loss, params, whole)
  denominators = loss.denominators(whole)
  parts = [jax.tree.map(lambda x, i=i: np.split(x, 2)[i], halves) for i in range(2)]
  sums = [gradient(loss, params, part, denominators) for part in parts]
  assert_equal(jax.tree.map(jnp.add, *sums), (total, metrics, grads))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS[1:], ids=IDS[1:])  # FGM draws no noise
def test_pmap_has_the_gradient_of_one_device(method):
  batch_of = {"jit": packed(), "pmap": packed(groups=8)}
  model, found = model_of(Linear(), lm_weight=0.5, pooling="mean"), {}
  for backend, batch in batch_of.items():
    trainer = Trainer.build(
      model,
      method.wrap(model_loss(model)),
      batch,
      make_optimizer(OptimConfig(), 10),
      make_mesh(MeshConfig(backend=backend), jax.devices()[: 8 if backend == "pmap" else 1]),
      backend=backend,
    )
    state = trainer.init(0)
    _, metrics = trainer.step(state, trainer.to_device(batch), 0)
    found[backend] = jax.device_get(metrics)
  assert found["pmap"].keys() >= {"adversarial_loss", "task_loss", "lm_loss"}
  assert_equal(found["pmap"], found["jit"])


def test_no_gradient_flows_through_the_perturbation():
  batch, model = packed(), model_of(Linear(), lm_weight=0.5, pooling="mean")
  loss, params = model_loss(model), params_of(model, batch)
  task = ModelLoss(model, model.config.heads[1:])
  zero = no_perturbation(model, params, batch)

  @jax.jit
  def perturbation(params):
    return of_length(ascent(task, params, batch, KEY, None, zero), 0.5, batch.rows)

  r = perturbation(params)

  def explicit(params):
    return loss(params, batch, KEY)[0] + 0.3 * task(params, batch, KEY, None, r)[0]

  _, _, grads = gradient(FGM(0.5, 0.3).wrap(loss), params, batch)
  assert_equal(grads, jax.jit(jax.grad(explicit))(params))


def test_all_passes_of_a_step_drop_the_same_features():
  batch, model = packed(), model_of(Linear(dropout=0.5), pooling="mean")
  params = params_of(model, batch)
  with_key, without = (jax.jit(model_loss(model))(params, batch, key)[0] for key in (KEY, None))
  assert abs(with_key - without) > 0.01
  for method in (FGM(radius=1e-6), FreeLB(steps=2, step_size=1e-6, start=0)):
    _, metrics = jax.jit(method.wrap(model_loss(model)))(params, batch, KEY)
    clean = metrics["task_loss"].value
    np.testing.assert_allclose(metrics["adversarial_loss"].value, clean, rtol=1e-4)
  _, metrics = jax.jit(VirtualAdversarial(1e-6).wrap(model_loss(model)))(params, batch, KEY)
  assert abs(metrics["adversarial_loss"].value) < 1e-4


def test_the_divergence_needs_no_labels():
  batch, model = packed(), model_of(Linear(), pooling="mean")
  loss, params = VirtualAdversarial(0.5).wrap(model_loss(model)), params_of(model, batch)
  zeros = Labels(batch.labels.anchors, *map(np.zeros_like, batch.labels[1:]))
  _, with_labels, _ = gradient(loss, params, batch)
  total, without, grads = gradient(loss, params, batch._replace(labels=zeros))
  assert without["adversarial_loss"] == with_labels["adversarial_loss"]
  np.testing.assert_allclose(total, with_labels["adversarial_loss"].value, rtol=1e-6)
  assert np.abs(grads["head"]["kernel"]).max() > 1e-4
  model = ModelConfig(TRUNK, (RegressHead(),)).build()  # it is of classes
  with pytest.raises(InputError, match="one class, and read it without windows; use fgm or freelb"):
    VirtualAdversarial().wrap(model_loss(model))


@functools.cache
def flops(method):
  """Of a loss and its gradient as compiled; wide, so that matrix products dominate."""
  trunk = TransformerConfig(60, context=32, layers=1, width=256, heads=2, **NO_DROPOUT)
  model = ModelConfig(trunk, (ClassifyHead(3, dropout=0.0),)).build()
  batch, loss = packed(), model_loss(model)
  loss = loss if method is None else method.wrap(loss)
  params = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
  gradient = jax.jit(jax.grad(lambda params: loss(params, batch, KEY)[0]))
  return gradient.lower(params).compile().cost_analysis()["flops"]


@pytest.mark.parametrize("method", [FGM(), VirtualAdversarial(), FreeLB(steps=3)])
@pytest.mark.slow
def test_work_is_that_of_the_compiled_step(method):
  """Counted by XLA, which computes once what two passes share."""
  assert flops(method) / flops(None) == pytest.approx(method.work, rel=0.04)
