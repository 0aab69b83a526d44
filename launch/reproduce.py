"""Reproduces the paper's tables 2 to 5 and figure 2 with a pre-trained checkpoint.

Makes the missing runs, skips finished ones, and compares the results with the paper's.

python launch/reproduce.py --table=5 --figure=2 --checkpoint=DIR --data=DIR --workdir=DIR
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("reproduce")
TABLE = flags.DEFINE_list("table", DEFAULTS["table"], "tables, out of 2, 3, 4, 5")
FIGURE = flags.DEFINE_list(
  "figure", DEFAULTS["figure"], "2: layers transferred (left), zero-shot over pre-training (right)"
)
CHECKPOINT = command_line.define_checkpoint()
LSTM = flags.DEFINE_string(
  "lstm", DEFAULTS["lstm"], "workdir of a pre-trained LSTM, for table 5's last row and figure 2"
)
DATA = flags.DEFINE_string("data", None, "folder of the tasks' official files", required=True)
TASKS = flags.DEFINE_list(
  "tasks", DEFAULTS["tasks"], "only these; by default all, for figure 2 (left) race and mnli"
)
SEEDS = flags.DEFINE_integer("seeds", DEFAULTS["seeds"], "runs per setting and task", lower_bound=1)
BUDGET = flags.DEFINE_string(
  "budget", DEFAULTS["budget"], "paper, or small: parts of the data sets, for a CPU"
)
MICROBATCHES = flags.DEFINE_integer(
  "microbatches",
  DEFAULTS["microbatches"],
  "parts of a batch, to save memory; 0: as few as fit",
  lower_bound=0,
)
WORKDIR = command_line.define_workdir()


def main():
  from gpt_jax.apps.paper import reproduce

  reproduce.run(
    WORKDIR.value,
    CHECKPOINT.value,
    DATA.value,
    lstm=LSTM.value,
    table=TABLE.value,
    figure=FIGURE.value,
    tasks=TASKS.value,
    seeds=SEEDS.value,
    budget=BUDGET.value,
    microbatches=MICROBATCHES.value,
  )


if __name__ == "__main__":
  command_line.run(main)
