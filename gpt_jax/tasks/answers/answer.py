"""The base class of tasks: what programs and reports ask, never which class a task has."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.tasks.encoding import Encoded, subset, without_labels
from gpt_jax.tasks.formats import GPT, Format
from gpt_jax.tasks.metrics import Metric
from gpt_jax.tasks.readers import Row, Table, column_values, usable
from gpt_jax.tasks.slices import Slices, make_slices


class LabeledTask:
  """A task: where its rows are, and what is answered to each.

  Its examples are named tuples with a `label`, None if unlabeled, and a `location`. Predictions and
  truth are what the model's head and Encoded.truth give, a value for each example.
  """

  name: str  # e.g. "race-middle".
  labels: tuple[str, ...]  # names that an answer consists of; empty if there are none
  columns: tuple[str, ...]  # the text columns of a row
  # Name -> metric(truth, predicted); the first selects the best checkpoint
  metrics: Mapping[str, Metric]
  # Predictions or truth, an array -> the values that the metrics compare
  value: Callable[[np.ndarray], np.ndarray]
  pair = ""  # a further column that rows may have, with the second text of a pair; "": none
  tfds: tuple[str, ...] = ()  # the TFDS data sets that hold the task
  paper = ""  # the paper's result with its source; "": it has none
  writes_text = False  # whether a language model writes the answers; there are no probabilities
  predictor = "label_predictor"  # registered name of what predicts it, see models.predictor
  # How the sequences of an example become one answer, see Task; "": there is one sequence
  pooling = ""
  # Why `classify` does not give its answers, and what does; "": it gives them, and the predictions
  # of several models have a mean
  not_per_text = ""

  # What it is ------------------------------------------------------------------------------------

  @property
  def kind(self) -> str:
    """The task's work on its texts, for listings, e.g. "entailment"."""
    raise NotImplementedError

  @property
  def head(self) -> dict[str, Any]:
    """The head that learns it, as JSON, since tasks know no models."""
    raise NotImplementedError

  @property
  def parts(self) -> "tuple[LabeledTask, ...]":
    """The tasks that it consists of: itself, but for several that are trained together."""
    return (self,)

  @property
  def primary_metric(self) -> str:
    return next(iter(self.metrics))

  @property
  def num_classes(self) -> int:
    return len(self.labels)

  @property
  def has_classes(self) -> bool:
    """Whether its head is a softmax over fixed classes, which a loss can weigh."""
    return self.head.get("pooling") == "sum"

  @property
  def is_classification(self) -> bool:
    """Whether each example has one of the labels, with probabilities that can be calibrated."""
    return False

  @property
  def has_report(self) -> bool:
    """Whether there is a `dev_report`."""
    return self.is_classification

  # Examples ---------------------------------------------------------------------------------------

  def examples(self, data_dir: str, split: str) -> list[Any]:
    raise NotImplementedError

  def unlabeled(
    self, data_dir: str, examples: list[Any], labeled: list[Any], file: str
  ) -> list[Any]:
    """Examples without labels: those that are not `labeled`, and those of the table `file`."""
    rest = without_labels(examples, labeled)
    if file:
      rows = list(usable(Table(file).rows(self.columns)))
      if not rows:
        raise InputError(f"unlabeled.file={file}: no rows; it should have some after its header")
      rest += map(self.example, rows)
    return rest

  def example(self, row: Row) -> Any:
    """Makes an example of a row, e.g. of texts typed by the user."""
    raise NotImplementedError

  def subset(self, examples: list[Any], count: int) -> list[Any]:
    """`count` of the examples, each class with its share: the same rows for every model; 0: all."""
    return subset(examples, count, self.has_classes)

  def slices(self, column: str, locations: Sequence[str]) -> Slices | None:
    """The slices of examples by a further column of their table; "": none."""
    if column and not self.is_classification:
      raise InputError(f"slices={column}: counts right labels; {self.name} is of {self.kind}")
    return make_slices(column, column_values(locations, column)) if column else None

  def encode(
    self, examples: list[Any], tokenizer: Tokenizer, context: int, format: Format = GPT
  ) -> Encoded:
    """Examples as token ids, truncated to the context; the format is the checkpoint's."""
    raise NotImplementedError

  def joined(self, encoded: Sequence[Encoded], reads: tuple[Any, ...]) -> Any:
    """The data sets of its parts as one; reads: Start.reads, how examples are encoded."""
    return encoded[0]

  def describe_labels(self, labels: np.ndarray) -> str:
    """A line on the labels of a data set, Encoded.labels, for the log; empty: none."""
    return ""

  # Scores ----------------------------------------------------------------------------------------

  def loss(self, predictions: Any, truth: Any) -> float:
    raise NotImplementedError

  def score(self, predictions: Any, truth: Any) -> dict[str, float]:
    """All metrics, the primary one first, and "degenerate": 1 if all predictions are the same."""
    raise NotImplementedError

  def measures(self, predictions: Any, truth: Any) -> dict[str, float]:
    """The mean loss, and all metrics."""
    return {"loss": self.loss(predictions, truth), **self.score(predictions, truth)}

  def details(self, predictions: Any, truth: Any) -> dict[str, Any]:
    """Further results of an evaluation: tables of the metrics of each label."""
    return {}

  def dev_report(self, predictions: Any, labels: np.ndarray) -> dict[str, Any]:
    """The metrics of each label, for dev_report.json; labels are Encoded.labels."""
    raise NotImplementedError

  def truth_entry(self, label: np.ndarray) -> dict[str, Any]:
    """The label of one example, for its line of dev_predictions.jsonl."""
    raise NotImplementedError

  def constant_loss(self, labels: np.ndarray) -> float | None:
    """The loss of predicting the mean of Encoded.labels for every example; None: it has no mean."""
    return None

  def check_metrics(self) -> None:
    """Computes each metric once, so that a package that is missing is named early."""
    values = np.arange(2)
    for metric in self.metrics.values():
      metric(values, values)

  # Predictions ------------------------------------------------------------------------------------

  def result(self, prediction: Any, truth: Any) -> dict[str, Any]:
    """Of one example "prediction", "probabilities" by label, and "problem" without a prediction."""
    raise NotImplementedError

  def cell(self, prediction: Any) -> Any:
    """A prediction in one cell of a table."""
    return prediction

  def unread(self, example: Any, tokenizer: Tokenizer) -> str:
    """Why an example that has a prediction was not read, "" if it was."""
    return ""

  def with_search(self, beams: int, length_penalty: float) -> Any:
    """The task whose answers are found by beam search."""
    raise InputError(f"beams={beams}: is for translations; {self.name} is a task of {self.kind}")

  def rescaled(self, predictions: Any, task: "LabeledTask") -> Any:
    """Predictions of a model of `task`, the same one on another training set, for this one."""
    return predictions
