"""TableTask: a task on the user's own files."""

import dataclasses
import hashlib
import json
import re

import numpy as np
import pytest
from refused import refused, table

from gpt_jax.config import from_json, to_json
from gpt_jax.programs.config_files import override_all
from gpt_jax.tasks import metrics
from gpt_jax.tasks.formats import GPT, BERTFormat
from gpt_jax.tasks.metrics import CLASS_METRICS
from gpt_jax.tasks.readers import Row, label_form
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.tagged_files import TaggedFiles
from gpt_jax.tasks.windows import WindowedFormat


@pytest.fixture
def files(tmp_path):
  contents = {
    "train.csv": 'review,stars\n"good, really",pos\nbad,neg\nfine,pos\n',
    "dev.jsonl": '{"review": "meh", "stars": "neg"}\n',
    "test.tsv": "review\nunseen\n",
    "unlabeled.tsv": "review\tstars\ngood\tpos\nbad\tneg\nmeh\t \n",
    "blank.jsonl": '{"review": "a", "stars": "neg"}\n{"review": " ", "stars": "pos"}\n',
    "pairs.tsv": "a\tb\tsame\nx\ty\t1\nz\tw\t0\n",
    "choices.tsv": "story\tfirst\tsecond\tthird\tright\nOnce.\tA.\tB.\tC.\tsecond\n",
  }
  contents["partial.jsonl"] = "".join(
    json.dumps({"a": a, "b": b, "same": "01"[n % 2]}) + "\n"
    for n, (a, b) in enumerate([("x", "y"), ("", "y"), ("x", None), (" ", "\t")])
  )
  rows = [f"{n},{n % 3},{'xyzw'[n % 4]},text {n},{n / 7}\n" for n in range(60)]
  contents["tickets.csv"] = "id,team,queue,text,price\n" + "".join(rows)
  for name, content in contents.items():
    (tmp_path / name).write_text(content)
  return str(tmp_path)


REVIEWS = TableTask("train.csv", "dev.jsonl", "test.tsv", columns=("review",), label="stars")


def test_the_splits_may_be_of_three_formats(files):
  task = REVIEWS.build(files)
  assert (task.labels, task.pooling, task.primary_metric) == (("neg", "pos"), "sum", "accuracy")
  train, dev, test = (task.examples(files, split) for split in ("train", "dev", "test"))
  texts = [example.sequences[0] for example in train]
  assert texts == [("good, really",), ("bad",), ("fine",)]
  assert [example.label for example in train] == [(0, 1), (1, 0), (0, 1)]
  assert dev[0].location == f"{files}/dev.jsonl:1"
  assert test[0].label is None


@pytest.mark.parametrize(
  "transform, sequences", [("entailment", (("x", "y"),)), ("similarity", (("x", "y"), ("y", "x")))]
)
def test_pairs_of_texts(files, transform, sequences):
  task = dataclasses.replace(PAIRS, transform=transform, metric="f1").build(files)
  example = task.examples(files, "train")[0]
  assert (example.sequences, example.label) == (sequences, (0, 1))
  assert list(task.metrics) == ["f1", "accuracy"]


PAIRS = TableTask("pairs.tsv", columns=("a", "b"), label="same", transform="entailment")
PARTIAL = dataclasses.replace(PAIRS, train="partial.jsonl", skip_bad_rows=True)


@pytest.mark.filterwarnings("ignore:left out")
def test_a_row_with_an_empty_text_is_read_from_the_other(files, tiny_tokenizer):
  task = PARTIAL.build(files)
  examples = task.examples(files, "train")
  assert [example.sequences[0] for example in examples] == [("x", "y"), ("", "y"), ("x", "")]
  refused("4: column 'a' is empty", task.example, Row((" ", "\t"), None, "4"))
  assert task.example(Row(("\u200b", "y"), None, "1")).sequences == (("\u200b", "y"),)
  dropped = task.example(Row(("\u200b", "\u200b"), None, "5"))
  for format in (GPT, BERTFormat(), WindowedFormat(GPT)):
    tokenizer = tiny_tokenizer
    for name in format.special:
      tokenizer = tokenizer.with_special(name)
    encoded = task.encode(examples, tokenizer, 16, format)
    x, y = (tokenizer.encode(text) for text in ("x", "y"))
    whole, no_x, no_y = (encoded.sequence(n, 0).tolist() for n in range(3))
    for ids, texts in ((whole, [x, y]), (no_x, [[], y]), (no_y, [x, []])):
      assert ids == format.of_window.join(texts, tokenizer.special).tolist()
    more = [*examples, dropped]
    refused("5: text field 1 has no token", task.encode, more, tokenizer, 16, format)
  # Two texts that are compared are both needed.
  task = dataclasses.replace(PARTIAL, transform="similarity", labels=("0", "1")).build(files)
  assert len(task.examples(files, "train")) == 1
  refused("7: column 'b' is empty", task.example, Row(("x", ""), None, "7"))


