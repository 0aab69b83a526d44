"""Verified checkpoints: orbax, plus a fingerprint of every array.

A checkpoint is the folder `<workdir>/checkpoints/<step>`: `state`, orbax's arrays, and
`meta/metadata`, one JSON object with the caller's meta, the metrics, and the type, shape and
fingerprint of every array by its path in the state. Orbax does not verify the array data it reads,
so without fingerprints a flipped bit would go unnoticed.
"""

import contextlib
import errno
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import unflatten_dict
from jax.experimental import multihost_utils

from gpt_jax import files
from gpt_jax.checkpoints.fingerprint import describe
from gpt_jax.checkpoints.lease import Lease
from gpt_jax.checkpoints.quiet import quiet
from gpt_jax.checkpoints.staged import StagedManager, committed_steps, is_staged
from gpt_jax.errors import InputError, Unavailable
from gpt_jax.files import read_json, verified, with_checksum
from gpt_jax.parallel.partition import path_name
from gpt_jax.parallel.processes import is_main_process

_OUTAGES = ("UNAVAILABLE", "DEADLINE_EXCEEDED")  # in TensorStore's messages
_REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_MIN_SLICE = 1 << 20  # bytes
_ABANDONED = 0.5  # seconds


class Damaged(Exception):
  """A checkpoint that does not verify. Never leaves this file."""


