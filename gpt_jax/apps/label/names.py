"""Labels for a table that has none: each row gets the label whose name is nearest to its text.

Names and texts are compared by the cosine of a checkpoint's embeddings, which should be of a model
that was trained to compare texts, such as minilm. The guesses are a start to correct, not a result.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.label.table import usable_rows
from gpt_jax.data.file_kinds import write_table
from gpt_jax.errors import InputError, counted
from gpt_jax.files import atomic_file, exists
from gpt_jax.tasks.readers import Table

GUESSES = "guesses.csv"
_LABEL, _MARGIN = "label", "margin"  # columns of it beside the texts


def guess_labels(
  source: str, checkpoint: str, workdir: str, texts: Sequence[str], labels: Sequence[str]
) -> tuple[str, tuple[str, ...]]:
  """Writes WORKDIR/guesses.csv: the columns of the table, a guessed label, and by how much its name
  is nearer than the next, those first that are least clear; returns its path, and its text columns.
  """
  if len({*labels} - {""}) < max(2, len(labels)):
    raise InputError(f"--labels={','.join(labels)}: should be two or more different names")
  if not checkpoint:
    raise InputError("missing --checkpoint; such as minilm")
  path = os.path.join(workdir, GUESSES)
  if exists(path):
    raise InputError(f"{path}: is there already, perhaps with your corrections; use a new folder")
  table = Table(source)
  columns = table.split(texts) or _text_columns(table)
  read = list(table.rows(columns))
  for name in filter(table.has, (_LABEL, _MARGIN)):
    raise InputError(f"--labels: {source} has a column {name!r}; rename it, or leave --labels out")
  records = dict(table.located({*columns}))
  # An object of JSON may leave out what is null.
  kept = (record for record in records.values() if isinstance(record, dict))
  names = list(dict.fromkeys(itertools.chain.from_iterable(kept)))
  # They import JAX, which a bad table is refused without.
  from gpt_jax.inference.model import load
  from gpt_jax.parallel.processes import log

  model = load(checkpoint)
  heads = [head.scope for head in model.network.spec.heads]
  if "contrastive" not in heads and "embedding" not in model.network.meta:
    log(
      f"warning: {checkpoint} was not trained to compare texts, as minilm was: expect poor guesses"
    )
  rows, _ = usable_rows(read, columns, "", model.loaded.tokenizer)
  if not rows:
    raise InputError(f"{source}: no row has a text in {', '.join(columns)}")
  nearest, margins = nearest_names(model, ["\n".join(row.texts) for row in rows], labels)
  cells: list[list[object]] = [[*names, _LABEL, _MARGIN]]
  for number in np.argsort(margins, kind="stable"):
    guess, margin = labels[nearest[number]], f"{margins[number]:.4f}"
    record: Any = records[rows[number].location]
    cells.append([*map(record.get, names), guess, margin])
  os.makedirs(workdir, exist_ok=True)
  with atomic_file(path) as file:
    write_table(file, cells, *table.csv_layout)
  counts = np.bincount(nearest, minlength=len(labels))
  shown = ", ".join(f"{name} {count:,}" for name, count in zip(labels, counts, strict=True))
  log(f"{path}: {counted(len(rows), 'row')} with the label whose name is nearest: {shown}")
  return path, columns


def nearest_names(
  model: Any, texts: Sequence[str], labels: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
  """The label whose name is nearest to each text, int [N], and the difference of its cosine and
  that of the next one, [N].
  """
  of_texts, of_names = (_unit(model.embed(list(some), truncate=True)) for some in (texts, labels))
  cosines = of_texts @ of_names.T
  first, second = np.sort(cosines, axis=1)[:, :-3:-1].T
  return cosines.argmax(axis=1), first - second


def _unit(vectors: np.ndarray) -> np.ndarray:
  return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _text_columns(table: Table) -> tuple[str, ...]:
  names = table.names
  texts = ["text"] if "text" in names else names
  if len(texts) == 1:
    return tuple(texts)
  raise InputError(
    f"{table.path}: which of its columns have the text? --text=NAME says it; they are "
    f"{', '.join(names)}"
  )
