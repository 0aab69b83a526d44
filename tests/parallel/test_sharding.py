"""Where arrays go: the mesh, path rules for parameters and moments, FSDP, rows of a batch."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from refused import refused

from gpt_jax.batch import Rows
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig, constrain, make_mesh, partition, path_name
from gpt_jax.parallel.placement import check_batch, local_rows, to_device

TRANSFORMER = TransformerConfig(vocab_size=60, context=16, layers=2, width=16, heads=4)
LSTM = LSTMConfig(vocab_size=60, context=16, width=16, units=8)
STACK = LSTMStackConfig(60, 16, embedding_width=8, units=(16, 16), projection=8)
T5 = T5Config(60, context=16, layers=2, width=16, heads=4, head_width=6, units=24, version="1.1")
LSTM_TRANSLATOR = LSTMEncoderDecoderConfig(60, 16, embedding_width=8, units=4)


def abstract_state(trunk):
  text = jnp.zeros((1, 8), jnp.int32)
  rows = Rows(text, text)
  source = (None, rows) if trunk.reads_source else ()

  def make():
    params = {"trunk": trunk.build().init(jax.random.key(0), rows, *source)["params"]}
    return {"params": params, "opt_state": optax.adam(1e-3).init(params)}

  return jax.eval_shape(make)


def specs(tree, *args, **options):
  leaves = jax.tree_util.tree_leaves_with_path(partition(tree, *args, **options))
  return {path_name(path): leaf.spec for path, leaf in leaves}


def test_mesh_shapes():
  assert dict(make_mesh(MeshConfig()).shape) == {"data": 8, "model": 1}
  assert dict(make_mesh(MeshConfig(model=4)).shape) == {"data": 2, "model": 4}
  assert dict(make_mesh(MeshConfig(data=2), jax.devices()[:2]).shape) == {"data": 2, "model": 1}


@pytest.mark.parametrize(
  "options", [{"data": 3}, {"model": 3}, {"data": 4}, {"data": 8, "model": 2}]
)
def test_devices_that_do_not_divide(options):
  refused("devices; there are 8", lambda: make_mesh(MeshConfig(**options)))


def test_pmap_is_data_parallel_only():
  for field, value in (("model", 2), ("fsdp", True), ("cpu_products", "auto")):
    message = f"MeshConfig.{field}=.*: needs backend=jit, not backend=pmap"
    refused(message, MeshConfig, backend="pmap", **{field: value})


@pytest.mark.parametrize(
  "trunk",
  [TRANSFORMER, LSTM, STACK, T5, LSTM_TRANSLATOR],
  ids=["transformer", "lstm", "stack", "t5", "lstm translator"],
)
def test_rules_hit_parameters_and_both_moments(trunk):
  state = abstract_state(trunk)
  found = specs(state, trunk.TENSOR_PARALLEL, make_mesh(MeshConfig(data=2, model=4)))
  parameters = {name: spec for name, spec in found.items() if name.startswith("params/")}
  for name, spec in parameters.items():
    for moment in ("mu", "nu"):
      assert found[name.replace("params/", f"opt_state/0/{moment}/")] == spec
  for pattern, spec in trunk.TENSOR_PARALLEL:
    matched = [found for name, found in parameters.items() if re.search(pattern, name)]
    assert matched and all(tuple(found) == tuple(spec) for found in matched), pattern
  # What a rule forgot would be held whole by each device.
  whole = {name for name, spec in parameters.items() if "model" not in spec and len(spec) > 1}
  assert whole <= {"params/trunk/positions"}
  assert found["opt_state/0/count"] == P()


def test_rules_are_idle_without_a_model_axis():
  found = specs(abstract_state(TRANSFORMER), TRANSFORMER.TENSOR_PARALLEL, make_mesh(MeshConfig()))
  assert not any(axis for spec in found.values() for axis in spec)


def test_fsdp_takes_the_largest_axis_that_is_left_and_divides():
  shapes = {"a": (8, 24), "taken": (24, 8), "odd": (25, 8), "nothing": (3, 5), "scalar": ()}
  tree = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
  mesh = make_mesh(MeshConfig(data=4, model=2))
  assert specs(tree, [("taken", P("model"))], mesh, fsdp=True) == {
    "a": P(None, "data"),
    "taken": P("model", "data"),
    "odd": P(None, "data"),
    "nothing": P(None, None),
    "scalar": P(),
  }


def test_heads_that_do_not_divide():
  trunk = dataclasses.replace(TRANSFORMER, heads=2)
  state, mesh = abstract_state(trunk), make_mesh(MeshConfig(model=4))
  message = "mesh.model=4: does not divide the axis of size 2 of .*/attention/"
  refused(message, specs, state, trunk.TENSOR_PARALLEL, mesh)


def test_check_batch():
  check_batch(24, 4, 3)
  refused(r"data.batch_size=20: must be a multiple of 8 .*; use 16", check_batch, 20, 4, 2)
  refused("; use 8$", check_batch, 3, 4, 2)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize(
  "config", [MeshConfig(), MeshConfig(data=4, model=2), MeshConfig(backend="pmap")]
)
def test_placed_rows_come_back(config, microbatches):
  mesh = make_mesh(config)
  batch = Rows(*(np.arange(24 * 5).reshape(24, 5) + i for i in range(2)))
  rows = local_rows(24, mesh, microbatches)
  np.testing.assert_array_equal(np.sort(rows), np.arange(24))
  placed = to_device(jax.tree.map(lambda x: x[rows], batch), mesh, microbatches, config.backend)
  assert placed.segments is None
  x = placed.inputs
  if config.backend == "pmap":
    assert x.shape == (8, microbatches, 24 // microbatches // 8, 5)
    x = np.moveaxis(x, 0, 1).reshape(microbatches, -1, 5)
  else:
    assert x.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "data")), 3)
  assert x.shape == (microbatches, 24 // microbatches, 5)
  np.testing.assert_array_equal(np.reshape(x, (24, 5)), batch.inputs)


def test_local_rows_of_one_process_of_two(monkeypatch):
  """Simulated: the devices of the second process hold the second half of each microbatch."""
  mesh = make_mesh(MeshConfig(data=4, model=2))
  second = set(mesh.devices[2:].ravel())

  def local(found, shape):
    indices = found.devices_indices_map(shape)
    return {device: index for device, index in indices.items() if device in second}

  monkeypatch.setattr(NamedSharding, "addressable_devices_indices_map", local)
  np.testing.assert_array_equal(local_rows(16, mesh, 2), [4, 5, 6, 7, 12, 13, 14, 15])


def test_constrain():
  x = jnp.ones((8, 4))
  assert constrain(x, "data") is x  # no mesh
  mesh = make_mesh(MeshConfig(data=4, model=2))
  with jax.set_mesh(mesh):
    placed = jax.jit(lambda x: constrain(x, "data", "model"))(x)
  assert placed.sharding.is_equivalent_to(NamedSharding(mesh, P("data", "model")), 2)
  with jax.set_mesh(make_mesh(MeshConfig(), jax.devices()[:1])):
    assert constrain(x, "data") is x