def test_the_options_of_multiple_choice_are_columns(files):
  columns = ("story", "first", "second", "third")
  choices = TableTask("choices.tsv", columns=columns, label="right", transform="multiple_choice")
  refused("f1 needs two labels", dataclasses.replace(choices, metric="f1").build, files)
  task = choices.build(files)
  (example,) = task.examples(files, "train")
  assert example.sequences == (("Once.", "A."), ("Once.", "B."), ("Once.", "C."))
  assert (example.label, task.pooling, task.labels) == ((0, 1, 0), "per_choice", columns[1:])
  np.testing.assert_array_equal(task.truncate(np.array([[90, 9]]), 32, 3), [[20, 9]])


def test_a_config_with_labels_does_not_need_the_training_file(files):
  with_labels = from_json(to_json(REVIEWS.with_labels(files)))
  assert with_labels.labels == ("neg", "pos")
  assert with_labels.build("nowhere").labels == ("neg", "pos")


def test_fields_are_set_from_the_command_line_and_paths_may_be_absolute(files):
  config = with_fields(TableTask(), f"columns=review train={files}/train.csv label=stars")
  assert len(config.build("elsewhere").examples("elsewhere", "train")) == 3


# Fields and, as a regex, what is said of them.
WRONG_CONFIGS = r"""\
transform=regression => transform = 'regression': must be one of
columns=a,b => columns: classification takes 1 text columns, not .'a', 'b'.
columns=a columns=b => columns: classification takes 1 text columns, not .'a', 'b'.
columns="a,b" label=a,b => columns: .'a,b',. and label 'a,b' should all be different
label=a label=b => config.label=… is given 2 times: it takes one value
transform=similarity columns=a => similarity takes 2 text columns
transform=multiple_choice columns=a,b => takes 3 or more text columns
columns=label label=label => should all be different
folds=1 => fold=0 of folds=1: should be 2 or more folds
folds=3 fold=3 => fold=3 of folds=3
folds=3 dev_share=0.1 => folds=3: needs dev_share=0.0, not dev_share=0.1
metric=bleu => metric = 'bleu': must be one of
labels=a,b,a => labels: a, b, a: one is there twice
kind=numbers => kind = 'numbers': must be one of
kind=regression metric=accuracy => accuracy is not for kind=regression
kind=multi_label metric=r2 => r2 is not for kind=multi_label
metric=exact_match => exact_match is not for kind=one_label
kind=multi_label separator= => separator: empty
kind=regression labels=a,b => has numbers, no labels
kind=regression deviation=0 => deviation: 0.0; should be above 0
kind=multi_label transform=multiple_choice => the column of the right option
"""
# A split and fields of REVIEWS.
WRONG_FILES = r"""\
train labels=pos,ok => train\.csv:3: label 'neg': should be one of pos, ok
train label=grade => train\.csv: no column 'grade'
train columns=text => train\.csv: no column 'text' .the columns are 'review', 'stars'.
train train=none.csv => none\.csv: No such file or directory$
train train=train.tsv => train\.tsv: No such .*; there: train\.csv .*config.task.train=train\.csv.
train train=train.tsv label= columns= => ; there: train\.csv .*config\.task\.train=train\.csv.
dev dev=train.tsv => there: train\.csv .*config\.task\.dev=train\.csv.; .*dev_share=0\.1 .*folds=5
train train=blank.jsonl => blank\.jsonl:2: column 'review' is empty; fill it in or remove the row
train train=unlabeled.tsv => unlabeled\.tsv:4: label ' ': should be one of neg, pos
dev dev= => TableTask.dev: no file is named
dev dev=test.tsv => test\.tsv: no column 'stars'
train train=choices.tsv columns=story label=right => two or more are needed
train train=tickets.csv columns=text label=id =>
    'id' has 60 different values in 60 rows: is it the label\? Likelier: 'team' .3 different., 'q
train train=tickets.csv columns=text label=price => numbers, such as 0.0, .*kind=regression
"""


