"""TableTask with numbers, or with several labels per row, in the label column."""

import dataclasses
import json

import numpy as np
import pytest
from refused import refused
from sklearn.metrics import f1_score

from gpt_jax.config import from_json, to_json
from gpt_jax.tasks.answers.labels import split_labels
from gpt_jax.tasks.metrics import label_macro_f1, micro_f1, r2
from gpt_jax.tasks.table import TableTask

NUMBERS = TableTask(kind="regression", columns=("text",), label="value")
LABELS = TableTask(kind="multi_label", columns=("text",), label="topics")


@pytest.fixture
def write(tmp_path):
  """write(name, label column, cells): a table of those labels; gives its folder."""

  def write_table(name, label, cells):
    rows = [f"text {number}\t{cell}" for number, cell in enumerate(cells)]
    (tmp_path / name).write_text("\n".join([f"text\t{label}", *rows]) + "\n")
    return str(tmp_path)

  return write_table


# Numbers.


@pytest.mark.parametrize("center, spread", [(0, 1), (1.7e9, 3e-3), (-4e-7, 1e-9), (5e12, 1e11)])
def test_numbers_of_any_size_keep_their_precision(write, center, spread):
  numbers = center + spread * np.random.default_rng(0).normal(size=50)
  folder = write("train.tsv", "value", [repr(float(x)) for x in numbers])
  table = from_json(json.loads(json.dumps(to_json(NUMBERS.with_labels(folder)))))
  task = table.build("nowhere")
  assert (table.mean, table.deviation) == (numbers.mean(), numbers.std())
  examples = task.examples(folder, "train")
  learned = np.array([example.label for example in examples], np.float32)
  assert abs(learned.mean()) < 1e-4 and learned.std() == pytest.approx(1, abs=1e-4)
  np.testing.assert_allclose(task.value(learned), numbers, atol=1e-5 * spread, rtol=1e-15)
  answers = [task.answer(row) for row in learned]
  np.testing.assert_allclose(answers, numbers, atol=1e-4 * spread, rtol=1e-15)
  measures = task.score(learned, learned)
  assert measures["r2"] == 1 and measures["baseline_rmse"] == pytest.approx(spread, rel=0.3)
  assert task.loss(np.zeros_like(learned), learned) == pytest.approx(1, abs=1e-4)


def test_the_scale_is_of_the_rows_that_train(write):
  folder = write("train.tsv", "value", range(40))
  table = dataclasses.replace(NUMBERS, folds=4, fold=1).with_labels(folder)
  kept = [example.label for example in table.build(folder).examples(folder, "train")]
  assert len(kept) < 40 and np.mean(kept) == pytest.approx(0, abs=1e-12)
  assert np.std(kept) == pytest.approx(1)


@pytest.mark.parametrize(
  "cell", ["nan", "inf", "-Infinity", "", "3,5", "1_000", "٣", "n/a", "1e999"]
)
def test_what_is_no_number_is_refused_with_its_line(write, cell):
  folder = write("train.tsv", "value", [1, 2, cell, 4])
  message = r"train\.tsv:4: label .*should be a finite number"
  refused(message, NUMBERS.build(folder).examples, folder, "train")


def test_a_number_far_from_all_others_is_refused(write):
  write("dev.tsv", "value", ["1e30"])
  folder = write("train.tsv", "value", [1, 2])
  message = r"dev\.tsv:2: .*nearer to the training set's mean, 1\.5"
  refused(message, NUMBERS.build(folder).examples, folder, "dev")


def test_a_column_without_a_scale_is_refused(write):
  folder = write("train.tsv", "value", ["a", "b"])
  refused("column 'value' has no numbers", NUMBERS.with_labels, folder)
  write("train.tsv", "value", [2, 2])
  refused("2 numbers from 2 to 2; their deviation", NUMBERS.with_labels, folder)


def test_many_numbers_as_labels_name_the_field(write):
  one_label = dataclasses.replace(NUMBERS, kind="one_label")
  folder = write("train.tsv", "value", [f"{x}.5" for x in range(60)])
  refused(r"60 different numbers.*config\.task\.kind=regression", one_label.with_labels, folder)
  folder = write("train.tsv", "value", range(60))
  refused(
    r"60 rows: is it the label\?; finetune\.run with config\.task\.kind=reg",
    one_label.with_labels,
    folder,
  )
  folder = write("train.tsv", "value", [*range(60), *range(60)])
  with pytest.warns(UserWarning, match=r"60 different numbers.*config\.task\.kind=regression"):
    assert len(one_label.with_labels(folder).labels) == 60
  few = write("train.tsv", "value", [0.5, 1.5, 2.5])
  assert one_label.with_labels(few).labels == ("0.5", "1.5", "2.5")


