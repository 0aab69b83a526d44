"""GLUE (Wang et al. 2018): nine tasks (the paper leaves out WNLI) and MNLI's diagnostic set."""

import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.files import exists
from gpt_jax.tasks.metrics import Metric, accuracy, f1, matthews, pearson, spearman
from gpt_jax.tasks.readers import Row, Table, find_folder, read_table, with_label_name
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import Transform, classification, entailment, similarity

ONE, TWO = ("sentence",), ("sentence1", "sentence2")
ASKED, ANSWER = ("question1", "question2"), ("question", "sentence")
SCORES = tuple("012345")
TWO_WAY = ("entailment", "not_entailment")
# 0 and 1 in the files.
ACCEPTABLE = ("unacceptable", "acceptable")
DUPLICATE = ("not_duplicate", "duplicate")
ENTAILED = ("not_entailment", "entailment")
EQUIVALENT = ("not_equivalent", "equivalent")
POSITIVE = ("negative", "positive")


def _files(
  folder: str, columns: tuple[str, ...], label: str = "label", label_names: tuple[str, ...] = ()
) -> Callable[[str, str], Iterator[Row]]:
  """`Task.read` of a folder with train.tsv, dev.tsv and test.tsv; see read_table."""

  def read(data_dir: str, split: str) -> Iterator[Row]:
    path = os.path.join(find_folder(data_dir, "glue", folder), f"{split}.tsv")
    # GLUE keeps the labels of its test sets to itself.
    is_test = split == "test"
    return read_table(path, columns, label, label_names=label_names, unlabeled=is_test)

  return read


def read_cola(data_dir: str, split: str) -> Iterator[Row]:
  path = os.path.join(find_folder(data_dir, "glue", "CoLA"), f"{split}.tsv")
  if split == "test":  # unlabeled, and the only file with a header
    return read_table(path, ONE)
  columns = ("source", "label", "the author's mark", "sentence")
  return read_table(path, ONE, "label", label_names=ACCEPTABLE, unnamed=columns)


# MRPC ---------------------------------------------------------------------------------------------

IDS = ("#1 ID", "#2 ID")
SENTENCES = ("#1 String", "#2 String")


def read_mrpc(data_dir: str, split: str) -> Iterator[Row]:
  """Reads Microsoft's two files; GLUE's dev set are the pairs of the train file in dev_ids.tsv.

  Without them, reads the three files of GLUE's download script, whose test set is unlabeled.
  """
  folder = find_folder(data_dir, "glue", "MRPC")
  is_test = split == "test"
  original = os.path.join(folder, f"msr_paraphrase_{'test' if is_test else 'train'}.txt")
  glue = os.path.join(folder, f"{split}.tsv")
  read = functools.partial(read_table, label="Quality", label_names=EQUIVALENT)
  # Microsoft's files first: their test set has labels.
  if exists(glue) and not exists(original):
    yield from read(glue, SENTENCES, unlabeled=is_test)
    return
  if is_test:
    yield from read(original, SENTENCES)
    return
  rows = list(read(original, (*IDS, *SENTENCES)))
  dev_ids = read_table(os.path.join(folder, "dev_ids.tsv"), IDS, unnamed=IDS)
  dev_pairs = {row.texts for row in dev_ids}
  for row in rows:
    pair, sentences = row.texts[:2], row.texts[2:]
    # One file holds both: the ids say which rows are the dev set.
    if (pair in dev_pairs) == (split == "dev"):
      yield row._replace(texts=sentences)


# QQP ----------------------------------------------------------------------------------------------


