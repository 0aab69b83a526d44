"""Shows a model at work on texts: how expected each token was, attention, and a fine-tuned model's
labels.

python launch/visualize.py --checkpoint=DIR --text=TEXT [--text=TEXT …] [--input=FILE|-] --out=page.html
"""

from absl import flags

import command_line

CHECKPOINT = command_line.define_checkpoint()
TEXT = flags.DEFINE_multi_string(
  "text",
  [],
  "text to read; give it several times for several; a tab between the columns of a fine-tuned model's task",
)
INPUT = flags.DEFINE_string(
  "input", None, "file of texts, one a line, or rows as for predict; - for standard input"
)
OUT = flags.DEFINE_string(
  "out", None, "HTML page to write, which needs no other file", required=True
)


def main():
  from gpt_jax.programs import visualize

  visualize.run(CHECKPOINT.value, OUT.value, TEXT.value, INPUT.value or "")


if __name__ == "__main__":
  command_line.run(main)
