"""The evaluation of a language model, against a plain loop over its tokens."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax.batch import Batch, Rows
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.data.token_file import TokenWriter
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.errors import InputError
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import evaluate
from gpt_jax.tasks.metrics import format_classes
from gpt_jax.tasks.readers import Row

CONTEXT = 8
TEXTS = [
  "the cat sat on the mat",
  "the dog ran to the old red barn by the sea and the cat sat",
  "the sea",
]


@pytest.fixture(scope="module")
def trunk(tiny_tokenizer):
  return TransformerConfig(tiny_tokenizer.vocab_size, context=CONTEXT, layers=1, width=16, heads=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run, trunk):
  return make_run(tmp_path_factory.mktemp("evaluate") / "run", ModelConfig(trunk))


def prepare(folder, tokenizer):
  writer = TokenWriter(str(folder), "valid", tokenizer.vocab_size)
  for text in TEXTS:
    writer.add(tokenizer.encode(text), len(text.encode()), len(text.split()))
  writer.close(tokenizer_hash=tokenizer.hash)
  return str(folder)


def loop(run):
  """Nats of each predicted token, a window at a time, from the softmax over the vocabulary."""
  found = load_model(run)
  apply, nats = jax.jit(found.model.apply), []
  for text in TEXTS:
    ids = found.tokenizer.encode(text)
    for begin in range(0, len(ids) - 1, CONTEXT):
      span = ids[begin : begin + CONTEXT + 1]
      inputs = np.zeros((1, CONTEXT), np.int32)
      inputs[0, : len(span) - 1] = span[:-1]
      places = np.arange(CONTEXT, dtype=np.int32)[None]
      hidden, table, *_ = apply({"params": found.params}, Batch(Rows(inputs, places))).states
      scores = np.float64(hidden[0]) @ np.float64(table[: found.tokenizer.vocab_size]).T
      nats += [
        math.log(np.exp(row).sum()) - row[target]
        for row, target in zip(scores, span[1:], strict=False)
      ]
  return nats


def test_equals_a_loop_over_all_tokens(run, tmp_path, tiny_tokenizer):
  found = evaluate.run(run, prepare(tmp_path, tiny_tokenizer))
  nats = loop(run)
  tokens = sum(len(tiny_tokenizer.encode(text)) for text in TEXTS)
  assert (found["tokens"], found["bytes"]) == (tokens, len("".join(TEXTS)))
  assert len(nats) == tokens - len(TEXTS)
  np.testing.assert_allclose(found["loss"], np.mean(nats), rtol=1e-5)
  np.testing.assert_allclose(found["perplexity"], np.exp(np.mean(nats)), rtol=1e-4)
  np.testing.assert_allclose(
    found["bits_per_byte"], np.mean(nats) / np.log(2) * tokens / found["bytes"], rtol=1e-5
  )


def test_text_of_another_vocabulary(run, tmp_path):
  other = SentencePieceTokenizer.train(["another text for another vocabulary"], 280)
  with pytest.raises(InputError, match=r"valid\.bin: a token file of another vocabulary"):
    evaluate.run(run, prepare(tmp_path, other))


def test_a_fine_tuned_model_on_its_task(finetuned, tmp_path):
  checkpoint = f"{finetuned.workdir}/seed_0"
  found = evaluate.run(checkpoint, finetuned.data_dir)
  assert found.pop("examples") == 30
  assert found.pop("classes")["accuracy"] == found["accuracy"]
  assert {
    f"dev_{name}": pytest.approx(value, abs=1e-5) for name, value in found.items()
  } == finetuned.results[0]["dev"]
  assert evaluate.run(checkpoint, finetuned.data_dir, "train")["examples"] == 128
  with pytest.raises(InputError, match=r"TableTask\.test: no file is named"):
    evaluate.run(checkpoint, finetuned.data_dir, "test")
  with pytest.raises(InputError, match="split 'valid' of table: should be one of train, dev, test"):
    evaluate.run(checkpoint, finetuned.data_dir, "valid")
  refused(r"dev\.tsv: No such file", evaluate.run, checkpoint, str(tmp_path))


def test_examples_without_labels(finetuned, tmp_path, monkeypatch):
  (tmp_path / "dev.tsv").write_text("text\nthe cat\n")
  with pytest.raises(InputError, match=r"dev\.tsv: no column 'label'"):
    evaluate.run(f"{finetuned.workdir}/seed_0", str(tmp_path))
  task = finetuned.config.task.build(finetuned.data_dir)
  unlabeled = dataclasses.replace(task, read=lambda *_: [Row(("the cat",), None, "test.tsv:2")])
  monkeypatch.setattr(type(finetuned.config.task), "build", lambda *_: unlabeled)
  with pytest.raises(InputError, match=r"test\.tsv:2: no label; use launch/predict\.py"):
    evaluate.run(f"{finetuned.workdir}/seed_0", str(tmp_path), "test")


def test_weights_of_fewer_bits_are_refused_if_they_change_labels(finetuned, run, monkeypatch):
  arguments = f"{finetuned.workdir}/seed_0", finetuned.data_dir
  exact = evaluate.run(*arguments)["accuracy"]
  found = evaluate.run(*arguments, weights="int8")
  assert found["accuracy"] == found["accuracy_float32"] == exact
  assert found["examples"] == 30
  assert (found["accuracy_change_low"], found["accuracy_change_high"]) == (0, 0)
  # Wilson's interval of 30 of 30 ends at n / (n + z^2).
  low = 30 / (30 + 1.959964**2)
  assert (found["same_label"], found["same_label_high"]) == (1, 1)
  assert found["same_label_low"] == pytest.approx(low)
  for options, message in [
    ({"weights": "int4"}, "weights=int4: must be one of float32, bfloat16, int8"),
    ({"weights": "int8", "keep": 2.0}, "keep=2.0: must be a share, from 0 to 1"),
    ({"weights": "int8", "beams": 4}, "weights=int8: compares a classifier with itself in"),
  ]:
    refused(message, evaluate.run, *arguments, **options)
  with pytest.raises(InputError, match="a language model without a head; fine-tune it first"):
    evaluate.run(run, finetuned.data_dir, weights="int8")

  def with_other_labels(model, kind):
    head = jax.tree.map(np.negative, model.params["head"])
    return dataclasses.replace(model, params={**model.params, "head": head})

  monkeypatch.setattr(LoadedModel, "with_weights", with_other_labels)
  with pytest.raises(InputError, match="keep=0.99: int8 keeps only 0.00% of float32's labels on "):
    evaluate.run(*arguments, weights="int8")


def test_the_command_line(run, tmp_path, tiny_tokenizer, launch):
  flags = f"--checkpoint={run}", f"--data={tmp_path}"
  code, _, errors = launch("evaluate", *flags)
  assert code == 2 and errors.count("\n") == 1
  assert errors.startswith("error:") and "is a language model without a head, mea" in errors
  data = prepare(tmp_path, tiny_tokenizer)
  code, printed, errors = launch("evaluate", *flags)
  assert (code, errors) == (0, "")
  shown = dict(line.split() for line in printed.splitlines())
  assert shown["loss"] == f"{evaluate.run(run, data)['loss']:,.4f}"


def test_the_command_line_shows_every_label_of_a_task(finetuned, launch):
  checkpoint = f"{finetuned.workdir}/seed_0"
  flags = f"--checkpoint={checkpoint}", f"--data={finetuned.data_dir}"
  code, printed, errors = launch("evaluate", *flags)
  assert (code, errors) == (0, "")
  metrics, table = printed.split("\n\n")
  assert [line.split()[0] for line in metrics.splitlines()] == ["examples", "loss", "accuracy"]
  assert table.rstrip() == format_classes(evaluate.run(checkpoint, finetuned.data_dir)["classes"])
