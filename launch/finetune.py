"""Fine-tunes a pre-trained checkpoint on a labeled task.

python launch/finetune.py --config=configs/finetune.py:cola --data=DIR --checkpoint=DIR
  --workdir=DIR [--seeds=3 | --folds=5]
"""

import command_line

PROGRAM = command_line.program("finetune", "set_fields")
OBSERVERS = command_line.define_observers()
command_line.define_distributed()


def main():
  from gpt_jax.apps.report.report import write_report

  arguments = PROGRAM.arguments()
  config, data, workdir = (arguments[name] for name in ("config", "data", "workdir"))
  fields = command_line.set_fields()
  PROGRAM.call(arguments, set_fields=fields, on_end=[write_report], **OBSERVERS())
  folder, others = workdir, ""
  if arguments["seeds"] > 1:
    folder, others = f"{workdir}/seed_{config.train.seed}", ", and so on for each seed"
  elif arguments["folds"] > 1:
    folder, others = f"{workdir}/fold_0", ", and so on for each fold; predict averages them"
  best = f"{folder}/best"
  all_of_them = workdir if arguments["folds"] > 1 else best
  if getattr(config.task, "tasks", ()):  # several, each with a model of its own
    best = all_of_them = f"{folder}/tasks/NAME"
  following = [
    ("evaluate", {"checkpoint": best, "data": data}),
    ("predict", {"checkpoint": all_of_them, "input": "FILE", "out": "FILE"}),
  ]
  if getattr(config.task, "kind", "") != "regression":
    following.append(("visualize", {"checkpoint": best, "text": "TEXT", "out": "page.html"}))
  command_line.print_closing(f"the best checkpoint is {best}{others}", *following)


if __name__ == "__main__":
  command_line.run(main)
