"""Token tagging: tags at the first token of each word, packed, learned, evaluated, predicted."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused

import gpt_jax
from gpt_jax.apps.interop.imported import ImportedTask
from gpt_jax.apps.report import visualize
from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.tokenizers.gpt1 import REGEX, GPT1Tokenizer
from gpt_jax.data.tokenizers.gpt2 import ByteBPETokenizer
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer
from gpt_jax.models.heads.tag import TagHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import States
from gpt_jax.programs import evaluate, export, finetune, predict
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.answers.tags import TaggedExample
from gpt_jax.tasks.packing import OrderedBatches
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.several import JointTask
from gpt_jax.tasks.task import BuiltinTask, find
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

TASK = find("story-tags")


@pytest.fixture(scope="module")
def encoded(tiny_tokenizer):
  return TASK.encode(TASK.examples("", "train")[:9], tiny_tokenizer, 256)


def test_the_first_token_of_each_word_has_its_tag(tiny_tokenizer):
  example = TaggedExample(("the", "xyz", "sea."), ("other", "person", "place"), "x:1")
  encoded = TASK.encode([example], tiny_tokenizer, 64)
  ids, tags = encoded.sequence(0, 0), encoded.sequence_tags(0, 0)
  assert len(ids) == len(tags) and tags[0] == tags[-1] == -1  # start and extract
  words = tiny_tokenizer.encode_many(list(example.words))
  np.testing.assert_array_equal(ids[1:-1], np.concatenate(words))
  firsts = 1 + np.cumsum([0, *map(len, words[:-1])])
  assert [TASK.labels[tags[i]] for i in firsts] == list(example.label)
  assert (np.delete(tags, firsts) == -1).all()


def test_tags_are_packed_with_their_tokens(encoded):
  batches = OrderedBatches(encoded, 4)
  for step, batch in enumerate(batches):
    inputs = batches.unpack(step, batch.rows.inputs)
    tags = batches.unpack(step, np.where(batch.tags.weights > 0, batch.tags.targets, -1))
    for i, (ids, of_ids) in enumerate(zip(inputs, tags, strict=True)):
      np.testing.assert_array_equal(ids, encoded.sequence(4 * step + i, 0))
      np.testing.assert_array_equal(of_ids, encoded.sequence_tags(4 * step + i, 0))


TEXT = ["the sea by the old red barn"] * 3
FAMILIES = {
  "sentencepiece": lambda: SentencePieceTokenizer.train(TEXT, 290),
  "wordpiece": lambda: WordPieceTokenizer.train(TEXT, 32),
  "bytes": lambda: ByteBPETokenizer.train(TEXT, 270),
  "openai": lambda: GPT1Tokenizer(
    ("<unk>", *"thesa", *(f"{letter}</w>" for letter in "thesa"), "\n</w>"), (), splitter=REGEX
  ),
}
# Some that tokenizers drop, split at, or take for a space or a line end; then any.
CHARACTERS = st.sampled_from("thesa#é日🙂\u200b\u200e\ufeff\xad\x01\x1c\x85\xa0\u2028\u3000\ufffd")
WORDS = st.text(CHARACTERS | st.characters(exclude_characters=" \t\r\n"), min_size=1, max_size=5)


RELEASED = [
  pytest.param(family, marks=pytest.mark.parity("released")) for family in list(FAMILIES)[1:]
]


@functools.cache
def trained(family):
  return FAMILIES[family]().with_special("start", "delimiter", "extract")


@pytest.mark.parametrize("family", ["sentencepiece", *RELEASED])
@settings(max_examples=30, deadline=None)
@given(
  texts=st.lists(st.lists(WORDS, min_size=1, max_size=9), min_size=1, max_size=4),
  room=st.integers(2, 7),
  spaced=st.booleans(),
)
def test_there_are_as_many_tags_as_words(family, texts, room, spaced):
  """Of any words, in any context: none is left out, and a tag is at its word's first token."""
  task, rows = dataclasses.replace(TASK, spaced=spaced), []
  for text in texts:
    row = task.example(Row((" ".join(text),), None, "x:1"))
    assert row.words == tuple(text)
    rows.append(row._replace(label=tuple(task.labels[n % 7] for n in range(len(text)))))
  encoded = task.encode(rows, trained(family), room + 2)
  assert encoded.lengths.max() <= room + 2
  batches, predictions = OrderedBatches(encoded, 3), []
  for step, batch in enumerate(batches):
    predictions += batches.unpack(step, np.eye(7)[batch.tags.targets])
  results = [task.result(*pair) for pair in zip(predictions, encoded.truth, strict=True)]
  assert [tuple(result["prediction"].split(" ")) for result in results] == [r.label for r in rows]
  assert task.score(predictions, encoded.truth)["accuracy"] == 1


def test_a_word_without_tokens_is_the_unknown_one(tiny_tokenizer):
  example = TaggedExample(("\u200b", "the"), ("place", "work"), "x:1")
  ids = TASK.encode([example], tiny_tokenizer, 64).sequence(0, 0)[1:-1].tolist()
  assert ids == [tiny_tokenizer.unknown_id, *tiny_tokenizer.encode("the").tolist()]


def test_long_texts_are_read_in_pieces_of_whole_words(tiny_tokenizer):
  example = TASK.example(Row(("the sea " * 50,), None, "x:1"))
  encoded = TASK.encode([example], tiny_tokenizer, 16)
  words = tiny_tokenizer.encode_many(["the", "sea"] * 50)
  read = [encoded.sequence(0, c)[1:-1] for c in range(encoded.fields.shape[1])]
  np.testing.assert_array_equal(np.concatenate(read), np.concatenate(words))
  assert encoded.lengths.max() <= 16 and not encoded.truncation
  # A word that exceeds the context alone loses its end.
  long = TASK.encode([TaggedExample(("x" * 99, "sea"), None, "x:1")], tiny_tokenizer, 16)
  assert long.lengths[0, 0] == 16 and long.truncation and (long.truth[0] >= 0).sum() == 2


