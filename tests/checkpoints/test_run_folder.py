"""Claiming run folders, and refusing those of other runs."""

import dataclasses
import os
import shutil

import pytest

from gpt_jax.checkpoints import run_folder
from gpt_jax.checkpoints.run_folder import (
  claim,
  claimed_config,
  read_config,
  replace_config,
  resume_choices,
  resume_microbatches,
)
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.gpt1 import REGEX
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.errors import InputError
from gpt_jax.parallel.mesh import MeshConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig

CONFIG = PretrainConfig(train=TrainConfig(steps=10, microbatches=1))
DATA = {"train_tokens": 100}
OTHER = SentencePieceTokenizer.train(["a cat and a dog and a car"] * 3, 276)


def with_train(**changes):
  return dataclasses.replace(CONFIG, train=dataclasses.replace(CONFIG.train, **changes))


def contents(workdir):
  return {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}


@pytest.fixture
def refused(tiny_tokenizer):
  """Claims a folder for a run to which it is refused, and checks that no file has changed."""

  def refuse(workdir, match, config=CONFIG, tokenizer=tiny_tokenizer, data=DATA):
    before = contents(workdir)
    with pytest.raises(InputError, match=match):
      claim(str(workdir), config, tokenizer, data)
    assert contents(workdir) == before

  return refuse


@pytest.fixture
def claimed(tmp_path, tiny_tokenizer):
  claim(str(tmp_path / "run"), CONFIG, tiny_tokenizer, DATA)
  return tmp_path / "run"


def test_a_claimed_folder_is_recognized(claimed, tiny_tokenizer):
  before = (claimed / "config.json").read_bytes()
  assert load_tokenizer(str(claimed / "tokenizer")).hash == tiny_tokenizer.hash
  found = read_config(str(claimed))
  assert found["data"] == {**DATA, "tokenizer_hash": tiny_tokenizer.hash}
  claim(str(claimed), CONFIG, tiny_tokenizer, DATA)
  assert (claimed / "config.json").read_bytes() == before


def test_differences_are_named(claimed, refused):
  config = dataclasses.replace(with_train(steps=20), evaluation_batches=3)
  refused(claimed, "evaluation_batches: 0 != 3.*train.steps: 10 != 20|train.steps.*eval", config)
  refused(claimed, "data train_tokens: 100 != 200", data={"train_tokens": 200})
  refused(claimed, "data tokenizer_hash: ", tokenizer=OTHER)


def test_another_splitter_of_words_is_named(tmp_path, openai_tokenizer, refused):
  claim(str(tmp_path), CONFIG, openai_tokenizer, DATA)
  other = dataclasses.replace(openai_tokenizer, splitter=REGEX)
  message = "data tokenizer_hash: the same but with the word splitter spacy-en, not regex-1"
  refused(tmp_path, message, tokenizer=other)


def test_layout_and_rhythm_may_change(claimed, tiny_tokenizer):
  config = dataclasses.replace(
    with_train(log_every=1, checkpoint_every=2),
    trunk=dataclasses.replace(CONFIG.trunk, attention_backend="fused"),
    mesh=MeshConfig(model=2),
  )
  claim(str(claimed), config, tiny_tokenizer, DATA)


def test_smaller_parts_of_a_batch_may_come_before_the_first_checkpoint(
  claimed, tiny_tokenizer, refused
):
  smaller = with_train(microbatches=2)
  (claimed / "checkpoints").mkdir()
  claim(str(claimed), smaller, tiny_tokenizer, DATA)
  assert claimed_config(str(claimed)) == CONFIG  # another run may be at work
  claim(str(claimed), smaller, tiny_tokenizer, DATA, may_replace=True)
  assert claimed_config(str(claimed)) == smaller
  claim(str(claimed), smaller, tiny_tokenizer, DATA)
  refused(claimed, r"config \(train.steps: 10 != 3\); use", with_train(steps=3))
  (claimed / "checkpoints" / "3").mkdir()
  refused(claimed, "train.microbatches: 2 != 1")


def test_microbatches_left_open_are_those_of_a_run_with_a_checkpoint(claimed, tmp_path):
  four, unset = with_train(microbatches=4), with_train(microbatches=0)
  other, folders = str(tmp_path / "other"), [str(tmp_path / "none"), str(claimed)]
  assert resume_microbatches(unset, folders) == (CONFIG, True)
  replace_config(str(claimed), four, {})
  assert resume_microbatches(unset, folders) == (CONFIG, True)
  (claimed / "checkpoints" / "3").mkdir(parents=True)
  assert resume_microbatches(unset, folders) == (four, False)
  assert resume_microbatches(CONFIG, folders) == (CONFIG, False)
  shutil.copytree(claimed, other)
  for content in ("[]", "{", '{"config": 3}', "{}", '{"config": {"type": "train"}}'):
    (tmp_path / "other" / "config.json").write_text(content)
    assert resume_microbatches(unset, [other]) == (CONFIG, True)
  assert resume_microbatches(unset, [other, str(claimed)]) == (four, False)


