"""Saving, restoring on any mesh, and damaged, foreign and superseded checkpoints."""

import errno
import logging
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import types
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from refused import refused

from gpt_jax import files
from gpt_jax.checkpoints import remote, restore, store
from gpt_jax.checkpoints.restore import describe
from gpt_jax.errors import Unavailable

ROOT = pathlib.Path(store.__file__).parents[2]


class State(NamedTuple):
  step: Any
  params: Any
  opt_state: Any


def make_state(step=0, width=16):
  keys = jax.random.split(jax.random.key(step), 2)
  params = {
    "trunk": {
      "embedding": jax.random.normal(keys[0], (24, width)),
      "norm": {
        "scale": jnp.linspace(-1, 1, width).astype(jnp.bfloat16),
        "used": jnp.arange(width) % 3 == 0,
      },
    },
    "head": {
      "kernel": jax.random.normal(keys[1], (width, 8)),
      "ids": jnp.arange(8, dtype=jnp.uint32),
    },
  }
  return State(jnp.int32(step), params, optax.adam(1e-3).init(params))


def abstract_of(tree=None):
  """The abstract of a tree; of none, that of every state here."""
  tree = make_state() if tree is None else tree
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def assert_same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def saved(workdir, steps=(1, 2), **options):
  """A workdir with a checkpoint of make_state(step) for each step."""
  with store.Checkpoints(str(workdir), **options) as checkpoints:
    for step in steps:
      checkpoints.save(step, make_state(step), {"note": step})
  return workdir


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
  return saved(tmp_path_factory.mktemp("two_steps"))


@pytest.fixture
def workdir(two_steps, tmp_path):
  return shutil.copytree(two_steps, tmp_path / "run")


@pytest.fixture(params=["disk", "gs", "s3"])
def place(request, tmp_path):
  """An empty folder, as a string, on each kind of storage."""
  return str(tmp_path) if request.param == "disk" else request.getfixturevalue(request.param)


def test_round_trip_is_bit_exact(workdir):
  with store.Checkpoints(str(workdir)) as checkpoints:
    assert checkpoints.steps() == [1, 2]
    state, meta, step = checkpoints.restore(abstract_of())
  assert (meta, step) == ({"note": 2}, 2)
  assert_same(state, make_state(2))
  assert_same(restore.restore_step(str(workdir), 1, abstract_of()), make_state(1))


def test_a_background_save_keeps_the_values_of_its_moment(tmp_path):
  def update(state):
    return jax.tree.map(
      lambda x: x ^ 1 if x.dtype == jnp.bool_ else (x * 2 + 1).astype(x.dtype), state
    )

  update = jax.jit(update, donate_argnums=0)
  state, expected = make_state(5), make_state(5)
  with store.Checkpoints(str(tmp_path)) as checkpoints:
    checkpoints.save(5, state, {})
    for _ in range(30):
      state = update(state)
    restored, _, _ = checkpoints.restore(abstract_of(expected))
  assert_same(restored, expected)


def test_what_a_killed_run_did_not_delete_is_deleted(place):
  saved(place, (1, 2, 3, 4), newest=4)
  with store.Checkpoints(place, newest=2, keep=lambda step: step == 1) as checkpoints:
    assert checkpoints.steps() == [1, 2, 3, 4]
    checkpoints.tidy()
    assert checkpoints.steps() == [1, 3, 4]


def test_newest_three_and_the_best_are_kept(place):
  accuracy = [float("nan"), 0.7, 0.3, 0.7, 0.1, 0.2]
  with store.Checkpoints(place, metric="accuracy") as checkpoints:
    for step in range(4):
      checkpoints.save(step, make_state(step), {}, {"accuracy": accuracy[step]})
  with store.Checkpoints(place, metric="accuracy") as checkpoints:  # what was best is known again
    for step in range(4, 6):
      checkpoints.save(step, make_state(step), {}, {"accuracy": accuracy[step]})
    checkpoints.wait()
    assert checkpoints.steps() == [1, 3, 4, 5]
  params, _, step = restore.restore_params(f"{place}/best", abstract_of().params)
  assert step == 1  # the first of equals
  assert_same(params, make_state(1).params)


