"""TF-IDF and logistic regression as a classifier that launch/predict.py reads, without pickle.

launch/label.py writes it into a folder: classifier.npz, and the files of dev_report.
"""

import dataclasses
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.saved import TFIDF_FILE
from gpt_jax.config import Config, from_json, option, register, to_json
from gpt_jax.data.tokenizers.base import SpecialTokens
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, local_copy, parse_json
from gpt_jax.inference.calibration import scale
from gpt_jax.inference.dev_report import DevSet, read_dev_set, write_dev_report
from gpt_jax.inference.ensemble import Calibration, Ensemble
from gpt_jax.inference.linear_classifier import Linear, Tfidf
from gpt_jax.tasks.encoding import Encoded, Example
from gpt_jax.tasks.table import TableTask

_STEP = 0  # of dev_report


@dataclasses.dataclass(frozen=True)
class TfidfClassifier(Ensemble):
  """An Ensemble without members.

  Attributes:
    folder: what it was read from.
    tfidf: the features.
    linear: reads them.
  """

  folder: str
  tfidf: Tfidf
  linear: Linear

  def encode(self, examples: Sequence[Any]) -> list[Encoded]:
    """The examples as Encoded of whole texts, without tokens."""
    return [_without_tokens(list(examples))]

  def predict(
    self,
    encoded: Sequence[Encoded],
    batch_size: int,
    done: Callable[[int], None],
    calibration: Calibration | None = None,
  ) -> Any:
    del batch_size
    (examples,) = encoded
    probabilities = self.linear(self.tfidf(list(examples.strings)))
    done(len(examples))
    return scale(probabilities, calibration.temperature) if calibration else probabilities

  def calibration(self) -> Calibration:
    dev = self.dev_set()
    return Calibration(dev.temperature, f"{len(dev.classes):,} dev rows")

  def dev_set(self) -> DevSet:
    return read_dev_set(self.folder, self.task.labels, _STEP)


@register("tfidf_folder")
@dataclasses.dataclass(frozen=True)
class TfidfFolder(Config):
  """A folder that save_tfidf wrote, which predict.run loads by this class's registered name."""

  folder: str = option("", "the folder of classifier.npz")

  def load(self) -> TfidfClassifier:
    return load_tfidf(self.folder)


def save_tfidf(
  folder: str,
  tfidf: Tfidf,
  linear: Linear,
  table: TableTask,
  dev: list[Example],
  data_dir: str,
) -> None:
  """Writes the classifier and what it predicts for the dev examples.

  Raises:
    OSError: a file cannot be written.
  """
  os.makedirs(folder, exist_ok=True)
  arrays: dict[str, Any] = {"task": _to_bytes(json.dumps(to_json(table)))}
  for name, (terms, weights) in tfidf.terms.items():
    # No term has a line break: n-grams stay within words and the spaces beside them.
    arrays |= {f"{name}/terms": _to_bytes("\n".join(terms)), f"{name}/idf": weights}
  arrays |= {"kernel": linear.kernel, "bias": linear.bias}  # [features, K] and [K]
  with atomic_file(os.path.join(folder, TFIDF_FILE), "wb") as file:
    np.savez(file, **arrays)
  # By what was written, so that the report is that of the file.
  classifier = load_tfidf(folder)
  encoded = classifier.encode(dev)
  probabilities = classifier.predict(encoded, 0, lambda _: None)
  write_dev_report(folder, classifier.task, encoded[0], probabilities, _STEP, data_dir)


def load_tfidf(folder: str) -> TfidfClassifier:
  """Reads the classifier. Raises InputError if the file is damaged, or without scikit-learn."""
  path = os.path.join(folder, TFIDF_FILE)
  try:
    with local_copy(path) as copy:
      # Checks sizes before anything is read: compressed arrays could be of any size.
      npz.describe(copy)
      with np.load(copy, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    task = from_json(parse_json(arrays["task"].tobytes())).build("")
    terms = {}
    for name in sorted({name.partition("/")[0] for name in arrays if "/" in name}):
      words = arrays[f"{name}/terms"].tobytes().decode().split("\n")
      terms[name] = words, _finite(arrays[f"{name}/idf"], (len(words),))
    # Tfidf gives one empty column where there is no term.
    features = sum(len(words) for words, _ in terms.values()) or 1
    kernel = _finite(arrays["kernel"], (features, len(task.labels)))
    linear = Linear(kernel, _finite(arrays["bias"], (len(task.labels),)), 0.0)
    return TfidfClassifier((), task, folder, Tfidf(terms), linear)
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    raise InputError(
      f"{path}: damaged ({str(error)[:200]}); make it again with label.run"
    ) from error


def _finite(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
    raise ValueError(f"an array of shape {array.shape}, not finite numbers of shape {shape}")
  return array


def _to_bytes(text: str) -> np.ndarray:
  return np.frombuffer(text.encode(), np.uint8)


def _without_tokens(examples: list[Example]) -> Encoded:
  """Encodes each example as one string with a single placeholder token."""
  count = len(examples)
  classes = next((len(example.label) for example in examples if example.label), 1)
  unlabeled = (0.0,) * classes
  return Encoded(
    texts=[np.zeros(1, np.int32)] * count,
    fields=np.arange(count, dtype=np.int32).reshape(count, 1, 1),
    kept=np.ones((count, 1, 1), np.int32),
    labels=np.array([example.label or unlabeled for example in examples], np.float32),
    locations=[example.location for example in examples],
    context=0,
    special=SpecialTokens(0, ()),
    unknown_share=0.0,
    strings=tuple("\n".join(example.sequences[0]) for example in examples),
  )
