"""An earlier workdir of launch/label.py, from whose rows and models a new table goes on.

Importing it imports no JAX, so that a bad workdir is refused at once.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence

import numpy as np

from gpt_jax.errors import InputError, agree, counted
from gpt_jax.files import absolute, exists, read_json, verified
from gpt_jax.tasks.readers import Row, Table, label_form, usable
from gpt_jax.tasks.task import SPLITS


@dataclasses.dataclass(frozen=True)
class Previous:
  """An earlier run: its columns and rows, and its models."""

  workdir: str  # "": there is none, and no rows
  base: str  # the checkpoint that a probe is made of: that was asked for, or an earlier probe's
  columns: tuple[str, ...]  # as asked for, if there is none
  label: str
  labels: tuple[str, ...] = ()
  chosen: str = ""  # the model that predicts
  tuned: str = ""  # the checkpoint that fine-tuning starts from; "": as the probe
  # Of each split, in the order of its file.
  rows: dict[str, list[Row]] = dataclasses.field(default_factory=dict)

  @property
  def data_dir(self) -> str:
    return os.path.join(self.workdir, "data")

  @property
  def identity(self) -> dict[str, str]:
    """The earlier run's folder, as JSON."""
    return {"from": absolute(self.workdir)} if self.workdir else {}

  def with_rows(self, new: list[Row], merge_labels: bool) -> tuple[list[Row], str]:
    """Its rows, then those of the new ones that it lacks; and a line about them.

    A row that has another label in the new table has that one from now on. With `merge_labels` a
    label that differs from one of its own by its form alone is that one.
    """
    if not self.workdir:
      return new, ""
    new = list(new)
    own = {label_form(label): label for label in self.labels} if merge_labels else {}
    labels: dict[tuple[str, ...], list[str | None]] = {}
    for n, row in enumerate(new):
      if row.label and row.label not in self.labels:
        new[n] = row._replace(label=own.get(label_form(row.label), row.label))
      labels.setdefault(_key(row), []).append(new[n].label)
    rows, changed = list(itertools.chain.from_iterable(self.rows.values())), 0
    count, known = len(rows), {*map(_key, rows)}
    for n, row in enumerate(rows):
      given = labels.get(_key(row), [row.label])
      if row.label not in given:
        rows[n] = row._replace(label=given[-1])
        changed += 1
    rows += [row for row in new if _key(row) not in known]
    if len(rows) == count and not changed:
      raise InputError(f"--from={self.workdir}: has all usable rows of the new table already")
    return rows, (
      f"{self.workdir}: its {count:,} rows stay in their splits, {changed:,} with another label; "
      f"{len(rows) - count:,} of {counted(len(new), 'row')} {agree(len(rows) - count)} new"
    )

  def places(self, locations: Sequence[str]) -> np.ndarray:
    """For each row the number in SPLITS of its split, and its place there, int [N, 2]; -1: none."""
    place_of = {}
    for number, split in enumerate(SPLITS):
      for place, row in enumerate(self.rows.get(split, [])):
        place_of[row.location] = number, place
    return np.array([place_of.get(location, (-1, -1)) for location in locations])


def read_previous(workdir: str, checkpoint: str, texts: Sequence[str], label: str) -> Previous:
  """Reads a finished workdir; "": there is none, and a checkpoint is needed.

  texts, label: the columns that were asked for, if any, which should be its own.
  """
  if not workdir:
    if not checkpoint:
      raise InputError(
        "missing --checkpoint, such as minilm or the folder of a run, or --from=WORKDIR of an "
        "earlier table"
      )
    return Previous("", checkpoint, tuple(texts), label)
  path = os.path.join(workdir, "result.json")
  try:
    result = verified(read_json(path))
    models = [model["name"] for model in result["models"]]
    # Its probe has the trunk that all its models began with.
    base, tuned = (os.path.join(workdir, name, "best") for name in ("probe", "finetuned"))
    previous = Previous(
      workdir,
      checkpoint or base,
      tuple(result["columns"]),
      result["label"],
      tuple(result["classes"]["labels"]),
      result["chosen"],
      tuned if "finetuned" in models and not checkpoint else "",
    )
    for split in SPLITS:
      path = os.path.join(previous.data_dir, f"{split}.csv")
      rows = list(usable(Table(path).rows(previous.columns, previous.label)))
      if len(rows) != result["rows"][split] or {row.label for row in rows} - {*previous.labels}:
        raise ValueError(f"should have {result['rows'][split]:,} rows with its labels")
      previous.rows[split] = rows
  except FileNotFoundError as error:
    above = os.path.dirname(os.path.abspath(workdir))
    is_model = exists(os.path.join(above, "label.json"))
    advice = f"give {above}" if is_model else "its own command finishes it"
    raise InputError(
      f"--from={workdir}: holds no finished run of launch/label.py; {advice}"
    ) from error
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(
      f"--from={workdir}: {path}: damaged, or of another program ({error}); the command that made "
      "it writes it again"
    ) from error
  columns = {"text": (texts, previous.columns), "label": ([label], [previous.label])}
  for flag, names in columns.items():
    asked, own = map(",".join, names)
    if asked not in ("", own):
      raise InputError(f"--{flag}={asked}: --from={workdir} has {own}; leave --{flag} out")
  return previous


def _key(row: Row) -> tuple[str, ...]:
  """Texts as they are compared: a file may have other line breaks."""
  return tuple(" ".join(text.split()) for text in row.texts)
