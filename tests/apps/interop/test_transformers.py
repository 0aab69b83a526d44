"""Our exports in transformers' classes, and theirs in ours: equal logits, fine-tuned heads too."""

import functools
import io
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest
from refused import refused
from their_models import draw_theirs, load_theirs, vocabulary_of

from gpt_jax.apps.interop.formats import hf
from gpt_jax.batch import Batch, Labels, Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.tasks.task import BuiltinTask

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("spacy_there")]

GPT2 = vocabulary_of("GPT2")
CLOSE = {"atol": 1e-4, "rtol": 0}
FAMILIES = {"post": "OpenAIGPT", "pre": "GPT2"}


LANGUAGE_MODEL = (LanguageHead(),)


def exported(folder, make_run, openai_tokenizer, norm, heads=LANGUAGE_MODEL, task="", **parts):
  """A model with everything perturbed, and the folder of it; (spec, params, tokenizer)."""
  tokenizer = openai_tokenizer if norm == "post" else GPT2
  sizes = {"context": 24, "layers": 3, "width": 32, "heads": 4}
  spec = ModelConfig(TransformerConfig(tokenizer.vocab_size, norm=norm, **sizes, **parts), heads)
  params = make_run.params_of(spec, 3)
  meta = {"model": to_json(spec), "tokenizer_hash": tokenizer.hash}
  if task:
    meta["task"] = to_json(BuiltinTask(task))
  hf.save(str(folder), params, meta, 3, tokenizer)
  return spec, params, tokenizer


def rows_of(vocab_size, rows=2, length=17):
  return np.random.default_rng(5).integers(vocab_size, size=(rows, length)).astype(np.int32)


def text_batch(ids):
  places = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
  return Batch(Rows(ids, places))


def our_logits(spec, params, ids):
  """[rows, T, V]."""
  hidden, table, *_ = jax.jit(spec.build().apply)({"params": params}, text_batch(ids)).states
  return np.asarray(logits(hidden, table, spec.trunk.vocab_size))[..., : spec.trunk.vocab_size]


def our_scores(spec, params, ids, sequences):
  """Scores [N, K] of examples of so many rows each, and the LM's logits [rows, T, V + 3]."""
  anchors = np.arange(1, len(ids) + 1, dtype=np.int32) * ids.shape[1] - 1
  labels = Labels(anchors.reshape(-1, sequences), None, None)
  outputs = jax.jit(spec.build().apply)({"params": params}, text_batch(ids)._replace(labels=labels))
  (scores,), (hidden, table, *_) = outputs.heads, outputs.states
  rows = spec.trunk.vocab_size + 3
  return np.asarray(scores), np.asarray(logits(hidden, table, rows))[..., :rows]


def call(model, ids, **arguments):
  import torch

  with torch.no_grad():
    return model(torch.from_numpy(np.asarray(ids)).long(), **arguments)


@pytest.mark.parametrize(
  "norm, activation",
  [
    *(("post", activation) for activation in ("gelu_tanh", "relu", "silu")),
    *(("pre", activation) for activation in ("gelu_tanh", "gelu", "relu", "silu")),
  ],
)
def test_a_language_model_there(tmp_path, make_run, openai_tokenizer, norm, activation):
  parts = {"activation": activation}
  spec, params, tokenizer = exported(tmp_path / "out", make_run, openai_tokenizer, norm, **parts)
  ids = rows_of(tokenizer.vocab_size)
  expected = our_logits(spec, params, ids)
  assert expected.std() > 0.2
  for name in (f"{FAMILIES[norm]}LMHeadModel", "AutoModelForCausalLM"):
    found = call(load_theirs(name, tmp_path / "out"), ids).logits
    np.testing.assert_allclose(found.numpy(), expected, **CLOSE)
  # The other classes find the trunk in the same folder, and draw a head.
  found = call(load_theirs(f"{FAMILIES[norm]}DoubleHeadsModel", tmp_path / "out"), ids[None]).logits
  np.testing.assert_allclose(found.numpy()[0], expected, **CLOSE)
  trunk = load_theirs(f"{FAMILIES[norm]}ForSequenceClassification", tmp_path / "out").transformer
  hidden = call(trunk, ids).last_hidden_state.numpy()
  found = hidden @ params["trunk"]["tokens"][: tokenizer.vocab_size].T
  np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("norm", FAMILIES)