class Checkpoints:
  """The checkpoints of a run: saved in the background, verified when restored.

  The newest ones, the best one and those selected by `keep` stay, the others are deleted. Every
  process of a run opens the checkpoints and makes the same calls. A save that is killed leaves
  nothing that could be read by mistake. On a store, a run of one process writes a checkpoint again
  that could not be written.

  Args:
    workdir: run folder, on a file system that all processes share.
    metric: name of the metric, among those given to `save`, that selects the best checkpoint. None:
      there is no best.
    mode: "max" or "min", which value of the metric is best.
    keep: whether to keep the checkpoint of a step for good.
    newest: how many of the newest checkpoints to keep.
  """

  def __init__(
    self,
    workdir: str,
    metric: str | None = None,
    mode: str = "max",
    keep: Callable[[int], bool] = lambda step: False,
    newest: int = 3,
  ):
    self._folder = os.path.join(files.absolute(workdir), "checkpoints")
    self._ranking = [metric, mode]
    self._keep, self._newest = keep, newest
    # The step and a copy of what is being written to a store, until it is there.
    self._unwritten: tuple[int, ocp.args.Composite] | None = None
    with contextlib.ExitStack() as resources:
      # Before orbax opens the folder and deletes what it takes for leftovers.
      resources.enter_context(lock(workdir))
      resources.enter_context(quiet)
      options = ocp.CheckpointManagerOptions(
        cleanup_tmp_directories=True, enable_async_checkpointing=True, preservation_policy=self
      )
      with _store_errors(self._folder):
        self._manager: ocp.CheckpointManager | StagedManager
        if is_staged(workdir):
          self._manager = StagedManager(self._folder, self._kept)
        else:
          handlers = {"state": _state_handler(), "meta": ocp.JsonCheckpointHandler()}
          self._manager = ocp.CheckpointManager(
            self._folder, options=options, item_handlers=handlers
          )
      self._scores = ranking_scores(step_folders(self._folder))
      self._resources = resources.pop_all()

  def save(
    self, step: int, state: Any, meta: dict, metrics: dict[str, float] | None = None
  ) -> None:
    """Starts to write a checkpoint; the state may be donated as soon as this returns.

    A step that has been saved before is not saved again.

    Args:
      step: number of updates made.
      state: named tuple or dict of trees of arrays, one of them called `params`.
      meta: JSON values, returned by `restore`.
      metrics: metrics of this state.
    """
    if step in self._manager.all_steps():
      return
    tree = as_dict(state)
    _check_finite(tree, step, self._folder)  # a bad state must not replace a good one
    record = {"step": step, "meta": meta, "metrics": metrics or {}, "ranking": self._ranking}
    # As it will be read back: in JSON tuples are lists, and keys strings.
    record = json.loads(json.dumps(record | {"leaves": describe(tree)}))
    if (score := _score(record)) is not None:
      # Before the save: orbax calls should_preserve as soon as it is done.
      self._scores[step] = score
    # One save at a time: errors of the one before are raised here, and its copy is dropped.
    self.wait()
    meta_json = ocp.args.JsonSave(with_checksum(record))
    # Of a run of one process on a store: all others would have to know of it.
    if files.is_url(self._folder) and not is_staged(self._folder) and jax.process_count() == 1:
      # A copy, since the state is donated before a store's refusal is known.
      copy = ocp.args.PyTreeSave(jax.tree.map(np.array, tree))
      self._unwritten = step, ocp.args.Composite(state=copy, meta=meta_json)
    arguments = ocp.args.Composite(state=ocp.args.PyTreeSave(tree), meta=meta_json)
    # force: the caller has decided that a save is due, not orbax's intervals.
    self._try_twice(lambda: self._manager.save(step, args=arguments, force=True))

  def restore(self, abstract: Any, step: int | str | None = None) -> tuple[Any, dict, int]:
    """Reads a state and verifies every array.

    Args:
      abstract: the state as ShapeDtypeStructs. Their shardings, on any mesh, are those of the
        result; without a sharding an array is restored to NumPy.
      step: a step, "best", or None for the newest checkpoint that verifies; damaged ones before it
        are renamed, with a warning.

    Returns:
      state, meta, step.
    """
    self.wait()
    if step == "best":
      folders = best_folder(self._folder)
    elif step is not None:
      folders = [os.path.join(self._folder, str(step))]
    else:
      folders = step_folders(self._folder)
    if not folders:
      raise InputError(f"{self._folder} holds no checkpoint")
    tree, record, damaged = load_first(folders, as_dict(abstract), exact=True)
    self._set_aside(damaged)
    # Orbax knows dicts; the caller's state may be a named tuple.
    state = tree if isinstance(abstract, dict) else type(abstract)(**tree)
    return state, record["meta"], record["step"]

  def tidy(self) -> None:
    """Deletes what a run that was killed right after a save had no time to delete."""
    with _store_errors(self._folder):
      steps = set(self._manager.all_steps())
      for step in sorted(steps - self._kept(steps)):
        self._manager.delete(step)

  def steps(self) -> list[int]:
    """The steps of all complete checkpoints, oldest first."""
    return [int(os.path.basename(folder)) for folder in reversed(step_folders(self._folder))]

  def wait(self) -> None:
    """Returns when everything is on disk. Raises the errors of background saves."""
    self._try_twice(self._await_saves)
    self._unwritten = None

  def close(self) -> None:
    try:
      self.wait()
      self._manager.close()
    finally:
      self._resources.close()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
    """Orbax's preservation policy, called after each save: which checkpoints to keep."""
    del context
    kept = self._kept(checkpoint.step for checkpoint in checkpoints)
    return [checkpoint.step in kept for checkpoint in checkpoints]

  def _kept(self, saved: Iterable[int]) -> set[int]:
    """The saved steps whose checkpoints stay."""
    steps = sorted(saved)  # oldest first
    scores = {step: self._scores[step] for step in steps if step in self._scores}
    kept = {*steps[-self._newest :], *filter(self._keep, steps)}
    if scores:
      kept.add(best_step(scores))
    if kept == {*steps[-1:]}:  # no step has tried the newest parameters yet
      kept.update(steps[-2:])
    return kept

  def _await_saves(self) -> None:
    self._manager.wait_until_finished()
    self._manager.check_for_errors()

  def _try_twice(self, action: Callable[[], None]) -> None:
    """action(); if a store fails, writes the checkpoint again of which there is a copy."""
    try:
      with _store_errors(self._folder):
        action()
    except Unavailable:
      if self._unwritten is None:
        raise
      step, arguments = self._unwritten
      print(f"{self._folder}/{step}: not written; trying again", file=sys.stderr, flush=True)
      with _store_errors(self._folder):
        self._manager.reload()
        self._manager.save(step, args=arguments, force=True)
        self._await_saves()

  def _set_aside(self, folders: list[str]) -> None:
    """Renames damaged checkpoints, so that the resumed run can save these steps again."""
    if not folders:
      return
    if is_main_process():
      for folder in folders:
        with _store_errors(folder):
          files.rename_folder(folder, f"{folder}.damaged-{int(time.time())}")
    # No process may list the folder again, or save there, before the names have changed.
    multihost_utils.sync_global_devices("damaged checkpoints set aside")
    self._manager.reload()
    for folder in folders:
      self._scores.pop(int(os.path.basename(folder)), None)


