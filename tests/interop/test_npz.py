"""Exports: equal when read back, written whole or not at all, and never trusted."""

import hashlib
import json

import jax
import numpy as np
import pytest

from gpt_jax import config as configs
from gpt_jax.errors import InputError
from gpt_jax.interop import npz
from gpt_jax.models import HeadConfig, ModelConfig
from gpt_jax.trunks.lstm import LSTMConfig


@pytest.fixture(scope="module")
def parts(make_run, tiny_tokenizer):
  """What `save` is given, after the folder."""
  spec = ModelConfig(LSTMConfig(tiny_tokenizer.vocab_size, context=16, width=8, units=8), HeadConfig(outcomes=3))
  meta = {"model": configs.to_json(spec), "tokenizer_hash": tiny_tokenizer.hash, "task": {"labels": ["no", "yes"]}}
  return make_run.params_of(spec, 1), meta, 5, tiny_tokenizer


@pytest.fixture
def exported(tmp_path, parts):
  npz.save(str(tmp_path / "out"), *parts)
  return tmp_path / "out"


def test_loads_back_equal(exported, parts):
  params, meta, step = npz.load(str(exported))
  assert (meta, step) == (parts[1], 5)
  assert jax.tree.structure(params) == jax.tree.structure(parts[0])
  jax.tree.map(np.testing.assert_array_equal, params, parts[0])


def test_numpy_alone_reads_it(exported, parts):
  with np.load(exported / "weights.npz", allow_pickle=False) as arrays:
    assert arrays["trunk/read/kernel"].dtype == np.float32
    np.testing.assert_array_equal(arrays["head/kernel"], parts[0]["head"]["kernel"])
  assert json.loads((exported / "config.json").read_text())["task"] == {"labels": ["no", "yes"]}
  assert (exported / "tokenizer" / "tokenizer.model").exists()


def test_bfloat16_is_written_as_float32(tmp_path, parts):
  params = {"trunk": {"tokens": jax.numpy.ones((2, 3), "bfloat16")}}
  npz.save(str(tmp_path / "out"), params, *parts[1:])
  assert npz.load(str(tmp_path / "out"))[0]["trunk"]["tokens"].dtype == np.float32


def test_the_same_export_again_changes_nothing(exported, parts):
  before = (exported / "weights.npz").stat().st_mtime_ns
  npz.save(str(exported), *parts)
  assert (exported / "weights.npz").stat().st_mtime_ns == before
  assert [path.name for path in exported.parent.iterdir()] == ["out"]


def test_another_export_is_not_overwritten(exported, parts):
  other = jax.tree.map(lambda x: x + 1, parts[0])
  with pytest.raises(InputError, match="export of another model"):
    npz.save(str(exported), other, *parts[1:])
  np.testing.assert_array_equal(npz.load(str(exported))[0]["head"]["bias"], parts[0]["head"]["bias"])
  assert [path.name for path in exported.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_something_else_is_not_overwritten(tmp_path, parts, kind):
  place = tmp_path / "out"
  if kind == "folder":
    place.mkdir()
    (place / "thesis.txt").write_text("mine")
  else:
    place.write_text("mine")
  with pytest.raises(InputError, match="is there already"):
    npz.save(str(place), *parts)
  assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
  "name", ["weights.npz", "config.json", "tokenizer/tokenizer.model", "tokenizer/tokenizer.json"]
)
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_file_is_named(exported, name, damage):
  path = exported / name
  content = bytearray(path.read_bytes())
  if damage == "remove":
    path.unlink()
  else:
    content[len(content) // 2] ^= 1
    path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
  with pytest.raises(InputError, match=name if damage == "remove" else f"{name}: damaged"):
    npz.load(str(exported))


def test_a_damaged_vocabulary_of_openais_is_named(tmp_path, parts, openai_tokenizer):
  npz.save(str(tmp_path / "out"), *parts[:-1], openai_tokenizer)
  npz.load(str(tmp_path / "out"))
  for name in openai_tokenizer.files:
    path = tmp_path / "out" / "tokenizer" / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=f"tokenizer/{name}: damaged"):
      npz.load(str(tmp_path / "out"))
    path.write_bytes(content)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_damaged_sums(exported, content):
  (exported / "sha256.json").write_text(content)
  with pytest.raises(InputError, match=str(exported)):
    npz.load(str(exported))


def test_pickles_are_refused(exported):
  """Even where the sums agree, since whoever made the file made them too."""

  class Bomb:
    def __reduce__(self):
      return pytest.fail, ("a pickle was loaded",)

  np.savez(exported / "weights.npz", x=np.array([Bomb()], dtype=object))
  sums = json.loads((exported / "sha256.json").read_text())
  sums["weights.npz"] = hashlib.sha256((exported / "weights.npz").read_bytes()).hexdigest()
  (exported / "sha256.json").write_text(json.dumps(sums))
  with pytest.raises(InputError, match="allow_pickle"):
    npz.load(str(exported))
