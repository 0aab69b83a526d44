"""verify --replay: the bits of a run that is trained again from one of its checkpoints."""

import shutil

import pytest
from refused import refused
from shared_trainers import shared_trainers, two_devices  # noqa: F401
from tiny_runs import PRETRAIN, changed

from gpt_jax.programs import pretrain, replay
from gpt_jax.programs.pretrain_start import LayerwiseConfig, from_checkpoint
from gpt_jax.training.loop import TrainConfig

pytestmark = pytest.mark.e2e
CONFIG = changed(PRETRAIN, train=TrainConfig(steps=9, log_every=9, checkpoint_every=3))


@pytest.fixture(scope="module")
def trained(prepared, tmp_path_factory):
  """A run, dropout on, with checkpoints at 3, 6 and 9."""
  workdir = str(tmp_path_factory.mktemp("replay") / "run")
  pretrain.run(CONFIG, prepared, workdir)
  return workdir


def test_a_run_is_equal_to_itself(trained, prepared, capsys):
  """Fine-tuning is replayed in test_finetune.py."""
  with shared_trainers(devices=2):  # with none of the run's, as in another process
    result = replay.run(trained, 9, prepared)
  assert result == {"start": 6, "differences": {}, "equal": True}
  assert "step 9, replayed from the checkpoint of step 6\nequal" in capsys.readouterr().out


def test_layers_may_have_rates_of_their_own(trained, prepared, tmp_path):
  config = LayerwiseConfig(**{**vars(CONFIG), "layer_decay": 0.5})
  config = changed(config, train={"steps": 2, "checkpoint_every": 1})
  workdir = str(tmp_path / "run")
  pretrain.run(config, prepared, workdir, make_recipe=from_checkpoint(trained))
  with shared_trainers(devices=2):  # as in another process
    assert replay.run(workdir, 2, prepared)["equal"]


def test_a_checkpoint_of_another_seed(trained, prepared, tmp_path, capsys):
  """The nearest checkpoint before 6 is then 3, of the run itself."""
  workdir, other = str(tmp_path / "run"), str(tmp_path / "other")
  shutil.copytree(trained, workdir)
  pretrain.run(changed(CONFIG, train={"seed": 1, "checkpoint_every": 6}), prepared, other)
  shutil.rmtree(f"{workdir}/checkpoints/6")
  shutil.copytree(f"{other}/checkpoints/6", f"{workdir}/checkpoints/6")
  result = replay.run(workdir, 6, prepared)
  assert result["start"] == 3 and not result["equal"]
  assert result["differences"]["params/trunk/tokens"] > 1e-3
  assert "step" not in result["differences"]
  printed = capsys.readouterr().out
  assert "not equal: " in printed and "max |difference|" in printed and " more, which" in printed


@pytest.mark.parametrize(
  "step, data, match",
  [
    (8, "", r"--replay=8: .* has no checkpoint of this step, but of 3, 6, 9"),
    (3, "", r"--replay=3: .* has no checkpoint before this step, only of 3, 6, 9; train.keep"),
    (9, "", "--data is needed"),
    (9, "nowhere", "train"),
  ],
)
def test_missing_steps_and_data(trained, step, data, match):
  refused(match, replay.run, trained, step, data)


def test_a_run_that_was_made_longer_between(trained, prepared, tmp_path):
  workdir = str(tmp_path / "run")
  shutil.copytree(trained, workdir)
  pretrain.run(changed(CONFIG, train={"steps": 12}), prepared, workdir)
  assert replay.run(workdir, 12, prepared)["equal"]
  shutil.rmtree(f"{workdir}/checkpoints/9")
  message = "was made longer at step 9, after the checkpoint of step 6"
  refused(message, replay.run, workdir, 12, prepared)


def test_damage_is_said_in_one_line(trained, prepared, tmp_path):
  workdir = str(tmp_path / "run")
  shutil.copytree(trained, workdir)
  with open(f"{workdir}/checkpoints/9/meta/metadata", "w") as file:
    file.write("{}")
  refused("checkpoints/9: damaged", replay.run, workdir, 9, prepared)
