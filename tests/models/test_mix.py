"""Heads on a mix of all layers: the mix against NumPy, its penalty, and where a task has it."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy_transformer import random_params
from plain_rows import plain_rows
from refused import refused

from gpt_jax.batch import Batch, Labels, Tags
from gpt_jax.config import from_json, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.mix import MixedHead
from gpt_jax.models.heads.tag import TagHead
from gpt_jax.models.loss import ModelLoss, model_loss
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.dropout import step_key

B, T, K = 2, 6, 3
SIZES = {"vocab_size": 60, "context": 32, "embedding_width": 12, "units": (16, 16)}
TRUNK = LSTMStackConfig(**SIZES, directions="separate", projection=12, tied=False)
TAGS = MixedHead(head=TagHead(K, dropout=0.0), penalty=0.5)
RNG = np.random.default_rng(0)


def make_batch():
  ids = RNG.integers(0, 60, (B, T)).astype(np.int32)
  weights = (RNG.random((B, T)) < 0.7).astype(np.float32)
  tags = Tags(RNG.integers(0, K, (B, T)).astype(np.int32), weights)
  anchors = np.array([[T - 1], [2 * T - 1]], np.int32)
  labels = Labels(anchors, np.eye(K, dtype=np.float32)[:2], np.ones(2, np.float32))
  return Batch(plain_rows(ids, np.ones_like(ids)), labels=labels, tags=tags)


def built(head):
  spec, batch = ModelConfig(TRUNK, (head,), "bidirectional"), make_batch()
  assert from_json(to_json(spec)) == spec
  return spec.build(), random_params(spec), batch


def layers_of(model, params, batch):
  read = lambda params: model.apply({"params": params}, batch.rows, layers=True, method="states")
  return [np.asarray(h, np.float64) for h in jax.jit(read)(params).layers]


def test_the_head_reads_the_mix_and_pays_its_penalty():
  model, params, batch = built(TAGS)
  head = params["tags"]
  # The head's own parameters are where they are without a mix.
  assert set(head) == {"kernel", "bias", "mix"} and set(head["mix"]) == {"scale", "mixture"}
  shares = np.exp(head["mix"]["mixture"]) / np.exp(head["mix"]["mixture"]).sum()
  layers = layers_of(model, params, batch)
  mix = head["mix"]["scale"] * sum(share * h for share, h in zip(shares, layers, strict=True))
  scores = mix @ head["kernel"] + head["bias"]
  log_probs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
  of_target = np.take_along_axis(log_probs, batch.tags.targets[..., None], -1)[..., 0]
  loss = -(of_target * batch.tags.weights).sum() / batch.tags.weights.sum()
  penalty = 0.5 * np.square(head["mix"]["mixture"]).sum()
  evaluated, _ = jax.jit(model_loss(model))(params, batch, None)
  assert evaluated == pytest.approx(loss, rel=1e-5)
  no_dropout = ModelConfig(TRUNK, (dataclasses.replace(TAGS, dropout=0.0),), "bidirectional")
  training = no_dropout.with_trunk_dropout(0.0).build()
  trained, _ = jax.jit(model_loss(training))(params, batch, step_key(0, 0))
  assert trained == pytest.approx(loss + penalty, rel=1e-5)
  # Two halves of the batch, with the denominators of all of it, add up to the same.
  whole = model_loss(training)
  halves = [jax.tree.map(lambda x, n=n: x[n : n + 1], batch) for n in range(B)]
  each = jax.jit(lambda part: whole(params, part, step_key(0, 0), whole.denominators(batch))[0])
  assert sum(map(each, halves)) == pytest.approx(loss + penalty, rel=1e-5)


def test_one_layer_alone():
  model, params, batch = built(dataclasses.replace(TAGS, layer=1))
  head = params["tags"]
  assert set(head["mix"]) == {"scale"}
  outputs = jax.jit(lambda params: model.apply({"params": params}, batch).heads[0][0])(params)
  mix = head["mix"]["scale"] * layers_of(model, params, batch)[1]
  np.testing.assert_allclose(outputs, mix @ head["kernel"] + head["bias"], atol=1e-4)
  with pytest.raises(InputError, match=r"mix\.layer=3: the trunk has the layers 0 to 2"):
    ModelConfig(TRUNK, (dataclasses.replace(TAGS, layer=3),), "bidirectional")


@pytest.mark.parametrize(
  "at, reads, head_reads",
  [
    pytest.param("input", 5 + 24, 14, marks=pytest.mark.slow),
    pytest.param("output", 5, 14 + 24, marks=pytest.mark.slow),
    ("both", 5 + 24, 14 + 24),
  ],
)
def test_a_task_has_the_mix_at_the_input_or_output_of_its_lstm(at, reads, head_reads):
  head = MixedHead(head=ClassifyHead(K, "mean", dropout=0.0), embedding=5, units=7, at=at)
  model, params, batch = built(head)
  own = params["head"]
  assert own["lstm"]["forward"]["read"]["kernel"].shape == (reads, 4, 7)
  assert own["kernel"].shape == (head_reads, K)
  loss = ModelLoss(model, model.config.heads)
  gradients = jax.jit(jax.grad(lambda params: loss(params, batch, step_key(0, 0))[0]))(params)
  for name, gradient in gradients["head"].items():
    assert any(np.abs(x).max() > 0 for x in jax.tree.leaves(gradient)), name


@pytest.mark.parametrize(
  "trunk",
  [
    LSTMStackConfig(**SIZES | {"units": (16, 12)}),
    LSTMEncoderDecoderConfig(60, 32, embedding_width=12, units=16, decoder=False),
  ],
)
def test_of_layers_of_several_widths_one_is_read(trunk):
  head = MixedHead(head=ClassifyHead(K), units=7)
  spec = ModelConfig(trunk, (dataclasses.replace(head, layer=1),), trunk.default_attention)
  shapes = parameter_shapes(spec)
  assert shapes["head/lstm/forward/read/kernel"] == (trunk.layer_widths[1], 4, 7)
  refused("mix: needs layers of one width, and the trunk's are 12, ", ModelConfig, trunk, (head,))


@pytest.mark.parametrize("own", [{"units": 7}, {"embedding": 5}])
def test_layers_of_a_tasks_own_do_not_go_through_the_trunks_pooler(own):
  task = to_json(ClassifyHead(K, transform="pooler"))
  head = from_json(MixedHead(**own).change_head(task, None))
  trunk = TransformerConfig(60, 32, layers=1, width=16, heads=2, pooler=True)
  shapes = parameter_shapes(ModelConfig(trunk, (head,), "bidirectional"))
  assert shapes["head/kernel"] == (14 if "units" in own else 16 + 5, K)
  assert MixedHead().change_head(task, None)["head"] == task


def test_settings_that_do_not_fit():
  refused("MixedHead.at=both: needs units, not units=0", MixedHead, at="both")
  refused(r"mix\.at=output: .* reads mix\.embedding", MixedHead, at="output", units=3)
