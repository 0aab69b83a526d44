"""Exports as npz and safetensors: equal when read back, written whole or not, never trusted."""

import functools
import json
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax.batch import Rows
from gpt_jax.checkpoints.formats import folder, npz, read_npz, safetensors
from gpt_jax.config import to_json
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig, make_heads
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.cross_entropy import logits


@pytest.fixture(scope="module")
def parts(make_run, tiny_tokenizer):
  """What `save` is given, after the folder."""
  trunk = LSTMConfig(tiny_tokenizer.vocab_size, context=16, width=8, units=8)
  spec = ModelConfig(trunk, (ClassifyHead(num_classes=3),))
  meta = {"model": to_json(spec), "tokenizer_hash": tiny_tokenizer.hash}
  meta["task"] = {"labels": ["no", "yes"]}
  return make_run.params_of(spec, 1), meta, 5, tiny_tokenizer


@pytest.fixture(params=[npz, safetensors], ids=["npz", "safetensors"])
def format(request):
  if request.param is safetensors:
    pytest.importorskip("safetensors")
  return request.param


@pytest.fixture
def exported(tmp_path, parts, format):
  format.save(str(tmp_path / "out"), *parts)
  return tmp_path / "out"


@pytest.fixture
def npz_export(tmp_path, parts):
  npz.save(str(tmp_path / "out"), *parts)
  return tmp_path / "out"


def test_a_scalar_stays_one(tmp_path, parts, make_run, format):
  """As the scale of ELMo's mix of layers; exports of 0.3 have an array of one number."""
  heads = make_heads(({"type": "mixed", "head": {"type": "classify", "num_classes": 2}},))
  size = parts[3].vocab_size
  spec = ModelConfig(TransformerConfig(size, context=16, layers=1, width=16, heads=2), heads)
  params, meta = make_run.params_of(spec, 1), {**parts[1], "model": to_json(spec)}
  for name, scale in (("now", np.float32(2)), ("then", np.full(1, 2, np.float32))):
    params["head"]["mix"]["scale"] = scale
    format.save(str(tmp_path / name), params, meta, 5, parts[3])
    read, *_ = format.load(str(tmp_path / name))
    assert read["head"]["mix"]["scale"].shape == () and read["head"]["mix"]["scale"] == 2


def test_loads_back_equal(exported, parts, format):
  for path in (exported, exported / format.WEIGHTS):
    params, meta, step, tokenizer = format.load(str(path))
    assert (meta, step, tokenizer) == (parts[1], 5, parts[3])
    assert jax.tree.structure(params) == jax.tree.structure(parts[0])
    jax.tree.map(np.testing.assert_array_equal, params, parts[0])


def test_each_knows_its_own(tmp_path, exported, format):
  (tmp_path / "empty").mkdir()
  for path in (exported, exported / format.WEIGHTS, tmp_path / "empty"):
    expected = path.name != "empty"
    assert format.detect(str(path)) == expected
    assert not (npz if format is safetensors else safetensors).detect(str(path))
  (exported / format.WEIGHTS).unlink()
  assert format.detect(str(exported))  # so that what is missing is named


def test_bfloat16_is_written_as_float32(tmp_path, parts, format):
  params = jax.tree.map(lambda x: jax.numpy.asarray(x, "bfloat16"), parts[0])
  format.save(str(tmp_path / "out"), params, *parts[1:])
  assert format.load(str(tmp_path / "out"))[0]["trunk"]["tokens"].dtype == np.float32


def test_the_same_export_again_changes_nothing(exported, parts, format):
  before = (exported / format.WEIGHTS).stat().st_mtime_ns
  format.save(str(exported), *parts)
  assert (exported / format.WEIGHTS).stat().st_mtime_ns == before
  assert [path.name for path in exported.parent.iterdir()] == ["out"]


