"""Several tasks that one trunk learns at once, each with its own head (Clark et al. 2018, 3.4)."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import TaskConfig


@register("several_tasks")
@dataclasses.dataclass(frozen=True)
class SeveralTasks(TaskConfig):
  """Tasks that read one text per example. Each batch with labels is of one of them, drawn with a
  probability in proportion to the square root of its number of labeled examples.
  """

  tasks: tuple[Any, ...] = option((), "configs of the tasks, such as BuiltinTask")

  def with_labels(self, data_dir: str) -> "SeveralTasks":
    return SeveralTasks(tuple(task.with_labels(data_dir) for task in self.tasks))

  def build(self, data_dir: str) -> "JointTask":
    parts = tuple(task.build(data_dir) for task in self.tasks)
    if len(parts) < 2 or len({part.name for part in parts}) < len(parts):
      names = ",".join(part.name for part in parts)
      raise InputError(f"tasks {names!r}: should be two or more, and each once")
    return JointTask(parts)


@dataclasses.dataclass(frozen=True)
class JointEncoded:
  """The labeled examples of each task, and the unlabeled ones of all tasks as one data set, each
  encoded so that every head can read it; None: there are none.
  """

  parts: tuple[Encoded, ...]
  rest: Encoded | None = None
  labels = np.zeros((0, 1), np.float32)  # none are common to all tasks

  def __len__(self) -> int:
    return sum(map(len, self.parts)) + self.unlabeled

  @property
  def unlabeled(self) -> int:
    return 0 if self.rest is None else len(self.rest)

  @property
  def truth(self) -> list[Any]:
    return [part.truth for part in self.parts]

  @property
  def content(self) -> list[Any]:
    rest = None if self.rest is None else self.rest.content
    return [[part.content for part in self.parts], rest]

  @property
  def streams(self) -> tuple[Sequence[Encoded], Encoded | None]:
    return self.parts, self.rest


@dataclasses.dataclass(frozen=True)
class JointTask(LabeledTask):
  """Tasks that are trained together; predictions and truth are lists with one for each task."""

  tasks: tuple[LabeledTask, ...]

  labels = ()
  columns = ()
  metrics = {"mean": np.mean}
  kind = "several tasks"

  @property
  def name(self) -> str:  # type: ignore[override]
    return ",".join(task.name for task in self.tasks)

  @property
  def parts(self) -> tuple[LabeledTask, ...]:
    return self.tasks

  def check_metrics(self) -> None:
    for task in self.tasks:
      task.check_metrics()

  def measures(self, predictions: Any, truth: Any) -> dict[str, float]:
    """TASK_loss and TASK_METRIC of each, and `mean`, of the tasks' primary metrics."""
    measured: dict[str, float] = {}
    for task, of_task, true in zip(self.tasks, predictions, truth, strict=True):
      measures = task.measures(of_task, true)
      measured |= {f"{task.name}_{name}": value for name, value in measures.items()}
    primary = [measured[f"{task.name}_{task.primary_metric}"] for task in self.tasks]
    return {"mean": float(np.mean(primary)), **measured}

  def joined(self, encoded: Sequence[Encoded], reads: tuple[Any, ...]) -> Any:
    # A tagger reads a long text in pieces.
    encoded = [part if part.tags is None else part.of_one_sequence for part in encoded]
    for task, data_set in zip(self.tasks, encoded, strict=True):
      if data_set.fields.shape[1:] != (1, 1):
        raise InputError(f"{task.name}: beside other tasks one should read a single text")
    labeled, rest = zip(*(data_set.streams for data_set in encoded), strict=True)
    # Every head reads the unlabeled texts of every task, so they are encoded as a tagger's if there
    # is one: its encoding says where words begin, too.
    reader = next((n for n, data_set in enumerate(encoded) if data_set.tags is not None), 0)
    unlabeled = []
    for data_set in (one for one in rest if one is not None):
      if data_set.tags is None and encoded[reader].tags is not None:
        texts = [data_set.strings[i] for i in data_set.fields[:, 0, 0]]
        task, rows = self.tasks[reader], zip(texts, data_set.locations, strict=True)
        examples = [task.example(Row((text,), None, location)) for text, location in rows]
        data_set = task.encode(examples, *reads).of_one_sequence
      unlabeled.append(data_set)
    return JointEncoded(
      tuple(itertools.chain(*labeled)), _concatenated(unlabeled) if unlabeled else None
    )


def _concatenated(parts: Sequence[Encoded]) -> Encoded:
  """Data sets without labels as one."""
  first = np.cumsum([0, *(len(part.texts) for part in parts)])
  fields = [part.fields + begin for part, begin in zip(parts, first, strict=False)]
  tags = [part.tags for part in parts if part.tags is not None]
  count = sum(map(len, parts))
  # The labels have no weight, so that it does not matter how many classes there are.
  return dataclasses.replace(
    parts[0],
    texts=list(itertools.chain(*(part.texts for part in parts))),
    fields=np.concatenate(fields).astype(np.int32),
    kept=np.concatenate([part.kept for part in parts]),
    labels=np.zeros((count, 1), np.float32),
    locations=list(itertools.chain(*(part.locations for part in parts))),
    tags=list(itertools.chain(*tags)) if tags else None,
    strings=(),
  )
