"""Tags from the user's files: CoNLL-2000, CoNLL-2003, CoNLL-U, their spans, what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused

from gpt_jax.config import from_json, to_json
from gpt_jax.tasks.named import task_named
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.tagged_files import TaggedFiles, read_columns, read_conllu, rewritten
from gpt_jax.tasks.task import BuiltinTask, find

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


@pytest.mark.parametrize(
  "test, examples",
  [
    ("#\n# \nEU\n\n\u3000\n", [(("#", "#", "EU"), None), (("\u3000",), None)]),
    ("EU _ _ _\n\nEU NNP B-NP B-ORG\n", [(("EU",), None), (("EU",), ("B-ORG",))]),
  ],
)
def test_a_test_file_may_lack_its_tags(tmp_path, test, examples):
  folder = written(tmp_path, train=CONLL_2003, test=test)
  read = TaggedFiles().build(folder).examples(folder, "test")
  assert [(example.words, example.label) for example in read] == examples


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
  truth = [["B-X", "I-X", "O", "B-Y"], ["B-X"], ["B-X", "O"]]
  guess = [["B-X", "I-X", "O", "B-Y"], ["O"], ["B-X", "I-X"]]
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
  refused(message, TaggedFiles().with_labels, folder)


def test_a_column_that_is_not_there_and_a_tag_that_was_not_seen(tmp_path):
  folder = written(tmp_path, train=CONLL_2003, test="EU B-ORG\nrejects\n")
  message = "{} columns, and none is config.task.column={}"
  refused(message.format(4, 4), TaggedFiles(column=4).with_labels, folder)
  refused(message.format(1, -1), TaggedFiles().build(folder).examples, folder, "test")
  written(tmp_path, train=CONLL_U.format(id=1, word="EU", tag="X"))
  refused(message.format(10, 10), TaggedFiles(column=10).with_labels, folder)


# CoNLL-U: words and tags of each sentence, and what is refused by file and line.


def conllu_line(number, word, tag):
  return CONLL_U.format(id=number, word=word, tag=tag)


IN_CONLL_U = [
  "# text = I can't.",
  conllu_line(1, "I", "PRON"),
  conllu_line("2-3", "can't", "_"),
  conllu_line(2, "ca", "AUX"),
  conllu_line(3, "n't", "PART"),
  conllu_line("3.1", "go", "VERB"),
  conllu_line(4, ".", "PUNCT"),
  "",
  "# the last sentence has no blank line after it",
  conllu_line(1, "New York", "PROPN"),
]


def test_sentences_without_multiword_tokens_and_empty_nodes(tmp_path):
  (tmp_path / "ud_ewt").mkdir()
  (tmp_path / "ud_ewt" / "en_ewt-ud-dev.conllu").write_text("\ufeff" + "\r\n".join(IN_CONLL_U))
  path = tmp_path / "ud_ewt" / "test.conllu"
  path.write_text("\n".join(IN_CONLL_U).replace("PROPN", "_"))
  dev, test = (find("ewt-tags").examples(str(tmp_path), split) for split in ("dev", "test"))
  assert [example.words for example in dev] == [("I", "ca", "n't", "."), ("New York",)]
  assert [example.label for example in dev] == [("PRON", "AUX", "PART", "PUNCT"), ("PROPN",)]
  assert [example.words for example in test] == [example.words for example in dev]
  # Its tags are read, so that they are scored; a sentence that lacks one has none.
  assert [(e.label, e.location) for e in test] == [
    (dev[0].label, f"{path}:2"),
    (None, f"{path}:10"),
  ]


@pytest.mark.parametrize(
  "number, text, message",
  [
    (2, "1 I PRON", "2: 1 column; should be 10, with tabs between them, as CoNLL-U has"),
    (4, conllu_line(3, "ca", "AUX"), "4: ID '3': should be 2, the word's number"),
    (4, conllu_line("two", "ca", "AUX"), "4: ID 'two': should be 2"),
    (5, conllu_line(3, " ", "PART"), "5: FORM is empty"),
    (7, conllu_line(4, ".", "STOP"), "7: tag 'STOP': should be one of ADJ, ADP"),
  ],
)
def test_bad_lines_are_named(tmp_path, number, text, message):
  path = tmp_path / "bad.conllu"
  path.write_text("\n".join([*IN_CONLL_U[: number - 1], text, *IN_CONLL_U[number:]]))
  refused(f"^{path}:{message}", lambda: list(read_conllu(str(path))))
  path.write_text("# nothing\n")
  refused("no sentences; should be a file in CoNLL-U", lambda: list(read_conllu(str(path))))


def test_the_published_counts(data_root):
  examples = {split: find("ewt-tags").examples(str(data_root), split) for split in ("train", "dev")}
  assert {split: len(found) for split, found in examples.items()} == {"train": 12_544, "dev": 2_001}
  words = {split: sum(len(e.words) for e in found) for split, found in examples.items()}
  assert words == {"train": 204_577, "dev": 25_147}
