"""The report of the dev set: the metrics of every class, the table, and the texts of an example."""

import json

import numpy as np
import pytest
import sklearn.metrics

from gpt_jax.inference.dev_report import text_of, write_dev_report
from gpt_jax.tasks.formats import GPT
from gpt_jax.tasks.metrics import class_report, format_classes
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import find
from gpt_jax.tasks.windows import WindowedFormat


def draw(num_classes, count=200, bonus=0.3):
  """True classes, and probabilities that are often right; the last class never occurs."""
  rng = np.random.default_rng(0)
  classes = rng.integers(0, num_classes - 1, count)
  probabilities = rng.dirichlet(np.ones(num_classes), count)
  probabilities[:, -1] = 0
  probabilities[np.arange(count), classes] += bonus
  return classes, probabilities / probabilities.sum(axis=-1, keepdims=True)


def test_every_class_is_reported_as_scikit_learn_does():
  labels, (classes, probabilities) = ("a", "b", "c", "never"), draw(4)
  report = class_report(labels, probabilities, classes)
  predicted = probabilities.argmax(axis=-1)
  theirs = sklearn.metrics.classification_report(
    classes, predicted, labels=range(4), target_names=labels, output_dict=True, zero_division=0
  )
  for label, values in report["per_class"].items():
    assert values == pytest.approx(
      {name.removesuffix("-score"): value for name, value in theirs[label].items()}
    )
  assert report["macro_f1"] == pytest.approx(np.mean([theirs[name]["f1-score"] for name in "abc"]))
  assert report["accuracy"] == pytest.approx((predicted == classes).mean())
  assert report["majority"] == np.bincount(classes).max() / 200
  confusion = np.zeros((4, 4), int)
  np.add.at(confusion, (classes, predicted), 1)
  assert report["confusion"] == confusion.tolist()
  assert json.loads(json.dumps(report)) == report


def test_the_table_has_every_class_and_the_single_answer():
  classes, probabilities = draw(3)
  report = class_report(("x" * 50, "two\nlines", "never"), probabilities, classes)
  header, *lines = format_classes(report).splitlines()
  assert header.split()[:4] == ["precision", "recall", "f1", "support"]
  for label, line in zip(("x" * 29 + "…", "two lines", "never"), lines[:3], strict=True):
    assert line.startswith(label)
  wrong = report["confusion"][0][1]
  assert lines[0].endswith(f"two lines ({wrong})") and lines[2].endswith(" 0")
  assert lines[3].split() == ["macro", "average", f"{report['macro_f1']:.3f}"]
  commonest = "x" * 29 + "…" if np.bincount(classes).argmax() == 0 else "two lines"
  assert lines[4] == (
    f"accuracy {report['accuracy']:.4f}; always {commonest!r}: {report['majority']:.4f}"
  )


def test_of_many_classes_the_worst_are_shown():
  classes, probabilities = draw(60, count=2000, bonus=0.03)
  report = class_report(tuple(f"label {n}" for n in range(60)), probabilities, classes)
  lines = format_classes(report).splitlines()
  shown = [line.split("  ")[0] for line in lines[1:21]]
  metrics = report["per_class"]
  by_f1 = sorted(metrics, key=lambda label: (metrics[label]["f1"], metrics[label]["support"]))
  assert shown == by_f1[:20]
  assert lines[21] == "(40 more classes have a higher F1)" and len(lines) == 24


@pytest.mark.parametrize(
  "name, texts, expected",
  [
    ("sst2", ("a fine film",), "a fine film"),
    ("rte", ("the cat sat", "the cat"), "the cat sat\tthe cat"),
    ("qqp", ("what?", "what?"), "what?\twhat?"),
    ("storycloze", ("one", "two", "three", "four", "five", "six"), None),
  ],
)
def test_an_example_is_written_with_its_texts(tiny_tokenizer, tmp_path, name, texts, expected):
  task = find(name)
  example = task.example(Row(texts, task.labels[1], "data/file.tsv:3"))
  encoded = task.encode([example], tiny_tokenizer, 64)
  write_dev_report(str(tmp_path), task, encoded, np.array([[0.1, 0.9]]), 5, "data")
  (line,) = (tmp_path / "dev_predictions.jsonl").read_text().splitlines()
  entry = json.loads(line)
  text = entry.pop("text")
  assert entry == {"where": "file.tsv:3", "label": task.labels[1], "probabilities": [0.1, 0.9]}
  if expected is None:  # the context once, then every option
    assert text.count("one") == 1 and text.endswith("\tfive\tsix")
  else:
    assert text == expected


def test_an_example_in_windows_is_written_with_the_same_texts(tiny_tokenizer):
  task = find("storycloze")
  texts = ("the cat sat on the mat " * 20, "two", "three", "four", "five", "six")
  example = task.example(Row(texts, task.labels[1], "file:3"))
  plain, windows = (
    task.encode([example], tiny_tokenizer, 64, format) for format in (GPT, WindowedFormat(GPT))
  )
  assert windows.fields.shape[1] > plain.fields.shape[1] == 2
  assert text_of(task, windows, 0) == text_of(task, plain, 0)


def test_scores_and_tags_are_no_classes():
  names = ("stsb", "story-tags", "sst2", "race-middle")
  assert [find(name).is_classification for name in names] == [False, False, True, True]
