"""Predicts labels with a fine-tuned checkpoint, for rows of text or a split of its task.

python launch/predict.py --checkpoint=DIR --input=FILE [--output=FILE]
python launch/predict.py --checkpoint=DIR --data_dir=DIR [--split=train|dev|test] [--output=FILE]
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("predict")
CHECKPOINT = command_line.define_checkpoint()
INPUT = flags.DEFINE_string(
  "input", DEFAULTS["source"], "TSV, CSV or JSONL file with the task's text columns; - for stdin"
)
DATA_DIR = flags.DEFINE_string(
  "data_dir", DEFAULTS["data_dir"], "instead of --input: folder of the task's official files"
)
SPLIT = flags.DEFINE_string(
  "split", DEFAULTS["split"], "split of --data_dir: train, dev or test (default test)"
)
OUTPUT = flags.DEFINE_string(
  "output", DEFAULTS["output"], "file to write: .csv, .jsonl, otherwise TSV; - for stdout"
)
OVERWRITE = command_line.define_overwrite()


def main():
  from gpt_jax.programs import predict

  predict.run(
    CHECKPOINT.value,
    INPUT.value,
    OUTPUT.value,
    data_dir=DATA_DIR.value,
    split=SPLIT.value,
    overwrite=OVERWRITE.value,
  )


if __name__ == "__main__":
  command_line.run(main)
