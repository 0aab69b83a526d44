"""Pre-training on several prepared folders: held-out losses of each, resumption, replay, errors."""

import dataclasses
import shutil

import numpy as np
import pytest
from refused import refused
from shared_trainers import stop_in_step, two_devices  # noqa: F401
from tiny_runs import PRETRAIN, changed, entries, write_text

from gpt_jax.apps.plan import plan
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.mixture import interleave
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.objectives.masked import Masked
from gpt_jax.programs import evaluate, pretrain, replay
from gpt_jax.programs.pretrain_mixture import load_texts, source_names, with_sources
from gpt_jax.programs.pretrain_start import from_checkpoint
from gpt_jax.training.loop import TrainConfig

pytestmark = pytest.mark.e2e
CONFIG = changed(
  PRETRAIN,
  data={"weights": (0.75, 0.25)},
  train=TrainConfig(steps=12, log_every=6, checkpoint_every=6),
)


@pytest.fixture(scope="module")
def folders(prepared, tmp_path_factory):
  """Two folders with one vocabulary; the second one's text is its single sentence."""
  other = tmp_path_factory.mktemp("mixture") / "barn"
  tokenizer = load_tokenizer(f"{prepared}/tokenizer")
  tokenizer.save(str(other / "tokenizer"))
  for split in ("train", "valid"):
    texts = ["the old red barn by the sea and the dog sat on the mat"] * 30
    write_text(other, split, tokenizer, texts)
  return [prepared, str(other)]


def run(config, folders, workdir, *recipe):
  make_recipe = with_sources(folders, *recipe)
  return pretrain.run(config, folders[0], str(workdir), make_recipe=make_recipe)


@pytest.fixture(scope="module")
def trained(folders, tmp_path_factory):
  workdir = str(tmp_path_factory.mktemp("mixture") / "run")
  return workdir, run(CONFIG, folders, workdir)


def test_each_source_has_its_measures(trained, folders):
  """Those of `evaluate` on its folder; the mixture's are their mean, by shares."""
  workdir, measured = trained
  names = source_names(folders)
  for name, folder in zip(names, folders, strict=True):
    alone = evaluate.run(workdir, folder)
    for metric in ("loss", "perplexity", "bits_per_byte"):
      assert measured[f"valid_{name}_{metric}"] == pytest.approx(alone[metric], rel=1e-6)
  losses = [measured[f"valid_{name}_loss"] for name in names]
  assert losses[0] != pytest.approx(losses[1], abs=0.1)
  assert measured["valid_loss"] == pytest.approx(0.75 * losses[0] + 0.25 * losses[1])
  first, second = (measured[f"valid_{name}_perplexity"] for name in names)
  assert measured["valid_perplexity"] == pytest.approx(first**0.75 * second**0.25)
  assert entries(workdir)[-1].items() >= measured.items()


def test_a_stopped_run_ends_with_the_same_bits(trained, folders, tmp_path, monkeypatch):
  with monkeypatch.context() as patch, pytest.raises(InputError, match="^stopped$"):
    stop_in_step(patch, 9, lambda: (_ for _ in ()).throw(InputError("stopped")))
    run(CONFIG, folders, tmp_path / "run")
  assert run(CONFIG, folders, tmp_path / "run") == trained[1]


def test_replay(trained, folders, capsys):
  assert replay.run(trained[0], 12, ",".join(folders))["equal"]
  message = r"data\.weights: are of several prepared folders, and"
  refused(message, replay.run, trained[0], 12, folders[0])
  assert not replay.run(trained[0], 12, ",".join(folders[::-1]))["equal"]
  assert "other data than the run's: train_digest" in capsys.readouterr().out


