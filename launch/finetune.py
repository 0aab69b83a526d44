"""Fine-tunes a pre-trained checkpoint on a labeled task.

python launch/finetune.py --config=configs/finetune.py:cola --data_dir=DIR --pretrained=DIR
  --workdir=DIR [--seeds=3 | --folds=5]
"""

from absl import flags

import command_line

CONFIG = command_line.define_config()
DATA_DIR = flags.DEFINE_string(
  "data_dir",
  None,
  "folder of the task's official files (with glue/ or race/ in it), or tfds:DIR",
  required=True,
)
PRETRAINED = flags.DEFINE_string(
  "pretrained",
  None,
  "workdir of a run, WORKDIR/best, one checkpoint, an export, OpenAI's or transformers' folder; "
  "or none",
  required=True,
)
TOKENIZER = flags.DEFINE_string(
  "tokenizer", "", "folder of a vocabulary; only with --pretrained=none"
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
command_line.define_distributed()


def main():
  from gpt_jax.programs import finetune

  finetune.run(
    CONFIG.value,
    DATA_DIR.value,
    PRETRAINED.value,
    WORKDIR.value,
    seeds=SEEDS.value,
    folds=FOLDS.value,
    tokenizer=TOKENIZER.value,
  )
  several = SEEDS.value > 1
  seed_folder = f"/seed_{CONFIG.value.train.seed}" if several else ""
  best = f"{WORKDIR.value}{seed_folder}/best"
  following = [
    ("evaluate", {"checkpoint": best, "data": DATA_DIR.value}),
    ("predict", {"checkpoint": best, "input": "FILE", "output": "FILE"}),
  ]
  if getattr(CONFIG.value.task, "kind", "") != "regression":
    following.append(("visualize", {"checkpoint": best, "text": "TEXT", "out": "page.html"}))
  command_line.print_closing(
    f"the best checkpoint is {best}" + (", and so on for each seed" if several else ""), *following
  )


if __name__ == "__main__":
  command_line.run(main)
