"""Token tagging: tags at the first token of each word, packed, learned, evaluated, predicted."""

import numpy as np
import pytest

import gpt_jax
from gpt_jax.apps.report import visualize
from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.errors import InputError
from gpt_jax.models.heads.tag import TagHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import States
from gpt_jax.programs import evaluate, export, finetune, predict
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.answers.tags import TaggedExample
from gpt_jax.tasks.packing import OrderedBatches
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


@pytest.mark.parametrize(
  "example, message",
  [
    (TaggedExample(("a",), ("verb",), "x:7"), "x:7: tag 'verb': should be one of"),
    (None, "no examples to encode"),
  ],
)
def test_bad_examples_are_named(tiny_tokenizer, example, message):
  with pytest.raises(InputError, match=message):
    TASK.encode([example] if example else [], tiny_tokenizer, 64)


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
  loaded = load_model(str(tmp_path / "run" / "best"))
  assert isinstance(loaded.spec.head, TagHead) and set(loaded.params) == {"trunk", "tags"}
  measured = evaluate.run(str(tmp_path / "run" / "best"), "", "dev")
  assert measured["examples"] == 400 and measured["accuracy"] > majority + 0.2
  (tmp_path / "texts.txt").write_text("Anna was at the pier.\nThen a fair wind blew.\n")
  output = str(tmp_path / "tags.tsv")
  results = predict.run(str(tmp_path / "run" / "best"), str(tmp_path / "texts.txt"), output)
  assert [len(row["prediction"].split()) for row in results] == [5, 5]
  assert results[0]["prediction"].split()[0] == "person"
  assert (tmp_path / "tags.tsv").read_text().split("\n")[:2] == [
    "prediction",
    results[0]["prediction"],
  ]
  check_that_readers_of_one_label_refuse(str(tmp_path / "run" / "best"), tmp_path)


def check_that_readers_of_one_label_refuse(checkpoint, folder):
  with pytest.raises(InputError, match="story-tags labels every word; use predict.run"):
    gpt_jax.load(checkpoint).classify(["Anna was at the pier."])
  with pytest.raises(InputError, match="story-tags labels every word; use predict.run"):
    visualize.run(checkpoint, str(folder / "page.html"), ["Anna was at the pier."])
  with pytest.raises(InputError, match="a model with a head for every token; npz can hold it"):
    export.run(checkpoint, str(folder / "hf"), "hf")
  assert not (folder / "page.html").exists() and not (folder / "hf").exists()
