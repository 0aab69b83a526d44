"""configs/t5.py in small: an encoder-decoder learns span corruption through the programs."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from shared_trainers import one_device  # noqa: F401
from tiny_runs import changed

from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.programs import evaluate, export, generate, import_weights, pretrain
from gpt_jax.programs.config_files import load_config
from gpt_jax.programs.pretrain_config import config_of
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import make_optimizer

pytestmark = pytest.mark.e2e
FILE = Path(__file__).parents[2] / "configs" / "t5.py"
STEPS = 60


@pytest.fixture(scope="module", params=["1.0", "1.1"])
def config(request):
  config = load_config(f"{FILE}:small" if request.param == "1.0" else f"{FILE}:1.1-small")
  sizes = {"context": 32, "layers": 1, "width": 32, "heads": 2, "head_width": 16, "units": 64}
  return changed(
    config,
    trunk=sizes,
    objective={"sentinels": 6},
    data={"batch_size": 16, "length": 32},
    train=TrainConfig(steps=STEPS, log_every=20, checkpoint_every=30, keep_checkpoints=2),
  )


@pytest.fixture(scope="module")
def run(config, prepared, tmp_path_factory):
  """The folder of a run, and its last evaluation."""
  folder = str(tmp_path_factory.mktemp("t5") / "run")
  return folder, pretrain.run(config, prepared, folder)


def test_it_learns(run, prepared):
  """From sentinels, ends and words that are all alike."""
  folder, results = run
  loaded = load_model(folder)
  assert results["valid_loss"] < np.log(loaded.spec.num_tokens) - 1.5
  assert results["valid_loss"] < TokenFile(prepared, "valid").unigram_entropy
  assert "valid_bits_per_byte" not in results  # a text has no probability
  again = evaluate.run(folder, prepared)
  assert again["loss"] == pytest.approx(results["valid_loss"], rel=1e-5)
  assert loaded.meta["sequence_format"] == {"type": "text_to_text"}
  assert {"pad", "sep", "sentinel_5"} <= set(loaded.meta["trained_special"])


def test_it_fills_gaps(run):
  folder, _ = run
  prompts = ["the cat <sentinel_0> the mat and the <sentinel_1>", "the dog <sentinel_0>"]
  texts = generate.run(folder, prompts, max_tokens=12, temperature=0)
  assert all(text.startswith("<sentinel_0>") for text in texts)
  alone = generate.run(folder, prompts[1:], max_tokens=12, temperature=0)  # the shorter one
  assert alone == texts[1:]


def test_weights_from_elsewhere_are_evaluated_alike(run, prepared, tmp_path):
  """Without the run's config, an encoder-decoder is measured on span corruption."""
  folder, _ = run
  export.run(folder, str(tmp_path / "there"), "npz")
  import_weights.run("npz", str(tmp_path / "there"), str(tmp_path / "run"))
  assert evaluate.run(str(tmp_path / "run"), prepared) == evaluate.run(folder, prepared)
  loaded = load_model(folder)
  foreign = dataclasses.replace(loaded, meta={"model": loaded.meta["model"]})
  chosen = config_of(foreign)
  assert chosen.objective == SpanCorruption("encoder_decoder") and chosen.data.length == 32
  assert foreign.is_text_to_text


def test_the_recipe_is_t5s():
  config = load_config(f"{FILE}:base")
  optimizer = make_optimizer(config.optim, config.train.steps)
  rates = [float(optimizer.schedule(step)) for step in (0, 9_999, 40_000, 2**19)]
  assert rates == pytest.approx([0.01, 0.01, 0.005, 2**-9.5], rel=1e-5)
  assert (config.optim.optimizer, config.optim.clip_norm) == ("adafactor", 0.0)
  assert config.objective.text_length(config.data.length) == 568
  assert config.data == WindowsConfig(128, 512, "across_documents")


def test_rows_are_full(config, prepared):
  """Documents are joined: no row of the source or the target has padding."""
  text = TokenFile(prepared, "train")
  rows = config.objective.windows(text, config.data, seed=1)(0)
  assert rows.shape == (16, 34) and (rows >= 0).all()
