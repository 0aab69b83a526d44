"""Exports a checkpoint to a folder with float32 arrays, config and vocabulary.

The folder loads wherever a checkpoint does.

python launch/export.py --checkpoint=DIR --out=DIR [--format=NAME]
"""

from absl import flags

import command_line
from gpt_jax.checkpoints.formats import describe_formats

DEFAULTS = command_line.defaults("export")
CHECKPOINT = command_line.define_checkpoint()
OUT = flags.DEFINE_string("out", None, "folder to create", required=True)
FORMAT = flags.DEFINE_string("format", DEFAULTS["format"], describe_formats())


def main():
  from gpt_jax.programs import export

  export.run(CHECKPOINT.value, OUT.value, FORMAT.value)


if __name__ == "__main__":
  command_line.run(main)