def test_the_lines_before_a_run(folders, tmp_path, capsys):
  """Epochs are of each source: 12 steps of 16 rows, 144 and 48 of them."""
  recipe = with_sources(folders)(
    CONFIG, load_texts(dataclasses.replace(CONFIG, data=WindowsConfig(16, 16)), folders[0])
  )
  spans = [
    CONFIG.objective.windows(TokenFile(folder, "train"), CONFIG.data).spans_per_epoch
    for folder in folders
  ]
  assert recipe.summary[-2:] == [
    f"source  {source_names(folders)[0]}: 75.0% of the rows, {144 / spans[0]:.2f} epochs",
    f"source  barn: 25.0% of the rows, {48 / spans[1]:.2f} epochs",
  ]
  tokens = sum(TokenFile(folder, "train").n_tokens for folder in folders)
  assert any(line.startswith(f"text    {tokens:,} tokens") for line in recipe.summary)


def test_a_mixture_goes_on_from_a_checkpoint(trained, folders, tmp_path):
  config = dataclasses.replace(CONFIG, data=WindowsConfig(16, 16, temperature=5.0))
  measured = run(config, folders, tmp_path / "run", from_checkpoint(trained[0]))
  assert measured["valid_loss"] < trained[1]["valid_loss"]


def test_a_mixture_trains_a_masked_model(folders, tmp_path):
  config = dataclasses.replace(CONFIG, objective=Masked(copies=2), train=TrainConfig(steps=1))
  measured = run(config, folders, tmp_path / "run")
  assert measured["valid_barn_loss"] > 0
  assert load_model(str(tmp_path / "run")).spec.attention == "bidirectional"


def test_the_steps_of_an_epoch_are_those_of_all_sources(folders):
  config = dataclasses.replace(CONFIG, train=TrainConfig(epochs=1))
  spans = sum(
    config.objective.windows(TokenFile(folder, "train"), config.data).spans_per_epoch
    for folder in folders
  )
  made = plan.run(config, "a100:8", data=",".join(folders))[0]
  assert made.steps == -(-spans // 16)


def test_errors(folders, tmp_path, prepared):
  other = shutil.copytree(folders[1], tmp_path / "other")
  write_text(other, "train", load_tokenizer(f"{other}/tokenizer"), ["the cat"], hash="0" * 64)
  three = changed(CONFIG, data={"weights": (1, 1, 1)})
  for config, given, match in (
    (CONFIG, folders[:1], r"data\.weights: are of several prepared folders, and there is one"),
    (three, folders, r"data\.weights=1,1,1: 3 weights for 2 texts"),
    (CONFIG, [prepared, str(other)], "train.bin: a token file of another vocabulary"),
    (CONFIG, [prepared, f"{tmp_path}/missing"], r"missing/train.json: missing"),
    (CONFIG, [prepared, prepared], r"a folder is there twice; its share is data\.weights"),
  ):
    refused(match, run, config, given, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_equal_texts_have_other_rows(prepared, tmp_path):
  """And so they have with each seed."""
  shutil.copytree(prepared, tmp_path / "copy")
  text = load_texts(CONFIG, f"{prepared},{tmp_path}/copy")
  source, _ = interleave(np.arange(192), (0.75, 0.25))
  found = set()
  for seed in (0, 1, 7):
    windows = text.windows(CONFIG, text.train, seed)
    rows = np.concatenate([windows(step) for step in range(12)])
    found |= {rows[source == number][:48].tobytes() for number in (0, 1)}
  assert len(found) == 6


def test_a_folder_twice_by_another_spelling(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "story").mkdir()
  (tmp_path / "link").symlink_to("story")
  for other in (str(tmp_path / "story"), "story/", "./story", "link", "link/../story"):
    refused("a folder is there twice", source_names, ["story", other])
  refused("a folder is there twice", source_names, ["gs://bucket/a", "gs://bucket/a/"])
  refused("rename one of the folders", source_names, ["a b", "a_b"])


def test_names_of_sources():
  assert source_names(["data/novels", "data/wiki/"]) == ["novels", "wiki"]
  assert source_names(["data/en/v1", "data/de/v1"]) == ["en_v1", "de_v1"]
  assert source_names(["gs://bucket/a b", "x"]) == ["a_b", "x"]
