"""Imports released or other software's weights: the folder of a run, which fine-tunes, scores and
generates.

python launch/import_weights.py --format=openai|hf|npz|safetensors --path=PATH --out=WORKDIR
"""

from absl import flags

import command_line

FORMAT = flags.DEFINE_string(
  "format", None, "openai: GPT-1 as released; hf: transformers; npz; safetensors", required=True
)
PATH = flags.DEFINE_string("path", None, "folder of that format", required=True)
OUT = flags.DEFINE_string("out", None, "folder to make", required=True)


def main():
  from gpt_jax.programs import import_weights

  import_weights.run(FORMAT.value, PATH.value, OUT.value)


if __name__ == "__main__":
  command_line.run(main)
