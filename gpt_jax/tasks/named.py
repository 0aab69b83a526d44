"""The task that the name of a config selects, as in configs/finetune.py:NAME."""

from typing import Any

from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.tagged_files import TaggedFiles
from gpt_jax.tasks.task import BuiltinTask, find


def task_named(name: str) -> Any:
  """The config of a task: table, tags (both of the user's files), or one of this package."""
  of_files = {"table": TableTask, "tags": TaggedFiles}
  if name in of_files:
    return of_files[name]()
  find(name)  # raises at an unknown name
  return BuiltinTask(name)
