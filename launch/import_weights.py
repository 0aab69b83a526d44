"""Imports released weights, or those of other software, as a run folder.

The folder can be fine-tuned, evaluated and sampled from like any other run.

python launch/import_weights.py --format=NAME --checkpoint=FOLDER --out=WORKDIR
"""

from absl import flags

import command_line
from gpt_jax.checkpoints.formats import describe_formats

FORMAT = flags.DEFINE_string("format", None, describe_formats(), required=True)
CHECKPOINT = flags.DEFINE_string("checkpoint", None, "folder in that format", required=True)
OUT = flags.DEFINE_string("out", None, "run folder to create", required=True)


def main():
  from gpt_jax.programs import import_weights

  import_weights.run(FORMAT.value, CHECKPOINT.value, OUT.value)


if __name__ == "__main__":
  command_line.run(main)