def test_of_two_columns_the_numbers_are_the_label(tmp_path):
  (tmp_path / "train.tsv").write_text("score\treview\n1.5\tgood\n2.5\tgood\n3\tbad\n")
  table = TableTask(kind="regression").with_labels(str(tmp_path))
  assert (table.columns, table.label, table.metric) == (("review",), "score", "r2")
  assert r2(np.array([2.0, 2.0]), np.array([1.0, 3.0])) == 0  # a constant has none


# Several labels.


@pytest.mark.parametrize(
  "cell, names",
  [
    ("", []),
    (" ", []),
    ("a", ["a"]),
    (" b ,a,, b", ["b", "a"]),
    ('["a, b", "c"]', ["a, b", "c"]),
    ("[]", []),
    ("[1, 2.5]", ["1", "2.5"]),
    ("[draft], a", ["[draft]", "a"]),
  ],
)
def test_labels_of_a_cell(cell, names):
  assert split_labels(cell, ",") == names


def test_rows_have_any_number_of_labels(write, tmp_path):
  folder = write("train.tsv", "topics", ["b, a", "", "c", "a,a"])
  (tmp_path / "dev.jsonl").write_text(
    '{"text": "x", "topics": ["c", "a"]}\n{"text": "y", "topics": []}\n'
  )
  table = dataclasses.replace(LABELS, dev="dev.jsonl").with_labels(folder)
  assert (table.labels, table.metric) == (("a", "b", "c"), "micro_f1")
  task = from_json(to_json(table)).build("nowhere")
  assert task.head == {"type": "multi_label", "num_classes": 3}
  rows = [example.label for example in task.examples(folder, "train")]
  assert rows == [(1, 1, 0), (0, 0, 0), (0, 0, 1), (1, 0, 0)]
  assert [example.label for example in task.examples(folder, "dev")] == [(1, 0, 1), (0, 0, 0)]
  line = task.describe_labels(np.array(rows, np.float32))
  shares = "a 50.0%, b 25.0%, c 25.0%"
  assert line == f"labels: {shares} of the examples; 1.00 per example, none in 25.0%"
  assert task.result(np.array([0.7, 0.2, 0.5]), None)["prediction"] == ["a", "c"]


@pytest.mark.parametrize(
  "row, message",
  [
    ('{"text": "x", "topics": null}', "dev.jsonl:1: no label; dev rows need labels among a, b, or"),
    ('{"text": "x"}', "dev.jsonl:1: no column 'topics'"),
    ('{"text": "x", "topics": ["a", "z"]}', "dev.jsonl:1: label .*'z' should be one of a, b"),
    ('{"text": "x", "topics": [["a"]]}', "dev.jsonl:1: label .*should be a list of label names"),
    ('{"text": "x", "topics": {"a": 1}}', "dev.jsonl:1: label .*should be one of a, b"),
  ],
)
def test_labels_that_cannot_be_used(write, tmp_path, row, message):
  folder = write("train.tsv", "topics", ["a", "b"])
  (tmp_path / "dev.jsonl").write_text(row + "\n")
  task = dataclasses.replace(LABELS, dev="dev.jsonl").build(folder)
  refused(message, task.examples, folder, "dev")


def test_a_label_with_the_separator_is_refused(tmp_path):
  (tmp_path / "train.jsonl").write_text('{"text": "x", "topics": ["a", "b, c"]}\n')
  table = dataclasses.replace(LABELS, train="train.jsonl")
  message = "',' is in the label 'b, c'; config.task.separator=TEXT"
  refused(message, table.with_labels, str(tmp_path))
  other = dataclasses.replace(table, separator="|").with_labels(str(tmp_path))
  assert other.labels == ("a", "b, c")


def test_scores_of_indicators_against_scikit_learn():
  rng = np.random.default_rng(0)
  truth, found = rng.random((2, 40, 5)) < 0.3
  assert micro_f1(truth, found) == f1_score(truth, found, average="micro")
  assert label_macro_f1(truth, found) == pytest.approx(f1_score(truth, found, average="macro"))
  truth[:, 4] = found[:, 4] = False  # a label that does not occur does not count
  expected = f1_score(truth[:, :4], found[:, :4], average="macro")
  assert label_macro_f1(truth, found) == pytest.approx(expected)
  assert label_macro_f1(truth & False, found & False) == 0


def test_the_baseline_is_the_best_constant_set(write):
  folder = write("train.tsv", "topics", ["a", "b", "c"])
  task = LABELS.build(folder)
  truth = np.array([[1, 1, 0]] * 7 + [[0, 0, 1]] * 3, np.float32)
  sets = [np.broadcast_to([i & 1, i >> 1 & 1, i >> 2], truth.shape) for i in range(1, 8)]
  best = max(f1_score(truth, each, average="micro") for each in sets)
  assert task.baselines(truth)["baseline_micro_f1"] == pytest.approx(best)
