"""Repeats the paper's tables 2 to 5 and figure 2 with a pre-trained checkpoint: runs what is
missing, compares.

python launch/reproduce.py --table=5 --figure=2 --checkpoint=DIR --data_dir=DIR --workdir=DIR [--budget=small]
"""

from absl import flags

import command_line

TABLE = flags.DEFINE_list("table", [], "of 2, 3, 4, 5")
FIGURE = flags.DEFINE_list(
  "figure", [], "2: layers transferred (left), zero-shot over pre-training (right)"
)
CHECKPOINT = command_line.define_checkpoint()
LSTM = flags.DEFINE_string(
  "lstm", "", "workdir of a pre-trained LSTM, for table 5's last row and figure 2"
)
DATA_DIR = flags.DEFINE_string(
  "data_dir", None, "folder of the tasks' official files", required=True
)
TASKS = flags.DEFINE_list(
  "tasks", [], "only these; none: all of a table, and race and mnli of figure 2 (left)"
)
SEEDS = flags.DEFINE_integer("seeds", 1, "runs of each", lower_bound=1)
BUDGET = flags.DEFINE_string(
  "budget", "paper", "paper, or small: parts of the data sets, sized for a CPU"
)
MICROBATCHES = flags.DEFINE_integer(
  "microbatches", 1, "parts of a batch, to save memory", lower_bound=1
)
WORKDIR = command_line.define_workdir()


def main():
  from gpt_jax.programs import reproduce

  reproduce.run(
    WORKDIR.value,
    CHECKPOINT.value,
    DATA_DIR.value,
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
