"""Folders that version 0.2 wrote: names, paths and files are formats, which later versions read.

version_0_2.tar.xz has a prepared text, a run of each trunk, a fine-tuned classifier, and two
exports, all tiny: 4 steps, of which GPT and classifier have the checkpoints of steps 2 and 4.
"""

import dataclasses
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest
from shared_trainers import one_device  # noqa: F401

from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.run_folder import claimed_config
from gpt_jax.programs import finetune, pretrain, replay
from gpt_jax.tasks.readers import Row

ARCHIVE = Path(__file__).with_name("version_0_2.tar.xz")
TRUNKS = ("gpt", "lstm", "bert", "t5")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  folder = tmp_path_factory.mktemp("version")
  with tarfile.open(ARCHIVE) as archive:
    archive.extractall(folder, filter="data")
  return folder


@pytest.mark.parametrize("name", TRUNKS)
def test_a_run_loads(written, name):
  loaded = load_model(str(written / name))
  assert loaded.step == 4 and loaded.tokenizer.vocab_size == 290
  assert loaded.meta["config"]["objective"]["type"] and loaded.spec.heads


@pytest.mark.parametrize("format", ["npz", "safetensors"])
def test_an_export_is_its_run(written, format):
  export, run = load_model(str(written / f"gpt_{format}")), load_model(str(written / "gpt"))
  jax.tree.map(np.testing.assert_array_equal, export.params, run.params)
  assert export.spec == run.spec and export.tokenizer.hash == run.tokenizer.hash


def test_a_classifier_labels(written):
  loaded = load_model(str(written / "classifier" / "best"))
  assert loaded.task.labels == ("no", "yes")
  example = loaded.task.example(Row(("The cat sat.",), None, "typed"))
  probabilities = loaded.predictor()(loaded.encode(loaded.task, [example]), 1)
  assert probabilities.shape == (1, 2)


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["gpt", "classifier"])
def test_its_steps_replay(written, name):
  """From the checkpoint of step 2; the machine that wrote it may round otherwise."""
  data = "task" if name == "classifier" else "data"
  replayed = replay.run(str(written / name), 4, str(written / data))
  assert replayed["start"] == 2
  assert max(replayed["differences"].values(), default=0.0) < 1e-5


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:loss .* is not below the unigram entropy")
def test_a_run_goes_on(written):
  workdir = str(written / "gpt")
  config = claimed_config(workdir)
  longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=6))
  evaluation = pretrain.run(longer, str(written / "data"), workdir)
  assert np.isfinite(evaluation["valid_loss"]) and load_model(workdir).step == 6


@pytest.mark.e2e
def test_a_finished_fine_tuning_is_known(written, capsys):
  workdir, source = str(written / "classifier"), str(written / "gpt" / "checkpoints" / "4")
  (result,) = finetune.run(claimed_config(workdir), str(written / "task"), source, workdir)
  assert result["steps"] == 4 and "finished already" in capsys.readouterr().err
