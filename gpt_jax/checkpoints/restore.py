"""Reads the checkpoints of a run, and verifies each array: parameters, whole states, meta, metrics.

A checkpoint is the folder `<workdir>/checkpoints/<step>`: `state`, orbax's arrays, and
`meta/metadata`, one JSON object with the caller's meta, the metrics, and the type, shape and
fingerprint of every array by its path in the state. Orbax does not verify the array data it reads,
so without fingerprints a flipped bit would go unnoticed.
"""

import contextlib
import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import unflatten_dict
from jax.experimental import multihost_utils

from gpt_jax import files
from gpt_jax.checkpoints.formats import Check, accept
from gpt_jax.checkpoints.remote import check_reached, committed_steps, hide_noise
from gpt_jax.errors import InputError
from gpt_jax.files import read_json, verified
from gpt_jax.parallel.mesh import path_name
from gpt_jax.parallel.processes import is_main_process


class Damaged(Exception):
  """A checkpoint that does not verify. Never leaves this file."""


def restore_params(path: str, abstract: Any = None, check: Check = accept) -> tuple[Any, dict, int]:
  """Reads and verifies only the parameters of a checkpoint: params, meta, step; changes no file.

  Args:
    path: a workdir (its newest checkpoint that verifies), `<workdir>/best`, or one checkpoint.
    abstract: part of the parameters, as in `Checkpoints.restore`. None: all, as NumPy arrays.
  """
  state = None if abstract is None else {"params": abstract}
  tree, record, _ = load_first(_locate(path), state, exact=False, check=check)
  return tree["params"], record["meta"], record["step"]


def saved_steps(workdir: str) -> list[int]:
  """The steps of a run's complete checkpoints, oldest first. Raises InputError if it has none."""
  return sorted(int(os.path.basename(folder)) for folder in _locate(workdir))


def restore_step(workdir: str, step: int, abstract: Any) -> Any:
  """Reads and verifies the whole state of one step; changes no file. See Checkpoints.restore."""
  return load_first([_step_folder(workdir, step)], abstract, exact=True)[0]


def saved_meta(workdir: str, step: int) -> dict:
  """The meta saved with the checkpoint of a step. Raises InputError if it is missing or damaged."""
  folder = _step_folder(workdir, step)
  try:
    return read_record(folder)["meta"]
  except (OSError, ValueError, KeyError) as error:
    raise InputError(f"{folder}: damaged ({error})") from error


def best_evaluation(workdir: str) -> dict[str, float] | None:
  """The step of the best checkpoint, as "step", and its metrics; None if no metric was a number."""
  folder = os.path.join(files.absolute(workdir), "checkpoints")
  scores = ranking_scores(step_folders(folder))
  if not scores:
    return None
  record = read_record(os.path.join(folder, str(best_step(scores))))
  return {"step": record["step"], **record["metrics"]}


def saved_metrics(path: str, step: int) -> dict[str, float]:
  """The metrics saved with the checkpoint of a step; empty where path is no run."""
  try:
    records = [read_record(folder) for folder in _locate(path)]
  except (InputError, OSError, ValueError):
    return {}
  return next((record["metrics"] or {} for record in records if record["step"] == step), {})


def _locate(path: str) -> list[str]:
  """The folders of the checkpoints at a path, newest first."""
  files.check_path(path)
  path = files.absolute(path)
  if files.is_folder(os.path.join(path, "meta")):  # a single checkpoint
    return [path]
  parent, last = os.path.split(path)
  # A folder that is named so is meant itself.
  best = last == "best" and not files.exists(path)
  workdir = parent if best else path
  folders = step_folders(os.path.join(workdir, "checkpoints"))
  if not folders:
    hint = "a workdir, WORKDIR/best or WORKDIR/checkpoints/STEP"
    names = sorted(files.list_existing(workdir))
    for name in names:
      run = os.path.join(workdir, name)
      if files.is_folder(os.path.join(run, "checkpoints")):  # of a seed, say
        hint = f"one of its runs, such as {os.path.join(run, 'best') if best else run}"
        break
    if "label.json" in names and "result.json" in names:
      with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        chosen = str(files.read_json(os.path.join(workdir, "result.json"))["chosen"])
        hint = f"its model that predicts, {os.path.join(workdir, chosen, 'best')}"
    elif "label.json" in names:
      soon = f"; {workdir}/tfidf predicts already" if "tfidf" in names else ""
      hint = f"another, as label.run has not ended there, and goes on when given again{soon}"
    raise InputError(f"no checkpoint in {workdir}: give {hint}")
  return best_folder(os.path.join(workdir, "checkpoints")) if best else folders


