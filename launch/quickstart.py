"""The paper in miniature, in minutes: pre-trains on an embedded world, fine-tunes four tasks, tells
three stories.

python launch/quickstart.py [--workdir=DIR] [--text=FILE,…] [--short]
"""

from absl import flags

import command_line

WORKDIR = flags.DEFINE_string(
  "workdir", "runs/quickstart", "folder for all that is made; given again, it goes on"
)
TEXT = flags.DEFINE_string(
  "text", "", "text of your own to pre-train on and sample from: files, folders, globs"
)
SHORT = flags.DEFINE_boolean("short", False, "hardly any training: only shows that everything runs")


def main():
  from gpt_jax.programs import quickstart

  workdir = WORKDIR.value
  if not WORKDIR.present:  # each kind of run has its own, so that one does not refuse another
    workdir += "-text" * bool(TEXT.value) + "-short" * SHORT.value
  quickstart.run(workdir, TEXT.value, SHORT.value)


if __name__ == "__main__":
  command_line.run(main)
