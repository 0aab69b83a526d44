"""Stacked LSTMs against torch.nn.LSTM, and what must hold of them: directions, resets, masks."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_lstm import numpy_step, sigmoid
from numpy_transformer import random_params
from refused import refused

from gpt_jax.batch import Rows
from gpt_jax.models import lstm
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, make_heads
from gpt_jax.objectives.causal import Causal, causal_batch
from gpt_jax.ops.cross_entropy import cross_entropy, logits
from gpt_jax.ops.dropout import step_key

SIZES = {"vocab_size": 60, "context": 32, "embedding_width": 12}
AWD = LSTMStackConfig(**SIZES, units=(16, 12))
CLIPS = {"cell_clip": 0.4, "projection_clip": 0.3, "residual": True}
APART = {"directions": "separate", "tied": False, "variational": False}
ELMO = LSTMStackConfig(**SIZES, units=(16, 16), projection=12, **CLIPS, **APART)
COVE = LSTMStackConfig(**SIZES, units=(8, 8), directions="joined", tied=False)
CVT = dataclasses.replace(COVE, units=(16, 12), projection=8)
BACKWARD = dataclasses.replace(AWD, directions="backward")
TRUNKS = {"awd": AWD, "elmo": ELMO, "cove": COVE, "cvt": CVT, "backward": BACKWARD}
B, T = 3, 9
IDS = np.random.default_rng(0).integers(0, 60, (B, T)).astype(np.int32)
POSITIONS = np.broadcast_to(np.arange(T, dtype=np.int32), IDS.shape)
# Two texts and padding in each row.
PACKED = np.array([[0, 1, 2, 0, 1, 2, 3, 0, 0]] * B, np.int32)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 0, 0]] * B, np.int32)


def built(config):
  """The module, and parameters moved so that every one of them matters."""
  spec = ModelConfig(config, (), config.default_attention)
  return config.build(config.default_attention), random_params(spec)["trunk"]


def states(config, ids=IDS, positions=POSITIONS, segments=None, key=None):
  module, params = built(config)
  read = jax.jit(lambda *rows: module.apply({"params": params}, Rows(*rows), key, layers=True))
  return read(ids, positions, segments)


@pytest.mark.parametrize("name", TRUNKS)
def test_a_direction_sees_its_side_only(name):
  config = TRUNKS[name]
  changed = IDS.copy()
  changed[:, 4] = (changed[:, 4] + 1) % 60
  before, after = states(config), states(config, changed)
  assert len(before.layers) == config.layers + 1
  np.testing.assert_array_equal(before.layers[-1], before.hidden)
  for number, (a, b) in enumerate(zip(before.layers, after.layers, strict=True)):
    parts = np.split(np.abs(np.asarray(a - b)), len(config.ways), axis=-1)
    for backward, part in zip(config.ways, parts, strict=True):
      sees = np.arange(T) <= 4 if backward else np.arange(T) >= 4
      if number == 0:
        sees = np.arange(T) == 4
      elif config.directions == "joined" and number > 1:
        sees = np.ones(T, bool)
      np.testing.assert_array_equal(part.max((0, 2)) > 0, sees, err_msg=f"layer {number}")


def test_depths():
  depths = {"tokens": 0, "output": 2, "block_0": 1, "block_1": 2}
  assert {top: AWD.depth(f"{top}/x") for top in built(AWD)[1]} == depths


# Those of AWD-LSTM and CoVe have torch's two biases; ours, as ELMo's, has one.
@pytest.mark.parametrize(
  "config, count",
  [
    (LSTMStackConfig(), 20_211_600 - 4 * (1150 + 1150 + 400)),
    (
      LSTMStackConfig(embedding_width=300, units=(300, 300), directions="joined", tied=False),
      3_609_600 - 4 * 4 * 300,
    ),
    (
      LSTMStackConfig(
        embedding_width=512, units=(4096, 4096), projection=512, directions="separate"
      ),
      4 * 18_890_752,
    ),
  ],
  ids=["awd-lstm", "cove", "elmo"],
)
def test_the_papers_counts(config, count):
  assert config.parameter_count() == count


def test_the_output_is_the_table_and_a_bias():
  found, (_, params) = states(AWD), built(AWD)
  wanted = np.asarray(found.hidden) @ params["tokens"].T + params["output"][:, 0]
  scores = logits(found.hidden, found.table, AWD.rows)
  np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-5)
  weights = np.ones((B, T), np.float32)

  def loss(hidden, table):
    return cross_entropy(hidden, table, IDS, weights, AWD.rows)

  def plain(hidden, table):
    scores = hidden @ table[:, :-1].T + table[:, -1].reshape(1, 1, -1)
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), IDS[..., None], axis=-1).sum()

  ours, theirs = (jax.jit(jax.grad(f, (0, 1)))(found.hidden, found.table) for f in (loss, plain))
  for a, b in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("projects", [False, True])
def test_the_gradient_is_that_of_the_loop(monkeypatch, projects):
  """Without a projection; with one and clips that bite, from right to left."""
  rng, (U, P) = np.random.default_rng(2), (16, 12 if projects else 16)
  normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
  kernel, gates = normal(P, 4, U), normal(T, B, 4, U)
  projection = normal(U, P) if projects else None
  state = lstm.State(normal(B, P), normal(B, U))
  first, valid = rng.random((2, T, B)) < 0.3
  weights = normal(T, B, P)
  options = {"backward": True, "cell_clip": 0.4, "output_clip": 0.3} if projects else {}

  def total(kernel, gates, state, projection):
    arrays = kernel, gates, first, ~valid, state, None, projection
    state, outputs = lstm.recur(*arrays, **options)
    return (outputs * weights).sum() + state.output.sum() * state.memory.sum()

  def gradients():
    function = jax.grad(lambda *args: total(*args), argnums=(0, 1, 2, 3) if projects else (0, 1, 2))
    return jax.jit(function)(kernel, gates, state, projection)

  found = gradients()
  monkeypatch.setattr(lstm, "scan", lambda step, *args: lstm._loop(step, args[-1], *args[:-1])[0])
  expected = gradients()
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)


RATES = ("embedding", "input", "hidden", "output", "recurrent")


def with_rates(config, **rates):
  rates = {f"{name}_dropout": rates.get(name, 0.0) for name in RATES}
  return dataclasses.replace(config, **rates)


def test_output_dropout_has_one_mask_over_time():
  hidden = np.asarray(states(with_rates(AWD, output=0.5), key=step_key(0, 0)).hidden)
  dropped = hidden == 0
  assert (dropped == dropped[:, :1]).all() and 0.2 < dropped.mean() < 0.8
  assert (dropped[0] != dropped[1]).any()
  kept = states(with_rates(AWD)).hidden
  wanted = np.where(dropped, 0, 2 * np.asarray(kept))
  np.testing.assert_allclose(hidden, wanted, rtol=1e-5, atol=1e-5)
  each = dataclasses.replace(with_rates(AWD, output=0.5), variational=False)
  dropped = np.asarray(states(each, key=step_key(0, 0)).hidden) == 0
  assert (dropped != dropped[:, :1]).any()


def test_a_dropped_word_is_missing_everywhere_and_is_still_predicted():
  found = states(with_rates(AWD, embedding=0.5), key=step_key(0, 0))
  embedded = np.asarray(found.layers[0])
  dropped = (embedded == 0).all(-1)
  for i in np.unique(IDS):
    assert len(set(dropped[i == IDS])) == 1
  assert 0.2 < dropped.mean() < 0.8
  assert (np.asarray(found.table)[:60, :-1] != 0).any(-1).all()


@pytest.mark.parametrize("rate", RATES)
def test_every_rate_changes_what_it_drops(rate):
  plain = states(with_rates(AWD), key=step_key(0, 0))
  dropped = states(with_rates(AWD, **{rate: 0.5}), key=step_key(0, 0))
  pairs = zip((*plain.layers, plain.hidden), (*dropped.layers, dropped.hidden), strict=True)
  changed = [bool((a != b).any()) for a, b in pairs]
  first = {"embedding": 0, "input": 1, "recurrent": 1, "hidden": 2, "output": 3}[rate]
  assert changed == [number >= first for number in range(4)]


def test_dropconnect_drops_recurrent_weights():
  """The same weights at every position: the first one has no state for them to act on."""
  config, key = with_rates(AWD, recurrent=0.5), step_key(3, 1)
  module, params = built(config)
  read = jax.jit(
    lambda params, key: module.apply({"params": params}, Rows(IDS, POSITIONS), key, layers=True)
  )
  whole, dropped = read(params, None).layers[1], read(params, key).layers[1]
  np.testing.assert_array_equal(whole[:, 0], dropped[:, 0])
  assert (np.asarray(whole != dropped)[:, 1:]).any(-1).all()
  lower = params["block_0"]["forward"]
  without = lower | {"recur": jax.tree.map(np.zeros_like, lower["recur"])}
  none = params | {"block_0": {"forward": without}}
  np.testing.assert_array_equal(read(none, key).layers[1], read(none, None).layers[1])


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"units": ()}, "trunk.units: must have the units of at least one layer"),
    ({"units": (16, 16)}, "trunk.tied: needs a last layer of trunk.embedding_width=12"),
    ({"projection_clip": 3.0}, "projection_clip=3.0: needs projection, not projection=0"),
    ({"residual": True}, "trunk.residual: needs layers of one width"),
  ],
)
def test_settings_that_do_not_fit(changes, message):
  refused(message, dataclasses.replace, AWD, **changes)


def test_what_it_reads_is_what_the_objective_sees():
  for config, attention in ((AWD, "bidirectional"), (ELMO, "causal"), (BACKWARD, "prefix")):
    refused(f"trunk.directions={config.directions}: has", config.build, attention)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["awd", "cove", "cvt", "elmo"])
def test_equals_torch(name):
  """Values and gradients, of every direction of each layer."""
  torch = pytest.importorskip("torch")
  config = dataclasses.replace(TRUNKS[name], cell_clip=0.0, projection_clip=0.0, residual=False)
  module, params = built(config)
  weights = np.random.default_rng(3).standard_normal((B, T, config.width), np.float32)

  @jax.jit
  def ours(params):
    found = module.apply({"params": params}, Rows(IDS, POSITIONS))
    return (found.hidden * weights).sum(), found.hidden

  grads, hidden = jax.grad(ours, has_aux=True)(params)
  table = torch.tensor(params["tokens"], requires_grad=True)
  embedded, layers = table[torch.tensor(IDS, dtype=torch.long)], []
  x = [embedded] * len(config.ways)
  for number in range(config.layers):
    outputs = []
    for backward, inputs in zip(config.ways, x, strict=True):
      layer = torch.nn.LSTM(
        inputs.shape[-1], config.units[number], batch_first=True, proj_size=config.projection
      )
      name = "backward" if backward else "forward"
      fill(torch, layer, params[f"block_{number}"][name])
      layers.append((number, name, layer))
      flip = (lambda y: y.flip(1)) if backward else (lambda y: y)
      outputs.append(flip(layer(flip(inputs))[0]))
    x = [torch.cat(outputs, -1)] * len(outputs) if config.directions == "joined" else outputs
  result = x[0] if config.directions == "joined" else torch.cat(x, -1)
  np.testing.assert_allclose(hidden, result.detach().numpy(), rtol=1e-5, atol=1e-5)
  (result * torch.tensor(weights)).sum().backward()
  np.testing.assert_allclose(grads["tokens"], table.grad.numpy(), rtol=1e-5, atol=1e-5)
  for number, name, layer in layers:
    found = grads[f"block_{number}"][name]
    theirs = {key: value.grad.numpy() for key, value in layer.named_parameters()}
    units = layer.hidden_size
    for key, array in (
      ("weight_ih_l0", found["read"]["kernel"]),
      ("weight_hh_l0", found["recur"]["kernel"]),
    ):
      np.testing.assert_allclose(
        np.asarray(array).reshape(-1, 4 * units).T, theirs[key], rtol=1e-5, atol=1e-5, err_msg=key
      )
    bias = np.asarray(found["read"]["bias"]).reshape(-1)
    np.testing.assert_allclose(bias, theirs["bias_ih_l0"], rtol=1e-5, atol=1e-5)
    if config.projection:
      np.testing.assert_allclose(
        np.asarray(found["project"]["kernel"]).T, theirs["weight_hr_l0"], rtol=1e-5, atol=1e-5
      )


def fill(torch, layer, ours):
  """Copies one direction's parameters into a torch.nn.LSTM."""
  units = layer.hidden_size
  bias = np.array(ours["read"]["bias"])
  bias[1] += 1  # what ours adds to the forget gate
  with torch.no_grad():
    layer.weight_ih_l0.copy_(torch.tensor(ours["read"]["kernel"].reshape(-1, 4 * units).T))
    layer.weight_hh_l0.copy_(torch.tensor(ours["recur"]["kernel"].reshape(-1, 4 * units).T))
    layer.bias_ih_l0.copy_(torch.tensor(bias.reshape(-1)))
    layer.bias_hh_l0.zero_()
    if "project" in ours:
      layer.weight_hr_l0.copy_(torch.tensor(ours["project"]["kernel"].T))


