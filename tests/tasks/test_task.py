"""The Task type: finding tasks, labels, scores, and reading from TFDS."""

import importlib
import shutil
import sys

import numpy as np
import pytest
from refused import refused

from gpt_jax import tasks
from gpt_jax.config import from_json, to_json
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.text import as_text
from gpt_jax.tasks.encoding import Example
from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import BuiltinTask, Task, all_tasks, find
from gpt_jax.tasks.transforms import classification


def toy(rows, **kwargs):
  return Task(
    name="toy",
    labels=("no", "yes"),
    columns=("text",),
    transform=classification,
    read=lambda data_dir, split: rows,
    metrics={"accuracy": accuracy},
    **kwargs,
  )


ONE_LABEL = [task for task in all_tasks() if isinstance(task, Task)]


@pytest.mark.parametrize("task", ONE_LABEL, ids=lambda task: task.name)
def test_every_task_is_consistent(task):
  """Tasks with one label per example; see test_tagging for the other kind."""
  assert find(task.name) is task and task.primary_metric in task.metrics
  assert len(set(task.labels)) == task.num_classes > 1
  assert len(set(task.columns)) == len(task.columns)
  assert " 2018" in task.paper or task.name.startswith("story")
  sequences = task.transform(*task.columns)
  assert task.pooling == ("per_choice" if len(task.columns) > 2 else "sum")
  assert len(sequences) == task.num_classes or task.pooling == "sum"
  read = " ".join(" ".join(sequence) for sequence in sequences)
  assert all(column in read for column in task.columns)


def test_an_unknown_task_is_answered_with_the_known_ones():
  for name in ("colla", "task", "race-low", "os"):
    refused("no task '.*the tasks are cola, .*race, race-high, race-middle, rte", find, name)
  for name in ("table", "tags"):
    refused(f"task '{name}': is for files of your own, as configs/finetune.py:{name}; ", find, name)


TASK_FILE = """
import dataclasses
from gpt_jax.tasks.task import find

TASKS = tuple(dataclasses.replace(find("rte"), name=name) for name in {names})
"""


@pytest.fixture
def add_file(tmp_path, monkeypatch):
  """add_file(path, content): a file below a second gpt_jax/tasks."""
  monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path)])
  before = set(sys.modules)

  def add(name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    importlib.invalidate_caches()

  yield add
  for module in set(sys.modules) - before:
    if module.startswith("gpt_jax.tasks."):
      del sys.modules[module]


def test_a_file_in_a_new_folder_is_a_new_task(add_file):
  add_file("mine/fresh.py", TASK_FILE.format(names=["fresh", "fresh-hard"]))
  assert find("fresh").name == "fresh" and find("fresh-hard").name == "fresh-hard"
  assert {"fresh", "fresh-hard"} <= {task.name for task in all_tasks()}
  config = from_json(to_json(BuiltinTask("fresh-hard")))
  assert config.with_labels("").build("") is find("fresh-hard")
  add_file("mine/several.py", TASK_FILE.format(names=["first", "second"]))
  assert find("second").name == "second"


def test_files_that_are_no_task_files_are_ignored(add_file):
  before = all_tasks()
  add_file("mine/helpers.py", "WORDS = ()\n")
  add_file("mine/.ipynb_checkpoints/fresh-checkpoint.py", TASK_FILE.format(names=["fresh"]))
  assert all_tasks() == before


def test_two_tasks_of_one_name_are_refused(add_file):
  add_file("mine/fresh.py", TASK_FILE.format(names=["fresh"]))
  add_file("yours/fresh.py", TASK_FILE.format(names=["fresh"]))
  message = r"two tasks named 'fresh': in gpt_jax\.tasks\.mine\.fresh and in .*\.yours\.fresh"
  for search in (lambda: find("fresh"), all_tasks):
    refused(message, search)


@pytest.mark.parametrize("task", [find("rte"), find("story-tags"), as_text(find("rte"))])
def test_a_task_of_any_kind_has_all_that_programs_need(task):
  assert LabeledTask.__annotations__.keys() - {"value"} <= set(dir(task))
  for name in ("kind", "head", "examples", "example", "encode", "score", "result"):
    assert getattr(type(task), name) is not getattr(LabeledTask, name, None), name


def test_examples_have_distributions_as_labels():
  (example,) = toy([Row(("a",), "yes", "f:1")]).examples("", "dev")
  assert example == Example((("a",),), (0.0, 1.0), "f:1")


@pytest.mark.parametrize(
  "labels, split, message",
  [
    (["yes", "maybe"], "dev", "^f:2: label 'maybe': should be one of no, yes"),
    (["yes", None], "train", "^f:2: no label; train rows need one of no, yes"),
    ([None], "dev", "^f:1: no label; dev rows need one of no, yes"),
    ([], "dev", "no examples in the dev split"),
    (["yes"], "valid", "split 'valid' of toy: should be one of train, dev, test"),
  ],
)
def test_wrong_rows_are_refused_with_their_location(labels, split, message):
  rows = [Row(("a",), label, f"f:{line}") for line, label in enumerate(labels, start=1)]
  refused(message, toy(rows).examples, "", split)


def test_scores_mark_equal_predictions_as_degenerate():
  labels = np.eye(2)[[0, 1, 1, 0]]
  scores = toy([]).score(np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.8, 0.2]]), labels)
  assert scores == {"accuracy": 0.75}
  assert toy([]).score(np.full((4, 2), [0.9, 0.1]), labels) == {"accuracy": 0.5, "degenerate": 1}


