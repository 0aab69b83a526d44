"""Fine-tunes a pre-trained checkpoint on a labeled task.

python launch/finetune.py --config=configs/finetune.py:cola --data=DIR --checkpoint=DIR
  --workdir=DIR [--seeds=3 | --folds=5]
"""

from absl import flags

import command_line

CONFIG = command_line.define_config(takes="FinetuneConfig")
DATA = flags.DEFINE_string(
  "data",
  None,
  "folder of the task's official files (with glue/ or race/ in it), or tfds:DIR",
  required=True,
)
CHECKPOINT = flags.DEFINE_string(
  "checkpoint",
  None,
  "what to start from: the workdir of a run, WORKDIR/best, one checkpoint, an export, OpenAI's or "
  "transformers' folder; or none",
  required=True,
)
TOKENIZER = flags.DEFINE_string(
  "tokenizer", "", "folder of a vocabulary; only with --checkpoint=none"
)
SEEDS = flags.DEFINE_integer(
  "seeds", 1, "number of runs, each with its own seed and folder", lower_bound=1
)
FOLDS = flags.DEFINE_integer(
  "folds",
  1,
  "number of runs, each holding out another part of a table's training file in place of a dev file",
  lower_bound=1,
)
WORKDIR = command_line.define_workdir()
PROFILE = command_line.define_profile()
TRACKER = command_line.define_tracker("auto")
command_line.define_distributed()


def main():
  from gpt_jax.apps.report.report import write_report
  from gpt_jax.programs import finetune
  from gpt_jax.training.profile import parse_span
  from gpt_jax.training.trackers import parse_trackers

  finetune.run(
    CONFIG.value,
    DATA.value,
    CHECKPOINT.value,
    WORKDIR.value,
    seeds=SEEDS.value,
    folds=FOLDS.value,
    tokenizer=TOKENIZER.value,
    set_fields=CONFIG.set_fields,
    trackers=parse_trackers(TRACKER.value, WORKDIR.value),
    profile=parse_span(PROFILE.value),
    on_end=[write_report],
  )
  folder, others = WORKDIR.value, ""
  if SEEDS.value > 1:
    folder, others = f"{folder}/seed_{CONFIG.value.train.seed}", ", and so on for each seed"
  elif FOLDS.value > 1:
    folder, others = f"{folder}/fold_0", ", and so on for each fold; predict averages them"
  best = f"{folder}/best"
  all_of_them = WORKDIR.value if FOLDS.value > 1 else best
  if getattr(CONFIG.value.task, "tasks", ()):  # several, each with a model of its own
    best = all_of_them = f"{folder}/tasks/NAME"
  following = [
    ("evaluate", {"checkpoint": best, "data": DATA.value}),
    ("predict", {"checkpoint": all_of_them, "input": "FILE", "out": "FILE"}),
  ]
  if getattr(CONFIG.value.task, "kind", "") != "regression":
    following.append(("visualize", {"checkpoint": best, "text": "TEXT", "out": "page.html"}))
  command_line.print_closing(f"the best checkpoint is {best}{others}", *following)


if __name__ == "__main__":
  command_line.run(main)
