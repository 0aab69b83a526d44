"""ONNX and StableHLO: the classifier and the language model, run without this package."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpt_jax
from gpt_jax.checkpoints.formats.function import TYPES
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import to_json
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import export
from gpt_jax.tasks.task import BuiltinTask

TEXTS = ["the cat sat on the old mat", "dog", "ran to the barn"]
STABLEHLO = """
import sys
import numpy as np
from jax import export

with open(sys.argv[1] + "/model.stablehlo", "rb") as file:
  call = export.deserialize(file.read()).call
for i in range(2):
  with np.load(f"{sys.argv[2]}_inputs{i}.npz") as inputs:
    np.save(f"{sys.argv[2]}{i}.npy", call(*inputs.values()))
assert not [name for name in sys.modules if name.startswith(("gpt_jax", "flax"))]
"""


def run_stablehlo(folder, inputs, tmp_path):
  """Logits of each {name: array}, computed by a process with jax and numpy alone."""
  for i, arrays in enumerate(inputs):
    np.savez(tmp_path / f"_inputs{i}.npz", **arrays)
  command = [sys.executable, "-I", "-c", STABLEHLO, str(folder), f"{tmp_path}/"]
  done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  return [np.load(tmp_path / f"{i}.npy") for i in range(len(inputs))]


def run_onnx(folder, inputs, tmp_path):
  import onnxruntime as runtime

  session = runtime.InferenceSession(str(folder / "model.onnx"))
  return [session.run(["logits"], arrays)[0] for arrays in inputs]


RUNNERS = {"stablehlo": run_stablehlo, "onnx": run_onnx}


@pytest.fixture(params=["stablehlo", pytest.param("onnx", marks=pytest.mark.onnx)])
def runner(request):
  return request.param, RUNNERS[request.param]


def test_a_classifier(finetuned, runner, tmp_path):
  name, run = runner
  checkpoint = f"{finetuned.workdir}/seed_0/best"
  export.run(checkpoint, str(tmp_path / "out"), name)
  description = json.loads((tmp_path / "out" / "model.json").read_text())
  special, tokenizer = description["special_tokens"], load_model(checkpoint).tokenizer
  assert description["labels"] == ["barks", "meows"]
  rows = [[special["start"], *ids, special["extract"]] for ids in tokenizer.encode_many(TEXTS)]
  batch = np.zeros((len(rows), 40), np.int32)  # padding after the sequences
  for row, ids in zip(batch, rows, strict=True):
    row[: len(ids)] = ids
  alone = np.array(rows[1:2], np.int32)
  together, single = run(tmp_path / "out", ({"input_ids": batch}, {"input_ids": alone}), tmp_path)
  np.testing.assert_allclose(single[0], together[1], atol=1e-4, rtol=0)
  probabilities = np.exp(together) / np.exp(together).sum(-1, keepdims=True)
  for row, expected in zip(probabilities, gpt_jax.load(checkpoint).classify(TEXTS), strict=True):
    found = dict(zip(description["labels"], row.tolist(), strict=True))
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_language_model(make_run, tiny_tokenizer, runner, tmp_path):
  name, run = runner
  trunk = TransformerConfig(
    tiny_tokenizer.vocab_size, context=16, layers=2, width=16, heads=2, norm="pre", dtype="bfloat16"
  )
  checkpoint = make_run(tmp_path / "run", ModelConfig(trunk))
  export.run(checkpoint, str(tmp_path / "out"), name)
  full = make_run(
    tmp_path / "float32", ModelConfig(TransformerConfig(**{**vars(trunk), "dtype": "float32"}))
  )
  text = "the cat sat on the mat"
  ids = tiny_tokenizer.encode(text)[None]
  several = np.tile(ids, (3, 1))[:, :4]
  inputs = {"input_ids": ids}, {"input_ids": several}
  logits, others = run(tmp_path / "out", inputs, tmp_path)
  assert logits.shape == (1, ids.shape[1], tiny_tokenizer.vocab_size)
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  found = np.take_along_axis(log_probs[0, :-1], ids[0, 1:, None], -1)[:, 0]
  expected = gpt_jax.load(full).log_probs(text).log_probs[1:]
  np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
  np.testing.assert_allclose(others[2], logits[0, :4], atol=1e-4, rtol=0)


ENCODER = TransformerConfig(context=96, layers=2, width=16, heads=2, embedding_norm=True)
BERT = dataclasses.replace(
  ENCODER, token_types=2, pooler=True, embedding_width=8, activation="gelu"
)
# The trunk, its head, the format of its sequences, the task, what it reads besides ids.
ENCODERS = {
  "bert": (BERT, {"transform": "pooler"}, "bert_format", "story-company", {TYPES}),
  "roberta": (ENCODER, {"transform": "dense"}, "roberta_format", "story-company", set()),
  "choices": (BERT, {"transform": "pooler"}, "bert_format", "story-next", {TYPES}),
  "GPT's sequences": (BERT, {}, "gpt_format", "story-company", set()),
}


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_bidirectional_classifier(kind, make_run, tiny_tokenizer, runner, tmp_path):
  """Its probabilities are those of predict, also of texts that are padded."""
  name, run = runner
  trunk, head, format, task_name, further = ENCODERS[kind]
  tokenizer = tiny_tokenizer.with_special("cls", "sep", "mask", "pad")
  task = BuiltinTask(task_name).build("")
  sizes = {"vocab_size": tokenizer.vocab_size, "special_tokens": tokenizer.special.count}
  heads = (ClassifyHead(task.num_classes, task.pooling, **head),)
  spec = ModelConfig(dataclasses.replace(trunk, **sizes), heads, "bidirectional")
  checkpoint = make_run(tmp_path / "run", spec, tokenizer=tokenizer)
  meta = load_model(checkpoint).meta
  meta |= {"task": to_json(BuiltinTask(task_name)), "sequence_format": {"type": format}}
  params = jax.tree.map(lambda x: 3 * x, make_run.params_of(spec, 0))  # farther from one another
  with Checkpoints(checkpoint, metric="valid_loss", mode="min") as checkpoints:
    checkpoints.save(8, {"params": params}, meta)
  export.run(checkpoint, str(tmp_path / "out"), name)

  description = json.loads((tmp_path / "out" / "model.json").read_text())
  names = [entry["name"] for entry in description["inputs"]]
  assert names[:2] == ["input_ids", "attention_mask"] and {*names[2:]} == further
  examples = task.examples("", "dev")[:5]
  rows = [example.sequences[0] for example in examples]
  if task.pooling == "per_choice":
    columns = [(x.sequences[0][0], *(option for _, option in x.sequences)) for x in examples]
  else:
    columns = rows
  expected = gpt_jax.load(checkpoint).classify(columns)
  encoded = load_model(checkpoint).encode(task, examples)
  shape = (5, encoded.fields.shape[1], 96)
  ids, mask, types = (np.zeros(shape, np.int32) for _ in range(3))
  ids[:] = 7  # padding of any id
  for n, c in np.ndindex(shape[:2]):
    sequence, of_type = encoded.sequence(n, c), encoded.sequence_types(n, c)
    ids[n, c, : len(sequence)], mask[n, c, : len(sequence)] = sequence, 1
    types[n, c, : len(sequence)] = 0 if of_type is None else of_type
  arrays = dict(zip(("input_ids", "attention_mask", TYPES), (ids, mask, types), strict=True))
  arrays = {name: arrays[name][:, 0] if shape[1] == 1 else arrays[name] for name in names}
  shortest = mask.sum(axis=-1).max()
  cut = {name: x[..., :shortest] for name, x in arrays.items()}
  for logits in run(tmp_path / "out", (arrays, cut), tmp_path):
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for row, answer in zip(probabilities, expected, strict=True):
      found = dict(zip(description["labels"], row.tolist(), strict=True))
      assert found == pytest.approx(answer, abs=1e-4)
  answers = [list(answer.values()) for answer in expected]
  assert np.ptp(answers, axis=0).max() > 0.01  # that differ between the examples


def test_what_is_no_program(make_run, tiny_tokenizer, tmp_path):
  trunk = dataclasses.replace(ENCODER, vocab_size=tiny_tokenizer.vocab_size)
  masked = make_run(tmp_path / "masked", ModelConfig(trunk, (), "bidirectional"))
  with pytest.raises(InputError, match="^--format=stablehlo: holds classifiers .*fine-tune"):
    export.run(masked, str(tmp_path / "out"), "stablehlo")
  assert not (tmp_path / "out").exists()


def test_a_program_does_not_load_back(finetuned, tmp_path):
  export.run(finetuned.pretrained, str(tmp_path / "out"), "stablehlo")
  with pytest.raises(InputError, match="runs without gpt_jax and cannot be read back"):
    load_model(str(tmp_path / "out"))
  with pytest.raises(InputError, match="is there already"):
    export.run(finetuned.pretrained, str(tmp_path / "out"), "stablehlo")


@pytest.mark.onnx
def test_jax_is_the_same_after_an_export(finetuned, tmp_path):
  """jax2onnx replaces functions of JAX for good."""
  modules = {"jax.numpy": vars(jnp), "jax.lax": vars(jax.lax), "jax.nn": vars(jax.nn)}
  before = {name: dict(functions) for name, functions in modules.items()}
  export.run(finetuned.pretrained, str(tmp_path / "out"), "onnx")
  for name, functions in before.items():
    for function, value in functions.items():
      assert modules[name][function] is value, f"{name}.{function}"
