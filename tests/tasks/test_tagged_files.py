"""Tags from the user's files: CoNLL-2000, CoNLL-2003, CoNLL-U, their spans, what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_jax.config import from_json, to_json
from gpt_jax.errors import InputError
from gpt_jax.tasks.named import task_named
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.tagged_files import TaggedFiles, read_columns, rewritten
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


# What looks like a space or a line end is a part of a word, and so are marks of other formats.
PARTS = st.characters(exclude_categories=("Cs", "Cc"), exclude_characters=" ") | st.sampled_from(
  "#\x1c\x85\xa0\u200b\u2028\u3000"
)
WORD = st.text(PARTS, min_size=1, max_size=4) | st.sampled_from(["#", "##", "-DOCSTART-x", "1"])
SENTENCES = st.lists(
  st.lists(st.tuples(WORD, st.sampled_from(["O", "#", "B-X", "_"])), min_size=1, max_size=5),
  min_size=1,
  max_size=4,
)
CONLL_U = "{id}\t{word}\t_\t{tag}\t_\t_\t0\t_\t_\t_"


@pytest.mark.parametrize(
  "line, column, before",
  [
    ("{word} X {tag}", -1, ""),
    ("{word} X {tag}", 2, "-DOCSTART- -X- O\n\n"),
    ("{word}\t{tag}", -1, ""),
    ("{word} {word}\t{tag}\tX", 1, ""),
    (CONLL_U, 3, "#\n# a\tb # comment\n1-2\tab" + "\t_" * 8 + "\n"),
  ],
)
@settings(max_examples=30, deadline=None)
@given(sentences=SENTENCES, end=st.sampled_from(["\n", "\r\n"]), blank=st.sampled_from(["", " \t"]))
def test_what_is_written_is_read(tmp_path_factory, line, column, before, sentences, end, blank):
  path = tmp_path_factory.getbasetemp() / "written.txt"
  text = before
  for sentence in sentences:
    rows = [line.format(id=n, word=w, tag=t) for n, (w, t) in enumerate(sentence, start=1)]
    text += "\n".join([*rows, blank, ""])
  path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", end).encode())
  read = list(read_columns(str(path), column))
  in_pairs = line.startswith("{word} {word}\t")  # a word with a space inside
  expected = [[(f"{w} {w}" if in_pairs else w, t) for w, t in sentence] for sentence in sentences]
  assert [list(zip(e.words, e.label, strict=True)) for e in read] == expected


def test_a_file_of_words_alone_keeps_each(tmp_path):
  folder = written(tmp_path, train=CONLL_2003, test="#\n# \nEU\n\n\u3000\n")
  examples = TaggedFiles().build(folder).examples(folder, "test")
  assert [(e.words, e.label) for e in examples] == [(("#", "#", "EU"), None), (("\u3000",), None)]


def test_documents_end_sentences_and_lines_may_be_of_old_macs(tmp_path):
  path = tmp_path / "x.txt"
  for end in ("\n", "\r"):
    path.write_bytes(f"EU O{end}calls X{end}-DOCSTART- O{end}New O{end}".encode())
    assert [e.words for e in read_columns(str(path), -1)] == [("EU", "calls"), ("New",)]


def test_ten_columns_alone_do_not_make_conll_u(tmp_path):
  lines = ["\t".join([word, *"abcdefgh", tag]) for word, tag in (("In", "O"), ("1999", "B-X"))]
  folder = written(tmp_path, train="\n".join(lines))
  (example,) = TaggedFiles().build(folder).examples(folder, "train")
  assert (example.words, example.label) == (("In", "1999"), ("O", "B-X"))


def test_tags_that_look_like_spans_among_others_stay(tmp_path):
  folder = written(tmp_path, train="a NN\nb I-X\n\nc I-X\n\nd O\n")
  task = TaggedFiles().build(folder)
  assert task.labels == ("I-X", "NN", "O")
  assert task.examples(folder, "train")[1].label == ("I-X",)


def test_blind_tags_of_a_test_file_are_none(tmp_path):
  folder = written(tmp_path, train=CONLL_2003, test="EU _ _ _\n\nEU NNP B-NP B-ORG\n")
  assert [e.label for e in TaggedFiles().build(folder).examples(folder, "test")] == [
    None,
    ("B-ORG",),
  ]


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
    ("EU O\n\tB-X\n", ":2: the first column is empty; should be the word"),
    ("EU O\n B-X\n", ":2: the first column is empty; should be the word"),
    ("EU\tO\nrejects\t\n", ":2: tag '': should be there, without a space"),
    ("EU\tO\nrejects\ta b\n", ":2: tag 'a b': should be there, without a space"),
    ("EU O\n# id = 7\n", ":2: 4 columns; should be 2, as in line 1 .only CoNLL-U has comments"),
    ("EU NN O\n#sale O\n", ":2: 2 columns; should be 3, as in line 1"),
    ("EU NNP\tO\nEU NNP O\n", ":2: 3 columns; should be 2, as in line 1"),
    (CONLL_U.format(id=1, word="EU", tag="X"), "column -1 has the tags"),
    (CONLL_U.format(id=1, word="EU", tag="X").replace("\t", " "), "should be 10, with tabs"),
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
  written(tmp_path, train=CONLL_U.format(id=1, word="EU", tag="X"))
  with pytest.raises(InputError, match=r"10 columns, and none is config\.task\.column=10"):
    TaggedFiles(column=10).with_labels(folder)
