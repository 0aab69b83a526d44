"""Weights & Biases: offline files in `wandb/` of the run's folder, unless an account is given.

WANDB_API_KEY or WANDB_MODE make it what they say. `wandb sync` uploads the files later.
"""

import os
import secrets
from collections.abc import Mapping

from gpt_jax.training.trackers import TrackedRun

PACKAGE, ELSEWHERE = "wandb", "WANDB_API_KEY"

_START = 30.0  # seconds that a start may take, where there is an account


class Run:
  """A run in a project of Weights & Biases."""

  def __init__(self, run: TrackedRun):
    folder = os.path.join(os.path.abspath(run.root), "wandb")
    os.makedirs(folder, exist_ok=True)
    for name in ("CACHE", "CONFIG", "DATA", "ARTIFACT"):
      os.environ.setdefault(f"WANDB_{name}_DIR", os.path.join(folder, name.lower()))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # of errors in wandb to its makers
    import wandb

    has_account = "WANDB_MODE" in os.environ or "WANDB_API_KEY" in os.environ
    self.id = run.id or secrets.token_hex(4)
    self._run = wandb.init(
      project=os.environ.get("WANDB_PROJECT", "gpt_jax"),
      id=self.id,
      name=run.name,
      dir=os.path.dirname(folder),
      config=dict(run.settings),
      resume="allow",
      mode=None if has_account else "offline",
      reinit="create_new",  # a notebook may have a run of its own
      settings=wandb.Settings(console="off", silent=True, init_timeout=_START),
    )

  def log(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log(dict(values), step=step)

  def close(self, failed: bool) -> None:
    self._run.finish(exit_code=int(failed))


start = Run
