"""Labels the rows of a file with a fine-tuned checkpoint.

python launch/predict.py --checkpoint=DIR --input=FILE|- [--output=FILE|-]
"""

from absl import flags

import command_line

CHECKPOINT = command_line.define_checkpoint()
INPUT = flags.DEFINE_string(
  "input", None, "TSV, CSV or JSONL with the task's text columns; - for standard input", required=True
)
OUTPUT = flags.DEFINE_string("output", "-", "TSV, or JSONL where the name ends in .jsonl; - for standard output")


def main():
  from gpt_jax import predict

  predict.run(CHECKPOINT.value, INPUT.value, OUTPUT.value)


if __name__ == "__main__":
  command_line.run(main)
