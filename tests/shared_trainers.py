"""Runs of one test file that share what they compile, and run on few devices.

All but a tenth of a tiny run's time goes into tracing and compiling its training step. A trainer is
a function of the run's settings, its number of steps and the shape of its batches; runs that agree
in these take the same trainer, as the seeds of one fine-tuning do.
"""

import contextlib
import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from gpt_jax.checkpoints import load
from gpt_jax.models import predictor
from gpt_jax.parallel import mesh as meshes
from gpt_jax.programs import evaluate, finetune, pretrain, replay
from gpt_jax.programs import pretrain_text as text
from gpt_jax.training import recipe, run
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.trainer import Trainer

_MAKE = SimpleNamespace(  # as they are outside of shared_trainers
  mesh=meshes.make_mesh,
  trainer=recipe.make_trainer,
  text_measure=text.make_measure,
  predictor=load.make_predictor,
)


@contextlib.contextmanager
def shared_trainers(devices: int = 1):
  """While it is open, pretrain, finetune and replay compile each training step once.

  The session's fixture `finetuned` must be there before: it has all devices, and other files use
  it too.

  Args:
    devices: what a config whose mesh leaves them open gets; one that sets mesh.data has that many.
  """
  made = {}

  def once(key, function, *arguments):
    if key not in made:
      made[key] = function(*arguments)
    return made[key]

  def make_mesh(config, given=None):
    wanted = config.data * config.model if config.data else devices
    return _MAKE.mesh(config, given or jax.devices()[:wanted])

  def make_trainer(asked):
    config = asked.config
    shapes = str(jax.tree.map(np.shape, asked.batches(config.train).example()))
    settings = _compiled_settings(config, asked.total_steps)
    key = "train", settings, asked.steps_per_epoch, shapes, asked.spec, asked.mesh
    return once(key, _MAKE.trainer, asked)

  def make_text_measure(config, prepared, mesh):
    held_out = prepared.held_out
    settings = config.data, config.objective, config.evaluation_batches, config.trunk
    key = "measure", settings, mesh, held_out.path, held_out.digest
    return once(key, _MAKE.text_measure, config, prepared, mesh)

  def make_predictor(model, mesh):
    return once(("predict", type(model), model.config, mesh), _MAKE.predictor, model, mesh)

  with pytest.MonkeyPatch.context() as patch:
    for module in (pretrain, finetune, load, evaluate):
      patch.setattr(module, "make_mesh", make_mesh)
    for module in (run, replay):
      patch.setattr(module, "make_trainer", make_trainer)
    patch.setattr(pretrain, "make_measure", make_text_measure)
    for module in (predictor, load):
      patch.setattr(module, "make_predictor", make_predictor)
    yield


@pytest.fixture(scope="module", autouse=True)
def one_device():
  """For files that import it: what they test is the same on every mesh, and fastest on one device.

  A config may name more.
  """
  with shared_trainers():
    yield


@pytest.fixture(scope="module", autouse=True)
def one_device_beside_finetuned(finetuned):
  """The same for files that use the session's fixture `finetuned`."""
  with shared_trainers():
    yield


@pytest.fixture(scope="module", autouse=True)
def two_devices():
  with shared_trainers(devices=2):
    yield


def stop_in_step(patch, number, act):
  """Calls act() before the update of this number of the runs that follow.

  Returns the list of updates that they make.
  """
  fit, made = Trainer.fit, []

  def counted_fit(self, *arguments):
    def step(state, batch, seed):
      made.append(int(state.step) + 1)
      if made[-1] == number:
        act()
      return self.step(state, batch, seed)

    return fit(dataclasses.replace(self, step=step), *arguments)

  patch.setattr(Trainer, "fit", counted_fit)
  return made


def _compiled_settings(config, total_steps):
  """The config without what a compiled step does not depend on: the seed and when to report."""
  kept = TrainConfig(total_steps, microbatches=config.train.parts, remat=config.train.remat)
  config = dataclasses.replace(config, train=kept)
  if hasattr(config, "patience"):  # of fine-tuning
    config = dataclasses.replace(config, patience=0, transfer_layers=None)
  return config