def with_fields(config, fields):
  return override_all(config, [field.split("=", 1) for field in fields.split()])


@pytest.mark.parametrize("fields, message", table(WRONG_CONFIGS))
def test_wrong_configs_are_refused(fields, message):
  refused(message, with_fields, TableTask(), fields)


@pytest.mark.parametrize("given, message", table(WRONG_FILES))
def test_wrong_files_are_refused_with_file_and_line(files, given, message):
  split, _, fields = given.partition(" ")
  config = with_fields(REVIEWS, fields)
  refused(message, lambda: config.build(files).examples(files, split))


@pytest.mark.parametrize("name", CLASS_METRICS)
def test_a_table_may_name_any_class_metric(files, name):
  task = dataclasses.replace(REVIEWS, metric=name).build(files)
  assert task.primary_metric == name
  assert task.metrics[name] is CLASS_METRICS[name] is getattr(metrics, name)


# Columns and labels found in the file.


@pytest.mark.parametrize(
  "header, fields, columns, label",
  [
    ("text,label,id", {}, ("text",), "label"),
    ("body,kind", {}, ("body",), "kind"),
    ("kind,body", {}, ("body",), "kind"),
    ("body,kind,id", {"columns": ("body",), "label": "kind"}, ("body",), "kind"),
    ("body,kind", {"columns": ("body",)}, ("body",), "kind"),
    ("first,second,label", {"transform": "similarity"}, ("first", "second"), "label"),
  ],
)
def test_columns_are_found_where_it_is_clear(tmp_path, header, fields, columns, label):
  names = header.split(",")
  rows = [",".join("ab"[n % 2] if name in ("label", "kind") else f"{name} {n}" for name in names)
          for n in range(6)]  # fmt: skip
  (tmp_path / "train.csv").write_text("\n".join([header, *rows]) + "\n")
  config = TableTask(train="train.csv", **fields).with_labels(str(tmp_path))
  assert (config.columns, config.label, config.labels) == (columns, label, ("a", "b"))
  assert len(config.build("nowhere").examples(str(tmp_path), "train")) == 6


@pytest.mark.parametrize(
  "text, message",
  [
    ("a,b,c\n1,2,3\n", "which of its columns is the label.* they are a, b, c"),
    ("a,label,c\n1,2,3\n", "which of its columns have the text.* they are a, label, c"),
    ("a,b\n1,2\n3,4\n", "which of its columns is the label"),
    ("works,good\nfails,bad\nfine,good\nno,bad\n", "train.csv:1: should name the columns"),
  ],
)
def test_unclear_columns_are_asked_for(tmp_path, text, message):
  (tmp_path / "train.csv").write_text(text)
  refused(message, TableTask(train="train.csv").with_labels, str(tmp_path))


# Held-out rows.


TWO = TableTask(columns=("text",), label="label", labels=("x", "y"))


