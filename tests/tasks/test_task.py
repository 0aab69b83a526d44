"""The Task type: finding tasks, labels, scores, and TFDS as a source."""

import shutil

import numpy as np
import pytest

from gpt_jax import config
from gpt_jax.data.examples import Example
from gpt_jax.errors import InputError
from gpt_jax.metrics import accuracy
from gpt_jax.tasks.rows import Row
from gpt_jax.tasks.task import Named, Task, classification, entailment, find, multiple_choice, similarity

NAMES = ["cola", "mnli-diagnostic", "mrpc", "race", "race-high", "race-middle", "rte", "stsb", "wnli"]


def toy(rows, **kwargs):
  return Task(
    name="toy",
    labels=("no", "yes"),
    columns=("text",),
    sequences=classification,
    read=lambda data_dir, split: rows,
    metrics={"accuracy": accuracy},
    **kwargs,
  )


@pytest.mark.parametrize("name", NAMES)
def test_every_task_is_whole(name):
  task = find(name)
  assert task.name == name and task.primary_metric in task.metrics
  assert len(set(task.labels)) == task.outcomes > 1 and task.tfds and "Radford et al. 2018" in task.paper
  sequences = task.sequences(*task.columns)
  assert task.combine == ("choose" if len(sequences) == task.outcomes == 4 else "sum")
  assert set(task.columns) == {text for sequence in sequences for text in sequence}


def test_an_unknown_task_is_answered_with_those_there_are():
  for name in ("colla", "task", "table", "race-low", "os"):
    with pytest.raises(InputError, match="no task '.*'; the tasks are cola, .*race, race-middle, race-high, rte"):
      find(name)


def test_named_travels_as_json():
  named = Named("race-high")
  assert config.from_json(config.to_json(named)) == named
  assert named.settled("").build("") is find("race-high")


def test_transformations():
  assert classification("a") == (("a",),)
  assert entailment("a", "b") == (("a", "b"),)
  assert similarity("a", "b") == (("a", "b"), ("b", "a"))
  assert multiple_choice("c", "x", "y", "z") == (("c", "x"), ("c", "y"), ("c", "z"))


def test_examples():
  task = toy([Row(("a",), "yes", "f:1"), Row(("b",), "no", "f:2")])
  assert task.examples("", "dev") == [Example((("a",),), (0.0, 1.0), "f:1"), Example((("b",),), (1.0, 0.0), "f:2")]


@pytest.mark.parametrize(
  "rows, split, message",
  [
    ([Row(("a",), "yes", "f:1"), Row(("b",), "maybe", "f:2")], "dev", "^f:2: label 'maybe': should be one of no, yes"),
    ([Row(("a",), "yes", "f:1"), Row(("b",), None, "f:2")], "train", "^f:2: no label; train rows need one of no, yes"),
    ([Row(("b",), None, "f:2")], "dev", "^f:2: no label; dev rows need one of no, yes"),
    ([], "dev", "no examples in the dev split"),
    ([Row(("a",), "yes", "f:1")], "valid", "split 'valid' of toy: should be one of train, dev, test"),
  ],
)
def test_bad_rows(rows, split, message):
  with pytest.raises(InputError, match=message):
    toy(rows).examples("", split)


def test_test_rows_need_no_label():
  assert toy([Row(("a",), None, "f:1")]).examples("", "test")[0].label is None


