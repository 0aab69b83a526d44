"""Checkpoints that are verified when they are read: all of orbax, and a fingerprint of every array
beside it.

A checkpoint is the folder `<workdir>/checkpoints/<step>`: `state`, orbax's arrays, and
`meta/metadata`, one JSON object with the caller's meta, the metrics, and the type, shape and
fingerprint of every array by its path in the state. Orbax checks none of the array data it reads,
so without the fingerprints a flipped bit would go unnoticed.
"""

import fcntl
import json
import logging
import math
import os
import pathlib
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import unflatten_dict
from jax.experimental import multihost_utils

from gpt_jax.errors import InputError

# Orbax reports every step of its work through absl's logger, which is also ours; what goes wrong it
# raises as well. After the one error of a damaged array come tracebacks for each array that was
# being read beside it.
logging.getLogger("absl").addFilter(lambda record: f"{os.sep}orbax{os.sep}" not in record.pathname)
logging.getLogger("asyncio").addFilter(lambda record: "tensorstore" not in record.getMessage())


def _without_abandoned_reads(args: Any, others: Callable[[Any], Any] = sys.unraisablehook) -> None:
  if not any(said in str(args.exc_value) for said in ("Event loop is closed", "TensorStore")):
    others(args)


sys.unraisablehook = _without_abandoned_reads


class Damaged(Exception):
  """What is wrong with a checkpoint; never leaves this file."""


class Checkpoints:
  """The checkpoints of one run: newest, best and `keep` stay; written in the background, verified
  when read.

  Every process of a run opens it and makes the same calls. A save that is killed leaves nothing
  that would be read.

  Args:
    workdir: of the run, on a file system that all its processes share.
    metric: the name among `save`'s metrics by which a checkpoint is the best; None: only the newest
      are kept.
    mode: "max" or "min", which of its values is best.
    keep: whether the checkpoint of a step stays for good.
    newest: how many of the last ones stay besides.

  Raises:
    InputError: another process is writing there; it would take this one's unfinished saves for
      leftovers.
  """

  def __init__(
    self,
    workdir: str,
    metric: str | None = None,
    mode: str = "max",
    keep: Callable[[int], bool] = lambda step: False,
    newest: int = 3,
  ):
    self._folder = os.path.abspath(os.path.join(workdir, "checkpoints"))
    self._ranking = [metric, mode]
    self._keep, self._newest = keep, newest
    self._lock = lock(workdir)
    self._manager = ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        cleanup_tmp_directories=True, enable_async_checkpointing=True, preservation_policy=self
      ),
    )
    self._scores = _scores(_step_folders(self._folder))

  def save(
    self, step: int, state: Any, meta: dict, metrics: dict[str, float] | None = None
  ) -> None:
    """Starts to write a checkpoint; the state may be donated as soon as this returns. A step that
    is there stays.

    Args:
      step: updates made.
      state: named tuple or dict of trees of arrays, of which one is `params`.
      meta: what JSON can hold; given back by `restore`.
      metrics: what is known of this state's quality.
    """
    if step in self._manager.all_steps():
      return
    tree = _as_dict(state)
    record = {"step": step, "meta": meta, "metrics": metrics or {}, "ranking": self._ranking}
    record = json.loads(json.dumps(record | {"leaves": describe(tree)}))
    if (score := _score(record)) is not None:
      self._scores[step] = score
    arguments = ocp.args.Composite(
      state=ocp.args.PyTreeSave(tree),
      meta=ocp.args.JsonSave(record | {"checksum": _checksum(record)}),
    )
    self._manager.save(step, args=arguments, force=True)

  def restore(self, abstract: Any, step: int | str | None = None) -> tuple[Any, dict, int]:
    """Reads a state and verifies every array.

    Args:
      abstract: what `save` was given, as ShapeDtypeStructs; each with the sharding to restore to,
        on any mesh, or without one, which restores to NumPy.
      step: None for the newest that verifies, passing over damaged ones with a warning and renaming
        them out of the way; or exactly this step, or "best".

    Returns:
      state, meta, step.

    Raises:
      InputError: no checkpoint, none undamaged, or one of another model.
    """
    self.wait()
    if step == "best":
      folders = _best_folder(self._folder)
    elif step is not None:
      folders = [os.path.join(self._folder, str(step))]
    else:
      folders = _step_folders(self._folder)
    if not folders:
      raise InputError(f"{self._folder} holds no checkpoint")
    tree, record, damaged = _load(folders, _as_dict(abstract), exact=True)
    self._set_aside(damaged)
    state = tree if isinstance(abstract, dict) else type(abstract)(**tree)
    return state, record["meta"], record["step"]

  def steps(self) -> list[int]:
    """The steps whose checkpoints are complete, oldest first."""
    return [int(os.path.basename(folder)) for folder in reversed(_step_folders(self._folder))]

  def wait(self) -> None:
    """Returns when everything is on disk. Raises whatever went wrong in the background."""
    self._manager.wait_until_finished()
    self._manager.check_for_errors()

  def close(self) -> None:
    try:
      self.wait()
      self._manager.close()
    finally:
      self._lock.close()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
    """Orbax asks this for its preservation policy, after each save: which of the checkpoints to
    keep.
    """
    del context
    steps = sorted(checkpoint.step for checkpoint in checkpoints)
    scores = {step: self._scores[step] for step in steps if step in self._scores}
    kept = {
      *steps[-self._newest :],
      *([_best(scores)] if scores else []),
      *filter(self._keep, steps),
    }
    return [checkpoint.step in kept for checkpoint in checkpoints]

  def _set_aside(self, folders: list[str]) -> None:
    """Renames damaged steps, so that a run that went on from an older one can save these steps
    again.
    """
    if not folders:
      return
    if jax.process_index() == 0:
      for folder in folders:
        os.rename(folder, f"{folder}.damaged-{int(time.time())}")
    multihost_utils.sync_global_devices("damaged checkpoints set aside")
    self._manager.reload()
    for folder in folders:
      self._scores.pop(int(os.path.basename(folder)), None)


