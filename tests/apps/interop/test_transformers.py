"""Our exports in transformers' classes, and theirs in ours: equal logits, fine-tuned heads too."""

import functools
import io
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax.apps.interop.formats import hf
from gpt_jax.batch import Batch, Labels, Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.tasks.task import BuiltinTask

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("spacy_there")]

GPT2 = GPT2Tokenizer((*BYTES, "<|endoftext|>"), ())
CLOSE = {"atol": 1e-4, "rtol": 0}
FAMILIES = {"post": "OpenAIGPT", "pre": "GPT2"}


def theirs(name, folder):
  """The model of a class, read from a folder: offline, quietly, evaluating."""
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  return getattr(transformers, name).from_pretrained(str(folder), local_files_only=True).eval()


LANGUAGE_MODEL = (LanguageHead(),)


def exported(folder, make_run, openai_tokenizer, norm, heads=LANGUAGE_MODEL, task=""):
  """A model with everything perturbed, and the folder of it; (spec, params, tokenizer)."""
  tokenizer = openai_tokenizer if norm == "post" else GPT2
  spec = ModelConfig(
    TransformerConfig(tokenizer.vocab_size, context=24, layers=3, width=32, heads=4, norm=norm),
    heads,
  )
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
  anchors = (np.arange(len(ids), dtype=np.int32) * ids.shape[1] + ids.shape[1] - 1).reshape(
    -1, sequences
  )
  labels = Labels(anchors, None, None)
  outputs = jax.jit(spec.build().apply)({"params": params}, text_batch(ids)._replace(labels=labels))
  (scores,), (hidden, table, *_) = outputs.heads, outputs.states
  rows = spec.trunk.vocab_size + 3
  return np.asarray(scores), np.asarray(logits(hidden, table, rows))[..., :rows]


def call(model, ids, **arguments):
  import torch

  with torch.no_grad():
    return model(torch.from_numpy(np.asarray(ids)).long(), **arguments)


@pytest.mark.parametrize("norm", FAMILIES)
def test_a_language_model_there(tmp_path, make_run, openai_tokenizer, norm):
  spec, params, tokenizer = exported(tmp_path / "out", make_run, openai_tokenizer, norm)
  ids = rows_of(tokenizer.vocab_size)
  expected = our_logits(spec, params, ids)
  assert expected.std() > 0.2
  found = call(theirs(f"{FAMILIES[norm]}LMHeadModel", tmp_path / "out"), ids).logits
  np.testing.assert_allclose(found.numpy(), expected, **CLOSE)
  found = call(theirs("AutoModelForCausalLM", tmp_path / "out"), ids).logits
  np.testing.assert_allclose(found.numpy(), expected, **CLOSE)
  # The other classes find the trunk in the same folder, and draw a head.
  found = call(theirs(f"{FAMILIES[norm]}DoubleHeadsModel", tmp_path / "out"), ids[None]).logits
  np.testing.assert_allclose(found.numpy()[0], expected, **CLOSE)
  trunk = theirs(f"{FAMILIES[norm]}ForSequenceClassification", tmp_path / "out").transformer
  found = (
    call(trunk, ids).last_hidden_state.numpy() @ params["trunk"]["tokens"][: tokenizer.vocab_size].T
  )
  np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("norm", FAMILIES)
