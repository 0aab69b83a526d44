"""Draws the curves of runs into a picture: loss, evaluations, learning rate.

python launch/plot.py --workdir=DIR [--workdir=DIR2 … --out=FILE.png]
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("plot")
WORKDIR = flags.DEFINE_multi_string(
  "workdir", None, "folder of a run, or of several seeds; repeat it to compare", required=True
)
OUT = flags.DEFINE_string(
  "out",
  DEFAULTS["out"],
  "picture to write: .png, .svg or .pdf (default: curves.png in the workdir)",
)
OVERWRITE = command_line.define_overwrite()


def main():
  from gpt_jax.apps.report import plot

  print(f"wrote {plot.run(WORKDIR.value, OUT.value, overwrite=OVERWRITE.value)}")


if __name__ == "__main__":
  command_line.run(main)