def test_clips_and_the_residual_are_elmos():
  """Against NumPy: memory and projected output are cut; only the second layer adds its input."""
  _, params = built(ELMO)
  found = states(ELMO).layers
  for part, name in enumerate(("forward", "backward")):
    inputs = params["tokens"][IDS[0]].astype(np.float64)
    for number in range(2):
      p = params[f"block_{number}"][name]
      h, c, outputs = np.zeros(12), np.zeros(16), []
      for x in inputs[::-1] if part else inputs:
        gates = np.einsum("d,dgu->gu", x, p["read"]["kernel"]) + p["read"]["bias"]
        gates += np.einsum("p,pgu->gu", h, p["recur"]["kernel"])
        c = np.clip(numpy_step(gates, c)[1], -0.4, 0.4)
        h = np.clip((sigmoid(gates[3]) * np.tanh(c)) @ p["project"]["kernel"], -0.3, 0.3)
        outputs.append(h)
      outputs = np.array(outputs[::-1] if part else outputs)
      inputs = outputs + inputs if number else outputs
      ours = np.split(np.asarray(found[number + 1][0]), 2, axis=-1)[part]
      np.testing.assert_allclose(ours, inputs, rtol=1e-5, atol=1e-5)
  assert math.isclose(np.abs(np.asarray(found[1])).max(), 0.3, rel_tol=1e-6)


