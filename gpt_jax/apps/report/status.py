"""How far a run is, how an unfinished one goes on, and how its model is used."""

import os
import shlex
from typing import NamedTuple

from gpt_jax.apps.report.record import Record
from gpt_jax.errors import counted


class Ending(NamedTuple):
  """Notice at the top of an unfinished run's report.

  Attributes:
    title: such as "Interrupted at step 300 of 1,000 (30%)".
    text: which state is saved, and how to go on.
    command: the command that resumes the run; "" if unknown.
  """

  title: str
  text: str
  command: str


def status(run: Record) -> str:
  """One clause: finished, stopped early, interrupted, …"""
  total, done = run.total_steps, run.steps_done
  if total is None:
    return counted(done, "step")
  if done >= total:
    return f"finished, {counted(total, 'step')}"
  if run.result:
    return f"stopped early, at step {done:,} of {total:,}"
  how = {"interrupted": "interrupted", "error": "ended by an error"}
  begin = how.get(str(run.plan.get("ended")), "stopped or still running")
  return f"{begin} at step {done:,} of {total:,} ({done / total:.0%})"


def ending(run: Record) -> Ending | None:
  """None for a run that has nothing left to do, or of which the plan is not known."""
  total, done = run.total_steps, run.steps_done
  if total is None or done >= total or run.result or not run.plan:
    return None
  title = status(run)
  command = run.plan.get("command")
  command = command if isinstance(command, str) else ""
  ended = run.plan.get("ended")
  text = f"{run.plan.get('error') or 'No message.'} " if ended == "error" else ""
  if run.checkpoints:
    text += f"Its state is saved at step {run.checkpoints[-1]:,}. "
  else:
    text += "No state is saved, so it begins anew. "
  if ended == "interrupted":
    text += "It goes on with the same command"
  elif ended == "error":
    text += "When the cause is mended, it goes on with the same command"
  else:
    text += "If it was stopped, it goes on with the same command"
  text += ":" if command else ", or the same call of run(…)."
  return Ending(title[0].upper() + title[1:], text, command)


def commands(run: Record) -> list[str]:
  """Commands that use the model; [] without a checkpoint."""
  if not run.checkpoints:
    return []
  checkpoint = os.path.join(run.folder, "best") if run.best else run.folder
  if run.task is not None:
    programs = {"predict": ["--input=FILE", "--out=FILE"], "evaluate": ["--data=DIR"]}
  else:
    programs = {"finetune": ["--config=finetune:TASK", "--data=DIR", "--workdir=DIR"]}
    objective = run.config.objective
    if objective is not None and objective.attention == "causal":
      programs = {"generate": ["--prompt=TEXT"], **programs}
  return [
    shlex.join(["python", f"launch/{name}.py", f"--checkpoint={checkpoint}", *words])
    for name, words in programs.items()
  ]
