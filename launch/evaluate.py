"""Evaluates a checkpoint: a language model on prepared text, a fine-tuned model on its task.

Prints loss, perplexity and bits per byte for text; for a task its metrics and a table of classes,
and with --attack its metrics where the embeddings of each text are moved against its label; of a
model without a head on --task=stsb how the cosine of two embeddings correlates with the score.
With --weights it compares a classifier's labels in fewer bits with those in float32, and fails
where less than --keep is left.

python launch/evaluate.py --checkpoint=DIR --data=DIR [--split=test] [--task=mnli-mismatched]
python launch/evaluate.py --checkpoint=DIR --data=DIR --attack=fgm --radius=0.5,1,2
python launch/evaluate.py --checkpoint=DIR --data=DIR --weights=int8 [--keep=0.99]
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("evaluate")
CHECKPOINT = command_line.define_checkpoint()
DATA = flags.DEFINE_string(
  "data", None, "folder written by launch/prepare.py; for a task, its data_dir", required=True
)
SPLIT = flags.DEFINE_string(
  "split",
  DEFAULTS["split"],
  "text: train or valid (default valid); task: train, dev or test (default dev)",
)
TASK = flags.DEFINE_string(
  "task",
  DEFAULTS["task"],
  "evaluate a fine-tuned model on another task with the same labels; any other on stsb, without "
  "labels, by the cosine of its embeddings",
)
ATTACK = flags.DEFINE_string(
  "attack", DEFAULTS["attack"], "fgm: measure a fine-tuned model also under this attack"
)
RADIUS = flags.DEFINE_list(
  "radius",
  list(DEFAULTS["radius"]),
  "of the attack: L2 norms of what is added to the embeddings of a sequence",
)
BEAMS = flags.DEFINE_integer("beams", DEFAULTS["beams"], "candidates of a search; 1: greedy")
LENGTH_PENALTY = flags.DEFINE_float(
  "length_penalty", DEFAULTS["length_penalty"], "of the search: above 0 favors long translations"
)
WEIGHTS = flags.DEFINE_string(
  "weights", DEFAULTS["weights"], "bfloat16 or int8: compare a classifier with itself in float32"
)
KEEP = flags.DEFINE_float(
  "keep",
  DEFAULTS["keep"],
  "of --weights: the share of float32's labels and of its accuracy that must be left",
)
command_line.define_distributed()


def main():
  from gpt_jax.inference.attack import format_attack
  from gpt_jax.parallel.processes import is_main_process
  from gpt_jax.programs import evaluate
  from gpt_jax.tasks.metrics import format_classes, format_labels

  metrics = evaluate.run(
    CHECKPOINT.value,
    DATA.value,
    SPLIT.value,
    TASK.value,
    ATTACK.value,
    RADIUS.value,
    BEAMS.value,
    LENGTH_PENALTY.value,
    WEIGHTS.value,
    KEEP.value,
  )
  if not is_main_process():
    return
  classes, labels = metrics.pop("classes", None), metrics.pop("labels", None)
  attacked = metrics.pop("attack", None)
  width = max(13, *map(len, metrics))
  for name, value in metrics.items():
    style = {float: ",.4f", int: ","}.get(type(value), "")  # else a text
    print(f"{name:{width}} {value:{style}}")
  if classes:
    print(f"\n{format_classes(classes)}")
  if labels:
    print(f"\n{format_labels(labels)}")
  if attacked:
    print(f"\n{format_attack(metrics, attacked)}")


if __name__ == "__main__":
  command_line.run(main)
