"""Lists the tasks: transformation, labels, metrics, the paper's result, TFDS's names; and what a
folder has of them.

python launch/tasks.py [--data_dir=DIR]
"""

from absl import flags

import command_line

DATA_DIR = flags.DEFINE_string(
  "data_dir",
  None,
  "folder of the official files, or tfds:DIR: count the examples in it, and say what is broken",
)


def main():
  from gpt_jax.programs import list_tasks as catalog

  entries = catalog.run(DATA_DIR.value)
  rows = {entry.task: _cells(entry) for entry in catalog.run()}
  header = ("task", "transform", "labels", "metrics", "paper", "TFDS")
  widths = [max(map(len, column)) for column in zip(header, *rows.values(), strict=True)]

  def show(cells, sizes=(), remarks=()):
    line = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    print("  ".join([*line, *(size.rjust(7) for size in sizes), "; ".join(remarks)]).rstrip())

  show(header, ("train", "dev", "test") if DATA_DIR.value is not None else ())
  for entry in entries:
    sizes = ["-" if size is None else f"{size:,}" for size in entry.sizes.values()]
    show(rows[entry.task], sizes, entry.remarks)
  print(
    "paper: its result on the test set in the first of the metrics, in % (Radford et al. 2018, tables 2 to 4)"
  )


def _cells(entry):
  lists = [", ".join(names) or "-" for names in (entry.labels, entry.metrics, entry.tfds)]
  return (
    entry.task,
    entry.transform,
    *lists[:2],
    "-" if entry.paper is None else f"{entry.paper:.1f}",
    lists[2],
  )


if __name__ == "__main__":
  command_line.run(main)
