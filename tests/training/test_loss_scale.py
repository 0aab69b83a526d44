"""Loss scaling: its rule, the steps that it skips, and a run in float16."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpt_jax
from gpt_jax.batch import Mean
from gpt_jax.checkpoints.restore import restore_params
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs import export, pretrain, verify
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.hooks import MAX_REFUSED_UPDATES, Interval
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.run_log import curve
from gpt_jax.training.step import FIRST_SCALE, GROWTH_INTERVAL, LossScale, TrainState, adjusted
from gpt_jax.training.trainer import Trainer


def after(scale, steps, finite):
  return tuple(map(float, adjusted(LossScale(jnp.float32(scale), jnp.int32(steps)), finite)))


def test_the_rule():
  assert after(FIRST_SCALE, 7, True) == (FIRST_SCALE, 8)
  assert after(FIRST_SCALE, 7, False) == (FIRST_SCALE / 2, 0)
  assert after(FIRST_SCALE, GROWTH_INTERVAL - 1, True) == (2 * FIRST_SCALE, 0)
  assert after(FIRST_SCALE, GROWTH_INTERVAL - 1, False) == (FIRST_SCALE / 2, 0)
  assert after(1, 0, False) == (1, 0)


class Weight:
  """A model with one parameter, which needs no example."""

  def init(self, key, example):
    return {"params": {"w": {"bias": jnp.ones(2)}}}


class HalfLoss:
  """Its gradient is computed in float16."""

  def denominators(self, batch):
    return jnp.float32(batch.size)

  def __call__(self, params, batch, key, denominators=None):
    products = params["w"]["bias"].astype(jnp.float16)[None] * batch.astype(jnp.float16)
    total = products.astype(jnp.float32).sum()
    return total / denominators, {"loss": Mean(total, jnp.float32(batch.size))}


def trainer_of(mesh=MeshConfig(data=1), scales_loss=True, microbatches=1):  # noqa: B008
  optim = OptimConfig(warmup_steps=0, learning_rate=0.1, schedule="constant")
  devices = make_mesh(mesh, jax.devices()[: mesh.data])
  return Trainer.build(
    Weight(),
    HalfLoss(),
    None,
    make_optimizer(optim, 100),
    devices,
    backend=mesh.backend,
    microbatches=microbatches,
    scales_loss=scales_loss,
  )


@pytest.mark.parametrize(
  "mesh, microbatches, highest",
  [(MeshConfig(data=1), 2, 2048), (MeshConfig(data=8, backend="pmap"), 1, 8192)],
)
def test_the_scale_falls_until_the_gradient_is_finite(mesh, microbatches, highest):
  """The gradient of a row is 100 / 16. Of 4 rows in a microbatch, or one on a device, it fits into
  float16 at the `highest` scale and not at twice that.
  """
  plain = trainer_of(scales_loss=False)
  batch = np.full((8, 2), 100, np.float32)
  expected, _ = plain.step(plain.init(0), plain.to_device(batch), 0)
  trainer = trainer_of(mesh, microbatches=microbatches)
  state = trainer.init(0)
  scale = FIRST_SCALE
  while scale > highest:
    before = jax.device_get(state.params)
    state, metrics = trainer.step(state, trainer.to_device(batch), 0)
    assert not metrics["finite"] and metrics["loss_scale"] == scale
    jax.tree.map(np.testing.assert_array_equal, state.params, before)
    scale /= 2
  state, metrics = trainer.step(state, trainer.to_device(batch), 0)
  assert metrics["finite"] and metrics["loss_scale"] == scale == state.loss_scale.scale
  assert float(metrics["gradient_norm"]) == pytest.approx(50 * 2**0.5)
  jax.tree.map(np.testing.assert_array_equal, state.params, expected.params)


def test_small_gradients_survive():
  """2^-30 is 0 in float16, 2^-15 is not."""
  batch = np.full((2, 2), 2.0**-14, np.float32)

  def norm(scales_loss):
    trainer = trainer_of(scales_loss=scales_loss)
    _, metrics = trainer.step(trainer.init(0), trainer.to_device(batch * 2.0**-10), 0)
    return float(metrics["gradient_norm"])

  assert norm(False) == 0
  assert norm(True) == pytest.approx(2.0**-24 / 2 * 2**0.5)
  state = trainer_of(scales_loss=False).abstract_state()
  assert state == TrainState(*state[:3])


def refusal(scale):
  numbers = {"loss": Mean(np.float32(1), np.float32(1)), "gradient_norm": np.float32(np.inf)}
  return {"finite": False, **numbers, **({"loss_scale": np.float32(scale)} if scale else {})}


def test_refusals_count_only_at_the_lowest_scale():
  interval = Interval()
  for step in range(2 * MAX_REFUSED_UPDATES):
    interval.add(step + 1, refusal(4.0))
  assert interval.refused == 2 * MAX_REFUSED_UPDATES and not interval.refused_in_a_row
  with pytest.raises(InputError, match="10 updates in a row"):
    for step in range(MAX_REFUSED_UPDATES):
      interval.add(step + 30, refusal(1.0))
  interval = Interval()
  interval.add(1, {"finite": True, "loss_scale": np.float32(4)})
  interval.add(2, {"finite": True, "loss_scale": np.float32(2)})
  assert interval.means()["loss_scale"] == 2


CONFIG = PretrainConfig(
  trunk=TransformerConfig(context=64, layers=1, width=16, heads=2, dtype="float16"),
  data=WindowsConfig(batch_size=16, length=16),
  optim=OptimConfig(learning_rate=5e-2, warmup_steps=4),
  train=TrainConfig(steps=12, log_every=4, checkpoint_every=6),
)


@pytest.fixture(scope="module")
def half(prepared, tmp_path_factory):
  """The workdir of a pre-training in float16."""
  workdir = str(tmp_path_factory.mktemp("half") / "run")
  pretrain.run(CONFIG, prepared, workdir)
  return workdir


@pytest.mark.e2e
def test_a_float16_run(half, tmp_path):
  """Parameters are float32, and load wherever others do."""
  losses = curve(half, "loss")[1]
  assert losses[-1] < losses[0] - 0.3
  assert curve(half, "loss_scale")[1][-1] == FIRST_SCALE
  params, _, _ = restore_params(half)
  assert {x.dtype.name for x in jax.tree.leaves(params)} == {"float32"}
  export.run(half, str(tmp_path / "npz"), "npz")
  assert verify.run(half, str(tmp_path / "npz"), ["the cat sat on the mat"])["equal"]
  model = gpt_jax.load(str(tmp_path / "npz"))
  assert np.isfinite(model.log_probs("the cat sat on the mat").perplexity)
  assert model.generate("the cat", max_tokens=4, temperature=0.0)


@pytest.mark.e2e
def test_it_resumes_with_the_same_bits(half, prepared, tmp_path):
  """The count of finite gradients too, on which the next change of the scale depends."""
  workdir = str(tmp_path / "run")
  shutil.copytree(half, workdir)
  shutil.rmtree(f"{workdir}/checkpoints/12")
  pretrain.run(CONFIG, prepared, workdir)
  leaves = [
    json.loads(Path(folder, "checkpoints/12/meta/metadata").read_text())["leaves"]
    for folder in (half, workdir)
  ]
  assert leaves[0] == leaves[1]
  assert {"loss_scale/scale", "loss_scale/finite_steps"} <= leaves[0].keys()