def _step_folder(workdir: str, step: int) -> str:
  return os.path.join(files.absolute(workdir), "checkpoints", str(step))


def load_first(
  folders: list[str], abstract: Any, exact: bool, check: Check = accept
) -> tuple[Any, dict, list[str]]:
  """The first checkpoint that verifies, as a named tuple or dict as `abstract` is (None: all
  parameters), its record, and the folders of the damaged ones before it, of which it warns.
  """
  problems = {}
  wanted = None if abstract is None else as_dict(abstract)
  for folder in folders:
    try:
      tree, record = _read_surely(folder, wanted, exact, check)
    except Damaged as problem:
      problems[folder] = f"{os.path.basename(folder)} ({problem})"
      continue
    if problems and is_main_process():
      damaged = ", ".join(problems.values())
      warnings.warn(
        f"damaged checkpoint: {damaged}; loaded {record['step']} instead, from {folder}",
        stacklevel=3,
      )
    # Orbax knows dicts alone.
    state = tree if abstract is None or isinstance(abstract, dict) else type(abstract)(**tree)
    return state, record, list(problems)
  raise InputError(
    f"no undamaged checkpoint in {os.path.dirname(folders[0])}: {', '.join(problems.values())}"
  )


def _read_surely(folder: str, *arguments: Any) -> tuple[Any, dict]:
  """As _read, tried again if damaged: a store may have cut short what it sent."""
  with contextlib.suppress(Damaged):
    return _read(folder, *arguments)
  return _read(folder, *arguments)


def _read(folder: str, abstract: Any, exact: bool, check: Check) -> tuple[Any, dict]:
  """Tree and record of a checkpoint. Raises Damaged on all processes alike."""
  record = _on_every_process(folder, lambda: read_record(folder))
  check(record["meta"])
  saved = record["leaves"]  # [type, shape, fingerprint] by path
  if abstract is None:
    leaves = {}
    for name, (dtype, shape, _) in saved.items():
      leaves[name] = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    abstract = {"params": unflatten_dict(leaves, sep="/")["params"]}
  _check_shapes(folder, saved, abstract, exact)
  hide_noise()  # also of the reads of other arrays, which fail later
  tree = _on_every_process(folder, lambda: _read_arrays(folder, abstract))
  for name, description in describe(tree).items():
    if description != saved[name]:
      raise Damaged(f"{name} is not what was saved")
  return tree, record


def read_record(folder: str) -> dict:
  try:
    return verified(read_json(os.path.join(folder, "meta", "metadata")))
  except ValueError as error:
    raise ValueError(f"meta/metadata: {error}") from error


def _read_arrays(folder: str, abstract: Any) -> Any:
  if folder.startswith("s3://"):  # which orbax cannot read, as it does gs://
    with files.local_copy(os.path.join(folder, "state")) as copy:
      return _read_state(copy, abstract)
  return _read_state(os.path.join(folder, "state"), abstract)


def _read_state(folder: str, abstract: Any) -> Any:
  from etils import epath  # whose paths orbax works with, on stores too

  files.check_regular(folder)
  # Without these orbax restores the sharding that was saved, whose devices may not exist here.
  restore_args = jax.tree.map(_restore_args, abstract)
  arguments = ocp.args.PyTreeRestore(item=abstract, restore_args=restore_args, partial_restore=True)
  # Not a Checkpointer, which ends in a barrier that a failing process would never reach.
  tree = ocp.PyTreeCheckpointHandler().restore(epath.Path(folder), args=arguments)
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if isinstance(leaf, jax.ShapeDtypeStruct):  # partial_restore leaves missing arrays abstract
      raise ValueError(f"{path_name(path)} is missing")
  return tree


