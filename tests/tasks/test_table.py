"""TableTask: a task on the user's own files."""

import dataclasses

import numpy as np
import pytest

from gpt_jax.config import from_json, override, to_json
from gpt_jax.errors import InputError
from gpt_jax.tasks import metrics
from gpt_jax.tasks.metrics import CLASS_METRICS
from gpt_jax.tasks.table import TableTask


@pytest.fixture
def files(tmp_path):
  contents = {
    "train.csv": 'review,stars\n"good, really",pos\nbad,neg\nfine,pos\n',
    "dev.jsonl": '{"review": "meh", "stars": "neg"}\n',
    "test.tsv": "review\nunseen\n",
    "unlabeled.tsv": "review\tstars\ngood\tpos\nbad\tneg\nmeh\t\n",
    "blank.jsonl": '{"review": "a", "stars": "neg"}\n{"review": " ", "stars": "pos"}\n',
    "pairs.tsv": "a\tb\tsame\nx\ty\t1\nz\tw\t0\n",
    "choices.tsv": "story\tfirst\tsecond\tthird\tright\nOnce.\tA.\tB.\tC.\tsecond\n",
  }
  for name, content in contents.items():
    (tmp_path / name).write_text(content)
  return str(tmp_path)


REVIEWS = TableTask(
  train="train.csv", dev="dev.jsonl", test="test.tsv", columns=("review",), label="stars"
)


def test_the_splits_may_be_of_three_formats(files):
  task = REVIEWS.build(files)
  assert (task.labels, task.pooling, task.primary_metric) == (("neg", "pos"), "sum", "accuracy")
  train, dev, test = (task.examples(files, split) for split in ("train", "dev", "test"))
  assert [(example.sequences, example.label) for example in train] == [
    ((("good, really",),), (0, 1)),
    ((("bad",),), (1, 0)),
    ((("fine",),), (0, 1)),
  ]
  assert dev[0].location == f"{files}/dev.jsonl:1"
  assert test[0].label is None


@pytest.mark.parametrize(
  "transform, sequences", [("entailment", (("x", "y"),)), ("similarity", (("x", "y"), ("y", "x")))]
)
def test_pairs_of_texts(files, transform, sequences):
  task = TableTask(
    train="pairs.tsv", columns=("a", "b"), label="same", transform=transform, metric="f1"
  ).build(files)
  example = task.examples(files, "train")[0]
  assert (example.sequences, example.label) == (sequences, (0, 1))
  assert list(task.metrics) == ["f1", "accuracy"]


def test_the_options_of_multiple_choice_are_columns(files):
  columns = ("story", "first", "second", "third")
  table = TableTask(
    train="choices.tsv", columns=columns, label="right", transform="multiple_choice"
  )
  task = table.build(files)
  (example,) = task.examples(files, "train")
  assert example.sequences == (("Once.", "A."), ("Once.", "B."), ("Once.", "C."))
  assert (example.label, task.pooling, task.labels) == (
    (0, 1, 0),
    "per_choice",
    ("first", "second", "third"),
  )
  np.testing.assert_array_equal(task.truncate(np.array([[90, 9]]), 32, 3), [[20, 9]])


def test_a_config_with_labels_does_not_need_the_training_file(files):
  with_labels = from_json(to_json(REVIEWS.with_labels(files)))
  assert with_labels.labels == ("neg", "pos")
  assert with_labels.build("nowhere").labels == ("neg", "pos")


def test_paths_may_be_absolute(files):
  table = TableTask(train=f"{files}/train.csv", columns=("review",), label="stars")
  assert len(table.build("elsewhere").examples("elsewhere", "train")) == 3


def test_fields_are_set_from_the_command_line(files):
  table = override(TableTask(), "columns", "review")
  for name, value in {"train": "train.csv", "label": "stars"}.items():
    table = override(table, name, value)
  assert len(table.build(files).examples(files, "train")) == 3


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"transform": "regression"}, "transform"),
    ({"columns": ("a", "b")}, r"columns: classification takes 1 text columns, not \('a', 'b'\)"),
    ({"transform": "similarity"}, "similarity takes 2 text columns"),
    ({"transform": "multiple_choice", "columns": ("a", "b")}, "takes 3 or more text columns"),
    ({"columns": ("label",)}, "should all be different"),
    ({"metric": "bleu"}, "metric"),
  ],
)
def test_wrong_configs_are_refused(fields, message):
  with pytest.raises(InputError, match=message):
    TableTask(**fields)


@pytest.mark.parametrize(
  "fields, split, message",
  [
    ({"labels": ("pos", "ok")}, "train", r"train\.csv:3: label 'neg': should be one of pos, ok"),
    ({"label": "grade"}, "train", r"train\.csv:2: no column 'grade'"),
    (
      {"columns": ("text",)},
      "train",
      r"train\.csv:2: no column 'text'; the columns are 'review', 'stars'",
    ),
    ({"train": "none.csv"}, "train", r"none\.csv: No such file"),
    (
      {"train": "blank.jsonl"},
      "train",
      r"blank\.jsonl:2: column 'review' is empty; fill it in or remove the row",
    ),
    (
      {"train": "unlabeled.tsv"},
      "train",
      r"unlabeled\.tsv:4: label '': should be one of neg, pos",
    ),
    ({"dev": ""}, "dev", "TableTask.dev: no file is named"),
    ({"dev": "test.tsv"}, "dev", r"test\.tsv:2: no column 'stars'"),
    (
      {"train": "choices.tsv", "columns": ("story",), "label": "right"},
      "train",
      "two or more are needed",
    ),
  ],
)
def test_wrong_files_are_refused_with_file_and_line(files, fields, split, message):
  values = {
    "train": "train.csv",
    "dev": "dev.jsonl",
    "test": "test.tsv",
    "columns": ("review",),
    "label": "stars",
  }
  with pytest.raises(InputError, match=message):
    TableTask(**{**values, **fields}).build(files).examples(files, split)


@pytest.mark.parametrize("name", CLASS_METRICS)
def test_a_table_may_name_any_class_metric(files, name):
  task = dataclasses.replace(REVIEWS, metric=name).build(files)
  assert task.primary_metric == name
  assert task.metrics[name] is CLASS_METRICS[name] is getattr(metrics, name)


def test_f1_needs_two_labels(files):
  columns = ("story", "first", "second", "third")
  with pytest.raises(InputError, match="f1 needs two labels"):
    TableTask(
      train="choices.tsv", columns=columns, label="right", transform="multiple_choice", metric="f1"
    ).build(files)
