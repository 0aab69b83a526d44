"""Compares two trained models in any formats (arrays, logits on texts), or a run with itself.

Exits with 0 if they are equal, else with 1.

python launch/verify.py --checkpoint=A --checkpoint=B --text=TEXT [--text=TEXT …] [--tolerance=1e-4]

--replay trains again from the checkpoint before a step, and compares all bits with that step's:

python launch/verify.py --checkpoint=WORKDIR --replay=STEP --data=DIR
"""

import sys

from absl import flags

import command_line
from gpt_jax.errors import InputError

CHECKPOINT = command_line.define_checkpoints("give two, or with --replay a WORKDIR")
TEXT = flags.DEFINE_multi_string("text", [], "text for both models")
TOLERANCE = flags.DEFINE_float(
  "tolerance", 1e-4, "largest difference between equal logits or parameters"
)
REPLAY = flags.DEFINE_integer(
  "replay", None, "step of a checkpoint that is trained again from the one before it", lower_bound=1
)
DATA = flags.DEFINE_string("data", "", "for --replay: the data of the run, as it was given to it")


def main():
  if REPLAY.value is not None:
    if len(CHECKPOINT.value) != 1 or TEXT.value:
      raise InputError(f"--replay={REPLAY.value} needs one --checkpoint=WORKDIR, and no --text")
    from gpt_jax.programs import replay

    if not replay.run(CHECKPOINT.value[0], REPLAY.value, DATA.value)["equal"]:
      sys.exit(1)
    return
  if DATA.value:
    raise InputError("--data is for --replay=STEP")
  if len(CHECKPOINT.value) != 2:
    raise InputError("two models are compared: --checkpoint=A --checkpoint=B")
  from gpt_jax.programs import verify

  first, second = CHECKPOINT.value
  if not verify.run(first, second, TEXT.value, TOLERANCE.value)["equal"]:
    sys.exit(1)


if __name__ == "__main__":
  command_line.run(main)
