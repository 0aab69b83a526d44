"""Streams in turns: each step takes the next batch of its stream, and that stream's loss."""

import dataclasses

import jax
import numpy as np
import pytest

from gpt_jax.batch import Mean
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs.finetune import WholeBatches
from gpt_jax.programs.pretrain import step_recipe
from gpt_jax.programs.pretrain_config import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.recipe import make_trainer
from gpt_jax.training.unlabeled import LossInTurns, Turns, draw_order

CONFIG = PretrainConfig(
  trunk=TransformerConfig(vocab_size=60, context=8, layers=1, width=16, heads=2),
  data=WindowsConfig(batch_size=4, length=8),
  optim=OptimConfig(learning_rate=1e-2, schedule="constant", warmup_steps=0),
  train=TrainConfig(steps=6),
)
MESH = make_mesh(MeshConfig(), jax.devices()[:1])


class Scaled:
  """A loss times a number."""

  def __init__(self, loss, factor):
    self.loss, self.factor, self.denominators = loss, factor, loss.denominators

  def __call__(self, *given):
    total, metrics = self.loss(*given)
    mean = metrics["loss"]
    return self.factor * total, {**metrics, "loss": Mean(self.factor * mean.total, mean.weight)}


def batches_of(stream):
  def batch(step):
    return causal_batch(np.random.default_rng([stream, step]).integers(60, size=(4, 9)))

  return batch


def recipe_of(loss, batches):
  recipe = step_recipe(CONFIG, lambda rows, _: causal_batch(rows), MESH)
  make = recipe.loss
  return dataclasses.replace(recipe, loss=lambda model: loss(make(model)), batches=batches)


def whole(batch, train):
  return WholeBatches(batch, (4, 8), MESH, train.parts)


def test_steps_are_those_of_their_streams():
  """In two microbatches, as a run in one that changes its loss and its batches by hand."""
  train = dataclasses.replace(CONFIG.train, microbatches=2)
  streams = [batches_of(0), batches_of(1)]
  turns = recipe_of(
    lambda loss: LossInTurns({"text": loss, "views": Scaled(loss, 0.5)}),
    lambda train: Turns([whole(batch, train) for batch in streams], np.arange(6) % 2),
  ).with_train(microbatches=2)
  trainer, batches = make_trainer(turns), turns.batches(train)
  alone = []
  for factor in (1.0, 0.5):
    scaled = lambda loss, factor=factor: Scaled(loss, factor)
    alone.append(make_trainer(recipe_of(scaled, lambda train: whole(streams[0], train))))
  state, expected = trainer.init(0), alone[0].init(0)
  for step in range(6):
    state, metrics = trainer.step(state, trainer.to_device(batches.at(step)), 0)
    one = alone[step % 2]
    batch = one.to_device(streams[step % 2](step // 2))
    expected, theirs = one.step(expected, batch, 0)
    assert metrics["loss"].value == pytest.approx(float(theirs["loss"].value), rel=1e-4)
    name = ("text_loss", "views_loss")[step % 2]
    assert metrics[name].value == metrics["loss"].value
    assert len([other for other in metrics if other.endswith("_loss")]) == 1
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), state.params, expected.params
  )


def test_tasks_are_drawn_by_the_square_root_of_their_size():
  order = draw_order([900, 100], 8000, 3, others=True)
  assert (order[1::2] == 2).all()
  drawn = order[::2]
  assert np.mean(drawn == 1) == pytest.approx(0.25, abs=0.02)
  np.testing.assert_array_equal(draw_order([900, 100], 4000, 3, others=False), drawn)
  np.testing.assert_array_equal(draw_order([900, 100], 101, 3, others=True), order[:101])
  assert np.any(draw_order([900, 100], 4000, 4, others=False) != drawn)


def test_each_stream_has_its_batches_in_order():
  order = draw_order([9, 4], 40, 0, others=True)
  turns = Turns([whole(lambda n, s=s: np.array([s, n]), CONFIG.train) for s in range(3)], order)
  seen = {stream: [] for stream in range(3)}
  for step in range(40):
    turn = turns.at(step)
    stream, number = turn.batch.reshape(-1)
    assert turn.stream == stream == order[step]
    seen[stream].append(number)
  assert all(numbers == list(range(len(numbers))) for numbers in seen.values())