def test_another_export_is_not_overwritten(exported, parts, format):
  other = jax.tree.map(lambda x: x + 1, parts[0])
  refused("export of another model", format.save, str(exported), other, *parts[1:])
  np.testing.assert_array_equal(
    format.load(str(exported))[0]["head"]["bias"], parts[0]["head"]["bias"]
  )
  assert [path.name for path in exported.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("damage", ["truncate", "remove", "remove the sums"])
def test_a_damaged_export_is_not_taken_for_the_same(exported, parts, format, damage):
  path = exported / ("sha256.json" if damage == "remove the sums" else format.WEIGHTS)
  path.write_bytes(b"") if damage == "truncate" else path.unlink()
  with pytest.raises(InputError, match="is the export of another model, or damaged; remove it"):
    format.save(str(exported), *parts)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_something_else_is_not_overwritten(tmp_path, parts, format, kind):
  place = tmp_path / "out"
  if kind == "folder":
    place.mkdir()
    (place / "thesis.txt").write_text("mine")
  else:
    place.write_text("mine")
  refused("is there already|exists and is not an earlier export", format.save, str(place), *parts)
  assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
  "name", ["weights", "config.json", "tokenizer/tokenizer.model", "tokenizer/tokenizer.json"]
)
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_file_is_named(exported, format, name, damage):
  name = format.WEIGHTS if name == "weights" else name
  path = exported / name
  content = bytearray(path.read_bytes())
  if damage == "remove":
    path.unlink()
  else:
    content[len(content) // 2] ^= 1
    path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
  refused(name if damage == "remove" else f"{name}: damaged", format.load, str(exported))


def test_a_damaged_vocabulary_of_openais_is_named(tmp_path, parts, openai_tokenizer):
  npz.save(str(tmp_path / "out"), *parts[:-1], openai_tokenizer)
  npz.load(str(tmp_path / "out"))
  for name in openai_tokenizer.files:
    path = tmp_path / "out" / "tokenizer" / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    refused(f"tokenizer/{name}: damaged", npz.load, str(tmp_path / "out"))
    path.write_bytes(content)


def test_sums_of_an_earlier_version_are_named(exported, format):
  sums = json.loads((exported / "sha256.json").read_text())
  before = {name: entry["sha256"] for name, entry in sums.items()}
  (exported / "sha256.json").write_text(json.dumps(before))
  refused(r"sha256\.json is of an earlier version; export the model", format.load, str(exported))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_damaged_sums(exported, format, content):
  (exported / "sha256.json").write_text(content)
  refused(str(exported), format.load, str(exported))


def reseal(exported, name):
  """Makes sha256.json agree with a file, as whoever changed it on purpose would."""
  sums = json.loads((exported / "sha256.json").read_text())
  sums[name] = folder.describe_file(str(exported / name))
  (exported / "sha256.json").write_text(json.dumps(sums))


def craft(exported, format, change_arrays=None, **entries):
  """An export as a stranger would make it, with sums that agree."""
  path = exported / format.WEIGHTS
  arrays = format._read(str(path))
  if change_arrays:
    change_arrays(arrays)
    format._write(str(path), arrays, {})
  config = json.loads((exported / "config.json").read_text()) | entries
  (exported / "config.json").write_text(json.dumps(config))
  for name in (format.WEIGHTS, "config.json"):
    reseal(exported, name)


def not_a_number(arrays):
  arrays["head/bias"][1] = np.nan


CHANGED_ARRAYS = {
  "numbers that are not finite": not_a_number,
  "the array head/bias is missing": lambda arrays: arrays.pop("head/bias"),
  "the array trunk/zzz is not one of": lambda arrays: arrays.update({"trunk/zzz": np.zeros(2)}),
  r"bias is float64\[3\], and should be": lambda arrays: arrays.update({"head/bias": np.zeros(3)}),
  r"head/bias is float32\[3, 1\], and should be float32\[3\]": lambda arrays: arrays.update(
    {"head/bias": np.zeros((3, 1), np.float32)}
  ),
}


@pytest.mark.parametrize("match", CHANGED_ARRAYS)
def test_other_arrays_are_refused(exported, format, match):
  craft(exported, format, CHANGED_ARRAYS[match])
  refused(match, format.load, str(exported))


HUGE = {"type": "transformer", "vocab_size": 290, "context": 16, "width": 8, "heads": 1}


@pytest.mark.parametrize(
  ("entries", "match"),
  [
    ({"model": 3}, "does not say which model"),
    ({"tokenizer_hash": None}, "does not say which model and tokenizer"),
    ({"step": -1}, "step is -1, and should be a number"),
    ({"step": "5"}, "step is '5'"),
    ({"model": {"type": "model", "trunk": "x"}}, "describes no model"),
    ({"model": {"type": "windows"}}, "describes no model"),
    ({"model": {"type": "model", "trunk": {**HUGE, "layers": 10**9}}}, "layers = 1000000000"),
    ({"model": {"type": "model", "trunk": {**HUGE, "layers": 1000}}}, "describes [0-9,]+ param"),
    ({"model": {"type": "model", "trunk": {**HUGE, "layers": 1}, "heads": [3]}}, "can be built"),
  ],
)
def test_configs_that_no_program_writes_are_refused(exported, format, entries, match):
  craft(exported, format, **entries)
  refused(match, format.load, str(exported))


@pytest.mark.parametrize("name", ["/dev/zero", "../secret", "fifo", "tokenizer"])
def test_sums_name_only_files_of_the_folder(exported, format, tmp_path, name):
  (tmp_path / "secret").write_text("secret")
  os.mkfifo(exported / "fifo")
  sums = json.loads((exported / "sha256.json").read_text())
  (exported / "sha256.json").write_text(json.dumps(sums | {name: {"bytes": 6, "sha256": "0" * 64}}))
  refused(f"names '{name}', which is no file of this folder", format.load, str(exported))


@pytest.mark.parametrize("name", ["weights", "config.json", "sha256.json"])
def test_a_pipe_in_place_of_a_file_is_refused(exported, format, name):
  path = exported / (format.WEIGHTS if name == "weights" else name)
  path.unlink()
  os.mkfifo(path)
  refused("not a complete exported model", format.load, str(exported))


def compressed(path):
  """A zip bomb: 3 MB that become 3 GB in memory."""
  np.savez_compressed(path, **npz._read(str(path)))


def beyond_its_file(path):
  header = {"descr": "<f4", "fortran_order": False, "shape": (10**14,)}
  with zipfile.ZipFile(path, "w") as archive, archive.open("trunk/tokens.npy", "w") as file:
    np.lib.format.write_array_header_1_0(file, header)


class Bomb:
  def __reduce__(self):
    return pytest.fail, ("a pickle was loaded",)


def pickled(path):
  np.savez(path, x=np.array([Bomb()], dtype=object))


@pytest.mark.parametrize("write", [compressed, beyond_its_file, pickled])
def test_what_numpy_would_read_and_export_never_wrote_is_refused(npz_export, write):
  write(npz_export / "weights.npz")
  reseal(npz_export, "weights.npz")
  refused(r"\.npy in it is not as export writes it", npz.load, str(npz_export))


@pytest.mark.parametrize(
  "content", [b"", b"\x05\0", b"\xff" * 16, b"\x05\0\0\0\0\0\0\0{nope", b"\x02\0\0\0\0\0\0\0[]"]
)
def test_a_bad_header_is_refused(tmp_path, parts, content):
  pytest.importorskip("safetensors")
  exported = tmp_path / "out"
  safetensors.save(str(exported), *parts)
  (exported / "weights.safetensors").write_bytes(content)
  reseal(exported, "weights.safetensors")
  refused("not a complete exported model .*header", safetensors.load, str(exported))


def test_safetensors_says_what_it_is(tmp_path, parts):
  """The file alone, as the package reads it."""
  package = pytest.importorskip("safetensors")
  safetensors.save(str(tmp_path / "out"), *parts)
  with package.safe_open(tmp_path / "out" / "weights.safetensors", framework="np") as file:
    notes = json.loads(file.metadata()["gpt_jax"])
    assert notes == {"format": "gpt_jax.safetensors", "step": 5, **parts[1]}
    np.testing.assert_array_equal(file.get_tensor("head/kernel"), parts[0]["head"]["kernel"])


def test_without_the_package(monkeypatch, tmp_path, parts):
  monkeypatch.setitem(sys.modules, "safetensors", None)
  monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
  advice = r"pip install 'gpt_jax\[safetensors\]'"
  refused(advice, safetensors.save, str(tmp_path / "out"), *parts)
  refused(advice, safetensors.load, "anything")
  assert not any(tmp_path.iterdir())


def test_no_room_left(tmp_path, parts, format):
  """One line, and nothing half-written."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
  try:
    refused("cannot write .*out: .*File too large", format.save, str(tmp_path / "out"), *parts)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_reader_in_numpy(tmp_path, make_run, tiny_tokenizer, norm):
  """read_npz.py by itself, of GPT-1 and of GPT-2, against the model."""
  trunk = TransformerConfig(
    tiny_tokenizer.vocab_size, context=16, layers=2, width=24, heads=4, norm=norm
  )
  spec = ModelConfig(trunk)
  params = make_run.params_of(spec, 1)
  meta = {"model": to_json(spec), "tokenizer_hash": tiny_tokenizer.hash}
  npz.save(str(tmp_path / "out"), params, meta, 1, tiny_tokenizer)
  ids = np.arange(3, 14, dtype=np.int32)
  places = np.arange(len(ids), dtype=np.int32)[None]
  states = jax.jit(functools.partial(spec.build().apply, method="states"))
  hidden, table, *_ = states({"params": params}, Rows(ids[None], places))
  expected = np.asarray(logits(hidden, table, trunk.vocab_size))[0, :, : trunk.vocab_size]
  found = read_npz.logits(*read_npz.load(str(tmp_path / "out")), ids)
  assert (found.shape, found.dtype) == (expected.shape, np.float32)
  np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max(), rtol=0)
  command = [sys.executable, "-S", read_npz.__file__, str(tmp_path / "out"), *map(str, ids)]
  numpy_alone = {"PYTHONPATH": str(Path(np.__file__).parents[1])}
  done = subprocess.run(command, capture_output=True, text=True, env=numpy_alone)
  assert done.stdout.strip() == str(expected[-1].argsort()[:-6:-1]), done.stderr


def test_the_reader_is_as_short_as_it_says():
  lines = Path(read_npz.__file__).read_text().splitlines()
  assert len(lines) <= 61
  imports = {line for line in lines if "import" in line}
  assert imports == {"import json", "import sys", "import numpy as np"}
