"""Compares two trained models in any formats, their arrays and what they say of text; exits with 0
if equal, else 1.

python launch/verify.py --a=PATH --b=PATH --text=TEXT [--text=TEXT …] [--tolerance=1e-4]
"""

import sys

from absl import flags

import command_line

A, B = (
  flags.DEFINE_string(
    name, None, "checkpoint, export, OpenAI's folder, or one of transformers'", required=True
  )
  for name in "ab"
)
TEXT = flags.DEFINE_multi_string(
  "text", [], "text that both read; give it several times for several texts"
)
TOLERANCE = flags.DEFINE_float(
  "tolerance", 1e-4, "largest difference of a logit or a parameter that counts as equal"
)


def main():
  from gpt_jax.programs import verify

  if not verify.run(A.value, B.value, TEXT.value, TOLERANCE.value)["equal"]:
    sys.exit(1)


if __name__ == "__main__":
  command_line.run(main)
