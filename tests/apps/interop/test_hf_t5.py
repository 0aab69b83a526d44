"""T5 in transformers' folders, both ways: the same logits from perturbed weights."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from plain_rows import plain_rows
from refused import refused
from safetensors.numpy import load_file, save_file
from their_models import draw_theirs, load_theirs

from gpt_jax.apps.interop.formats import hf
from gpt_jax.batch import Batch
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.contrastive import ContrastiveHead
from gpt_jax.models.heads.masked import MaskedHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.ops.cross_entropy import logits

CLOSE = {"atol": 1e-4, "rtol": 0}
VERSIONS = {"1.0": "relu", "1.1": "gated-gelu"}
SIZES = {"layers": 2, "width": 32, "heads": 4, "head_width": 6, "units": 40}


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
  return tiny_tokenizer.with_special("pad", "sep", "sentinel_0")


@pytest.fixture(scope="module", params=VERSIONS)
def exported(request, tokenizer, make_run, tmp_path_factory):
  """(folder, spec, params) of an encoder-decoder."""
  trunk = T5Config(tokenizer.vocab_size, 40, special_tokens=6, version=request.param, **SIZES)
  spec = ModelConfig(trunk)
  params, folder = make_run.params_of(spec, 3), tmp_path_factory.mktemp("hf") / "out"
  # Larger tables, so that logits differ by more than the tolerance.
  for name in ("tokens", "output"):
    if name in params["trunk"]:
      params["trunk"][name] *= 5
  write(folder, spec, params, tokenizer)
  return folder, spec, params


def write(folder, spec, params, tokenizer):
  hf.save(
    str(folder), params, {"model": to_json(spec), "tokenizer_hash": tokenizer.hash}, 3, tokenizer
  )


def ids(rows, length, high, seed=5):
  return np.random.default_rng(seed).integers(high, size=(rows, length)).astype(np.int32)


def our_logits(spec, params, target, source, valid):
  batch = Batch(plain_rows(target), source=plain_rows(source, valid))
  hidden, table, *_ = jax.jit(spec.build().apply)({"params": params}, batch).states
  return np.asarray(logits(hidden, table, spec.num_tokens))[..., : spec.num_tokens]


def their_logits(model, target, source, valid):
  import torch

  tensors = [torch.from_numpy(x.astype(np.int64)) for x in (source, valid, target)]
  with torch.no_grad():
    return model(tensors[0], attention_mask=tensors[1], decoder_input_ids=tensors[2]).logits.numpy()


@pytest.mark.parity
def test_an_encoder_decoder_there(exported):
  """Distances beyond the exact buckets, and padding in the source."""
  folder, spec, params = exported
  target, source = ids(2, 29, spec.num_tokens), ids(2, 37, spec.num_tokens, 6)
  valid = (np.arange(37) < [[37], [22]]).astype(np.int32)
  expected = our_logits(spec, params, target, source, valid)
  found = their_logits(load_theirs("T5ForConditionalGeneration", folder), target, source, valid)
  assert expected.std() > 0.2
  np.testing.assert_allclose(found, expected, **CLOSE)
  assert expected.shape[-1] == spec.trunk.vocab_size + 6


@pytest.mark.parity
@pytest.mark.parametrize("exported_alone", [False, True])
def test_an_encoder_there(exported, tokenizer, tmp_path, exported_alone):
  """Of the folder of an encoder-decoder, or by itself."""
  import torch

  folder, spec, params = exported
  encoder = ModelConfig(alone(spec.trunk), (), "bidirectional")
  source = ids(2, 37, spec.num_tokens)
  trunk = {name: params["trunk"][name] for name in ("tokens", "encoder")}
  if exported_alone:
    folder = tmp_path / "out"
    write(folder, encoder, {"trunk": trunk}, tokenizer)
  apply = jax.jit(encoder.build().apply)
  expected = apply({"params": {"trunk": trunk}}, Batch(plain_rows(source))).states.hidden
  assert np.std(expected) > 0.2
  with torch.no_grad():
    found = load_theirs("T5EncoderModel", folder)(torch.from_numpy(source).long())
  np.testing.assert_allclose(found.last_hidden_state.numpy(), expected, **CLOSE)


def alone(trunk):
  return dataclasses.replace(trunk, decoder=False)


@pytest.mark.parity
@pytest.mark.parametrize("version", VERSIONS)
def test_a_model_of_theirs_here(tmp_path, tokenizer, version):
  """As transformers 5 writes it, and with the settings of the released config.json."""
  import torch
  import transformers

  rows = tokenizer.vocab_size + 6
  model = draw_theirs(
    "T5ForConditionalGeneration",
    vocab_size=rows + 20,  # a table that is filled up
    **{"d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4},
    feed_forward_proj=VERSIONS[version],
    tie_word_embeddings=version == "1.0",
    decoder_start_token_id=tokenizer.special.pad,
    eos_token_id=tokenizer.special.sep,
  )
  if version == "1.1":  # transformers 5.23 ties it always
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) / 8)
  model.save_pretrained(tmp_path)
  tokenizer.save(tmp_path / "tokenizer")
  target, source = ids(2, 29, rows), ids(2, 37, rows, 6)
  valid = (np.arange(37) < [[37], [22]]).astype(np.int32)
  expected = their_logits(model, target, source, valid)[..., :rows]
  released = json.loads((tmp_path / "config.json").read_text())
  released = {**released, "tie_word_embeddings": version == "1.0"}
  del released["scale_decoder_outputs"]
  for content in (None, released):
    if content:
      (tmp_path / "config.json").write_text(json.dumps(content))
    found = load_model(str(tmp_path))
    assert found.spec.trunk.version == version
    ours = our_logits(found.spec, found.params, target, source, valid)
    assert expected.std() > 0.2
    np.testing.assert_allclose(ours, expected, **CLOSE)
  encoder = transformers.T5EncoderModel.from_pretrained(tmp_path)
  encoder.save_pretrained(tmp_path / "encoder")
  tokenizer.save(tmp_path / "encoder" / "tokenizer")
  found = load_model(str(tmp_path / "encoder"))
  hidden = jax.jit(found.model.apply)(
    {"params": found.params}, Batch(plain_rows(source))
  ).states.hidden
  with torch.no_grad():
    expected = encoder(torch.from_numpy(source).long()).last_hidden_state.numpy()
  np.testing.assert_allclose(hidden, expected, **CLOSE)


def test_there_and_back(exported, tokenizer, tmp_path):
  """The encoder-decoder, and its encoder alone."""
  folder, spec, params = exported
  encoder = ModelConfig(alone(spec.trunk), (), "bidirectional")
  trunk = {name: params["trunk"][name] for name in ("tokens", "encoder")}
  write(tmp_path / "out", encoder, {"trunk": trunk}, tokenizer)
  used = spec.num_tokens

  def check(path, x, y):
    rows = used if path[-1].key in ("tokens", "output") else None
    np.testing.assert_array_equal(x[:rows], y[:rows])

  for place, model, before in (
    (folder, spec, params),
    (tmp_path / "out", encoder, {"trunk": trunk}),
  ):
    back = load_model(str(place))
    assert (back.spec, back.step, back.tokenizer.special) == (model, 3, tokenizer.special)
    jax.tree_util.tree_map_with_path(check, before, back.params)


@pytest.fixture
def copied(exported, tmp_path):
  """copied(config changes, array changes): the folder with them, as other software leaves it."""

  def change(settings=None, arrays=None):
    folder = tmp_path / "copy"
    folder.mkdir()
    config = {**json.loads((exported[0] / "config.json").read_text()), **(settings or {})}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {**load_file(exported[0] / "model.safetensors"), **(arrays or {})}
    tensors = {name: x for name, x in tensors.items() if x is not None}
    save_file(tensors, folder / "model.safetensors")
    load_model(str(exported[0])).tokenizer.save(folder / "tokenizer")
    return str(folder)

  return change


@pytest.mark.parametrize("own", [True, False])
def test_which_special_tokens_are_trained(copied, exported, tokenizer, own):
  """Ours says it; of others all are, so fine-tuning keeps their rows: T5 has 100 sentinels."""
  entry = json.loads((exported[0] / "config.json").read_text())["gpt_jax"]
  meta = load_model(
    copied({"gpt_jax": {**entry, "trained_special": ["sep"]} if own else None})
  ).meta
  assert meta["trained_special"] == (["sep"] if own else list(tokenizer.special))


FIRST = "encoder.block.0.layer.0.SelfAttention.q.weight"
LABELS = {"transformer.shared.weight": np.zeros((9, 32)), "shared.weight": None}


@pytest.mark.parametrize(
  "settings, arrays, message",
  [
    ({"feed_forward_proj": "gated-silu"}, {}, "feed_forward_proj is 'gated-silu': only 'relu' or"),
    ({"dense_act_fn": "gelu"}, {}, "dense_act_fn is 'gelu': only None or '[a-z_]*' is supported"),
    ({"num_decoder_layers": 3}, {}, "num_decoder_layers is 3: only None or 2 is supported"),
    ({"relative_attention_num_buckets": 16}, {}, "num_buckets is 16: only 32"),
    ({"decoder_start_token_id": 2}, {}, "start_token_id is 2: only 293, <pad>, is supported"),
    ({"decoder_start_token_id": None, "bos_token_id": 2}, {}, "bos_token_id is 2: only 293, <pad>"),
    ({"eos_token_id": 1}, {}, "config.json: eos_token_id is 1: only 294, <sep>, is supported"),
    ({"eos_token_id": None}, {}, "eos_token_id is None: only 294"),  # a target would not end
    ({}, {FIRST: None}, f"holds no {FIRST}, which t5 has"),
    ({}, {"encoder.bias": np.zeros(3)}, r"holds encoder\.bias, which no t5 has"),
    ({"architectures": ["T5ForX"]}, LABELS, "architectures is .'T5ForX'.: of T5 only"),
  ],
)
def test_what_is_not_t5s(copied, settings, arrays, message):
  refused(message, lambda: load_model(copied(settings, arrays)))


def test_where_targets_end_in_generation(copied):
  folder = copied()
  settings = Path(folder) / "generation_config.json"
  settings.write_text('{"decoder_start_token_id": 293, "eos_token_id": [294]}')
  load_model(folder)
  settings.write_text('{"decoder_start_token_id": 293, "eos_token_id": [294, 7]}')
  refused(r"generation_config.json: eos_token_id is \[294, 7\]: only", load_model, folder)


@pytest.mark.parity("released")
def test_a_vocabulary_of_tokenizer_json_alone(tmp_path, make_run):
  """It has T5's special tokens, so the table needs no further rows."""
  import tokenizers

  special = ["<pad>", "</s>", "<unk>", "<extra_id_1>", "<extra_id_0>"]
  pieces = [(piece, 0.0) for piece in special[:3]] + [(piece, -2.0) for piece in "▁abcdef"]
  theirs = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
  theirs.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
  theirs.add_special_tokens(special)
  theirs.save(str(tmp_path / "tokenizer.json"))
  tokenizer = load_tokenizer(str(tmp_path))
  spec = ModelConfig(T5Config(theirs.get_vocab_size(), 40, special_tokens=0, **SIZES))
  write(tmp_path / "out", spec, make_run.params_of(spec, 3), tokenizer)
  for name in ("tokenizer", "sha256.json"):
    shutil.move(tmp_path / "out" / name, tmp_path)
  shutil.copy(tmp_path / "tokenizer.json", tmp_path / "out")
  back = load_model(str(tmp_path / "out"))
  assert back.spec == spec and back.tokenizer.special.count == 0
  assert back.tokenizer.special.sentinel_0 == theirs.token_to_id("<extra_id_0>")


