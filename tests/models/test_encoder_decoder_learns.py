"""A T5 of 0.03M parameters learns in seconds to reverse 4 random ids."""

import jax
import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.inference.stream import Sampling, Text, continue_texts
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.trainer import Trainer

VOCAB, LENGTH, BATCH, STEPS = 8, 4, 32, 400
START = VOCAB  # of the decoder, the id after the vocabulary


def batch_at(step):
  """Rows of random ids, and the same reversed."""
  source = np.random.default_rng([1, step]).integers(VOCAB, size=(BATCH, LENGTH)).astype(np.int32)
  targets = source[:, ::-1].copy()
  shifted = np.concatenate([np.full((BATCH, 1), START, np.int32), targets[:, :-1]], axis=1)
  positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), source.shape)
  return Batch(
    Rows(shifted, positions),
    source=Rows(source, positions),
    predictions=Predictions(targets, np.ones(targets.shape, np.float32)),
  )


def test_it_reverses_random_ids():
  sizes = {"layers": 1, "width": 32, "heads": 4, "head_width": 8, "units": 64}
  trunk = T5Config(VOCAB, 16, **sizes, version="1.1", residual_dropout=0.0)
  model = ModelConfig(trunk, (LanguageHead(z_loss=1e-4),)).build()
  trainer = Trainer.build(
    model,
    model_loss(model),
    batch_at(0),
    make_optimizer(OptimConfig("adafactor", 0.05, "linear", 0, clip_norm=0.0), STEPS),
    make_mesh(MeshConfig(data=1), jax.devices()[:1]),
    rules=trunk.TENSOR_PARALLEL,
  )
  state, _ = trainer.fit(trainer.init(0), batch_at, STEPS, 0, [])
  unseen = batch_at(STEPS)
  texts = [
    Text([START], Sampling(LENGTH, temperature=0.0), source=ids.tolist())
    for ids in unseen.source.inputs
  ]
  for _ in continue_texts(model, state.params, texts):
    pass
  written = np.array([[token.id for token in text.added] for text in texts])
  # Without the source, or without its order, no more than half of the ids are right.
  assert (written == unseen.predictions.targets).mean() > 0.95
