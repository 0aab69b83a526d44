"""Compares two trained models in any formats: their arrays, and their logits on texts.

Exits with 0 if they are equal, else with 1.

python launch/verify.py --checkpoint=A --checkpoint=B --text=TEXT [--text=TEXT …] [--tolerance=1e-4]
"""

import sys

from absl import flags

import command_line
from gpt_jax.errors import InputError

DEFAULTS = command_line.defaults("verify")
CHECKPOINT = command_line.define_checkpoints("give two")
TEXT = flags.DEFINE_multi_string("text", [], "text for both models")
TOLERANCE = flags.DEFINE_float(
  "tolerance", DEFAULTS["tolerance"], "largest difference between equal logits or parameters"
)


def main():
  from gpt_jax.programs import verify

  if len(CHECKPOINT.value) != 2:
    raise InputError("two models are compared: --checkpoint=A --checkpoint=B")
  first, second = CHECKPOINT.value
  if not verify.run(first, second, TEXT.value, TOLERANCE.value)["equal"]:
    sys.exit(1)


if __name__ == "__main__":
  command_line.run(main)