def test_a_copy_of_the_table_that_is_none(copied, exported):
  shape = exported[2]["trunk"]["tokens"][: exported[1].num_tokens].shape
  with pytest.raises(InputError, match="decoder.embed_tokens.weight is not shared.weight"):
    load_model(copied(arrays={"decoder.embed_tokens.weight": np.zeros(shape, np.float32)}))


def test_heads_with_parameters_are_refused(tmp_path, tokenizer):
  for head, name in ((ClassifyHead(2), "head"), (MaskedHead(), "masked")):
    spec = ModelConfig(alone(T5Config(290, 40, **SIZES)), (head,), "bidirectional")
    message = f"holds a T5 without heads, and this one has {name}; npz can hold it"
    refused(message, write, tmp_path / "out", spec, {}, tokenizer)


def test_an_encoder_embeds_as_it_was_trained_to(tmp_path, tokenizer, make_run):
  trunk = alone(T5Config(tokenizer.vocab_size, 40, special_tokens=6, **SIZES))
  spec = ModelConfig(trunk, (ContrastiveHead(pooling="last", mlp=True),), "bidirectional")
  write(tmp_path / "out", spec, make_run.params_of(spec, 3), tokenizer)
  assert load_model(str(tmp_path / "out")).spec.heads == (ContrastiveHead(pooling="last"),)
