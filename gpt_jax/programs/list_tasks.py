"""The program that lists the tasks of section 4: what each is, and how many examples a folder
holds of it.
"""

import os
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from gpt_jax.errors import InputError
from gpt_jax.paper import tables as paper
from gpt_jax.tasks.readers import check_data_dir
from gpt_jax.tasks.task import SPLITS, Task, all_tasks


class Entry(NamedTuple):
  """A task.

  Attributes:
    task: its name.
    transform: the paper's input transformation.
    labels: the names of the outcomes.
    metrics: the primary one first.
    paper: the paper's result on the test set in the primary metric, in percent; None where it has
      none.
    tfds: the TFDS data sets that hold it.
    sizes: split -> examples, None where they cannot be read; empty where nothing was looked for.
    remarks: one line each: what is missing or broken, what was left out.
  """

  task: str
  transform: str
  labels: tuple[str, ...]
  metrics: tuple[str, ...]
  paper: float | None
  tfds: tuple[str, ...]
  sizes: dict[str, int | None]
  remarks: tuple[str, ...]


def run(data_dir: str | None = None) -> Iterator[Entry]:
  """Every task, one after the other: large data sets take seconds.

  Args:
    data_dir: where the official files are, or "tfds:DIR"; None looks for none.

  Raises:
    InputError: data_dir is no folder. What is wrong with one task's files is in its remarks.
  """
  if data_dir is not None:
    check_data_dir(data_dir)
  return _entries(data_dir)


def _entries(data_dir: str | None) -> Iterator[Entry]:
  results = {
    column.tasks[0]: score
    for number in (2, 3, 4)
    for column, score in zip(
      paper.TABLES[number].columns, paper.TABLES[number].rows[paper.OURS], strict=True
    )
    if column != paper.GLUE
  }
  for task in all_tasks():
    sizes, remarks = ({}, ()) if data_dir is None else _look(task, data_dir)
    score = results.get(task.name)
    yield Entry(
      task.name,
      task.kind,
      task.labels,
      tuple(task.metrics),
      score,
      task.tfds,
      sizes,
      remarks,
    )


def _look(task: Task, data_dir: str) -> tuple[dict[str, int | None], tuple[str, ...]]:
  sizes: dict[str, int | None] = {}
  remarks = []
  for split in SPLITS:
    sizes[split] = None
    with warnings.catch_warnings(record=True) as told:
      warnings.simplefilter("always")
      try:
        sizes[split] = len(task.examples(data_dir, split))
      except InputError as error:
        remarks.append(str(error))
      except Exception as error:  # the list goes on, whatever one folder holds
        remarks.append(f"{split}: {type(error).__name__}: {error}")
    remarks += [str(warning.message) for warning in told if warning.category is UserWarning]
  return sizes, tuple(dict.fromkeys(_short(remark, data_dir) for remark in remarks))


def _short(remark: str, data_dir: str) -> str:
  """One line, paths as seen from data_dir, without the advice behind the semicolon."""
  remark = " ".join(remark.split()).replace(os.path.join(data_dir, ""), "").partition("; ")[0]
  return remark.removeprefix(f"--data_dir={data_dir}: ").removeprefix(f"{data_dir}: ")
