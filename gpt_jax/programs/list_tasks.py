"""Lists the tasks: their properties, and the number of examples that a folder has of each."""

import os
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from gpt_jax.errors import InputError
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import count_repeated
from gpt_jax.tasks.readers import check_data_dir
from gpt_jax.tasks.task import SPLITS, all_tasks

_PAPER = re.compile(r"([\d.]+) .*\(Radford et al\. 2018, table [234]\)")


class Entry(NamedTuple):
  """A task, and what a folder has of it."""

  task: LabeledTask
  # Split -> number of examples, None if unreadable; empty if no folder was given
  sizes: dict[str, int | None]
  remarks: tuple[str, ...]  # one line per missing or broken file or omitted row

  @property
  def paper(self) -> float | None:
    """The paper's test result in the primary metric, in percent."""
    result = _PAPER.match(self.task.paper)
    return float(result[1]) if result else None


def run(data: str | None = None) -> Iterator[Entry]:
  """Yields every task as soon as it is read; large data sets take seconds.

  Args:
    data: folder of the official files, or tfds:DIR, to check; by default no examples are
      counted.
  """
  if data is not None:
    check_data_dir(data)
  return (_read(task, data) for task in all_tasks())


def _read(task: LabeledTask, data_dir: str | None) -> Entry:
  if data_dir is None:
    return Entry(task, {}, ())
  sizes: dict[str, int | None] = {}
  remarks = []
  training: list = []  # with which the other splits are compared
  for split in SPLITS:
    sizes[split] = None
    with warnings.catch_warnings(record=True) as caught:
      # By default Python gives an equal warning of one line of code once only.
      warnings.simplefilter("always")
      try:
        examples = task.examples(data_dir, split)
        sizes[split] = len(examples)
        if split == "train":
          training = examples
        elif repeated := count_repeated(examples, training):
          rows = f"{split} row has" if repeated == 1 else f"{split} rows have"
          remarks.append(f"{repeated:,} {rows} the texts of a training row")
      except InputError as error:
        remarks.append(str(error))
      except Exception as error:  # one broken folder must not end the list
        remarks.append(f"{split}: {type(error).__name__}: {error}")
    remarks += [str(warning.message) for warning in caught if warning.category is UserWarning]
  lines: dict[str, None] = {}
  for remark in remarks:
    # One line, with paths relative to data_dir and without the advice after the semicolon.
    line = " ".join(remark.split()).replace(os.path.join(data_dir, ""), "").partition("; ")[0]
    lines[line.removeprefix(f"data_dir={data_dir}: ").removeprefix(f"{data_dir}: ")] = None
  return Entry(task, sizes, tuple(lines))
