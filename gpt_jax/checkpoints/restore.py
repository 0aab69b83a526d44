"""Reads the checkpoints of a run without training on: parameters, whole states, metrics, meta."""

import os
from typing import Any

from gpt_jax import files
from gpt_jax.checkpoints.store import (
  as_dict,
  best_folder,
  best_step,
  load_first,
  ranking_scores,
  read_record,
  step_folders,
)
from gpt_jax.errors import InputError


def restore_params(path: str, abstract: Any = None) -> tuple[Any, dict, int]:
  """Reads and verifies only the parameters of a checkpoint; changes no file.

  Args:
    path: a workdir (its newest checkpoint that verifies), `<workdir>/best`, or the folder of one
      checkpoint.
    abstract: part of the parameters, as in `Checkpoints.restore`. None: all, as NumPy arrays.

  Returns:
    params, meta, step.
  """
  state = None if abstract is None else {"params": abstract}
  tree, record, _ = load_first(_locate(path), state, exact=False)
  return tree["params"], record["meta"], record["step"]


def saved_steps(workdir: str) -> list[int]:
  """The steps of a run's complete checkpoints, oldest first. Raises InputError if it has none."""
  return sorted(int(os.path.basename(folder)) for folder in _locate(workdir))


def restore_step(workdir: str, step: int, abstract: Any) -> Any:
  """Reads and verifies the whole state of one step; changes no file. See Checkpoints.restore."""
  folder = _step_folder(workdir, step)
  tree, _, _ = load_first([folder], as_dict(abstract), exact=True)
  return tree if isinstance(abstract, dict) else type(abstract)(**tree)


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
    for name in sorted(files.list_existing(workdir)):
      run = os.path.join(workdir, name)
      if files.is_folder(os.path.join(run, "checkpoints")):  # of a seed, say
        hint = f"one of its runs, such as {os.path.join(run, 'best') if best else run}"
        break
    raise InputError(f"no checkpoint in {workdir}: give {hint}")
  return best_folder(os.path.join(workdir, "checkpoints")) if best else folders


def _step_folder(workdir: str, step: int) -> str:
  return os.path.join(files.absolute(workdir), "checkpoints", str(step))