@contextlib.contextmanager
def _store_errors(folder: str) -> Iterator[None]:
  """Raises Unavailable for what orbax, tensorstore and fsspec raise about a store.

  Raises InputError if it says that the user may not.
  """
  try:
    yield
  except Exception as error:
    disk_is_full = os.strerror(errno.ENOSPC) in str(error)  # through which s3:// is written
    if not files.is_url(folder) or isinstance(error, InputError) or disk_is_full:
      raise
    quiet.stay()
    kind, reason = _explain(error, folder)
    raise kind(
      f"{folder}: cannot be written ({reason}); the same command again resumes from the last "
      "checkpoint"
    ) from error


def _explain(error: Exception, folder: str) -> tuple[type[InputError], str]:
  """InputError if a store refuses the user, or else Unavailable; and the reason in a few words."""
  if isinstance(error, files.StoreError):
    return (InputError if error.errno == errno.EACCES else Unavailable), str(error.strerror)
  reason = " ".join(str(error).split())[:200]
  if files.is_refusal(error) or any(code in str(error) for code in _REFUSALS):
    return InputError, f"{reason}; {files.sign_in_advice(folder)}"
  return Unavailable, reason


def lock(workdir: str) -> TextIO | Lease:
  """Opens and locks `<workdir>/lock`; closing the file, or the end of the process, unlocks it.

  On a store it is a lease, which runs out after a process that was killed.
  """
  if files.is_url(workdir):
    return Lease(workdir)
  # By process 0 alone: the others of this run would be refused on a shared file system.
  taken = "another run is at work there; wait until it ends, or use another folder"
  return files.lock_folder(workdir, taken, is_main_process())