def test_beside_other_tasks_each_piece_of_an_unlabeled_text_is_an_example(tiny_tokenizer):
  reads = (tiny_tokenizer, 16)
  rows = [TASK.example(Row((f"the sea {'x ' * n}",), None, f"x:{n}")) for n in (0, 9, 1)]
  encoded = dataclasses.replace(TASK.encode(rows, *reads), unlabeled=2)
  joined = JointTask((TASK, find("ewt-tags"))).joined([encoded, encoded], reads)
  pieces = int((encoded.lengths[1:] > 0).sum())
  assert pieces > 2 and len(joined.rest) == 2 * pieces and joined.rest.locations[-1] == "x:1"
  ids = [joined.rest.sequence(n, 0).tolist() for n in range(pieces)]
  assert ids[0] == encoded.sequence(1, 0).tolist() and ids[-1] == encoded.sequence(2, 0).tolist()
  assert ids == [joined.rest.sequence(n, 0).tolist() for n in range(pieces, 2 * pieces)]


def test_bad_examples_are_named(tiny_tokenizer):
  verb = TaggedExample(("a",), ("verb",), "x:7")
  refused("x:7: tag 'verb': should be one of", TASK.encode, [verb], tiny_tokenizer, 64)
  refused("no examples to encode", TASK.encode, [], tiny_tokenizer, 64)


def test_no_test_phrase_is_in_a_training_example():
  def phrases(split, tag):
    found = set()
    for example in TASK.examples("", split):
      words = [w for w, t in zip(example.words, example.label, strict=True) if t == tag]
      found.add(" ".join(words))
    return found

  for tag in ("work", "good", "bad"):
    assert not phrases("train", tag) & phrases("dev", tag) - {""}


def test_a_smoothed_tag_is_every_tag_a_little():
  rng = np.random.default_rng(0)
  scores = rng.standard_normal((2, 3, 4), np.float32)
  targets, weights = np.array([[3, 0, 1], [2, 2, 0]]), np.array([[1, 1, 0], [1, 0, 1]], np.float32)
  zeros = np.zeros((2, 3), np.int32)
  batch = Batch(Rows(zeros, zeros), tags=Predictions(targets, weights))
  mean = TagHead(4, label_smoothing=0.2).loss(scores, States(None, None), batch, 0)
  log_probs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
  smoothed = 0.8 * np.eye(4)[targets] + 0.2 / 4
  expected = -((smoothed * log_probs).sum(-1) * weights).sum() / weights.sum()
  assert mean.value == pytest.approx(expected, rel=1e-5)


@pytest.mark.e2e
def test_it_is_trained_evaluated_and_predicted(make_run, tiny_tokenizer, tmp_path):
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=128, layers=1, width=32, heads=2)
  pretrained = make_run(tmp_path / "pretrained", ModelConfig(trunk))
  config = FinetuneConfig(
    task=BuiltinTask("story-tags"),
    lm_weight=0.2,
    train_examples=160,
    dev_examples=40,
    optim=OptimConfig(learning_rate=1e-2, schedule="linear", warmup_steps=4),
    train=TrainConfig(epochs=6, log_every=20),
  )
  (result,) = finetune.run(config, "", pretrained, str(tmp_path / "run"))
  tags = [tag for example in TASK.examples("", "dev") for tag in example.label]
  majority = max(map(tags.count, TASK.labels)) / len(tags)
  assert result["dev"]["dev_accuracy"] > majority + 0.2
  best = str(tmp_path / "run" / "best")
  loaded = load_model(best)
  assert isinstance(loaded.spec.head, TagHead) and set(loaded.params) == {"trunk", "tags"}
  measured = evaluate.run(best, "", "dev")
  assert measured["examples"] == 400 and measured["accuracy"] > majority + 0.2
  long, odd = "Then a fair wind blew. " * 40, "Anna \u200b was at\u00a0the pier."
  (tmp_path / "texts.txt").write_text(f"Anna was at the pier.\n{long}\n{odd}\n\u200e\n")
  output = str(tmp_path / "tags.tsv")
  results = predict.run(best, str(tmp_path / "texts.txt"), output)
  assert [len(row["prediction"].split()) for row in results] == [5, 200, 5, 1]
  assert results[0]["prediction"].split()[0] == "person" and "problem" not in results[2]
  assert "texts.txt:4: no word has a token" in results[3]["problem"]
  first, second = (tmp_path / "tags.tsv").read_text().split("\n")[:2]
  assert first == "prediction\tproblem" and second == f"{results[0]['prediction']}\t"
  # What reads one label of a text refuses.
  words, text = "story-tags labels every word; use predict.run", ["Anna was at the pier."]
  page, folder = tmp_path / "page.html", tmp_path / "hf"
  refused(words, gpt_jax.load(best).classify, text)
  refused(words, visualize.run, best, str(page), text)
  refused(
    "a model with a head for every token; npz can hold it", export.run, best, str(folder), "hf"
  )
  assert not page.exists() and not folder.exists()


@pytest.mark.app
def test_a_table_of_words_and_tags_is_split_as_files_are(tmp_path):
  (tmp_path / "test.tsv").write_text("text\tlabel\nat\u00a0the  sea \u3000\tA B  A\n")
  task = ImportedTask("tags", ("A", "B")).build("")
  (example,) = task.examples(str(tmp_path), "test")
  assert example.words == ("at\u00a0the", "sea", "\u3000") and example.label == ("A", "B", "A")
