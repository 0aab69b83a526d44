"""CoNLL-U files: words and tags of each sentence, and what is refused by file and line."""

import pytest

from gpt_jax.errors import InputError
from gpt_jax.tasks.conllu import read_conllu
from gpt_jax.tasks.task import find


def line(number, word, tag):
  return "\t".join([str(number), word, "_", tag, "XX", "_", "0", "root", "_", "_"])


SENTENCES = [
  "# text = I can't.",
  line(1, "I", "PRON"),
  line("2-3", "can't", "_"),
  line(2, "ca", "AUX"),
  line(3, "n't", "PART"),
  line("3.1", "go", "VERB"),
  line(4, ".", "PUNCT"),
  "",
  "# the last sentence has no blank line after it",
  line(1, "New York", "PROPN"),
]


def test_sentences_without_multiword_tokens_and_empty_nodes(tmp_path):
  (tmp_path / "ud_ewt").mkdir()
  (tmp_path / "ud_ewt" / "en_ewt-ud-dev.conllu").write_text("\ufeff" + "\r\n".join(SENTENCES))
  path = tmp_path / "ud_ewt" / "test.conllu"
  path.write_text("\n".join(SENTENCES).replace("PROPN", "_"))
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
    (4, line(3, "ca", "AUX"), "4: ID '3': should be 2, the word's number"),
    (4, line("two", "ca", "AUX"), "4: ID 'two': should be 2"),
    (5, line(3, " ", "PART"), "5: FORM is empty"),
    (7, line(4, ".", "STOP"), "7: tag 'STOP': should be one of ADJ, ADP"),
  ],
)
def test_bad_lines_are_named(tmp_path, number, text, message):
  path = tmp_path / "bad.conllu"
  path.write_text("\n".join([*SENTENCES[: number - 1], text, *SENTENCES[number:]]))
  with pytest.raises(InputError) as error:
    list(read_conllu(str(path)))
  assert str(error.value).startswith(f"{path}:{message}")


def test_a_file_without_sentences(tmp_path):
  (tmp_path / "empty.conllu").write_text("# nothing\n")
  with pytest.raises(InputError, match="no sentences; should be a file in CoNLL-U format"):
    list(read_conllu(str(tmp_path / "empty.conllu")))


def test_the_published_counts(data_root):
  examples = {split: find("ewt-tags").examples(str(data_root), split) for split in ("train", "dev")}
  assert {split: len(found) for split, found in examples.items()} == {"train": 12_544, "dev": 2_001}
  words = {split: sum(len(e.words) for e in found) for split, found in examples.items()}
  assert words == {"train": 204_577, "dev": 25_147}
