"""Tags from the user's files: CoNLL-2000, CoNLL-2003, CoNLL-U, their spans, what is refused."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpt_jax.config import from_json, to_json
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer
from gpt_jax.errors import InputError
from gpt_jax.tasks.answers.tags import TaggedExample, split_words
from gpt_jax.tasks.named import task_named
from gpt_jax.tasks.packing import OrderedBatches
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
    ("EU NNP\nrejects\n", ":2: 1 column, and line 1 has 2; all lines of words should have"),
    ("EU NNP\n\trejects\n", ":2: the word is empty"),
    ("EU\tof a\nof\tNNP\n", ":1: tag 'of a': should be a name without spaces"),
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
  with pytest.raises(InputError, match=":2: 1 column, and line 1 has 2"):
    TaggedFiles().build(folder).examples(folder, "test")


def test_a_number_sign_is_a_word_and_a_comment_is_none(tmp_path):
  """CoNLL-2000 writes the pound sign so."""

  def read(text):
    (tmp_path / "x.txt").write_text(text)
    return [(e.words, e.label) for e in read_columns(str(tmp_path / "x.txt"), -1)]

  assert read("# # B-NP\n7 CD I-NP\n\n#1 CD O\n") == [
    (("#", "7"), ("B-NP", "I-NP")),
    (("#1",), ("O",)),
  ]
  assert read("#\tB-NP\n7\tI-NP\n") == [(("#", "7"), ("B-NP", "I-NP"))]
  comments = "# id 7 domain=train\n#\thttp://x y\nEU X O\n# # O\n"
  assert read(comments) == [(("EU", "#"), ("O", "O"))]
  word = "\t".join(["1", "#", *"_" * 7, "O"])
  assert read(f"# text = #\n# a\tb\n#\n{word}\n") == [(("#",), ("O",))]
  assert read("-DOCSTART- -X- O\n\n-DOCSTART-x X O\n") == [(("-DOCSTART-x",), ("O",))]


# No word begins a file with a byte order mark, or is the line between documents.
characters = st.characters(exclude_characters=" \t\r\n\ufeff", exclude_categories=("Cs",))
sentences = st.lists(
  st.lists(st.tuples(st.text(characters, min_size=1), st.sampled_from(["O", "B-X"])), min_size=1),
  min_size=1,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(sentences=sentences, mark=st.sampled_from(" \t"), end=st.sampled_from(["\n", "\r\n"]))
@example([[("#", "O"), ("a\xa0b", "B-X"), ("\u3000", "O"), ("\x1c\u2028", "O")]], " ", "\n")
def test_what_is_written_is_read_and_each_word_has_its_tag(
  tmp_path, tiny_tokenizer, openai_tokenizer, sentences, mark, end
):
  lines = ("".join(f"{word}{mark}{tag}{end}" for word, tag in pairs) for pairs in sentences)
  (tmp_path / "x.txt").write_bytes(end.join(lines).encode())
  examples = list(read_columns(str(tmp_path / "x.txt"), -1))
  assert [[*zip(e.words, e.label, strict=True)] for e in examples] == sentences
  task = TaggedFiles(labels=("B-X", "O")).build("")
  bert = WordPieceTokenizer(("[UNK]", "[CLS]", "[SEP]", "a", "b"))
  for tokenizer in (tiny_tokenizer, openai_tokenizer, bert, GPT2Tokenizer(BYTES, ())):
    for words in ([e.words for e in examples], [split_words(" ".join(e.words)) for e in examples]):
      untagged = [TaggedExample(of_text, None, "x:1") for of_text in words]
      encoded = task.encode(untagged, tokenizer, 9)  # so short that texts are read in pieces
      counts = [(tags >= 0).sum() for tags in encoded.truth]
      assert counts == [len(e.words) for e in examples]
  truth = [[task.labels.index(tag) for tag in e.label] for e in examples]
  tags = task.encode(examples, tiny_tokenizer, 9).truth
  assert [t[t >= 0].tolist() for t in tags] == truth


def test_long_texts_are_read_in_pieces_of_whole_words(tiny_tokenizer):
  task = TaggedFiles(labels=("B-X", "O")).build("")
  words = ("the", "sea", "barn") * 20
  texts = [
    TaggedExample(words, ("O", "B-X", "O") * 20, "x:1"),
    TaggedExample(("cat",), ("O",), "x"),
  ]
  encoded = task.encode(texts, tiny_tokenizer, 16)
  assert not encoded.truncation and encoded.lengths.max() <= 16
  pieces = [encoded.sequence_tags(0, c)[1] for c in np.flatnonzero(encoded.lengths[0])]
  assert len(pieces) > 2 and min(pieces) >= 0  # each begins with a word
  batches = OrderedBatches(encoded, 2)
  (batch,) = batches
  tags = batches.unpack(0, np.where(batch.tags.weights > 0, batch.tags.targets, -1))
  for unpacked, expected in zip(tags, encoded.truth, strict=True):
    np.testing.assert_array_equal(unpacked, expected)
  assert task.result(np.eye(2)[np.maximum(tags[0], 0)], encoded.truth[0])["prediction"] == " ".join(
    ("O", "B-X", "O") * 20
  )
  alone = encoded.of_one_sequence
  assert len(alone) == len(pieces) + 1 and alone.locations[-1] == "x"
