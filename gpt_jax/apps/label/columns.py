"""Finds the columns that launch/label.py reads; imports no JAX, so that a bad table is refused at
once.
"""

import os
import re
from collections.abc import Sequence

from gpt_jax.errors import InputError
from gpt_jax.tasks.readers import Table
from gpt_jax.tasks.table import TableTask


def find_columns(source: str, texts: Sequence[str], label: str) -> tuple[tuple[str, ...], str]:
  """The text columns and the label column, as TableTask finds them.

  Args:
    source: a .csv, .tsv, .jsonl, .json or .parquet file.
    texts: the text columns; () finds one.
    label: the label column; "" finds it.
  """
  if len(texts) > 2:
    raise InputError(f"--text={','.join(texts)}: one or two columns, not {len(texts)}")
  if len({*texts, label}) <= len(texts):
    raise InputError(f"--text={','.join(texts)} and --label={label}: should be different columns")
  if texts and label:
    next(Table(source).rows(texts, label), None)  # its header
    return tuple(texts), label
  transform = "entailment" if len(texts) == 2 else "classification"
  folder, name = os.path.split(source)
  task = TableTask(train=name, columns=tuple(texts), label=label, transform=transform)
  try:
    task = task.with_labels(folder)
  except InputError as error:
    message = str(error).replace("config.task.columns=NAME,…", "--text=NAME")
    message = re.sub(r" \(config\.task\.train=.*\)", "", message)
    raise InputError(message.replace("config.task.label", "--label")) from error
  return task.columns, task.label