def test_the_best_evaluation_is_that_of_the_best_checkpoint(place):
  with store.Checkpoints(place, metric="accuracy") as checkpoints:
    checkpoints.save(1, make_state(1), {}, {"accuracy": float("nan")})
  assert restore.best_evaluation(place) is None
  with store.Checkpoints(place, metric="accuracy") as checkpoints:
    for step, accuracy in ((2, 0.5), (3, 0.75), (4, 0.75)):
      checkpoints.save(step, make_state(step), {}, {"accuracy": accuracy, "loss": 1.0})
  assert restore.best_evaluation(place) == {"step": 3, "accuracy": 0.75, "loss": 1.0}


@pytest.mark.parametrize(
  "options, steps, kept",
  [
    # No step has tried the parameters of the newest yet.
    ({"newest": 1}, range(1, 5), [3, 4]),
    ({"keep": lambda step: step in (1, 2)}, range(1, 7), [1, 2, 4, 5, 6]),
    ({}, (1, 5, 3), [1, 3, 5]),  # an older one can still be saved
  ],
)
def test_what_is_to_stay_stays(tmp_path, options, steps, kept):
  with store.Checkpoints(str(saved(tmp_path, steps, **options))) as checkpoints:
    assert checkpoints.steps() == kept


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_numbers_that_are_not_finite_are_not_saved(tmp_path, value):
  state = make_state(3)
  head = {**state.params["head"], "kernel": state.params["head"]["kernel"].at[0, 0].set(value)}
  broken = state._replace(params={**state.params, "head": head})
  with store.Checkpoints(str(tmp_path)) as checkpoints:
    checkpoints.save(2, make_state(2), {})
    message = r"3: not saved, as 1 of \d+ arrays is not finite, params/head/kernel"
    refused(message, checkpoints.save, 3, broken, {})
    checkpoints.wait()
    assert checkpoints.steps() == [2]


def test_a_link_planted_as_the_lock_is_not_followed(tmp_path):
  (tmp_path / "victim").write_text("precious")
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "lock").symlink_to("../victim")
  refused("run: cannot be written", remote.lock, str(tmp_path / "run"))
  assert (tmp_path / "victim").read_text() == "precious"


def test_a_step_is_saved_once(workdir):
  with store.Checkpoints(str(workdir)) as checkpoints:
    checkpoints.save(2, make_state(7), {"note": "again"})
    assert checkpoints.restore(abstract_of())[1] == {"note": 2}


def data_files(folder):
  """Everything orbax reads of the arrays, largest first."""
  paths = [path for path in pathlib.Path(folder, "state").rglob("*") if path.is_file()]
  paths = [path for path in paths if path.stat().st_size]
  return sorted(paths, key=lambda path: -path.stat().st_size)