THREE_WAY = ("entailment", "neutral", "contradiction")
CLASSES = {  # TFDS's data sets with a class per row: text features, names of the classes
  "glue/cola": (("sentence",), ("unacceptable", "acceptable")),
  "glue/sst2": (("sentence",), ("negative", "positive")),
  "glue/mrpc": (("sentence1", "sentence2"), ("not_equivalent", "equivalent")),
  "glue/qqp": (("question1", "question2"), ("not_duplicate", "duplicate")),
  "glue/mnli": (("premise", "hypothesis"), THREE_WAY),
  "glue/ax": (("premise", "hypothesis"), THREE_WAY),
  "glue/qnli": (("question", "sentence"), ("entailment", "not_entailment")),
  "glue/rte": (("sentence1", "sentence2"), ("entailment", "not_entailment")),
  "glue/wnli": (("sentence1", "sentence2"), ("not_entailment", "entailment")),
  "snli": (("premise", "hypothesis"), THREE_WAY),
  "sci_tail": (("premise", "hypothesis"), ("entails", "neutral")),
}
SPLITS_IN_TFDS = {
  "glue/mnli": [
    "train",
    *("validation_matched", "validation_mismatched", "test_matched", "test_mismatched"),
  ],
  "glue/ax": ("test",),
  "race/middle": ("train", "dev", "test"),
}


def records(data_set, split):
  """A fake data set: a row per class, unlabeled in GLUE's test sets, and malformed ones."""
  if data_set == "race/middle":
    questions = {
      "questions": ["q1", "q2"],
      "options": [list("abcd"), list("efgh")],
      "answers": ["B", "D"],
    }
    return [{"article": "Öl.", **questions}]
  unlabeled = data_set.startswith("glue/") and split.startswith("test")
  if data_set == "glue/stsb":
    return [{"sentence1": "a", "sentence2": "b", "label": -1.0 if unlabeled else 3.5, "idx": 0}]
  columns, names = CLASSES[data_set]
  rows = []
  for i in range(len(names)):
    texts = {column: f"{column} {i} {split}" for column in columns}
    rows.append({**texts, "label": -1 if unlabeled else i})
  if data_set == "snli":  # pairs on which the annotators did not agree
    rows.insert(1, {**rows[0], "label": -1})
  if data_set == "glue/qqp" and split == "train":
    rows.insert(1, {**rows[0], "question2": ""})
  return [{**row, "idx": i} if data_set.startswith("glue/") else row for i, row in enumerate(rows)]


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
  """All data sets of the tasks except race/high, as TFDS prepares them, with few rows."""
  tfds = pytest.importorskip("tensorflow_datasets")
  text = tfds.features.Text()
  features = {
    name: {**dict.fromkeys(columns, text), "label": tfds.features.ClassLabel(names=list(classes))}
    for name, (columns, classes) in CLASSES.items()
  }
  features["glue/stsb"] = {"sentence1": text, "sentence2": text, "label": np.float32}
  for name in features:
    if name.startswith("glue/"):
      features[name]["idx"] = np.int64
  features["race/middle"] = {
    "article": text,
    "questions": tfds.features.Sequence(text),
    "options": tfds.features.Sequence(tfds.features.Sequence(text)),
    "answers": tfds.features.Sequence(text),
  }

  def build(data_set, directory):
    collection, _, config = data_set.partition("/")

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
      name = collection
      VERSION = tfds.core.Version("1.0.0")
      BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []
      pkg_dir_path = None

      def _info(self):
        features_dict = tfds.features.FeaturesDict(features[data_set])
        return tfds.core.DatasetInfo(builder=self, features=features_dict)

      def _split_generators(self, manager):
        splits = SPLITS_IN_TFDS.get(data_set, ("train", "validation", "test"))
        return {split: self._generate_examples(split) for split in splits}

      def _generate_examples(self, split):
        yield from enumerate(records(data_set, split))

    options = {"data_dir": directory, "file_format": "array_record"}
    Builder(config=config or None, **options).download_and_prepare()

  directory = str(tmp_path_factory.mktemp("tfds"))
  for data_set in features:
    with pytest.MonkeyPatch.context() as patch:
      if data_set == "race/middle":  # TFDS needs TensorFlow to write nested lists, not to read them
        patch.setattr(tfds.features.TensorInfo, "dtype", property(lambda self: self.np_dtype))
      build(data_set, directory)
  return directory