@pytest.mark.parametrize(
  ("speed", "dtype"), [(2.0, "bfloat16"), (1.0, "float32"), (0.0, "float32")]
)
def test_the_faster_type_is_chosen_once(claimed, monkeypatch, speed, dtype):
  def config(dtype):
    return dataclasses.replace(CONFIG, trunk=dataclasses.replace(CONFIG.trunk, dtype=dtype))

  monkeypatch.setattr(run_folder, "bfloat16_speed", lambda: speed)
  assert resume_choices(config("auto")) == config(dtype)
  assert resume_choices(config("float16")) == config("float16")
  both = dataclasses.replace(config("auto"), mesh=MeshConfig(cpu_products="auto"))
  for speed_of_onednn, products in ((2.0, "onednn"), (1.05, "xla")):
    monkeypatch.setattr(run_folder, "onednn_speed", lambda dtype, x=speed_of_onednn: x)
    chosen = resume_choices(both)
    assert (chosen.trunk.dtype, chosen.mesh.cpu_products) == (dtype, products)
  # A claimed folder has recorded other choices, made elsewhere.
  replace_config(str(claimed), config("float16"), {})
  folders = [f"{claimed}/none", str(claimed)]
  assert resume_choices(config("auto"), folders) == config("float16")
  monkeypatch.setattr(run_folder, "onednn_speed", lambda dtype: 2.0)
  assert resume_choices(both, folders) == config("float16")  # of xla


def test_folders_of_others(tmp_path, tiny_tokenizer, refused):
  (tmp_path / "thesis.tex").write_text("all of it")
  refused(tmp_path, "holds 'thesis.tex' but no config.json: not a run's folder")
  (tmp_path / "file").write_text("")
  with pytest.raises(InputError, match="is a file; a folder is needed"):
    claim(str(tmp_path / "file"), CONFIG, tiny_tokenizer, DATA)
  OTHER.save(str(tmp_path / "vocabulary" / "tokenizer"))
  refused(tmp_path / "vocabulary", "holds another vocabulary and no config.json")
  (tmp_path / "export").mkdir()
  (tmp_path / "export" / "config.json").write_text('{"model_type": "gpt2"}')
  refused(tmp_path / "export", "holds a config.json that no run wrote")


def test_of_two_runs_that_begin_at_once_one_is_refused(tmp_path, tiny_tokenizer, monkeypatch):
  def the_other_one(_):
    monkeypatch.undo()
    claim(str(tmp_path), dataclasses.replace(CONFIG, evaluation_batches=3), tiny_tokenizer, DATA)

  monkeypatch.setattr(run_folder.multihost_utils, "sync_global_devices", the_other_one)
  with pytest.raises(InputError, match="another config .evaluation_batches: 3 != 0"):
    claim(str(tmp_path), CONFIG, tiny_tokenizer, DATA)
  assert sorted(os.listdir(tmp_path)) == ["config.json", "tokenizer"]


@pytest.mark.parametrize("written", [[], ["tokenizer/tokenizer.model"], ["config.json.partial-7"]])
def test_what_a_kill_left_is_no_obstacle(tmp_path, tiny_tokenizer, written):
  for name in written:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("torn")
  claim(str(tmp_path), CONFIG, tiny_tokenizer, DATA)
  assert load_tokenizer(str(tmp_path / "tokenizer")).hash == tiny_tokenizer.hash
  left = {name for name in written if "/" not in name}
  assert set(os.listdir(tmp_path)) == {"config.json", "tokenizer"} | left


def test_a_run_of_an_earlier_version_is_refused(claimed, refused):
  path = claimed / "config.json"
  path.write_text(path.read_text().replace('"pretrain"', '"gpt_jax.pretrain:PretrainConfig"'))
  refused(claimed, f"{claimed}: config.json: .* written by an earlier version of gpt_jax")


def test_a_damaged_config(claimed, refused):
  (claimed / "config.json").write_text('{"config": ')
  refused(claimed, "config.json: cannot be read")
  with pytest.raises(InputError, match="config.json: missing; .* is not the folder of a run"):
    read_config(str(claimed / "nothing"))