def test_score():
  labels = np.eye(2)[[0, 1, 1, 0]]
  good = toy([]).score(np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.8, 0.2]]), labels)
  assert good == {"accuracy": 0.75}
  assert toy([]).score(np.full((4, 2), [0.9, 0.1]), labels) == {"accuracy": 0.5, "degenerate": 1}


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
  """glue/rte, glue/stsb, glue/ax and race/middle as TFDS prepares them, with few rows."""
  tfds = pytest.importorskip("tensorflow_datasets")
  text, integer = tfds.features.Text(), np.int64
  pair = {"sentence1": text, "sentence2": text}
  rte_label = tfds.features.ClassLabel(names=["entailment", "not_entailment"])
  features = {
    "glue/rte": {**pair, "label": rte_label, "idx": integer},
    "glue/stsb": {**pair, "label": np.float32, "idx": integer},
    "glue/ax": {"premise": text, "hypothesis": text, "label": tfds.features.ClassLabel(num_classes=3), "idx": integer},
    "race/middle": {
      "article": text,
      "questions": tfds.features.Sequence(text),
      "options": tfds.features.Sequence(tfds.features.Sequence(text)),
      "answers": tfds.features.Sequence(text),
    },
  }
  passage = {
    "article": "Öl.",
    "questions": ["q1", "q2"],
    "options": [list("abcd"), list("efgh")],
    "answers": ["B", "D"],
  }

  def rows(name, split):
    test = split == "test"
    if name == "glue/rte":
      return [{"sentence1": f"a{i}", "sentence2": "b", "label": -1 if test else i % 2, "idx": i} for i in range(4)]
    if name == "glue/stsb":
      return [{"sentence1": f"a{i}", "sentence2": "b", "label": -1.0 if test else 3.5, "idx": i} for i in range(4)]
    if name == "glue/ax":
      return [{"premise": "a", "hypothesis": "b", "label": -1, "idx": 0}]
    return [passage]

  def build(collection, configs, directory):
    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
      name = collection
      VERSION = tfds.core.Version("1.0.0")
      BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config) for config in configs]
      pkg_dir_path = None

      @property
      def full_name(self):
        return f"{self.name}/{self.builder_config.name}"

      def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features[self.full_name]))

      def _split_generators(self, manager):
        dev = "dev" if collection == "race" else "validation"  # as TFDS calls them
        splits = ("test",) if self.builder_config.name == "ax" else ("train", dev, "test")
        return {split: self._generate_examples(split) for split in splits}

      def _generate_examples(self, split):
        yield from enumerate(rows(self.full_name, split))

    for name in configs:
      Builder(config=name, data_dir=directory, file_format="array_record").download_and_prepare()

  directory = str(tmp_path_factory.mktemp("tfds"))
  build("glue", ("rte", "stsb", "ax"), directory)
  with pytest.MonkeyPatch.context() as patch:  # to write nested lists, though not to read them, TFDS needs TensorFlow
    patch.setattr(tfds.features.TensorInfo, "dtype", property(lambda self: self.np_dtype))
    build("race", ("middle",), directory)
  return directory


def test_tfds_labels_by_name(tfds_dir):
  examples = find("rte").examples(f"tfds:{tfds_dir}", "train")
  assert sorted((example.sequences[0], example.label) for example in examples) == [
    ((f"a{i}", "b"), ((1.0, 0.0), (0.0, 1.0))[i % 2]) for i in range(4)
  ]
  assert examples[0].name == "glue/rte/train:0"
  assert [example.label for example in find("rte").examples(f"tfds:{tfds_dir}", "test")] == [None] * 4


def test_tfds_scores(tfds_dir):
  assert find("stsb").examples(f"tfds:{tfds_dir}", "dev")[0].label == (0, 0, 0, 0.5, 0.5, 0)
  assert find("stsb").examples(f"tfds:{tfds_dir}", "test")[0].label is None


def test_tfds_has_the_diagnostic_set_for_testing_only(tfds_dir):
  (example,) = find("mnli-diagnostic").examples(f"tfds:{tfds_dir}", "test")
  assert (example.sequences, example.label) == ((("a", "b"),), None)
  with pytest.raises(InputError, match="glue/ax has no split 'train', only 'test'"):
    find("mnli-diagnostic").examples(f"tfds:{tfds_dir}", "train")


def test_tfds_passages(tfds_dir):
  first, second = find("race-middle").examples(f"tfds:{tfds_dir}", "dev")
  assert first.sequences == tuple(("Öl.", "q1", option) for option in "abcd")
  assert (first.label, second.label) == ((0, 1, 0, 0), (0, 0, 0, 1))


def test_tfds_without_the_data_set_says_how_to_prepare_it(tfds_dir, tmp_path):
  pytest.importorskip("tensorflow_datasets")
  for directory in (tfds_dir, str(tmp_path), str(tmp_path / "nowhere")):
    with pytest.raises(InputError, match=r"glue/cola is not prepared here; prepare it once with tfds\.builder"):
      find("cola").examples(f"tfds:{directory}", "train")


def test_a_task_that_tfds_lacks():
  with pytest.raises(InputError, match="task toy is not in TFDS"):
    toy([]).examples("tfds:", "train")


def test_tfds_data_sets_without_random_access(tfds_dir, tmp_path):
  shutil.copytree(tfds_dir, tmp_path, dirs_exist_ok=True)
  for info in tmp_path.glob("glue/rte/*/dataset_info.json"):
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
  with pytest.raises(InputError, match="glue/rte must be prepared with file_format='array_record'"):
    find("rte").examples(f"tfds:{tmp_path}", "train")
