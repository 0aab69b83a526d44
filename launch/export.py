"""Exports a checkpoint: float32 arrays, config and vocabulary in a folder that loads wherever a
checkpoint does.

python launch/export.py --checkpoint=DIR --out=PATH [--format=NAME]
"""

from absl import flags

import command_line
from gpt_jax.checkpoints.formats import describe_formats

CHECKPOINT = command_line.define_checkpoint()
OUT = flags.DEFINE_string("out", None, "folder to make", required=True)
FORMAT = flags.DEFINE_string("format", "npz", describe_formats())


def main():
  from gpt_jax.programs import export

  export.run(CHECKPOINT.value, OUT.value, FORMAT.value)


if __name__ == "__main__":
  command_line.run(main)
