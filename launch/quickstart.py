"""GPT-1 in miniature: pre-trains on a simulated world, fine-tunes on four tasks, tells stories.

Takes minutes on a CPU and downloads nothing.

python launch/quickstart.py [--workdir=DIR] [--text=FILE,…] [--short]
python launch/quickstart.py --real [--data=DIR] [--tasks=sst2,…] [--rows=N] [--seeds=N]
  [--peers] [--workdir=DIR] [--short]

The second fine-tunes a released model instead, all-MiniLM-L6-v2 of 22.7M parameters (extra real).
"""

import os

from absl import flags

import command_line

WORKDIR = flags.DEFINE_string(
  "workdir", "runs/quickstart", "folder for everything; repeating the command resumes"
)
TEXT = flags.DEFINE_string(
  "text", "", "pre-train on your own text instead: files, folders or globs"
)
SHORT = flags.DEFINE_boolean(
  "short", False, "train for a few steps only, to check that everything runs"
)
REAL = flags.DEFINE_boolean(
  "real", False, "fine-tune a released model instead, all-MiniLM-L6-v2, of extra real"
)
DATA = flags.DEFINE_string(
  "data", os.environ.get("GPT_JAX_DATA", ""), "--real: folder with the tasks' files, such as glue/"
)
TASKS = flags.DEFINE_list("tasks", "", "--real: tasks by name; else all whose files are there")
ROWS = flags.DEFINE_integer("rows", 0, "--real: training rows, of each class its share; 0: all")
SEEDS = flags.DEFINE_integer("seeds", 1, "--real: runs of each task", lower_bound=1)
PEERS = flags.DEFINE_boolean(
  "peers", False, "--real: transformers' Trainer on the same rows too (extra peers)"
)


def main():
  from gpt_jax.apps.paper import quickstart, real
  from gpt_jax.errors import InputError

  workdir = WORKDIR.value
  if not WORKDIR.present:  # a default folder per kind of run, since a folder has one config
    if TEXT.value:
      workdir += "-text"
    if REAL.value:
      workdir += "-real"
    if SHORT.value:
      workdir += "-short"
  of_real = [flag.name for flag in (DATA, TASKS, ROWS, SEEDS, PEERS) if flag.present]
  if of_real and not REAL.value:
    raise InputError(f"--{of_real[0]}: goes with --real")
  if REAL.value:
    if TEXT.value:
      raise InputError("--text: pre-trains; it does not go with --real")
    real.run(
      workdir,
      DATA.value,
      tasks=TASKS.value,
      rows=ROWS.value,
      seeds=SEEDS.value,
      peers=PEERS.value,
      short=SHORT.value,
    )
    return
  quickstart.run(workdir, TEXT.value, SHORT.value)


if __name__ == "__main__":
  command_line.run(main)
