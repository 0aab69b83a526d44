"""Tasks as text: T5's wording, 26 words of scores, what is no label, batches of both layouts."""

import numpy as np
import pytest
from refused import refused

from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer
from gpt_jax.tasks.answers.text import (
  EncoderDecoderBatches,
  as_text,
  decode_answer,
  encode_prompt,
  spell,
)
from gpt_jax.tasks.encoding import Example
from gpt_jax.tasks.formats import longest_first
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import Task, all_tasks, find

# glue_utils.py of text-to-text-transfer-transformer, with columns in place of texts.
WORDINGS = {
  "cola": "cola sentence: sentence",
  "sst2": "sst2 sentence: sentence",
  "mrpc": "mrpc sentence1: sentence1 sentence2: sentence2",
  "qqp": "qqp question1: question1 question2: question2",
  "stsb": "stsb sentence1: sentence1 sentence2: sentence2",
  "mnli": "mnli hypothesis: hypothesis premise: premise",
  "qnli": "qnli question: question sentence: sentence",
  "rte": "rte sentence1: sentence1 sentence2: sentence2",
  "story-next": "story-next A: A B: B C: C D: D day: day",
}
# Words by which T5 answers.
LABELS = {
  "cola": "unacceptable acceptable",
  "sst2": "negative positive",
  "mrpc": "not_equivalent equivalent",
  "qqp": "not_duplicate duplicate",
  "mnli": "entailment neutral contradiction",
  "qnli": "entailment not_entailment",
  "rte": "entailment not_entailment",
}


@pytest.fixture(scope="module")
def tokenizer():
  """A vocabulary with the characters of all labels, and the special tokens of text to text."""
  texts = ["not_equivalent contradiction: 0.1 2.3 4.5 6.7 8.9 abcdefghijklmnopqrstuvwxyz"] * 3
  return SentencePieceTokenizer.train(texts, 330).with_special("pad", "sep", "sentinel_0")


def example_of(task, label=None):
  return task.example(Row(task.columns, label, "file:1"))


@pytest.mark.parametrize("name", WORDINGS)
def test_t5s_wording(name, tokenizer):
  task = as_text(find(name))
  example = example_of(task)
  assert "".join(example.sequences[0]) == WORDINGS[name]
  assert name not in LABELS or " ".join(task.labels) == LABELS[name]
  encoded = task.encode([example], tokenizer, 256)
  whole = tokenizer.encode(WORDINGS[name])
  np.testing.assert_array_equal(encoded.source(0), [*whole, tokenizer.special["sep"]])


def test_every_task_with_labels_has_a_wording(tokenizer):
  for task in all_tasks():
    if type(task) is not Task:
      refused("one label per example", as_text, task)
      continue
    text = as_text(task)
    assert as_text(text) is text
    answers = text.encode_words(tokenizer)
    assert len(answers) == len(text.labels) and example_of(text).sequences[0]


@pytest.mark.parametrize("name", [*WORDINGS, "race-middle"])
def test_a_text_to_text_model_has_the_rows_of_a_classifier(name):
  task = find(name)
  texts = [tuple(f"{column} {n}" for column in task.columns) for n in range(60)]
  labels = [task.labels[n % 10 == 0] for n in range(60)]
  rows = list(map(Row, texts, labels, map(str, range(60))))

  def chosen(task):
    return [example.location for example in task.subset(list(map(task.example, rows)), 12)]

  assert chosen(task) == chosen(as_text(task)) and len(chosen(task)) == 12


def test_the_words_of_scores(tokenizer):
  task = as_text(find("stsb"))
  assert len(task.labels) == 26 and task.labels[:2] == ("0.0", "0.2") and task.labels[-1] == "5.0"
  scores = [f"{score:.2f}" for score in np.linspace(0, 5, 101)]
  encoded = task.encode([example_of(task, score) for score in scores], tokenizer, 64)
  for score, target in zip(scores, encoded.targets, strict=True):
    expected = f"{np.rint(5 * float(score)) / 5:.1f}"  # T5's rule
    assert decode_answer(target.tolist(), tokenizer) == expected


def test_the_answer_follows_the_input(tokenizer):
  task = as_text(find("rte"))
  examples = [example_of(task, label) for label in ("not_entailment", "entailment")]
  encoded = task.encode([*examples, example_of(task)], tokenizer, 128)
  for n, label in enumerate(("not_entailment", "entailment")):
    answer = encoded.sequence(n, 0).tolist()[encoded.source_lengths[n] :]
    assert decode_answer(answer, tokenizer) == label and answer[-1] == tokenizer.special["sep"]
  assert not len(encoded.targets[2])  # unlabeled
  assert encoded.lengths.tolist() == [[len(encoded.sequence(n, 0))] for n in range(3)]


def test_a_long_input_leaves_room_for_every_answer(tokenizer):
  task = as_text(find("rte"))
  example = task.example(Row(("a b c d " * 50, "d c b a"), "entailment", "file:1"))
  encoded = task.encode([example], tokenizer, 64)
  assert encoded.source_lengths[0] <= 64 - encoded.longest
  assert spell(encoded.source(0).tolist(), tokenizer).endswith("sentence2: d c b a <sep>")
  kept = longest_first(np.array([[50, 4, 30], [3, 4, 5], [9, 9, 9], [100, 1, 1]]), 21, 1)
  assert kept.tolist() == [[8, 4, 8], [3, 4, 5], [6, 6, 6], [18, 1, 1]]