def _check_finite(tree: Any, step: int, folder: str) -> None:
  """Raises InputError if an array holds an infinite or undefined number."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  floats = [(path, x) for path, x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
  broken = [path_name(path) for path, x in floats if not _is_finite(x)]
  if broken:
    raise InputError(
      f"step {step}: {len(broken)} of {len(leaves)} arrays are not finite, {broken[0]} among them, "
      f"and were not saved; the checkpoints in {folder} are from before. Start again in another "
      "workdir with a lower optim.learning_rate, or a longer optim.warmup_steps"
    )


@jax.jit
def _is_finite(x: jax.Array) -> jax.Array:
  # On the devices, whatever the sharding: one bool comes back, not the array.
  return jnp.isfinite(x).all()


def _state_handler() -> ocp.PyTreeCheckpointHandler:
  """Orbax's handler, but each replica writes a slice of its own only of large arrays.

  A slice costs a millisecond whatever its size, and orbax would cut every bias of a replicated
  model into one per device.
  """
  arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=_MIN_SLICE)
  registry = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, arrays), (np.ndarray, ocp.type_handlers.NumpyHandler())
  )
  return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)


# ----------------------------------------------------------------------------------------- Reading


def load_first(folders: list[str], abstract: Any, exact: bool) -> tuple[Any, dict, list[str]]:
  """Reads the first checkpoint that verifies, and warns of the damaged ones before it.

  Returns:
    tree, record, folders of the damaged checkpoints.
  """
  problems = {}
  for folder in folders:
    try:
      tree, record = _read_surely(folder, abstract, exact)
    except Damaged as problem:
      problems[folder] = f"{os.path.basename(folder)} ({problem})"
      continue
    if problems and is_main_process():
      damaged = ", ".join(problems.values())
      warnings.warn(
        f"damaged checkpoint: {damaged}; loaded {record['step']} instead, from {folder}",
        stacklevel=3,
      )
    return tree, record, list(problems)
  raise InputError(
    f"no undamaged checkpoint in {os.path.dirname(folders[0])}: {', '.join(problems.values())}"
  )


def _read_surely(folder: str, abstract: Any, exact: bool) -> tuple[Any, dict]:
  """As _read; what looks damaged on a store may only have been cut short on its way."""
  try:
    return _read(folder, abstract, exact)
  except Damaged:
    if not files.is_url(folder):
      raise
  return _read(folder, abstract, exact)


def _read(folder: str, abstract: Any, exact: bool) -> tuple[Any, dict]:
  """Tree and record of a checkpoint.

  Raises:
    Damaged: on all processes alike.
    InputError: the checkpoint is of another model.
  """
  record = _on_every_process(folder, lambda: read_record(folder))
  saved = record["leaves"]  # [type, shape, fingerprint] by path
  if abstract is None:
    leaves = {}
    for name, (dtype, shape, _) in saved.items():
      leaves[name] = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    abstract = {"params": unflatten_dict(leaves, sep="/")["params"]}
  _check_shapes(folder, saved, abstract, exact)
  with quiet:
    try:
      tree = _on_every_process(folder, lambda: _read_arrays(folder, abstract))
    except Damaged:
      time.sleep(_ABANDONED)  # until the reads of the other arrays have failed too, unheard
      raise
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
  if is_staged(folder):
    with files.local_copy(os.path.join(folder, "state")) as copy:
      return _read_state(copy, abstract)
  return _read_state(os.path.join(folder, "state"), abstract)


def _read_state(folder: str, abstract: Any) -> Any:
  from etils import epath  # whose paths orbax works with, on stores too

  files.check_regular(folder)
  # Without these orbax restores the sharding that was saved, whose devices may not exist here.
  restore_args = jax.tree.map(_restore_args, abstract)
  arguments = ocp.args.PyTreeRestore(item=abstract, restore_args=restore_args, partial_restore=True)
  # The handler instead of a Checkpointer, which ends in a barrier that a failing process would
  # never reach.
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
  """read(); raises Damaged on all processes if it fails on one, so that all try the same next.

  Raises Unavailable if a store does not answer, and InputError if it refuses the user: what it
  holds may be in order.
  """
  result, problem = None, ""
  try:
    result = read()
  except Exception as error:  # damaged bytes can raise anything, in four libraries
    reason = " ".join(str(error).split())
    if len(reason) > 300:  # TensorStore's begin with what was read and end with what was wrong
      reason = f"{reason[:150]} … {reason[-150:]}"
    problem = f"{type(error).__name__}: {reason}"
    # The store was not reached or refused, or the data are damaged.
    is_outage = isinstance(error, files.StoreError) or files.is_refusal(error)
    is_outage = is_outage or any(code in str(error) for code in _OUTAGES + _REFUSALS)
    if files.is_url(folder) and is_outage:
      quiet.stay()
      kind, reason = _explain(error, folder)
      raise kind(f"{folder}: cannot be read ({reason})") from error
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


# -------------------------------------------------------------------------------- Paths and records


def step_folders(folder: str) -> list[str]:
  """Newest first. Unfinished and damaged checkpoints are excluded: their names are no numbers."""
  if files.is_url(folder):
    # A store has no atomic rename: a checkpoint counts when its last object is there.
    names = [str(step) for step in committed_steps(folder)]
  else:
    names = [name for name in files.list_existing(folder) if name.isdigit()]
  return [os.path.join(folder, name) for name in sorted(names, key=int, reverse=True)]


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
    if (score := _score(record)) is not None:
      scores[record["step"]] = score
  return scores


def _score(record: dict) -> float | None:
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