def has_classes_in_tfds(task):
  return len(task.tfds) == 1 and task.tfds[0] in CLASSES and task.name != "mnli-diagnostic"


@pytest.mark.parametrize(
  "task", list(filter(has_classes_in_tfds, all_tasks())), ids=lambda task: task.name
)
@pytest.mark.filterwarnings("ignore:.* left out for lack of a label or a text")
def test_tfds_labels_are_matched_by_name(tfds_dir, task):
  """Whatever their numbers in TFDS; the texts are in the order of the columns."""
  (data_set,) = task.tfds
  columns, names = CLASSES[data_set]
  splits = {"train": "train", "dev": "validation", "test": "test"}
  if data_set == "glue/mnli":
    kind = task.name.partition("-")[2] or "matched"
    splits |= {"dev": f"validation_{kind}", "test": f"test_{kind}"}
  for split, tfds_split in splits.items():
    examples = sorted(task.examples(f"tfds:{tfds_dir}", split))
    expected = []
    for i, name in enumerate(names):
      one_hot = tuple(float(label == name) for label in task.labels)
      unlabeled = split == "test" and data_set.startswith("glue/")
      texts = task.transform(*(f"{column} {i} {tfds_split}" for column in columns))
      expected.append((texts, None if unlabeled else one_hot))
    assert [(example.sequences, example.label) for example in examples] == expected
    assert {example.location.rpartition(":")[0] for example in examples} == {
      f"{data_set}/{tfds_split}"
    }


@pytest.mark.parametrize("name, total", [("snli", 4), ("qqp", 3)])
def test_rows_left_out_of_tfds_are_counted(tfds_dir, name, total):
  """In SNLI those without a gold label, in QQP those without a second question."""
  message = rf"left out for lack of a label or a text: 1 of {total} rows of .*{name} \(train\)"
  with pytest.warns(UserWarning, match=message):
    examples = find(name).examples(f"tfds:{tfds_dir}", "train")
  assert len(examples) == total - 1


@pytest.mark.parametrize(
  "task", [task for task in all_tasks() if task.tfds], ids=lambda task: task.name
)
def test_the_fake_data_sets_have_the_features_of_the_real_ones(task, tmp_path):
  tfds = pytest.importorskip("tensorflow_datasets")
  # Registers GLUE, which TFDS itself does only with TensorFlow installed.
  pytest.importorskip("tensorflow_datasets.text.glue")
  for data_set in task.tfds:
    features = tfds.builder(data_set, data_dir=str(tmp_path)).info.features
    if data_set in CLASSES:
      columns, names = CLASSES[data_set]
      assert (tuple(features["label"].names), set(names)) == (names, set(task.labels))
      assert set(features) - {"idx"} == {*columns, "label"}
    else:
      assert set(records(data_set.replace("high", "middle"), "train")[0]) <= set(features)


def test_tfds_scores_become_distributions(tfds_dir):
  assert find("stsb").examples(f"tfds:{tfds_dir}", "dev")[0].label == (0, 0, 0, 0.5, 0.5, 0)
  assert find("stsb").examples(f"tfds:{tfds_dir}", "test")[0].label is None


def test_the_diagnostic_set_in_tfds_has_only_a_test_split(tfds_dir):
  examples = find("mnli-diagnostic").examples(f"tfds:{tfds_dir}", "test")
  assert [example.label for example in examples] == [None] * 3
  assert examples[0].sequences[0][0].startswith("premise ")
  message, task = "glue/ax has no split 'train', only 'test'", find("mnli-diagnostic")
  refused(message, task.examples, f"tfds:{tfds_dir}", "train")


def test_passages_from_tfds(tfds_dir):
  first, second = find("race-middle").examples(f"tfds:{tfds_dir}", "dev")
  assert first.sequences == tuple(("Öl.", "q1", option) for option in "abcd")
  assert (first.label, second.label) == ((0, 1, 0, 0), (0, 0, 0, 1))


def test_a_data_set_missing_in_tfds_is_reported_with_the_way_to_prepare_it(tfds_dir, tmp_path):
  pytest.importorskip("tensorflow_datasets")
  message = r"race/high is not prepared here; prepare it once with tfds\.builder"
  for directory in (tfds_dir, str(tmp_path), str(tmp_path / "nowhere")):
    refused(message, find("race-high").examples, f"tfds:{directory}", "train")
  refused("task toy is not in TFDS", toy([]).examples, "tfds:", "train")


def test_tfds_data_sets_without_random_access_are_refused(tfds_dir, tmp_path):
  shutil.copytree(tfds_dir, tmp_path, dirs_exist_ok=True)
  for info in tmp_path.glob("glue/rte/*/dataset_info.json"):
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
  message = "glue/rte must be prepared with file_format='array_record'"
  refused(message, find("rte").examples, f"tfds:{tmp_path}", "train")
