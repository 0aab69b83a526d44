"""Evaluates a checkpoint: a language model on prepared text, a fine-tuned model on its task.

Prints loss, perplexity and bits per byte for text; for a task its metrics and a table of classes,
with --slices its accuracy by another column, and with --attack its metrics where the embeddings of
each text are moved against its label; of a model without a head on --task=stsb how the cosine of
two embeddings correlates with the score.
With --weights it compares a classifier's labels in fewer bits with those in float32, and fails
where less than --keep is left.

python launch/evaluate.py --checkpoint=DIR --data=DIR [--split=test] [--task=mnli-mismatched]
python launch/evaluate.py --checkpoint=DIR --data=DIR --slices=language
python launch/evaluate.py --checkpoint=DIR --data=DIR --attack=fgm --radius=0.5,1,2
python launch/evaluate.py --checkpoint=DIR --data=DIR --weights=int8 [--keep=0.99]
"""

import command_line

PROGRAM = command_line.program("evaluate")
command_line.define_distributed()


def main():
  from gpt_jax.inference.attacks import format_attack
  from gpt_jax.parallel.processes import is_main_process
  from gpt_jax.tasks.metrics import format_classes, format_labels
  from gpt_jax.tasks.slices import format_slices

  metrics = PROGRAM.run()
  if not is_main_process():
    return
  attacked = metrics.pop("attack", None)
  shown = {"classes": format_classes, "labels": format_labels, "slices": format_slices}
  tables = {name: metrics.pop(name, None) for name in shown}
  width = max(13, *map(len, metrics))
  for name, value in metrics.items():
    style = {float: ",.4f", int: ","}.get(type(value), "")  # else a text
    print(f"{name:{width}} {value:{style}}")
  for name, table in tables.items():
    if table:
      print(f"\n{shown[name](table)}")
  if attacked:
    print(f"\n{format_attack(metrics, attacked)}")


if __name__ == "__main__":
  command_line.run(main)