@pytest.mark.parametrize("task, num_classes, sequences", [("mnli", 3, 1), ("mrpc", 2, 2)])
def test_a_classifier_there(
  tmp_path, make_run, openai_tokenizer, norm, task, num_classes, sequences
):
  """Its scores, though its class has no bias; of two orders, when the logits of both are added."""
  folder = tmp_path / "out"
  head = ClassifyHead(num_classes)
  spec, params, tokenizer = exported(folder, make_run, openai_tokenizer, norm, (head,), task)
  assert np.abs(params["head"]["bias"]).max() > 0.05
  ids = rows_of(tokenizer.vocab_size + 3, 4)
  ids[:, -1] = tokenizer.special.extract
  expected, _ = our_scores(spec, params, ids, sequences)
  model = load_theirs(f"{FAMILIES[norm]}ForSequenceClassification", folder)
  found = call(model, ids).logits.numpy().reshape(-1, sequences, num_classes).sum(1)
  np.testing.assert_allclose(found, expected, **CLOSE)
  padding = np.full((4, 5), model.config.pad_token_id, np.int32)
  filled = np.concatenate([ids, padding], axis=1)  # as a batch of unequal lengths is
  found = call(model, filled).logits.numpy().reshape(-1, sequences, num_classes).sum(1)
  np.testing.assert_allclose(found, expected, **CLOSE)
  assert list(model.config.id2label.values()) == list(BuiltinTask(task).build("").labels)
  # And back, trunk and head as they were: as this folder, and as transformers saves it.
  model.save_pretrained(tmp_path / "saved")
  tokenizer.save(tmp_path / "saved" / "tokenizer")
  for place, tolerance in ((folder, 1e-6), (tmp_path / "saved", 1e-4)):
    back = load_model(str(place))
    scores, _ = our_scores(back.spec, back.params, ids, sequences)
    np.testing.assert_allclose(scores, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("norm", FAMILIES)
def test_multiple_choice_there(tmp_path, make_run, openai_tokenizer, norm):
  """Both heads of the class are the model's, bias included."""
  import torch

  folder = tmp_path / "out"
  head = ClassifyHead(4, "per_choice")
  spec, params, tokenizer = exported(folder, make_run, openai_tokenizer, norm, (head,), "race")
  ids = rows_of(tokenizer.vocab_size + 3, 8)
  ids[:, -1] = tokenizer.special.extract
  scores, text = our_scores(spec, params, ids, 4)
  model = load_theirs(f"{FAMILIES[norm]}DoubleHeadsModel", folder)
  found = call(model, ids.reshape(2, 4, -1))
  np.testing.assert_allclose(found.mc_logits.numpy(), scores, **CLOSE)
  np.testing.assert_allclose(found.logits.numpy().reshape(text.shape), text, **CLOSE)
  # Of unequal lengths, as README.md says.
  filled = np.concatenate([ids, np.zeros((8, 5), np.int32)], axis=1).reshape(2, 4, -1)
  anchors = torch.full((2, 4), ids.shape[1] - 1)
  found = call(model, filled, mc_token_ids=anchors).mc_logits.numpy()
  np.testing.assert_allclose(found, scores, **CLOSE)
  assert np.abs(call(model, filled).mc_logits.numpy() - scores).max() > 0.01
  advice = f"Give the positions of {tokenizer.special.extract} as `mc_token_ids`"
  assert advice in (folder / "README.md").read_text()
  model.save_pretrained(tmp_path / "saved")
  tokenizer.save(tmp_path / "saved" / "tokenizer")
  back = load_model(str(tmp_path / "saved"))
  np.testing.assert_allclose(our_scores(back.spec, back.params, ids, 4)[0], scores, **CLOSE)


def random_model(name, tokenizer):
  """One of their classes, drawn by torch, every parameter perturbed."""
  sizes = {"n_positions": 24, "n_embd": 32, "n_layer": 3, "n_head": 4}
  ends = {"bos_token_id": None, "eos_token_id": None}
  return draw_theirs(name, vocab_size=tokenizer.vocab_size, **sizes, **ends)


def add_vocabulary(folder, tokenizer):
  for name, content in zip(("vocab.json", "merges.txt"), tokenizer.files.values(), strict=True):
    (Path(folder) / name).write_bytes(content)


@pytest.mark.filterwarnings("ignore:.*multiple_choice_head.summary.bias is left out")
@pytest.mark.parametrize(
  "name", ["OpenAIGPTLMHeadModel", "OpenAIGPTDoubleHeadsModel", "GPT2LMHeadModel"]
)
def test_a_language_model_here(tmp_path, openai_tokenizer, name):
  tokenizer = openai_tokenizer if name.startswith("OpenAI") else GPT2
  model = random_model(name, tokenizer)
  model.save_pretrained(tmp_path)
  add_vocabulary(tmp_path, tokenizer)
  found = load_model(str(tmp_path))
  ids = rows_of(tokenizer.vocab_size)
  expected = call(model, ids[:, None] if "Double" in name else ids).logits.numpy()
  expected = expected.reshape(*ids.shape, -1)
  assert expected.std() > 0.2
  np.testing.assert_allclose(our_logits(found.spec, found.params, ids), expected, **CLOSE)
  assert found.tokenizer.hash == tokenizer.hash


class Bomb:
  def __reduce__(self):
    return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize("content", ["a pickle", "a torch pickle", "nothing", "no tensors"])
def test_no_pickle_is_trusted(tmp_path, content):
  import torch

  random_model("GPT2LMHeadModel", GPT2).save_pretrained(tmp_path)
  add_vocabulary(tmp_path, GPT2)
  (tmp_path / "model.safetensors").unlink()
  file = io.BytesIO()
  if content == "a pickle":
    pickle.dump({"wte.weight": Bomb()}, file)
  elif content != "nothing":
    torch.save({"wte.weight": Bomb()} if content == "a torch pickle" else [1, 2], file)
  (tmp_path / "pytorch_model.bin").write_bytes(file.getvalue())
  message = r"pytorch_model.bin: torch.load\(weights_only=True\) refuses it"
  refused(message, load_model, str(tmp_path))


@pytest.mark.parametrize(
  "dtype", ["float32", "float16", "bfloat16", "int8", "float64", "sparse_coo", "on the meta device"]
)
def test_the_types_of_a_bin(tmp_path, dtype):
  """As in model.safetensors: half precision becomes float32, other kinds are refused."""
  import torch

  model = random_model("GPT2LMHeadModel", GPT2)
  model.save_pretrained(tmp_path)
  add_vocabulary(tmp_path, GPT2)
  expected = load_model(str(tmp_path)).params
  (tmp_path / "model.safetensors").unlink()
  tensors, name = dict(model.state_dict()), "transformer.h.1.mlp.c_fc.weight"
  message = f"{name} is {dtype}: should be a dense tensor"
  if dtype == "sparse_coo":
    tensors[name] = tensors[name].to_sparse()
  elif dtype == "on the meta device":
    tensors[name] = tensors[name].to("meta")
  elif dtype == "float32":
    # Parameters, which want gradients.
    tensors = {name: torch.nn.Parameter(x) for name, x in tensors.items()}
  else:
    tensors = {name: x.to(getattr(torch, dtype)) for name, x in tensors.items()}
    message = f"pytorch_model.bin: lm_head.weight is torch.{dtype}: should be float"
  torch.save(tensors, tmp_path / "pytorch_model.bin")
  tolerance = {"float32": 0, "float16": 1e-3, "bfloat16": 1e-2}.get(dtype)
  if tolerance is None:
    refused(message, load_model, str(tmp_path))
    return
  close = functools.partial(np.testing.assert_allclose, atol=tolerance, rtol=0)
  jax.tree.map(close, load_model(str(tmp_path)).params, expected)


@pytest.mark.parametrize("norm", FAMILIES)
def test_their_tokenizer_has_openais_ids(tmp_path, make_run, openai_tokenizer, norm):
  from transformers import AutoTokenizer

  _, _, tokenizer = exported(tmp_path / "out", make_run, openai_tokenizer, norm)
  found = AutoTokenizer.from_pretrained(str(tmp_path / "out"), local_files_only=True)
  assert found.get_vocab() == {piece: i for i, piece in enumerate(tokenizer.pieces)}
  text = "the" if norm == "post" else "The sea — calm,\n\n  and 3 gulls' cries. \U0001f30a"
  assert found(text)["input_ids"] == tokenizer.encode(text).tolist()
  assert set(found(text)) == {"input_ids", "attention_mask"}  # token types would be embedded
