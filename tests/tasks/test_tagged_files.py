"""Tags from the user's files: CoNLL-2000, CoNLL-2003, CoNLL-U, their spans, what is refused."""

import numpy as np
import pytest

from gpt_jax.config import from_json, to_json
from gpt_jax.errors import InputError
from gpt_jax.tasks.named import task_named
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.tagged_files import TaggedFiles, rewritten
from gpt_jax.tasks.task import BuiltinTask

CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC
call NN I-NP O
. . O O

New NNP B-NP B-LOC
York NNP I-NP I-LOC
"""


def written(folder, **texts):
  for name, text in texts.items():
    (folder / f"{name}.txt").write_text(text)
  return str(folder)


def test_entities_and_chunks_of_conll_2003(tmp_path):
  folder = written(tmp_path, train=CONLL_2003, dev=CONLL_2003, test="EU\nrejects\n\nNew\n")
  config = task_named("tags").with_labels(folder)
  assert isinstance(config, TaggedFiles) and from_json(to_json(config)) == config
  assert config.labels == ("B-LOC", "B-MISC", "B-ORG", "I-LOC", "I-MISC", "I-ORG", "O")
  task = config.build(folder)
  first, second = task.examples(folder, "dev")
  assert first.words == ("EU", "rejects", "German", "call", ".") and first.location.endswith(":3")
  assert first.label == ("B-ORG", "O", "B-MISC", "O", "O") and second.label == ("B-LOC", "I-LOC")
  assert [example.label for example in task.examples(folder, "test")] == [None, None]
  chunks = TaggedFiles(column=2, scheme="iobes").build(folder)
  assert chunks.examples(folder, "dev")[0].label == ("S-NP", "S-VP", "B-NP", "E-NP", "O")
  assert task.primary_metric == "span_f1"
  speech = TaggedFiles(column=1).build(folder)
  assert speech.primary_metric == "accuracy" and "NNP" in speech.labels
  assert isinstance(task_named("table"), TableTask) and task_named("cola") == BuiltinTask("cola")


def test_words_and_tags_of_conll_u(tmp_path):
  line = "\t".join(["{}", "{}", "_", "{}", "XX", "_", "0", "root", "_", "_"])
  lines = ["# text = I can't.", line.format(1, "I", "PRON"), line.format("2-3", "can't", "_")]
  lines += [
    line.format(2, "ca", "AUX"),
    line.format(3, "n't", "PART"),
    line.format("3.1", "go", "X"),
  ]
  folder = written(tmp_path, train="\n".join(lines))
  (example,) = TaggedFiles(column=3).build(folder).examples(folder, "train")
  assert (example.words, example.label) == (("I", "ca", "n't"), ("PRON", "AUX", "PART"))


@pytest.mark.parametrize(
  "given, bio, iobes",
  [
    # CoNLL-2003 as it was published: B only between two of a kind.
    ("I-X I-X O I-Y B-Y", "B-X I-X O B-Y B-Y", "B-X E-X O S-Y S-Y"),
    ("B-X I-X I-X B-X", "B-X I-X I-X B-X", "B-X I-X E-X S-X"),
    ("S-X B-X I-X E-X I-Y", "B-X B-X I-X I-X B-Y", "S-X B-X I-X E-X S-Y"),
    ("I-X I-Y O", "B-X B-Y O", "S-X S-Y O"),
  ],
)
def test_schemes(given, bio, iobes):
  assert rewritten(given.split(), "bio") == tuple(bio.split())
  assert rewritten(given.split(), "iobes") == tuple(iobes.split())
  # What is in a scheme stays as it is, and the one can be had of the other.
  assert rewritten(bio.split(), "iobes") == tuple(iobes.split())
  assert rewritten(iobes.split(), "bio") == tuple(bio.split())


def test_the_f1_of_spans(tmp_path):
  """Two of three are found, one of the three guesses has a wrong end; texts do not run together."""
  pytest.importorskip("seqeval")
  task = TaggedFiles(labels=("B-X", "B-Y", "I-X", "O")).build("")
  truth = [["B-X", "I-X", "O", "B-Y"], ["B-X"]]
  guess = [["B-X", "I-X", "O", "B-Y"], ["O"]]
  guess.append(["B-X", "I-X"])
  truth.append(["B-X", "O"])
  one_hot = [np.eye(4)[[task.labels.index(tag) for tag in tags]] for tags in guess]
  scores = task.score(one_hot, [np.array([task.labels.index(t) for t in tags]) for tags in truth])
  assert scores["span_f1"] == pytest.approx(2 * 2 / (4 + 3))
  assert scores["accuracy"] == pytest.approx(5 / 7)
  # Second pieces of words are no words.
  padded = [np.insert(tags, 1, [1, 0, 0, 0], axis=0) for tags in one_hot]
  indices = [np.insert([task.labels.index(t) for t in tags], 1, -1) for tags in truth]
  assert task.score(padded, indices)["span_f1"] == scores["span_f1"]


@pytest.mark.parametrize(
  "text, message",
  [
    ("", "no sentences; should be a word and its tag per line"),
    ("EU NNP\nrejects\n", ":2: 1 columns, and none is config.task.column=-1"),
    ("EU O\nrejects O\n", r"column -1 has the tags \['O'\]; should be two"),
  ],
)
def test_files_that_cannot_be_used(tmp_path, text, message):
  folder = written(tmp_path, train=text)
  with pytest.raises(InputError, match=message):
    TaggedFiles().with_labels(folder)


def test_a_column_that_is_not_there_and_a_tag_that_was_not_seen(tmp_path):
  folder = written(tmp_path, train=CONLL_2003, test="EU B-ORG\nrejects\n")
  with pytest.raises(InputError, match=r"4 columns, and none is config\.task\.column=4"):
    TaggedFiles(column=4).with_labels(folder)
  with pytest.raises(InputError, match="none is config.task.column=-1"):
    TaggedFiles().build(folder).examples(folder, "test")
