"""Compares two trained models in any formats: their arrays, and their logits on texts.

Exits with 0 if they are equal, else with 1.

python launch/verify.py --a=PATH --b=PATH --text=TEXT [--text=TEXT …] [--tolerance=1e-4]
"""

import sys

from absl import flags

import command_line

DEFAULTS = command_line.defaults("verify")
HELP = "checkpoint, exported folder, or a folder of OpenAI's or transformers' files"
A = flags.DEFINE_string("a", None, HELP, required=True)
B = flags.DEFINE_string("b", None, HELP, required=True)
TEXT = flags.DEFINE_multi_string("text", [], "text for both models")
TOLERANCE = flags.DEFINE_float(
  "tolerance", DEFAULTS["tolerance"], "largest difference between equal logits or parameters"
)


def main():
  from gpt_jax.programs import verify

  if not verify.run(A.value, B.value, TEXT.value, TOLERANCE.value)["equal"]:
    sys.exit(1)


if __name__ == "__main__":
  command_line.run(main)