def read_qqp(data_dir: str, split: str) -> Iterator[Row]:
  """Reads GLUE's files, without the few labeled rows that are malformed as published.

  Most of these have too few columns, and two have no second question
  (https://github.com/huggingface/datasets/issues/277).
  """
  path = os.path.join(find_folder(data_dir, "glue", "QQP"), f"{split}.tsv")
  if split == "test":
    yield from read_table(path, ASKED)
    return
  rows = list(Table(path, official=True).rows(ASKED, "is_duplicate"))
  broken = []
  for row in rows:
    if isinstance(row, InputError):
      broken.append(str(row).partition(": ")[0])
    elif not all(map(str.strip, row.texts)):
      broken.append(row.location)
    else:
      yield with_label_name(row, DUPLICATE)
  if broken:
    message = f"{len(broken)} broken of {len(rows)} rows, the first at {broken[0]}"
    if len(broken) > 0.001 * len(rows) + 2:
      raise InputError(f"{path}: {message}; copy the file again")
    warnings.warn(f"{path}: left out: {message}", stacklevel=2)


def qqp_of_tfds(record: dict[str, Any], location: str) -> Iterator[Row]:
  """Leaves out the rows without a second question, which TFDS has too."""
  questions = record["question1"], record["question2"]
  if all(map(str.strip, questions)):
    yield Row(questions, record["label"], location)


# STS-B --------------------------------------------------------------------------------------------


def bins(score: str) -> tuple[float, ...]:
  """The distribution over 0..5 with the score as its mean (Tai et al. 2015, section 4.2).

  For example, 3.4 is 0.6 at 3 and 0.4 at 4. Raises ValueError unless it is from 0 to 5.
  """
  try:
    value = float(score)
  except ValueError:
    value = float("nan")
  if not 0 <= value <= 5:
    raise ValueError("should be a number from 0 to 5")
  return tuple(max(0.0, 1 - abs(value - k)) for k in range(6))


def expectation(distributions: np.ndarray) -> np.ndarray:
  """[N, 6] -> the mean scores [N]; never outside 0 to 5, where GLUE's server refuses them."""
  return distributions @ np.arange(6)


def stsb_of_tfds(record: dict[str, Any], location: str) -> Iterator[Row]:
  """TFDS's labels are scores, -1 in the test set."""
  score = record["label"]
  label = str(score) if score >= 0 else None
  yield Row((record["sentence1"], record["sentence2"]), label, location)


# MNLI: the texts are of ten genres, five of them in the training set. The matched dev and test sets
# are of these five, the mismatched ones of the others.

_DIAGNOSTIC_FILES = ("AX/diagnostic.tsv", "diagnostic/diagnostic.tsv", "AX/AX.tsv", "AX.tsv")


def read_mnli(data_dir: str, split: str, genres: str) -> Iterator[Row]:
  """Reads GLUE's files; genres is "matched" or "mismatched", and both share the training set."""
  name = "train" if split == "train" else f"{split}_{genres}"
  path = os.path.join(find_folder(data_dir, "glue", "MNLI"), f"{name}.tsv")
  return read_table(path, TWO, "gold_label", unlabeled=split == "test")


def read_diagnostic(data_dir: str, split: str) -> Iterator[Row]:
  """Reads the diagnostic set as test set; training and dev set are MNLI's, matched."""
  if split == "test":
    return read_table(diagnostic_file(data_dir), TWO)
  return read_mnli(data_dir, split, "matched")


def diagnostic_file(data_dir: str) -> str:
  """Path of the diagnostic set, AX.tsv as published, or as GLUE's download script writes it; if
  there is none, the path where it is looked for first.
  """
  folders = itertools.product(("glue", ""), _DIAGNOSTIC_FILES)
  paths = [os.path.join(data_dir, *parts) for parts in folders]
  return next(filter(exists, paths), paths[0])


# --------------------------------------------------------------------------------------------------


