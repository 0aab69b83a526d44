"""bfloat16 on GPUs that lack it: float32, with a warning."""

import dataclasses
import types
import warnings

import jax
import numpy as np
import pytest

from gpt_jax.batch import Batch, Rows
from gpt_jax.models import trunk
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig

SPEC = ModelConfig(
  TransformerConfig(vocab_size=60, context=8, layers=1, width=16, heads=2, dtype="bfloat16")
)


@pytest.fixture
def devices(monkeypatch):
  """devices(capability, …): what the model takes for the devices of this machine."""

  def pretend(*capabilities):
    there = [
      types.SimpleNamespace(compute_capability=name, device_kind="Tesla T4")
      for name in capabilities
    ]
    trunk._warn_of_dtype.cache_clear()
    monkeypatch.setattr(jax, "devices", lambda: there)

  yield pretend
  trunk._warn_of_dtype.cache_clear()


def dtype_of(spec):
  """Of the hidden states of a model that is traced."""
  ids = np.zeros((1, 4), np.int32)

  def hidden():
    model = spec.build()
    params = model.init(jax.random.key(0), Batch(Rows(ids, ids)))
    return model.apply(params, Rows(ids, ids), method="states").hidden

  return str(jax.eval_shape(hidden).dtype)


def test_a_gpu_without_bfloat16_computes_in_float32(devices):
  devices("8.0", "7.5")
  with pytest.warns(UserWarning, match=r"bfloat16: Tesla T4 has none .*7\.5.*float32.*float16"):
    assert dtype_of(SPEC) == "float32"
  with warnings.catch_warnings(action="error"):
    assert dtype_of(SPEC) == "float32"  # warned once


@pytest.mark.parametrize("capability", ["8.0", "9.0", "12.0", "gfx90a", None])
def test_other_devices_have_it(devices, capability):
  devices(capability)
  assert dtype_of(SPEC) == "bfloat16"


def test_float16_stays(devices):
  devices("7.0")
  half = dataclasses.replace(SPEC.trunk, dtype="float16")
  assert dtype_of(dataclasses.replace(SPEC, trunk=half)) == "float16"