def flip(path, bit):
  data = bytearray(path.read_bytes())
  data[bit // 8] ^= 1 << bit % 8
  path.write_bytes(data)


def halve_arrays(folder):
  path = data_files(folder)[0]
  os.truncate(path, path.stat().st_size // 2)


def replace(name, old, new):
  def damage(folder):
    (folder / name).write_text((folder / name).read_text().replace(old, new))

  return damage


change_meta = replace("meta/metadata", '"note": 2', '"note": 3')
DAMAGE = {
  "no arrays": lambda folder: shutil.rmtree(folder / "state"),
  "no meta": lambda folder: shutil.rmtree(folder / "meta"),
  "half of the arrays": halve_arrays,
  "other meta": change_meta,
  "a lost name": replace("state/_METADATA", "embedding", "embeddinh"),
}


@pytest.mark.parametrize("kind", ["disk", "gs", "s3"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_step_is_passed_over(workdir, request, kind, damage):
  damage(workdir / "checkpoints" / "2")
  workdir = str(workdir)
  if kind != "disk":
    workdir = request.getfixturevalue(kind)
    files.upload_folder(str(request.getfixturevalue("workdir")), workdir)
  with store.Checkpoints(workdir) as checkpoints:
    message = r"damaged checkpoint: 2 \(.+\); loaded 1 instead"
    with pytest.warns(UserWarning, match=message) as caught:
      state, meta, step = checkpoints.restore(abstract_of())
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    assert (meta, step) == ({"note": 1}, 1)
    assert_same(state, make_state(1))
    checkpoints.save(2, make_state(2), {"note": 2})  # the run goes on and saves that step anew
    state, _, step = checkpoints.restore(abstract_of())
    assert step == 2
    assert_same(state, make_state(2))
  names = files.list_folder(f"{workdir}/checkpoints")
  assert sum(name.startswith("2.damaged-") for name in names) == 1


def test_a_damaged_step_that_cannot_be_renamed_is_one_line(workdir, gs, monkeypatch):
  """As where a store does not find an object that it lists."""
  change_meta(workdir / "checkpoints" / "2")
  files.upload_folder(str(workdir), gs)

  def not_found(old, new):
    raise FileNotFoundError(errno.ENOENT, "no such file or bucket", old)

  monkeypatch.setattr(files, "rename_folder", not_found)
  with store.Checkpoints(gs) as checkpoints, pytest.warns(UserWarning, match="loaded 1 instead"):
    with pytest.raises(Unavailable, match="/2: cannot be written .*; the same command again"):
      checkpoints.restore(abstract_of())


@pytest.mark.parametrize("kind", ["gs", "s3"])
def test_a_read_that_fails_once_is_no_damage(workdir, request, monkeypatch, kind):
  original, calls = restore._read_state, []

  def unlucky(folder, abstract):
    calls.append(folder)
    if len(calls) == 1:
      raise ValueError("OUT_OF_RANGE: the connection was cut")
    return original(folder, abstract)

  monkeypatch.setattr(restore, "_read_state", unlucky)
  remote = request.getfixturevalue(kind)
  files.upload_folder(str(workdir), remote)
  with store.Checkpoints(remote) as checkpoints:
    state, _, step = checkpoints.restore(abstract_of())
  assert step == 2 and len(calls) == 2
  assert_same(state, make_state(2))
  assert sorted(files.list_folder(f"{remote}/checkpoints")) == ["1", "2"]


def test_flipped_bits_never_load(workdir):
  """Whatever the flipped bit, the values are those of step 2, or of the valid step 1."""
  folder, rng, fell_back = workdir / "checkpoints" / "2", np.random.default_rng(0), 0
  for path in data_files(folder)[:3] * 3:
    bit = int(rng.integers(8 * path.stat().st_size))
    flip(path, bit)
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      params, _, step = restore.restore_params(str(workdir))
    assert_same(params, jax.device_get(make_state(step).params))
    told = [str(warning.message).startswith("damaged checkpoint: 2") for warning in caught]
    assert told == [True] * (step == 1)
    fell_back += step == 1
    flip(path, bit)
  assert fell_back >= 1
  assert restore.restore_params(str(workdir))[2] == 2


def test_the_warning_names_the_array(workdir, monkeypatch):
  original = restore._read_arrays

  def unlucky(folder, abstract):
    tree = original(folder, abstract)
    if folder.endswith("2"):
      tree["params"]["head"]["kernel"] = tree["params"]["head"]["kernel"].at[3, 4].multiply(-1)
    return tree

  monkeypatch.setattr(restore, "_read_arrays", unlucky)
  with store.Checkpoints(str(workdir)) as checkpoints:
    message = r"2 \(params/head/kernel is not what was saved\); loaded 1 instead"
    with pytest.warns(UserWarning, match=message):
      checkpoints.restore(abstract_of())


IMPORT = """
import logging, sys
def hooks():
  filters = [list(logging.getLogger(name).filters) for name in ("absl", "asyncio")]
  return sys.unraisablehook, *filters
import orbax.checkpoint
before = hooks()  # importing this package changes none of them
from gpt_jax.checkpoints import restore, store
from gpt_jax.checkpoints import load
assert hooks() == before
"""


def start(script, *arguments, **streams):
  """Starts a script in a new process."""
  environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
  command = [sys.executable, "-c", script, *map(str, arguments)]
  return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **streams)


def test_noise_of_libraries_is_hidden_and_nothing_else(monkeypatch, caplog):
  """Once checkpoints are open: TensorStore's threads report to sys.unraisablehook and asyncio."""
  heard = []
  monkeypatch.setattr(sys, "unraisablehook", lambda error: heard.append(str(error.exc_value)))
  remote.hide_noise.__wrapped__()
  for message in ("Event loop is closed", "of TensorStore", "of somebody else"):
    sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError(message)))
    logging.getLogger("asyncio").error("future: Error reading %s", message)
    logging.getLogger("asyncio").error(message)
  assert heard == ["of somebody else"]
  said = [record.getMessage() for record in caplog.records]
  assert said == ["Event loop is closed", "of TensorStore", "of somebody else"]


READ = """
from absl import logging
logging.set_verbosity("info")
print(restore.restore_params(sys.argv[1])[2], file=sys.stderr)
"""


def test_import_changes_no_hook_and_damaged_arrays_are_one_warning_and_no_traceback(workdir):
  """TensorStore reads arrays in parallel and reports each failure from threads of its own."""
  for path in (workdir / "checkpoints" / "2" / "state").rglob("d/*"):
    os.truncate(path, path.stat().st_size // 2)
  process = start(IMPORT + READ, workdir, stderr=subprocess.PIPE)
  warning, *rest = process.communicate()[1].splitlines()
  assert process.returncode == 0, rest
  assert "UserWarning: damaged checkpoint: 2 (" in warning
  assert [line for line in rest if not line.startswith("  ")] == ["1"]


def test_all_damaged(workdir):
  for step in "12":
    shutil.rmtree(workdir / "checkpoints" / step / "meta")
  with store.Checkpoints(str(workdir)) as checkpoints:
    message = r"no undamaged checkpoint in .*: 2 \(.*, 1 \("
    refused(message, checkpoints.restore, abstract_of())
  refused("no undamaged checkpoint", restore.restore_step, str(workdir), 2, abstract_of())
  # Nothing is renamed where nothing replaces it.
  assert sorted(os.listdir(workdir / "checkpoints")) == ["1", "2"]


def test_no_checkpoint(tmp_path):
  with store.Checkpoints(str(tmp_path)) as checkpoints:
    assert checkpoints.steps() == []
    refused("checkpoint", checkpoints.restore, abstract_of())
  refused("no checkpoint in .*nowhere", restore.restore_params, str(tmp_path / "nowhere"))


def test_another_model_size(workdir):
  with store.Checkpoints(str(workdir)) as checkpoints:
    other = abstract_of()
    wider = other._replace(params=abstract_of(make_state(width=32).params))
    message = "params/head/kernel is float32[16, 8] there and float32[32, 8] here"
    refused(re.escape(message), checkpoints.restore, wider)
    other.params["trunk"]["bias"] = jax.ShapeDtypeStruct((3,), jnp.float32)
    refused("it has no params/trunk/bias", checkpoints.restore, other)
    del other.params["trunk"]["bias"], other.params["head"]["kernel"]
    refused("it has params/head/kernel besides", checkpoints.restore, other)
    other.params["head"]["kernel"] = jax.ShapeDtypeStruct((16, 8), jnp.bfloat16)
    refused(r"is float32\[16, 8\] there and bfloat16\[16, 8\] here", checkpoints.restore, other)


def test_parameters_alone(workdir):
  for path in (workdir, workdir / "checkpoints" / "2"):
    params, meta, step = restore.restore_params(str(path))
    assert (meta, step) == ({"note": 2}, 2)
    assert_same(params, jax.device_get(make_state(2).params))
  # The part that fine-tuning starts from.
  trunk = {"trunk": abstract_of(make_state().params["trunk"])}
  params, _, _ = restore.restore_params(str(workdir / "checkpoints" / "1"), trunk)
  assert_same(params["trunk"], make_state(1).params["trunk"])
  moved = shutil.move(workdir / "checkpoints" / "1", workdir / "released")
  assert restore.restore_params(str(moved))[2] == 1
  narrow = abstract_of(make_state(width=8).params)
  refused("head/kernel is", restore.restore_params, str(workdir), narrow)


def mesh_of(shape):
  devices = jax.devices()[: int(np.prod(shape))]
  return jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=devices)


def spread(tree, shape):
  """Matrices over both axes of a mesh, the rest replicated."""
  mesh = mesh_of(shape)

  def place(x):
    return jax.device_put(x, NamedSharding(mesh, P("data", "model") if x.ndim == 2 else P()))

  return jax.tree.map(place, tree)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 (simulated) devices")
def test_a_save_restores_on_another_mesh(tmp_path):
  state = make_state(4)
  with store.Checkpoints(str(tmp_path)) as checkpoints:
    checkpoints.save(4, spread(state, (2, 4)), {})
    for shape in ((8, 1), (1, 1)):
      target = abstract_of(spread(state, shape))
      restored, _, _ = checkpoints.restore(target)
      assert_same(restored, state)
      assert jax.tree.all(jax.tree.map(lambda x, y: x.sharding == y.sharding, restored, target))


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 (simulated) devices")
def test_fingerprints_are_the_same_on_every_mesh():
  state = make_state(4)
  alone = describe(state)
  assert all(describe(spread(state, shape)) == alone for shape in ((8, 1), (2, 4), (4, 2)))
  assert describe(jax.device_get(state)) == alone


def fingerprint(values, dtype=None):
  return describe({"x": np.asarray(values, dtype)})["x"][2]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint32, jnp.bool_])