def lock(workdir: str) -> TextIO:
  """`<workdir>/lock`, locked until it is closed or its process ends, in whatever way.

  Raises:
    InputError: another process has it.
  """
  os.makedirs(workdir, exist_ok=True)
  file = open(os.path.join(workdir, "lock"), "w", encoding="utf-8")  # what is open is locked
  if jax.process_index() == 0:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      file.close()
      raise InputError(
        f"{workdir}: another run is at work there; wait until it ends, or use another folder"
      ) from error
    except OSError:
      pass  # a file system without locks
  return file


def restore_params(path: str, abstract: Any = None) -> tuple[Any, dict, int]:
  """Reads and verifies only the parameters of a checkpoint, and changes nothing there.

  Args:
    path: a workdir (the newest of its checkpoints that verifies), `<workdir>/best`, or one
      checkpoint's folder.
    abstract: as in `Checkpoints.restore`, of any part of the parameters. None: all of them, as
      NumPy arrays.

  Returns:
    params, meta, step.

  Raises:
    InputError: no checkpoint, none undamaged, or one of another model.
  """
  tree, record, _ = _load(
    _locate(path), None if abstract is None else {"params": abstract}, exact=False
  )
  return tree["params"], record["meta"], record["step"]


def describe(tree: Any) -> dict[str, list]:
  """[type, shape, fingerprint] of every array, by its path."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  # One after the other: programs at once, each with its own collectives, can wait for each other's
  # devices for ever. And one program for all of them would take many seconds to compile, where a
  # model has a dozen different shapes.
  return {_name(path): [str(x.dtype), list(x.shape), int(_fingerprint(x))] for path, x in leaves}


@jax.jit
def _fingerprint(x: jax.Array) -> jax.Array:
  """A uint32 of an array's exact bits and their places, the same however the array is spread over
  devices.

  Every element's bits are mixed with its index and hashed by a bijection (the finalizer of
  MurmurHash3), and the hashes added up modulo 2^32: any change of one element shows, and of several
  with probability 1 - 2^-32.
  """
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
  index = jnp.zeros(x.shape, jnp.uint32)
  for axis, size in enumerate(x.shape):  # not reshaped, so that every device hashes what it has
    index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
  h = bits ^ (index * jnp.uint32(0x9E3779B1))
  h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
  h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
  return jnp.sum(h ^ (h >> 16), dtype=jnp.uint32)


def _load(folders: list[str], abstract: Any, exact: bool) -> tuple[Any, dict, list[str]]:
  """Tree and record of the first folder that verifies, and the damaged folders before it, which
  are warned of.
  """
  problems = {}
  for folder in folders:
    try:
      tree, record = _read(folder, abstract, exact)
    except Damaged as problem:
      problems[folder] = f"{os.path.basename(folder)} ({problem})"
      continue
    if problems and jax.process_index() == 0:
      said = ", ".join(problems.values())
      warnings.warn(
        f"damaged checkpoint: {said}; loaded {record['step']} instead, from {folder}", stacklevel=3
      )
    return tree, record, list(problems)
  raise InputError(
    f"no undamaged checkpoint in {os.path.dirname(folders[0])}: {', '.join(problems.values())}"
  )


def _read(folder: str, abstract: Any, exact: bool) -> tuple[Any, dict]:
  """Raises Damaged, on every process alike, and InputError where the checkpoint is another
  model's.
  """
  record = _on_every_process(lambda: _read_record(folder))
  saved = record["leaves"]
  if abstract is None:
    abstract = _params_as_saved(saved)
  _check_shapes(folder, saved, abstract, exact)
  tree = _on_every_process(lambda: _read_arrays(folder, abstract))
  for name, found in describe(tree).items():
    if found != saved[name]:
      raise Damaged(f"{name} is not what was saved")
  return tree, record


def _read_record(folder: str) -> dict:
  with open(os.path.join(folder, "meta", "metadata"), encoding="utf-8") as file:
    record = json.load(file)
  if record.pop("checksum") != _checksum(record):
    raise ValueError("meta/metadata is not what was saved")
  return record


def _read_arrays(folder: str, abstract: Any) -> Any:
  how = jax.tree.map(_how, abstract)
  arguments = ocp.args.PyTreeRestore(item=abstract, restore_args=how, partial_restore=True)
  # The handler and not a Checkpointer, which ends in a barrier that a process that fails would
  # never reach.
  tree = ocp.PyTreeCheckpointHandler().restore(pathlib.Path(folder, "state"), args=arguments)
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if isinstance(leaf, jax.ShapeDtypeStruct):  # a partial restore leaves what it misses as it was
      raise ValueError(f"{_name(path)} is missing")
  return tree


def _on_every_process(read: Callable[[], Any]) -> Any:
  """read(), or Damaged on all processes where it fails on one, so that all of them go on to the
  same checkpoint.
  """
  result, problem = None, ""
  try:
    result = read()
  except (
    Exception
  ) as error:  # damaged bytes surface as any type, from JSON, orbax, tensorstore or the file system
    problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
  if jax.process_count() > 1 and multihost_utils.process_allgather(np.array(bool(problem))).any():
    problem = problem or "unreadable for another process"
  if problem:
    raise Damaged(problem)
  return result


def _check_shapes(folder: str, saved: dict[str, list], abstract: Any, exact: bool) -> None:
  """Raises InputError at the first array that is not in the checkpoint as the model has it."""
  wanted = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(abstract)}
  for name, leaf in wanted.items():
    if name not in saved:
      raise InputError(f"{folder} is of another model: it has no {name}")
    dtype, shape, _ = saved[name]
    if (str(leaf.dtype), list(leaf.shape)) != (dtype, shape):
      here = f"{leaf.dtype}{list(leaf.shape)}"
      raise InputError(
        f"{folder} is of another model: {name} is {dtype}{shape} there and {here} here"
      )
  if exact and (extra := sorted(saved.keys() - wanted.keys())):
    raise InputError(f"{folder} is of another model: it has {extra[0]} besides")


def _params_as_saved(saved: dict[str, list]) -> dict:
  leaves = {
    name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for name, (dtype, shape, _) in saved.items()
  }
  return {"params": unflatten_dict(leaves, sep="/")["params"]}


def _how(leaf: jax.ShapeDtypeStruct) -> ocp.RestoreArgs:
  if leaf.sharding is None:
    return ocp.RestoreArgs(restore_type=np.ndarray)
  return ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def _locate(path: str) -> list[str]:
  """The checkpoints that a path names, newest first."""
  path = os.path.abspath(path)
  if os.path.isdir(os.path.join(path, "meta")):
    return [path]
  parent, last = os.path.split(path)
  best = last == "best" and not os.path.exists(path)
  workdir = parent if best else path
  folders = _step_folders(os.path.join(workdir, "checkpoints"))
  if not folders:
    seeds = sorted(name for name in _names(workdir) if name.startswith("seed_"))
    hint = "a workdir, <workdir>/best or <workdir>/checkpoints/<step>"
    if seeds:  # a run of several seeds; each is a workdir of its own
      hint = f"one of its seeds, such as {os.path.join(workdir, seeds[0])}{'/best' * best}"
    raise InputError(f"no checkpoint in {workdir}: give {hint}")
  return _best_folder(os.path.join(workdir, "checkpoints")) if best else folders


def _step_folders(folder: str) -> list[str]:
  """Newest first. What is not yet whole, or set aside as damaged, has no number for a name."""
  return [
    os.path.join(folder, name)
    for name in sorted(filter(str.isdigit, _names(folder)), key=int, reverse=True)
  ]


def _names(folder: str) -> list[str]:
  return os.listdir(folder) if os.path.isdir(folder) else []


def _best_folder(folder: str) -> list[str]:
  scores = _scores(_step_folders(folder))
  if not scores:
    raise InputError(
      f"{folder} has no best checkpoint: none was saved with the metric that ranks them"
    )
  return [os.path.join(folder, str(_best(scores)))]


def _best(scores: dict[int, float]) -> int:
  return max(scores, key=lambda step: (scores[step], -step))  # the first of equals


def _scores(folders: list[str]) -> dict[int, float]:
  """The score of each step that has one, from its record; what cannot be read is not the best."""
  scores = {}
  for folder in folders:
    try:
      record = _read_record(folder)
    except (OSError, ValueError, KeyError, AttributeError):
      continue
    if (score := _score(record)) is not None:
      scores[record["step"]] = score
  return scores


def _score(record: dict) -> float | None:
  """The metric that ranks checkpoints, larger is better; None where it was not measured, or is
  not a number.
  """
  metric, mode = record["ranking"]
  value = record["metrics"].get(metric)
  return None if value is None or math.isnan(value) else {"max": value, "min": -value}[mode]


def _checksum(record: dict) -> int:
  return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _as_dict(state: Any) -> dict:
  return state if isinstance(state, dict) else state._asdict()


def _name(path: tuple) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")
