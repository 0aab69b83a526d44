"""What a training step computes in 16 bits and what in float32; losses in 16 bits; scatters."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.batch import Batch, Labels, Predictions, Rows, Tags
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.heads.masked import MaskedHead
from gpt_jax.models.heads.regress import MultiLabelHead, RegressHead
from gpt_jax.models.heads.tag import TagHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.trainer import Trainer

B, T = 8, 16
TRANSFORMER = TransformerConfig(vocab_size=60, context=T, layers=1, width=16, heads=2)
LSTM = LSTMConfig(vocab_size=60, context=T, width=16, units=8)
RNG = np.random.default_rng(0)
POSITIONS = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
# Text with something to learn: each id follows from the one before.
IDS = ((RNG.integers(0, 60, (B, 1)) + 7 * np.arange(T + 1)) % 60).astype(np.int32)
ONES = np.ones((B, T), np.float32)
TEXT = Batch(Rows(IDS[:, :-1], POSITIONS), predictions=Predictions(IDS[:, 1:], ONES))
ANCHORS = (np.arange(B, dtype=np.int32) * T + T - 1)[:, None]
CLASSES = np.eye(3, dtype=np.float32)[np.arange(B) % 3]
LABELED = TEXT._replace(
  rows=TEXT.rows._replace(segments=POSITIONS // T),
  labels=Labels(ANCHORS, CLASSES, np.ones(B, np.float32)),
)
AT = np.tile(np.int32([1, 4, 9]), (B, 1))
MASKED = TEXT._replace(predictions=Predictions(IDS[:, [1, 4, 9]], ONES[:, :3], AT))
NUMBERS = LABELED._replace(labels=LABELED.labels._replace(distributions=CLASSES[:, :1]))
TAGGED = TEXT._replace(tags=Tags(IDS[:, :-1] % 3, ONES))
WITH_TEXT = LanguageHead(0.5)
CASES = {
  "gpt1": (ModelConfig(TRANSFORMER), TEXT),
  "gpt2": (ModelConfig(dataclasses.replace(TRANSFORMER, norm="pre")), TEXT),
  "lstm": (ModelConfig(LSTM), TEXT),
  "masked": (ModelConfig(TRANSFORMER, (MaskedHead(),), "bidirectional"), MASKED),
  "classify": (ModelConfig(TRANSFORMER, (WITH_TEXT, ClassifyHead(3))), LABELED),
  "mean": (ModelConfig(TRANSFORMER, (ClassifyHead(3, "mean"),)), LABELED),
  "multi-label": (ModelConfig(TRANSFORMER, (MultiLabelHead(3),)), LABELED),
  "regress": (ModelConfig(TRANSFORMER, (WITH_TEXT, RegressHead())), NUMBERS),
  "tag": (ModelConfig(TRANSFORMER, (WITH_TEXT, TagHead(3))), TAGGED),
}
LOW = ("bfloat16", "float16")
# Sums over many elements, and functions that are steep: a tanh of GELU may be in 16 bits.
EXACT = {"exp", "log", "log1p", "rsqrt", "sqrt", "erf", "erfc", "logistic", "reduce_sum", "cumsum"}


@functools.cache
def build(name, dtype="float32"):
  """(trainer, batch) of a case, on one device."""
  spec, batch = CASES[name]
  trunk = dataclasses.replace(spec.trunk, dtype=dtype)
  model = dataclasses.replace(spec, trunk=trunk).build()
  optimizer = make_optimizer(OptimConfig(learning_rate=3e-3, warmup_steps=5), 100)
  mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])
  scales = dtype == "float16"
  loss = model_loss(model)
  return Trainer.build(model, loss, batch, optimizer, mesh, scales_loss=scales), batch


@functools.cache
def trace(name, dtype):
  trainer, batch = build(name, dtype)
  with jax.set_mesh(trainer.mesh):
    return trainer.step.compiled.trace(
      trainer.abstract_state(), jax.tree.map(lambda x: x[None], batch), np.uint32(0)
    )


def operations(jaxpr):
  """Every operation of a program, those of its inner programs too."""
  for equation in jaxpr.eqns:
    inner = []
    for value in equation.params.values():
      for part in value if isinstance(value, (list, tuple)) else (value,):
        part = getattr(part, "jaxpr", part)
        if hasattr(part, "eqns"):
          inner.append(part)
    for program in inner:
      yield from operations(program)
    yield equation


@pytest.mark.parametrize(
  "name, dtype", [*((name, "bfloat16") for name in CASES), ("gpt1", "float16"), ("lstm", "float16")]
)
def test_sums_losses_and_norms_are_in_float32(name, dtype):
  found = set()
  for equation in operations(trace(name, dtype).jaxpr.jaxpr):
    kind = equation.primitive.name
    types = {str(v.aval.dtype) for v in (*equation.invars, *equation.outvars) if hasattr(v, "aval")}
    found.add((kind, *sorted(types)))
    assert "float64" not in types, equation
    # A masked position is selected once: nothing is added up there.
    is_sum = kind in EXACT or (kind == "scatter-add" and name != "masked")
    assert not (is_sum and types & set(LOW)), equation
  assert ("dot_general", dtype, "float32") in found, "no product in 16 bits"
  trainer, _ = build(name, dtype)
  state = trainer.abstract_state()
  assert {x.dtype.name for x in jax.tree.leaves(state)} == {"float32", "int32"}


@pytest.mark.parametrize("name", CASES)
def test_factors_have_one_type_and_their_product_is_float32(name):
  """Otherwise a CPU multiplies at the rate of float32, or slower: see ops/product.py."""
  products = [
    tuple(str(v.aval.dtype) for v in (*equation.invars, *equation.outvars))
    for equation in operations(trace(name, "bfloat16").jaxpr.jaxpr)
    if equation.primitive.name == "dot_general"
  ]
  assert set(products) <= {("bfloat16", "bfloat16", "float32"), ("float32",) * 3}
  assert products.count(("bfloat16", "bfloat16", "float32")) >= 9  # forward, and twice backward


@pytest.mark.parametrize("name", ["gpt1", "lstm"])
def test_a_decoding_step_multiplies_by_the_table_as_it_is(name):
  """Under jax 0.11.2 one row times a transposed table takes six times as long."""
  model = CASES[name][0].build()
  params = build(name)[0].abstract_state().params

  def step(params, ids):
    apply = functools.partial(model.apply, {"params": params})
    state = apply(1, method="start")
    hidden, table, _ = apply(ids, ids, ids > 0, state, method="extend")
    return logits(hidden, table, model.num_tokens)

  table = params["trunk"]["tokens"].shape
  of_table = []
  for equation in operations(jax.make_jaxpr(step)(params, IDS[:1, :1]).jaxpr):
    shapes = [v.aval.shape for v in equation.invars if hasattr(v, "aval")]
    assert equation.primitive.name != "transpose" or table not in shapes
    if equation.primitive.name == "dot_general" and table in shapes:
      of_table.append(equation.params["dimension_numbers"][0][shapes.index(table)])
  assert of_table == [(1,)]  # over its last axis


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_adds_in_a_fixed_order(name):
  """A scatter adds equal indices in whatever order they come."""
  lowered = trace(name, "bfloat16")
  assert scatters(lowered.lower(lowering_platforms=("cuda",)).as_text()) == []


@pytest.mark.parametrize("name", ["gpt1", "masked", "classify"])
def test_a_cpu_scatters(name):
  """So the test above finds what it looks for."""
  lowered = trace(name, "bfloat16")
  assert len(scatters(lowered.lower(lowering_platforms=("cpu",)).as_text())) >= 1


def scatters(text):
  """The scatters of a lowered program that may have equal indices."""
  all_of_them = re.findall(r'"stablehlo\.scatter"\(.*', text)
  return [scatter for scatter in all_of_them if "unique_indices = true" not in scatter]


def losses(name, dtype, steps):
  trainer, batch = build(name, dtype)
  state, values = trainer.init(1), []
  for _ in range(steps):
    state, metrics = trainer.step(state, trainer.to_device(batch), 1)
    assert metrics["finite"]
    values.append(float(jax.device_get(metrics["loss"]).value))
  return np.array(values)


@pytest.mark.parametrize("name", ["gpt1", pytest.param("lstm", marks=pytest.mark.slow)])
def test_losses_in_16_bits_are_those_in_float32(name):
  expected = losses(name, "float32", 20)
  assert expected[-1] < expected[0] - 0.02
  for dtype in LOW if name == "gpt1" else ("float16",):
    np.testing.assert_allclose(losses(name, dtype, 20), expected, rtol=0.01, err_msg=dtype)


def test_masks_hold_in_float16():
  """-1e9 is beyond float16; scores and logits are float32."""
  trunk = dataclasses.replace(TRANSFORMER, dtype="float16")
  model = ModelConfig(trunk).build()
  segments = np.repeat(np.int32([[0, 1]]), 8, axis=1)
  ids, places = IDS[:1, :16], np.tile(np.arange(8, dtype=np.int32), 2)[None]
  params = jax.jit(model.init)(jax.random.key(0), Batch(Rows(ids, places, segments)))
  states = jax.jit(lambda ids: model.apply(params, Rows(ids, places, segments), method="states"))
  changed = ids.copy()
  changed[0, :8] = 5
  hidden, other = states(ids).hidden, states(changed).hidden
  assert hidden.dtype == jnp.float16
  assert np.isfinite(hidden).all()
  np.testing.assert_array_equal(hidden[0, 8:], other[0, 8:])
  assert (hidden[0, :8] != other[0, :8]).any()