def test_fingerprints_see_every_change(dtype):
  values = np.random.default_rng(0).integers(0, 2, size=(5, 7)).astype(dtype)
  prints = [fingerprint(values), fingerprint(values[::-1]), fingerprint(values[:, ::-1])]
  for index in np.ndindex(values.shape):
    other = values.copy()
    other[index] = not other[index]
    prints.append(fingerprint(other))
  assert len(set(prints)) == len(prints)


def test_fingerprints_are_of_bits():
  assert fingerprint([0.0, 1.0], np.float32) != fingerprint([-0.0, 1.0], np.float32)
  one, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)  # two of many nan
  assert fingerprint([one]) == fingerprint([one]) != fingerprint([other])


KILLED = """
import sys, jax, jax.numpy as jnp
from gpt_jax.checkpoints import restore, store
with store.Checkpoints(sys.argv[1]) as checkpoints:
  for step in range(1, 10**6):
    kernel = jnp.full((256, 1024), step, jnp.float32)
    state = {"params": {"kernel": kernel}, "step": jnp.int32(step)}
    checkpoints.save(step, state, {"note": step})
    print(step, flush=True)
"""


def test_a_killed_save_is_harmless(place):
  rng = np.random.default_rng(0)
  with start(KILLED, place) as process:
    while int(process.stdout.readline()) < 5:
      pass
    time.sleep(rng.uniform(0, 0.05))
    process.send_signal(signal.SIGKILL)
  if not files.is_url(place):  # in case it died between saves
    os.makedirs(f"{place}/checkpoints/3.orbax-checkpoint-tmp/state")
  with store.Checkpoints(place) as checkpoints:
    kernel = jax.ShapeDtypeStruct((256, 1024), jnp.float32)
    abstract = {"params": {"kernel": kernel}, "step": jax.ShapeDtypeStruct((), jnp.int32)}
    state, meta, step = checkpoints.restore(abstract)
    assert step >= 3 and meta["note"] == step == state["step"]
    np.testing.assert_array_equal(state["params"]["kernel"], step)
    checkpoints.save(step + 1, state, {})
    checkpoints.wait()
    assert checkpoints.steps()[-1] == step + 1
  assert all(name.isdigit() for name in files.list_folder(f"{place}/checkpoints"))


def test_one_run_at_a_time(place):
  with store.Checkpoints(saved(place, steps=(1,))) as first:
    refused("another run is at work there", store.Checkpoints, place)
    first.save(2, make_state(2), {})
  with store.Checkpoints(place) as second:
    assert second.steps() == [1, 2]
