"""Formats are found by their files: a new one edits no other file."""

from pathlib import Path

import pytest
from refused import refused

from gpt_jax.checkpoints import formats
from gpt_jax.checkpoints.formats import describe_formats, detect_format, find_format, list_formats

ROOT = Path(__file__).parents[3]
NEW = """
HELP = "a file of one word"
def detect(path):
  return path.endswith(".word")
def load(path): ...
def save(folder, params, meta, step, tokenizer): ...
"""


def test_every_file_with_help_is_a_format():
  names = "hf npz onnx onnx_int8 openai peft safetensors stablehlo"
  assert list(list_formats()) == names.split()
  for name, text in list_formats().items():
    module = find_format(name)
    assert module.HELP == text and "\n" not in text
    assert all(callable(getattr(module, part)) for part in ("detect", "load", "save"))


def test_a_new_format_edits_no_other_file(tmp_path, monkeypatch):
  (tmp_path / "word.py").write_text(NEW)
  monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
  assert describe_formats().endswith("; word: a file of one word")
  assert find_format("word").HELP == "a file of one word"
  assert detect_format("a.word") is find_format("word")


def test_a_model_in_two_formats_is_ambiguous(tmp_path):
  for name in ("weights.npz", "model.safetensors"):
    (tmp_path / name).touch()
  refused("holds models in several formats, hf and npz; keep one", detect_format, str(tmp_path))
  (tmp_path / "weights.npz").unlink()
  assert detect_format(str(tmp_path)) is find_format("hf")


@pytest.mark.parametrize("name", ["torch", "", "folder", "layout", "read_npz", "__init__"])
def test_helper_files_are_no_formats(name):
  refused(f"format={name}: must be one of hf, npz, onnx, onnx_int8", find_format, name)
