"""Exports a checkpoint: float32 arrays, config and vocabulary in a folder that loads wherever a
checkpoint does.

python launch/export.py --checkpoint=DIR --out=PATH [--format=npz|safetensors|openai|hf]
"""

from absl import flags

import command_line

CHECKPOINT = command_line.define_checkpoint()
OUT = flags.DEFINE_string("out", None, "folder to make", required=True)
FORMAT = flags.DEFINE_string(
  "format",
  "npz",
  "npz: NumPy arrays, no pickle; safetensors; openai: GPT-1 as released; hf: transformers",
)


def main():
  from gpt_jax.programs import export

  export.run(CHECKPOINT.value, OUT.value, FORMAT.value)


if __name__ == "__main__":
  command_line.run(main)