def held_out(tmp_path, rows, **fields):
  (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
  task = dataclasses.replace(TWO, **fields).build(str(tmp_path))
  texts = {}
  for split in ("train", "dev"):
    examples = task.examples(str(tmp_path), split)
    texts[split] = [example.sequences[0][0] for example in examples]
  return texts


def test_a_share_is_held_out_whatever_the_order(tmp_path):
  rows = [f"row number {n}\t{'xy'[n % 2]}" for n in range(1000)]
  split, again = (held_out(tmp_path, order, dev_share=0.2) for order in (rows, rows[::-1]))
  assert 150 < len(split["dev"]) < 250
  assert sorted(split["train"] + split["dev"]) == sorted(row.split("\t")[0] for row in rows)
  assert again["dev"] == split["dev"][::-1]
  assert set(held_out(tmp_path, rows[:500], dev_share=0.2)["dev"]) <= set(split["dev"])


def test_duplicates_stay_together(tmp_path):
  rows = [f"{text}\tx" for n in range(200) for text in (f"Row  {n}", f"row {n} ", f"ROW {n}")]
  split = held_out(tmp_path, rows, dev_share=0.5)
  sides = [{" ".join(text.lower().split()) for text in split[side]} for side in ("train", "dev")]
  assert not sides[0] & sides[1]
  assert len(sides[0] | sides[1]) == 200


@pytest.mark.parametrize("count, folds", [(8, 5), (11, 4), (30, 7)])
def test_folds_have_as_many_rows_and_both_labels(tmp_path, count, folds):
  rows = [f"row number {n}\t{'xy'[n % 2]}" for n in range(count)]
  labels = {row.split("\t")[0]: row[-1] for row in rows}
  dev = [held_out(tmp_path, rows, folds=folds, fold=fold)["dev"] for fold in range(folds)]
  sizes = [len(part) for part in dev]
  assert sorted(sum(dev, [])) == sorted(labels) and max(sizes) - min(sizes) <= 1
  for label in "xy":
    of_label = [sum(labels[text] == label for text in part) for part in dev]
    assert max(of_label) - min(of_label) <= 1


def test_folds_and_shares_that_cannot_be_are_refused(tmp_path):
  rows = ["a\tx", "A \tx", "b\ty", "c\ty"]
  refused("3 different texts, too few for folds=4", held_out, tmp_path, rows, folds=4, fold=0)
  for skips in (False, True):
    config = dataclasses.replace(TWO, folds=3, skip_bad_rows=skips)
    refused("fold 0 of 3 2 rows left, fewer than one", config.check_folds, str(tmp_path), 3)
    config.check_folds(str(tmp_path), 2)
  for given, share, message in (
    (rows, 0.001, r"dev_share=0\.001: holds out none of the 4 rows of .*tsv"),
    (rows[:2], 0.9, "1 different text, too few for dev_share=0.9"),
  ):
    refused(message, held_out, tmp_path, given, dev_share=share)


@pytest.mark.parametrize(
  "labels", [("Yes", "yes "), ("caf\u00e9", "cafe\u0301"), ("1", "1.0"), ("no way", "NO  WAY")]
)
def test_labels_of_one_form_are_told(tmp_path, labels):
  rows = [f"a {n}\t{label}" for n, label in enumerate((*labels, "other"))]
  (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]))
  folder, apart = str(tmp_path), {"type": "table_task"}  # a config of before has no merge_labels
  with pytest.warns(UserWarning, match="only by case, spaces or form count as different") as told:
    old = from_json(apart).with_labels(folder)
  assert all(repr(label) in str(told[0].message) for label in labels)
  assert {*old.labels} == {*labels, "other"} and not from_json(to_json(old)).merge_labels
  with pytest.warns(UserWarning, match="as the first of them .config.task.merge_labels=false"):
    task = TableTask().with_labels(folder).build("")
  (name,) = {*task.labels} - {"other"}
  dev = task.example(Row(("a",), f" {labels[0].upper()}", "x:1"))
  assert dev.label == tuple(float(label == name) for label in task.labels)
  (tmp_path / "tags.txt").write_text("a\tYes\na\tyes\na\tno\n")
  with pytest.warns(UserWarning, match="differ only by case"):
    TaggedFiles(train="tags.txt").with_labels(str(tmp_path))
  many = dataclasses.replace(TWO, kind="multi_label", labels=(labels[0], "other")).build("")
  assert many.example(Row(("a",), f"{labels[1]}, OTHER", "x:1")).label == (1.0, 1.0)
  task = dataclasses.replace(TWO, labels=(labels[0], "other"), merge_labels=False).build("")
  if labels == ("1", "1.0"):
    assert task.example(Row(("a",), "1.0", "x:1")).label == (1.0, 0.0)
    return
  message = f"it differs from {labels[0]!r} by its form alone"
  refused(message, task.example, Row(("a",), labels[1], "x:1"))


@pytest.mark.parametrize("kind", ["one_label", "multi_label"])
def test_the_commonest_spelling_is_the_class(tmp_path, kind):
  labels = [" Billing", "billing", "billing", "BILLING ", "press", " press", "x"]
  rows = "".join(f"a {n},{label}\n" for n, label in enumerate(labels))
  (tmp_path / "train.csv").write_text(f"text,label\n{rows}")
  with pytest.warns(UserWarning, match=r"'billing' .[23]. and .*'BILLING ?' .1."):
    task = TableTask(train="train.csv", kind=kind).build(str(tmp_path))
  assert task.labels == ("billing", "press", "x")
  examples = task.examples(str(tmp_path), "train")
  assert [example.label.index(1.0) for example in examples] == [0, 0, 0, 0, 1, 1, 2]


