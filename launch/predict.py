"""Labels the rows of a file, or of its task, with a fine-tuned checkpoint.

python launch/predict.py --checkpoint=DIR --input=FILE|- [--output=FILE|-]
python launch/predict.py --checkpoint=DIR --data_dir=DIR [--split=train|dev|test] [--output=FILE|-]
"""

from absl import flags

import command_line

CHECKPOINT = command_line.define_checkpoint()
INPUT = flags.DEFINE_string(
  "input", None, "TSV, CSV or JSONL with the task's text columns; - for standard input"
)
DATA_DIR = flags.DEFINE_string(
  "data_dir", None, "instead of --input, the folder of the task's files, as in finetune"
)
SPLIT = flags.DEFINE_string("split", None, "which of them: train, dev or test (default test)")
OUTPUT = flags.DEFINE_string(
  "output", "-", "TSV, or what the name ends in, .csv or .jsonl; - for standard output"
)


def main():
  from gpt_jax.programs import predict

  predict.run(
    CHECKPOINT.value, INPUT.value, OUTPUT.value, data_dir=DATA_DIR.value, split=SPLIT.value
  )


if __name__ == "__main__":
  command_line.run(main)