def test_activation_regularizers():
  """AR of the dropped outputs, TAR of the others and only inside a text; evaluations have none."""
  config, key = with_rates(AWD, output=0.5), step_key(0, 0)
  _, params = built(config)
  heads = make_heads(Causal(ar=2, tar=1).heads)
  loss = model_loss(ModelConfig(config, heads).build())
  rows = np.where(SEGMENTS[:, :-1] == 0, -1, IDS[:, :-1])
  batch = causal_batch(np.pad(rows, [(0, 0), (0, 2)], constant_values=-1))
  batch = batch._replace(rows=batch.rows._replace(positions=PACKED))
  total, metrics = jax.jit(loss)({"trunk": params}, batch, key)
  found = states(config, batch.rows.inputs, PACKED, key=key)
  inside = np.asarray(batch.predictions.weights) > 0
  pairs = inside[:, 1:] & inside[:, :-1] & (PACKED[:, 1:] > 0)
  last = np.asarray(found.layers[-1])
  ar = np.square(found.hidden)[inside].mean()
  tar = np.square(last[:, 1:] - last[:, :-1])[pairs].mean()
  values = {name: mean.value for name, mean in metrics.items()}
  np.testing.assert_allclose(values["activation_loss"], ar, rtol=1e-5)
  np.testing.assert_allclose(values["temporal_activation_loss"], tar, rtol=1e-5)
  np.testing.assert_allclose(total, values["lm_loss"] + 2 * ar + tar, rtol=1e-5)
  _, metrics = jax.jit(loss)({"trunk": params}, batch, None)
  assert metrics["loss"].value == pytest.approx(metrics["lm_loss"].value)
  assert Causal().heads == ({"type": "language"},)