def _restore_args(leaf: jax.ShapeDtypeStruct) -> ocp.RestoreArgs:
  if leaf.sharding is None:
    return ocp.RestoreArgs(restore_type=np.ndarray)
  return ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def _on_every_process(folder: str, read: Callable[[], Any]) -> Any:
  """read(); raises Damaged on all processes if it fails on one, so that all try the same next;
  Unavailable or InputError where a store does not answer, or refuses the user.
  """
  result, problem = None, ""
  try:
    result = read()
  except Exception as error:  # damaged bytes can raise anything, in four libraries
    reason = " ".join(str(error).split())
    if len(reason) > 300:  # TensorStore's begin with what was read and end with what was wrong
      reason = f"{reason[:150]} … {reason[-150:]}"
    problem = f"{type(error).__name__}: {reason}"
    check_reached(error, folder)
  # A collective: all processes come here, those whose read succeeded too.
  if jax.process_count() > 1 and multihost_utils.process_allgather(np.array(bool(problem))).any():
    problem = problem or "unreadable for another process"
  if problem:
    raise Damaged(problem)
  return result


def _check_shapes(folder: str, saved: dict[str, list], abstract: Any, exact: bool) -> None:
  """Raises InputError at the first array whose type or shape differs from the model's."""
  wanted = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(abstract)}
  for name, leaf in wanted.items():
    if name not in saved:
      raise InputError(f"{folder} is of another model: it has no {name}")
    dtype, shape, _ = saved[name]
    if (str(leaf.dtype), list(leaf.shape)) != (dtype, shape):
      raise InputError(
        f"{folder} is of another model: {name} is {dtype}{shape} there and "
        f"{leaf.dtype}{list(leaf.shape)} here"
      )
  if exact and (extra := sorted(saved.keys() - wanted.keys())):
    raise InputError(f"{folder} is of another model: it has {extra[0]} besides")


def describe(tree: Any) -> dict[str, list]:
  """[type, shape, fingerprint] of every array, by its path."""
  described = {}
  # One program per array, run one after the other: concurrent programs with collectives can
  # deadlock on each other's devices, and a single program for all arrays takes many seconds to
  # compile, while a model has only a dozen different shapes.
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    described[path_name(path)] = [str(x.dtype), list(x.shape), int(_fingerprint(x))]
  return described


@jax.jit
def _fingerprint(x: jax.Array) -> jax.Array:
  """A uint32 hash of an array's exact bits and their positions; the same for every sharding.

  The bits of each element are mixed with its index and hashed by a bijection (the finalizer of
  MurmurHash3); the hashes are summed modulo 2^32. A change of one element is always detected, a
  change of several with probability 1 - 2^-32.
  """
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  # Bits and not values: 0.0 and -0.0 differ, and NaN equals itself.
  bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
  index = jnp.zeros(x.shape, jnp.uint32)
  for axis, size in enumerate(x.shape):  # no reshape, so that devices hash only their own shards
    index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
  h = bits ^ (index * jnp.uint32(0x9E3779B1))
  h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
  h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
  # Integer addition is associative: shards may be summed in any order.
  return jnp.sum(h ^ (h >> 16), dtype=jnp.uint32)


def step_folders(folder: str) -> list[str]:
  """The folders of the complete checkpoints, newest first."""
  return [os.path.join(folder, str(step)) for step in reversed(committed_steps(folder))]


def best_step(scores: dict[int, float]) -> int:
  return max(scores, key=lambda step: (scores[step], -step))  # the first among equals


def ranking_scores(folders: list[str]) -> dict[int, float]:
  """Step -> score; without the steps that have no score or an unreadable record."""
  scores = {}
  for folder in folders:
    try:
      record = read_record(folder)
    except (OSError, ValueError, KeyError, AttributeError):
      continue
    if (score := score_of(record)) is not None:
      scores[record["step"]] = score
  return scores


def score_of(record: dict) -> float | None:
  """The metric that selects the best checkpoint, larger is better; None if missing or nan."""
  metric, mode = record["ranking"]
  value = record["metrics"].get(metric)
  if value is None or math.isnan(value):
    return None
  return value if mode == "max" else -value


def as_dict(state: Any) -> dict:
  """The state without the parts that are None."""
  parts = state if isinstance(state, dict) else state._asdict()
  return {name: part for name, part in parts.items() if part is not None}


def best_folder(folder: str) -> list[str]:
  scores = ranking_scores(step_folders(folder))
  if not scores:
    raise InputError(
      f"{folder} has no best checkpoint: none was saved with the metric that ranks them"
    )
  return [os.path.join(folder, str(best_step(scores)))]
