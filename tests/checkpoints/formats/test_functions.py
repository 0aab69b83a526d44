"""ONNX and StableHLO: the classifier and the language model, run without this package."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpt_jax
from gpt_jax.checkpoints.load import load_model
from gpt_jax.errors import InputError
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import export

TEXTS = ["the cat sat on the old mat", "dog", "ran to the barn"]
STABLEHLO = """
import sys
import numpy as np
from jax import export

with open(sys.argv[1] + "/model.stablehlo", "rb") as file:
  call = export.deserialize(file.read()).call
for i in range(2):
  np.save(f"{sys.argv[2]}{i}.npy", call(np.load(f"{sys.argv[2]}_ids{i}.npy")))
assert not [name for name in sys.modules if name.startswith(("gpt_jax", "flax"))]
"""


def run_stablehlo(folder, inputs, tmp_path):
  """Logits of each array of ids, computed by a process with jax and numpy alone."""
  for i, ids in enumerate(inputs):
    np.save(tmp_path / f"_ids{i}.npy", ids)
  command = [sys.executable, "-I", "-c", STABLEHLO, str(folder), f"{tmp_path}/"]
  done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  return [np.load(tmp_path / f"{i}.npy") for i in range(len(inputs))]


def run_onnx(folder, inputs, tmp_path):
  import onnxruntime as runtime

  session = runtime.InferenceSession(str(folder / "model.onnx"))
  return [session.run(["logits"], {"input_ids": ids})[0] for ids in inputs]


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
  batch = np.zeros((len(rows), 40), np.int32)  # padding behind the sequences
  for row, ids in zip(batch, rows, strict=True):
    row[: len(ids)] = ids
  alone = np.array(rows[1:2], np.int32)
  together, single = run(tmp_path / "out", (batch, alone), tmp_path)
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
  logits, others = run(tmp_path / "out", (ids, several), tmp_path)
  assert logits.shape == (1, ids.shape[1], tiny_tokenizer.vocab_size)
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  found = np.take_along_axis(log_probs[0, :-1], ids[0, 1:, None], -1)[:, 0]
  expected = gpt_jax.load(full).log_probs(text).log_probs[1:]
  np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
  np.testing.assert_allclose(others[2], logits[0, :4], atol=1e-4, rtol=0)


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
