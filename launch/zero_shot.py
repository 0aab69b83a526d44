"""Does tasks with the language model alone (section 5): CoLA, SST-2, RACE, definite pronouns,
Winograd schemas.

python launch/zero_shot.py --checkpoint=DIR --data_dir=DIR [--tasks=cola,dprd] [--history]
"""

from absl import flags

import command_line

CHECKPOINT = command_line.define_checkpoint()
DATA_DIR = flags.DEFINE_string(
  "data_dir", None, "folder with glue/, race/ and winograd/ in it", required=True
)
TASKS = flags.DEFINE_list(
  "tasks",
  [],
  "some of cola, sst2, race, race-middle, race-high, dprd, wsc273; none: all whose data is there",
)
HISTORY = flags.DEFINE_boolean(
  "history", False, "evaluate every checkpoint of the run (--config.train.milestone keeps more)"
)
EXAMPLES = flags.DEFINE_integer(
  "examples", 0, "only so many of each task, evenly from all; 0: all", lower_bound=0
)
OUT = flags.DEFINE_string("json", "", "file for the numbers")


def main():
  from gpt_jax.programs import zero_shot

  zero_shot.run(
    CHECKPOINT.value,
    DATA_DIR.value,
    TASKS.value,
    history=HISTORY.value,
    examples=EXAMPLES.value,
    out=OUT.value,
  )


if __name__ == "__main__":
  command_line.run(main)
