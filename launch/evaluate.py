"""Evaluates a language model on prepared text (perplexity, bits per byte), a fine-tuned one on its
task (its metrics).

python launch/evaluate.py --checkpoint=DIR --data=DIR [--split=train|valid|dev|test] [--task=mnli-mismatched]
"""

from absl import flags

import command_line

CHECKPOINT = command_line.define_checkpoint()
DATA = flags.DEFINE_string(
  "data", None, "folder that launch/prepare.py wrote; for a task, its --data_dir", required=True
)
SPLIT = flags.DEFINE_string(
  "split", "", "train or valid of text (default valid); train, dev or test of a task (dev)"
)
TASK = flags.DEFINE_string(
  "task", "", "for a fine-tuned model: another task with the same labels as its own"
)


def main():
  from gpt_jax.programs import evaluate

  for name, value in evaluate.run(CHECKPOINT.value, DATA.value, SPLIT.value, TASK.value).items():
    print(f"{name:13} {value:,.4f}" if isinstance(value, float) else f"{name:13} {value:,}")


if __name__ == "__main__":
  command_line.run(main)