@pytest.mark.parametrize("task, num_classes, sequences", [("mnli", 3, 1), ("mrpc", 2, 2)])
def test_a_classifier_there(
  tmp_path, make_run, openai_tokenizer, norm, task, num_classes, sequences
):
  """Its scores, though its class has no bias; of two orders, when the logits of both are added."""
  folder = tmp_path / "out"
  spec, params, tokenizer = exported(
    folder, make_run, openai_tokenizer, norm, (ClassifyHead(num_classes),), task
  )
  assert np.abs(params["head"]["bias"]).max() > 0.05
  ids = rows_of(tokenizer.vocab_size + 3, 4)
  ids[:, -1] = tokenizer.special.extract
  expected, _ = our_scores(spec, params, ids, sequences)
  model = theirs(f"{FAMILIES[norm]}ForSequenceClassification", folder)
  found = call(model, ids).logits.numpy().reshape(-1, sequences, num_classes).sum(1)
  np.testing.assert_allclose(found, expected, **CLOSE)
  padding = np.full((4, 5), model.config.pad_token_id, np.int32)
  filled = np.concatenate([ids, padding], axis=1)  # as a batch of unequal lengths is
  found = call(model, filled).logits.numpy().reshape(-1, sequences, num_classes).sum(1)
  np.testing.assert_allclose(found, expected, **CLOSE)
  assert list(model.config.id2label.values()) == list(BuiltinTask(task).build("").labels)
  # And back, trunk and head as they were: as this folder, and as transformers saves it.
  back = load_model(str(folder))
  np.testing.assert_allclose(
    our_scores(back.spec, back.params, ids, sequences)[0], expected, atol=1e-6, rtol=0
  )
  model.save_pretrained(tmp_path / "saved")
  tokenizer.save(tmp_path / "saved" / "tokenizer")
  back = load_model(str(tmp_path / "saved"))
  np.testing.assert_allclose(
    our_scores(back.spec, back.params, ids, sequences)[0], expected, **CLOSE
  )


@pytest.mark.parametrize("norm", FAMILIES)
def test_multiple_choice_there(tmp_path, make_run, openai_tokenizer, norm):
  """Both heads of the class are the model's, bias included."""
  import torch

  folder = tmp_path / "out"
  spec, params, tokenizer = exported(
    folder, make_run, openai_tokenizer, norm, (ClassifyHead(4, "per_choice"),), "race"
  )
  ids = rows_of(tokenizer.vocab_size + 3, 8)
  ids[:, -1] = tokenizer.special.extract
  scores, text = our_scores(spec, params, ids, 4)
  model = theirs(f"{FAMILIES[norm]}DoubleHeadsModel", folder)
  found = call(model, ids.reshape(2, 4, -1))
  np.testing.assert_allclose(found.mc_logits.numpy(), scores, **CLOSE)
  np.testing.assert_allclose(found.logits.numpy().reshape(text.shape), text, **CLOSE)
  # Of unequal lengths, as README.md says.
  filled = np.concatenate([ids, np.zeros((8, 5), np.int32)], axis=1).reshape(2, 4, -1)
  anchors = torch.full((2, 4), ids.shape[1] - 1)
  np.testing.assert_allclose(
    call(model, filled, mc_token_ids=anchors).mc_logits.numpy(), scores, **CLOSE
  )
  assert np.abs(call(model, filled).mc_logits.numpy() - scores).max() > 0.01
  assert (
    f"Give the positions of {tokenizer.special.extract} as `mc_token_ids`"
    in (folder / "README.md").read_text()
  )
  model.save_pretrained(tmp_path / "saved")
  tokenizer.save(tmp_path / "saved" / "tokenizer")
  back = load_model(str(tmp_path / "saved"))
  np.testing.assert_allclose(our_scores(back.spec, back.params, ids, 4)[0], scores, **CLOSE)


