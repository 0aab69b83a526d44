"""The checkpoints of a run: saved in the background by orbax, verified when restored (restore)."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from gpt_jax import files
from gpt_jax.checkpoints import restore
from gpt_jax.checkpoints.remote import StagedManager, hide_noise, is_staged, lock, store_errors
from gpt_jax.errors import InputError, agree
from gpt_jax.files import with_checksum
from gpt_jax.parallel.mesh import path_name
from gpt_jax.parallel.processes import is_main_process

_MIN_SLICE = 1 << 20  # bytes


class Checkpoints:
  """The checkpoints of a run; see restore.py for what one is.

  The newest ones, the best one and those selected by `keep` stay, the others are deleted. Every
  process of a run opens the checkpoints and makes the same calls. A save that is killed leaves
  nothing that could be read by mistake.

  Args:
    workdir: run folder, on a file system that all processes share.
    metric, mode: the metric, among those given to `save`, whose "max" or "min" is the best
      checkpoint. None: there is no best.
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
    with contextlib.ExitStack() as resources:
      # Before orbax opens the folder and deletes what it takes for leftovers.
      resources.enter_context(lock(workdir))
      hide_noise()
      options = ocp.CheckpointManagerOptions(
        cleanup_tmp_directories=True, enable_async_checkpointing=True, preservation_policy=self
      )
      with store_errors(self._folder):
        self._manager: ocp.CheckpointManager | StagedManager
        if is_staged(workdir):
          self._manager = StagedManager(self._folder, self._kept)
        else:
          handlers = {"state": _state_handler(), "meta": ocp.JsonCheckpointHandler()}
          self._manager = ocp.CheckpointManager(
            self._folder, options=options, item_handlers=handlers
          )
      self._scores = restore.ranking_scores(restore.step_folders(self._folder))
      self._resources = resources.pop_all()

  def save(
    self, step: int, state: Any, meta: dict, metrics: dict[str, float] | None = None
  ) -> None:
    """Starts to write a checkpoint; the state may be donated as soon as this returns.

    A step that has been saved before is not saved again.

    Args:
      state: named tuple or dict of trees of arrays, one of them called `params`.
      meta: JSON values, returned by `restore`.
    """
    if step in self._manager.all_steps():
      return
    tree = restore.as_dict(state)
    _check_finite(tree, step, self._folder)  # a bad state must not replace a good one
    record = {"step": step, "meta": meta, "metrics": metrics or {}, "ranking": self._ranking}
    # As it will be read back: in JSON tuples are lists, and keys strings.
    record = json.loads(json.dumps(record | {"leaves": restore.describe(tree)}))
    if (score := restore.score_of(record)) is not None:
      # Before the save: orbax calls should_preserve as soon as it is done.
      self._scores[step] = score
    self.wait()  # one save at a time: errors of the one before are raised here
    arguments = ocp.args.Composite(
      state=ocp.args.PyTreeSave(tree), meta=ocp.args.JsonSave(with_checksum(record))
    )
    with store_errors(self._folder):
      # force: the caller has decided that a save is due, not orbax's intervals.
      self._manager.save(step, args=arguments, force=True)

  def restore(self, abstract: Any) -> tuple[Any, dict, int]:
    """Reads and verifies the newest checkpoint; damaged ones are renamed, with a warning.

    Args:
      abstract: the state as ShapeDtypeStructs. Their shardings, on any mesh, are those of the
        result; without a sharding an array is restored to NumPy.

    Returns:
      state, meta, step.
    """
    self.wait()
    folders = restore.step_folders(self._folder)
    if not folders:
      raise InputError(f"{self._folder} holds no checkpoint")
    state, record, damaged = restore.load_first(folders, abstract, exact=True)
    self._set_aside(damaged)
    return state, record["meta"], record["step"]

  def tidy(self) -> None:
    """Deletes what a run that was killed right after a save had no time to delete."""
    with store_errors(self._folder):
      steps = set(self._manager.all_steps())
      for step in sorted(steps - self._kept(steps)):
        self._manager.delete(step)

  def steps(self) -> list[int]:
    """The steps of all complete checkpoints, oldest first."""
    folders = restore.step_folders(self._folder)
    return [int(os.path.basename(folder)) for folder in reversed(folders)]

  def wait(self) -> None:
    """Returns when everything is on disk. Raises the errors of background saves."""
    with store_errors(self._folder):
      self._manager.wait_until_finished()
      self._manager.check_for_errors()

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
    kept = self._kept(checkpoint.step for checkpoint in checkpoints)
    return [checkpoint.step in kept for checkpoint in checkpoints]

  def _kept(self, saved: Iterable[int]) -> set[int]:
    """The saved steps whose checkpoints stay."""
    steps = sorted(saved)  # oldest first
    scores = {step: self._scores[step] for step in steps if step in self._scores}
    kept = {*steps[-self._newest :], *filter(self._keep, steps)}
    if scores:
      kept.add(restore.best_step(scores))
    if kept == {*steps[-1:]}:  # no step has tried the newest parameters yet
      kept.update(steps[-2:])
    return kept

  def _set_aside(self, folders: list[str]) -> None:
    """Renames damaged checkpoints, so that the resumed run can save these steps again."""
    if not folders:
      return
    if is_main_process():
      for folder in folders:
        with store_errors(folder):
          files.rename_folder(folder, f"{folder}.damaged-{int(time.time())}")
    # No process may list the folder again, or save there, before the names have changed.
    multihost_utils.sync_global_devices("damaged checkpoints set aside")
    self._manager.reload()
    for folder in folders:
      self._scores.pop(int(os.path.basename(folder)), None)


def _check_finite(tree: Any, step: int, folder: str) -> None:
  """Raises InputError if an array holds an infinite or undefined number."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  floats = [(path, x) for path, x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
  broken = [path_name(path) for path, x in floats if not _is_finite(x)]
  if broken:
    raise InputError(
      f"step {step}: not saved, as {len(broken)} of {len(leaves)} arrays {agree(len(broken))} not "
      f"finite, {broken[0]} first; the checkpoints in {folder} are from before. Start again in "
      "another workdir with a lower optim.learning_rate, or a longer optim.warmup_steps"
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
