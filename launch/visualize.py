"""Writes an HTML page with token probabilities, attention, and label probabilities of a model.

python launch/visualize.py --checkpoint=DIR --text=TEXT [--text=TEXT …] --out=page.html
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("visualize")
CHECKPOINT = command_line.define_checkpoint()
TEXT = flags.DEFINE_multi_string(
  "text",
  DEFAULTS["texts"],
  "text to show; for a fine-tuned model its task's columns, separated by tabs",
)
INPUT = flags.DEFINE_string(
  "input", DEFAULTS["source"], "file with one text per line, or rows as for predict; - for stdin"
)
OUT = flags.DEFINE_string("out", None, "self-contained HTML page to write", required=True)


def main():
  from gpt_jax.apps.report import visualize

  visualize.run(CHECKPOINT.value, OUT.value, TEXT.value, INPUT.value)


if __name__ == "__main__":
  command_line.run(main)
