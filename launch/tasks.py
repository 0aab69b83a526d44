"""Lists the tasks with their transformation, labels, metrics, the paper's result and TFDS names.

With --data it also says what a folder has of them; with --count it reads and counts all rows, and
reports what is broken.

python launch/tasks.py [--data=DIR [--count]]
"""

import command_line

PROGRAM = command_line.program("list_tasks")


def main():
  from gpt_jax.programs import list_tasks

  folder, count = PROGRAM.arguments().values()
  entries = list_tasks.run(folder, count)
  cells = {entry.task.name: _cells(entry) for entry in list_tasks.run()}
  header = ("task", "transform", "labels", "metrics", "paper", "TFDS")
  widths = [max(map(len, column)) for column in zip(header, *cells.values(), strict=True)]

  def show(cells, sizes=(), remarks=()):
    columns = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    columns += [size.rjust(7) for size in sizes]
    print("  ".join([*columns, "; ".join(remarks)]).rstrip())

  show(header, ("train", "dev", "test") if folder is not None else ())
  for entry in entries:
    found = "{:,}" if count else "there"
    sizes = ["-" if size is None else found.format(size) for size in entry.sizes.values()]
    show(cells[entry.task.name], sizes, entry.remarks)
  print("paper: test result in the first metric, % (Radford et al. 2018, tables 2 to 4)")


def _cells(entry):
  task = entry.task
  labels, metrics, tfds = (
    ", ".join(names) or "-" for names in (task.labels, task.metrics, task.tfds)
  )
  paper = "-" if entry.paper is None else f"{entry.paper:.1f}"
  return task.name, task.kind, labels, metrics, paper, tfds


if __name__ == "__main__":
  command_line.run(main)