# What GPT-1 reached on the test server.
PAPER = {
  "cola": "45.4 Matthews on the test server (Radford et al. 2018, table 4)",
  "mnli": "82.1 accuracy on the test server (Radford et al. 2018, table 2)",
  "mnli-mismatched": "81.4 accuracy on the test server (Radford et al. 2018, table 2)",
  "mnli-diagnostic": (
    "no result in Radford et al. 2018; 29.8 Matthews with their model (GLUE leaderboard)"
  ),
  "mrpc": (
    "82.3 F1 on the test server (Radford et al. 2018, table 4); accuracy 75.7 (GLUE leaderboard)"
  ),
  "qnli": "88.1 accuracy on the test server, first version (Radford et al. 2018, table 2)",
  "qqp": (
    "70.3 F1 on the test server (Radford et al. 2018, table 4); accuracy 88.5 (GLUE leaderboard)"
  ),
  "rte": "56.0 accuracy on the test server (Radford et al. 2018, table 2)",
  "sst2": "91.3 accuracy on the test server (Radford et al. 2018, table 4)",
  "stsb": (
    "82.0 Pearson on the test server (Radford et al. 2018, table 4); "
    "Spearman 80.0 (GLUE leaderboard)"
  ),
  "wnli": "no result in Radford et al. 2018; 53.4 accuracy with their model (GLUE leaderboard)",
}


def _task(
  name: str,
  labels: tuple[str, ...],
  columns: tuple[str, ...],
  transform: Transform,
  read: Callable[[str, str], Iterator[Row]],
  *metrics: Metric,
  **options: Any,
) -> Task:
  """A task that TFDS has as glue/NAME; options are further fields of Task."""
  by_name = {metric.__name__: metric for metric in metrics or (accuracy,)}
  fields = {"tfds": (f"glue/{name}",), "paper": PAPER[name], **options}
  return Task(name, labels, columns, transform, read, by_name, **fields)


def _mnli(name: str, genres: str, **options: Any) -> Task:
  # Labels are read by name: other copies of MNLI number them in another order.
  labels, columns = ("entailment", "neutral", "contradiction"), ("premise", "hypothesis")
  read = functools.partial(read_mnli, genres=genres)
  splits = {"dev": f"validation_{genres}", "test": f"test_{genres}"}
  fields = {"read": read, "tfds": ("glue/mnli",), "tfds_splits": splits, **options}
  return _task(name, labels, columns, entailment, **fields)


TASKS = (
  # Is the sentence acceptable English? (Warstadt et al. 2018)
  _task("cola", ACCEPTABLE, ONE, classification, read_cola, matthews, accuracy),
  # Does a sentence follow from another, contradict it, or neither? (Williams et al. 2018)
  _mnli("mnli", "matched"),
  _mnli("mnli-mismatched", "mismatched"),
  _mnli("mnli-diagnostic", "matched", read=read_diagnostic, tfds=("glue/ax",), tfds_splits={}),
  # Are two sentences from the news paraphrases? (Dolan and Brockett 2005)
  _task("mrpc", EQUIVALENT, TWO, similarity, read_mrpc, f1, accuracy),
  # Does the sentence answer the question? (from SQuAD; second version)
  _task("qnli", TWO_WAY, ANSWER, entailment, _files("QNLI", ANSWER)),
  # Do two questions from Quora ask the same?
  _task("qqp", DUPLICATE, ASKED, similarity, read_qqp, f1, accuracy, tfds_rows=qqp_of_tfds),
  # Does the second sentence follow from the first?
  _task("rte", TWO_WAY, TWO, entailment, _files("RTE", TWO)),
  # Is a phrase from a film review positive or negative? (Socher et al. 2013)
  _task("sst2", POSITIVE, ONE, classification, _files("SST-2", ONE, label_names=POSITIVE)),
  # How similar are two sentences, from 0 to 5? (Cer et al. 2017)
  _task(
    *("stsb", SCORES, TWO, similarity, _files("STS-B", TWO, "score"), pearson, spearman),
    target=bins,
    value=expectation,
    tfds_rows=stsb_of_tfds,
  ),
  # Does a sentence with its pronoun replaced follow from the text? (Levesque et al. 2012) Training
  # and dev set share sentences, mostly with opposite labels: a model that memorizes its training
  # set is worse than chance on dev (gluebenchmark.com/faq).
  _task("wnli", ENTAILED, TWO, entailment, _files("WNLI", TWO, label_names=ENTAILED)),
)
