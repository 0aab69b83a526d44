"""Evaluates a language model on tasks without fine-tuning (section 5).

The tasks: CoLA, SST-2, RACE, definite pronouns (DPRD) and Winograd schemas (WSC273).

python launch/zero_shot.py --checkpoint=DIR --data=DIR [--tasks=cola,dprd] [--history]
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("zero_shot")
CHECKPOINT = command_line.define_checkpoint()
DATA = flags.DEFINE_string(
  "data", None, "folder that contains glue/, race/ and winograd/", required=True
)
TASKS = flags.DEFINE_list(
  "tasks",
  DEFAULTS["tasks"],
  "of cola, sst2, race, race-middle, race-high, dprd, wsc273; by default all with data",
)
HISTORY = flags.DEFINE_boolean(
  "history",
  DEFAULTS["history"],
  "evaluate every checkpoint of the run (--config.train.milestone keeps more)",
)
EXAMPLES = flags.DEFINE_integer(
  "examples", DEFAULTS["examples"], "at most this many per task and split; 0: all", lower_bound=0
)
OUT = flags.DEFINE_string("out", DEFAULTS["out"], "JSON file for the results")
OVERWRITE = command_line.define_overwrite()


def main():
  from gpt_jax.apps.paper import zero_shot

  zero_shot.run(
    CHECKPOINT.value,
    DATA.value,
    TASKS.value,
    history=HISTORY.value,
    examples=EXAMPLES.value,
    out=OUT.value,
    overwrite=OVERWRITE.value,
  )


if __name__ == "__main__":
  command_line.run(main)