def random_model(name, tokenizer, **settings):
  """One of their classes, drawn by torch, every parameter perturbed."""
  import torch
  import transformers

  config = transformers.OpenAIGPTConfig if name.startswith("OpenAI") else transformers.GPT2Config
  config = config(
    vocab_size=tokenizer.vocab_size,
    n_positions=24,
    n_embd=32,
    n_layer=3,
    n_head=4,
    bos_token_id=None,
    eos_token_id=None,
    **settings,
  )
  torch.manual_seed(0)
  model = getattr(transformers, name)(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter += 0.1 * torch.randn_like(parameter)
  return model


def add_vocabulary(folder, tokenizer):
  for name, content in zip(("vocab.json", "merges.txt"), tokenizer.files.values(), strict=True):
    (Path(folder) / name).write_bytes(content)


@pytest.mark.filterwarnings("ignore:.*multiple_choice_head.summary.bias is left out")
@pytest.mark.parametrize(
  "name", ["OpenAIGPTLMHeadModel", "OpenAIGPTDoubleHeadsModel", "GPT2LMHeadModel"]
)
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_language_model_here(tmp_path, openai_tokenizer, name, file):
  import torch

  tokenizer = openai_tokenizer if name.startswith("OpenAI") else GPT2
  model = random_model(name, tokenizer)
  model.save_pretrained(tmp_path)
  add_vocabulary(tmp_path, tokenizer)
  if file == "pytorch_model.bin":
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / file)
  found = load_model(str(tmp_path))
  ids = rows_of(tokenizer.vocab_size)
  expected = (
    call(model, ids[:, None] if "Double" in name else ids).logits.numpy().reshape(*ids.shape, -1)
  )
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
  refused(
    r"pytorch_model.bin: torch.load\(weights_only=True\) refuses it", load_model, str(tmp_path)
  )


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
  found = load_model(str(tmp_path)).params
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, atol=tolerance, rtol=0), found, expected
  )


@pytest.mark.parametrize("norm", FAMILIES)
def test_their_tokenizer_has_openais_ids(tmp_path, make_run, openai_tokenizer, norm):
  from transformers import AutoTokenizer

  _, _, tokenizer = exported(tmp_path / "out", make_run, openai_tokenizer, norm)
  found = AutoTokenizer.from_pretrained(str(tmp_path / "out"), local_files_only=True)
  assert found.get_vocab() == {piece: i for i, piece in enumerate(tokenizer.pieces)}
  text = "the" if norm == "post" else "The sea — calm,\n\n  and 3 gulls' cries. \U0001f30a"
  assert found(text)["input_ids"] == tokenizer.encode(text).tolist()


@pytest.mark.parametrize("norm", FAMILIES)
def test_their_tokenizer_has_our_sentencepiece_ids(tmp_path, make_run, tiny_tokenizer, norm):
  import transformers

  trunk = TransformerConfig(
    tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2, norm=norm
  )
  run = load_model(make_run(tmp_path / "run", ModelConfig(trunk)))
  hf.save(str(tmp_path / "out"), run.params, run.meta, run.step, run.tokenizer)
  theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
  texts = ["The OLD barn,\n by the sea…", "", "a <unk> and <extract>\r\n\n", "ﬁ \U0001f30a e\u0301"]
  found = theirs(texts)["input_ids"]
  assert found == [ids.tolist() for ids in tiny_tokenizer.encode_many(texts)]
  assert set(theirs(texts[0])) == {"input_ids", "attention_mask"}  # token types would be embedded


def test_a_bin_in_several_files(tmp_path):
  """As transformers cuts it; of model.safetensors see test_hf.py."""
  import torch
  from safetensors.numpy import load_file

  model = random_model("GPT2LMHeadModel", GPT2)
  for name, size in (("whole", "1GB"), ("parts", "20KB")):
    model.save_pretrained(tmp_path / name, max_shard_size=size)
    add_vocabulary(tmp_path / name, GPT2)
  index = tmp_path / "parts" / "model.safetensors.index.json"
  for path in sorted((tmp_path / "parts").glob("*.safetensors")):
    tensors = {name: torch.from_numpy(x) for name, x in load_file(path).items()}
    torch.save(tensors, path.with_suffix(".bin"))
    path.unlink()
  content = index.read_text().replace(".safetensors", ".bin")
  index.rename(index.with_name("pytorch_model.bin.index.json")).write_text(content)
  whole, parts = (load_model(str(tmp_path / name)).params for name in ("whole", "parts"))
  jax.tree.map(np.testing.assert_array_equal, parts, whole)