def test_answers_that_the_vocabulary_does_not_know(tiny_tokenizer):
  tokenizer = tiny_tokenizer.with_special("pad", "sep")
  task = as_text(find("mrpc"))
  message = "mrpc: its answer 'not_equivalent' is no word"
  refused(message, task.encode, [example_of(task)], tokenizer, 64)


def test_an_output_that_is_no_label_is_wrong(tokenizer):
  task = as_text(find("mrpc"))
  truth = np.eye(2)[[1, 1, 0, 0]]
  outputs = ["equivalent", "equivalen", "not_equivalent", None]
  scores = task.score(outputs, truth)
  assert scores == {"f1": pytest.approx(2 / 3), "accuracy": 0.5, "valid": 0.5}
  stsb = as_text(find("stsb"))
  truth = np.array([stsb.task.target(score) for score in ("0.1", "3.4", "5.0")])
  scores = stsb.score(["0.0", "3.45", "5.0"], truth)
  assert scores["valid"] == pytest.approx(2 / 3) and scores["pearson"] > 0.99
  assert stsb.score(["0.0", "3.4", "five"], truth)["pearson"] < 0.5


@pytest.fixture(scope="module")
def encoded(tokenizer):
  task = as_text(find("rte"))
  rng = np.random.default_rng(0)
  rows = []
  for n in range(40):
    texts = tuple(" ".join(rng.choice(list("abcd"), rng.integers(1, 9))) for _ in range(2))
    rows.append(task.example(Row(texts, task.labels[n % 2], f"file:{n}")))
  return task.encode(rows, tokenizer, 96)


@pytest.mark.parametrize("groups", [1, 2])
def test_packed_rows_predict_the_answers(encoded, groups):
  """Each example once an epoch, its input as prefix, each token of its answer with weight 1."""
  batches = PackedBatches(encoded, 8, seed=1, epochs=2, groups=groups)
  seen = []
  for step in range(batches.steps_per_epoch):
    batch = batches(step)
    rows, predictions = batch.rows, batch.predictions
    assert batch.labels is None and rows.inputs.shape == batches.shape
    for row in range(len(rows.inputs)):
      for segment in set(rows.segments[row].tolist()) - {0}:
        inside = rows.segments[row] == segment
        used = inside & (predictions.weights[row] > 0)
        source = rows.inputs[row][inside & rows.prefix[row]].tolist()
        answer = predictions.targets[row][used].tolist()
        ids = rows.inputs[row][inside].tolist()
        assert ids == source + answer
        (n,) = [n for n in range(40) if encoded.sequence(n, 0).tolist() == ids and n not in seen]
        assert source == encoded.source(n).tolist() and answer == encoded.targets[n].tolist()
        seen.append(n)
    assert set(np.unique(predictions.weights)) == {0, 1}
    assert not rows.prefix[rows.segments == 0].any()
  assert sorted(seen) == list(range(40))


def test_rows_of_an_encoder_decoder(encoded, tokenizer):
  batches = EncoderDecoderBatches(encoded, 8, seed=1, epochs=2)
  seen = []
  for step in range(10):
    batch = batches(step)
    for row in range(8):
      source = batch.source.inputs[row][batch.source.segments[row] > 0].tolist()
      used = batch.predictions.weights[row] > 0
      answer = batch.predictions.targets[row][used].tolist()
      assert batch.rows.inputs[row][used].tolist() == [tokenizer.special["pad"], *answer[:-1]]
      seen.append((source, answer))
  expected = [(encoded.source(n).tolist(), encoded.targets[n].tolist()) for n in range(40)]
  assert sorted(seen[:40]) == sorted(seen[40:]) == sorted(expected)
  assert seen[:40] != seen[40:]  # another order in the next epoch


def test_a_label_is_read_as_the_tokenizer_spells_it():
  """This tokenizer writes lower case."""
  task = as_text(find("race"))
  assert task.read(["a", "d", "e", None], ("a", "b", "c", "d")) == ["A", "D", "e", None]


@pytest.mark.parity("released")
def test_special_tokens_inside_a_vocabulary():
  tokenizer = WordPieceTokenizer(("[PAD]", "[UNK]", "[SEP]", "un", "able"))
  tokenizer = tokenizer.with_special("pad", "sep", "sentinel_0")
  ids = encode_prompt("un <sentinel_0> able", tokenizer).tolist()
  assert encode_prompt("un <extra_id_0> able", tokenizer).tolist() == ids  # as transformers has it
  assert ids == [3, 5, 4, 2] and spell(ids, tokenizer) == "un <sentinel_0> able <sep>"
  assert decode_answer([5, 4, 2, 3], tokenizer) == "<sentinel_0> able"


def test_prompts_with_sentinels(tokenizer):
  ids = encode_prompt("a b <sentinel_0> d", tokenizer)
  special = tokenizer.special
  gap = special["sentinel_0"]
  assert ids.tolist() == [*tokenizer.encode("a b"), gap, *tokenizer.encode("d"), special["sep"]]
  assert spell(ids.tolist(), tokenizer) == "a b <sentinel_0> d <sep>"
  assert decode_answer(ids.tolist(), tokenizer) == "a b <sentinel_0> d"
  assert decode_answer(ids.tolist()[:-1], tokenizer) is None
  assert isinstance(example_of(as_text(find("cola"))), Example)
  refused("no special token 'sentinel_7'", encode_prompt, "<sentinel_7>", tokenizer)
