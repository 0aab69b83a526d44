"""Imports released or other software's weights: the folder of a run, which fine-tunes, scores and
generates.

python launch/import_weights.py --format=NAME --path=PATH --out=WORKDIR
"""

from absl import flags

import command_line
from gpt_jax.checkpoints.formats import describe_formats

FORMAT = flags.DEFINE_string("format", None, describe_formats(), required=True)
PATH = flags.DEFINE_string("path", None, "folder of that format", required=True)
OUT = flags.DEFINE_string("out", None, "folder to make", required=True)


def main():
  from gpt_jax.programs import import_weights

  import_weights.run(FORMAT.value, PATH.value, OUT.value)


if __name__ == "__main__":
  command_line.run(main)
