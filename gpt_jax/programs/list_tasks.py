"""Lists the tasks: their properties, and the number of examples that a folder has of each."""

import itertools
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpt_jax.errors import InputError, agree, counted
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import count_repeated
from gpt_jax.tasks.readers import check_data_dir
from gpt_jax.tasks.task import SPLITS, all_tasks

_PAPER = re.compile(r"([\d.]+) .*\(Radford et al\. 2018, table [234]\)")


class Entry(NamedTuple):
  """A task, and what a folder has of it."""

  task: LabeledTask
  # Split -> number of examples that were read, None if unreadable; empty if no folder was given
  sizes: dict[str, int | None]
  remarks: tuple[str, ...]  # one line per missing or broken file or omitted row

  @property
  def paper(self) -> float | None:
    """The paper's test result in the primary metric, in percent."""
    result = _PAPER.match(self.task.paper)
    return float(result[1]) if result else None


def run(data: str | None = None, count: bool = False) -> Iterator[Entry]:
  """Yields every task as soon as it is read: the first example of each split, or all of them.

  Args:
    data: folder of the official files, or tfds:DIR, to check.
    count: read every row of the folder, which may take minutes, and say what is broken or repeated.
  """
  if data is not None:
    check_data_dir(data)
  elif count:
    raise InputError("--count: of which folder? name it by --data=DIR")
  return (_read(task, data, count) for task in all_tasks())


def _read(task: Any, data_dir: str | None, count: bool) -> Entry:
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
        if count or data_dir.startswith("tfds:"):
          examples = task.examples(data_dir, split)
        else:
          examples = list(itertools.islice(task.read(data_dir, split), 1))
        sizes[split] = len(examples)
        if split == "train":
          training = examples
        elif count and (repeated := count_repeated(examples, training)):
          rows = f"{counted(repeated, f'{split} row')} {agree(repeated, 'has', 'have')}"
          remarks.append(f"{rows} the texts of a training row")
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
