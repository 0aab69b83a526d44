"""GPT-1 in miniature: pre-trains on a simulated world, fine-tunes on four tasks, tells stories.

Takes minutes on a CPU and downloads nothing.

python launch/quickstart.py [--workdir=DIR] [--text=FILE,…] [--short]
python launch/quickstart.py --real [--data=DIR] [--tasks=sst2,…] [--rows=N] [--seeds=N]
  [--peers] [--workdir=DIR] [--short]

The second fine-tunes a released model instead, all-MiniLM-L6-v2 of 22.7M parameters (extra real);
--data, --tasks, --rows, --seeds and --peers go with it.
"""

import os

from absl import flags

import command_line
from gpt_jax.errors import InputError

PROGRAM = command_line.program(
  "real", workdir="runs/quickstart", data=os.environ.get("GPT_JAX_DATA", "")
)
TEXT = flags.DEFINE_string(
  "text", "", "pre-train on your own text instead: files, folders or globs"
)
REAL = flags.DEFINE_boolean(
  "real", False, "fine-tune a released model instead, all-MiniLM-L6-v2, of extra real"
)


def main():
  from gpt_jax.apps.paper import quickstart

  arguments = PROGRAM.arguments()
  given = [name for name in arguments if command_line.FLAGS[name].present]
  if "workdir" not in given:  # a default folder per kind of run, since a folder has one config
    kinds = {"text": TEXT.value, "real": REAL.value, "short": arguments["short"]}
    arguments["workdir"] += "".join(f"-{kind}" for kind, chosen in kinds.items() if chosen)
  of_real = [name for name in given if name not in ("workdir", "short")]
  if REAL.value:
    if TEXT.value:
      raise InputError("--text: pre-trains; it does not go with --real")
    PROGRAM.call(arguments)
  elif of_real:
    raise InputError(f"--{of_real[0]}: goes with --real")
  else:
    quickstart.run(arguments["workdir"], TEXT.value, arguments["short"])


if __name__ == "__main__":
  command_line.run(main)
