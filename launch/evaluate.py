"""Evaluates a language model on prepared text: loss, perplexity per token, bits per byte.

python launch/evaluate.py --checkpoint=DIR --data=DIR [--split=valid]
"""

from absl import flags

import command_line

CHECKPOINT = command_line.define_checkpoint()
DATA = flags.DEFINE_string("data", None, "folder that launch/prepare.py wrote", required=True)
SPLIT = flags.DEFINE_enum("split", "valid", ["train", "valid"], "part of the text")


def main():
  from gpt_jax import evaluate

  for name, value in evaluate.run(CHECKPOINT.value, DATA.value, SPLIT.value).items():
    print(f"{name:13} {value:,.4f}" if isinstance(value, float) else f"{name:13} {value:,}")


if __name__ == "__main__":
  command_line.run(main)
