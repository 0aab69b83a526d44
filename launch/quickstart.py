"""GPT-1 in miniature: pre-trains on a simulated world, fine-tunes on four tasks, tells stories.

Takes minutes on a CPU and downloads nothing.

python launch/quickstart.py [--workdir=DIR] [--text=FILE,…] [--short]
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("quickstart")
WORKDIR = flags.DEFINE_string(
  "workdir", "runs/quickstart", "folder for everything; repeating the command resumes"
)
TEXT = flags.DEFINE_string(
  "text", DEFAULTS["text"], "pre-train on your own text instead: files, folders or globs"
)
SHORT = flags.DEFINE_boolean(
  "short", DEFAULTS["short"], "train for a few steps only, to check that everything runs"
)


def main():
  from gpt_jax.apps.paper import quickstart

  workdir = WORKDIR.value
  if not WORKDIR.present:  # a default folder per kind of run, since a folder has one config
    if TEXT.value:
      workdir += "-text"
    if SHORT.value:
      workdir += "-short"
  quickstart.run(workdir, TEXT.value, SHORT.value)


if __name__ == "__main__":
  command_line.run(main)