# Rows that cannot be used.

BAD = 'text,label\nfine,x\n,y\ngood,y\nhalf\n"  ",x\nother,\nlast,x\n'


def test_all_bad_rows_are_listed_at_once_or_left_out(tmp_path):
  (tmp_path / "train.csv").write_text(BAD)
  config, folder = TableTask(train="train.csv"), str(tmp_path)
  message = (
    "train.csv: 4 rows cannot be used: column 'text' is empty; fill it in or remove the row (line "
    "3, 6); 1 column, but the header names 2: text, label (line 5); label '': should be one of x, "
    "y (line 7)"
  )
  advice = "; config.task.skip_bad_rows=True leaves them out$"
  refused(re.escape(message) + advice, config.build(folder).examples, folder, "train")
  skipping = dataclasses.replace(config, skip_bad_rows=True).build(folder)
  with pytest.warns(UserWarning, match=f"left out: .*{re.escape(message)}$"):
    examples = skipping.examples(folder, "train")
  assert [example.sequences[0][0] for example in examples] == ["fine", "good", "last"]


def test_of_many_bad_rows_ten_are_listed(tmp_path):
  (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n" + ",x\n" * 1500)
  task = TableTask(train="train.csv").build(str(tmp_path))
  refused(r"1,500 rows .*\(line 4, .*, 13\); and 1,490 more", task.examples, str(tmp_path), "train")


# Earlier runs, and labels that only look alike.


def test_a_fold_of_an_earlier_run_keeps_its_rows(tmp_path):
  rows = [f"row number {n}" for n in range(60)]
  task = dataclasses.replace(TWO, folds=5, fold=1)
  tree = {name: value for name, value in to_json(task).items() if name != "balanced_folds"}
  old = from_json(tree)
  assert from_json(to_json(task)) == task and from_json(to_json(old)) == old
  labeled = [f"{text}\t{'xy'[n % 2]}" for n, text in enumerate(rows)]
  dev = held_out(tmp_path, labeled, folds=5, fold=1, balanced_folds=old.balanced_folds)["dev"]

  def draw(text):
    digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48

  assert dev == [text for text in rows if int(draw(text) * 5) == 1]


def test_labels_of_json_floats_of_earlier_checkpoints_are_known(tmp_path):
  lines = [json.dumps({"text": "a", "label": value}) for value in (0.0, 1.0, 1)]
  (tmp_path / "dev.jsonl").write_text("\n".join(lines))
  task = dataclasses.replace(TWO, dev="dev.jsonl", labels=("0.0", "1.0")).build("")
  examples = task.examples(str(tmp_path), "dev")
  assert [example.label for example in examples] == [(1, 0), (0, 1), (0, 1)]
  many = dataclasses.replace(TWO, kind="multi_label", labels=("1", "2")).build("")
  assert many.example(Row(("a",), "1.0,2", "x:1")).label == (1.0, 1.0)


@pytest.mark.parametrize(
  "a,b",
  [("1234567890123456789", "1234567890123456788"), ("007", "7"), ("1_0", "10"), ("1e400", "inf")],
)
def test_different_numbers_are_of_different_form(a, b):
  assert label_form(a) != label_form(b)
  assert label_form("1") == label_form("1.0") == label_form(" 1.00")


@pytest.mark.parametrize("fields", [{"folds": 2}, {"dev_share": 0.5}])
def test_half_surrogates_do_not_end_folds(tmp_path, fields):
  rows = [{"text": f"{n} \ud800", "label": "xy"[n % 2]} for n in range(8)]
  (tmp_path / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  config = dataclasses.replace(TWO, train="s.jsonl", **fields)
  assert config.build("").examples(str(tmp_path), "train")


def test_a_file_in_place_of_its_folder_is_one_line(tmp_path):
  (tmp_path / "train.csv").write_text("text,label\na,b\n")
  message = f"data=.*train.csv: is a file; give its folder, data={tmp_path}, and config.task.train="
  refused(message, TableTask(train="train.csv").with_labels, str(tmp_path / "train.csv"))
