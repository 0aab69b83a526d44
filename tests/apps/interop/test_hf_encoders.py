"""BERT, RoBERTa and ALBERT in transformers' folders: their logits are ours, in and out."""

import base64
import dataclasses
import importlib
import io
import json
import shutil

import jax
import numpy as np
import pytest
from bert_trunk import bert_trunk
from numpy_transformer import random_params
from refused import refused
from their_models import draw_theirs, load_theirs

import gpt_jax
from gpt_jax.apps.interop.formats import hf
from gpt_jax.batch import Batch, Labels, Predictions, Rows
from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import from_json, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.contrastive import ContrastiveHead
from gpt_jax.models.heads.masked import MaskedHead, SentencePairHead
from gpt_jax.models.heads.mix import MixedHead
from gpt_jax.models.heads.tag import SpanHead, TagHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.programs import generate
from gpt_jax.tasks.task import BuiltinTask

safetensors = pytest.importorskip("safetensors.numpy")

CLOSE = {"atol": 1e-4, "rtol": 0}
BERT = bert_trunk(width=32)
ROBERTA = dataclasses.replace(BERT, token_types=0, pooler=False, norm_epsilon=1e-5, init="normal")
ALBERT = dataclasses.replace(BERT, embedding_width=16, shared_layers=True, activation="gelu_tanh")
PAIRS = (MaskedHead(), SentencePairHead())
MASKED = PAIRS[:1]
POOLED, DENSE = {"transform": "pooler"}, {"transform": "dense"}
# Without a pooler.
PLAIN_BERT, PLAIN_ALBERT = (dataclasses.replace(trunk, pooler=False) for trunk in (BERT, ALBERT))
RELU_BERT = dataclasses.replace(PLAIN_BERT, activation="relu")
SILU_ALBERT = dataclasses.replace(PLAIN_ALBERT, activation="silu")
# transformers' class: our trunk, its heads, a task.
MODELS = {
  "BertForPreTraining": (BERT, PAIRS, ""),
  "BertForMaskedLM": (RELU_BERT, MASKED, ""),
  "BertForNextSentencePrediction": (BERT, PAIRS[1:], ""),
  "BertForSequenceClassification": (BERT, (ClassifyHead(3, **POOLED),), "mnli"),
  "BertForMultipleChoice": (BERT, (ClassifyHead(4, "per_choice", **POOLED),), "race"),
  "BertForTokenClassification": (PLAIN_BERT, (TagHead(7),), "story-tags"),
  "BertForQuestionAnswering": (PLAIN_BERT, (SpanHead(),), "squad"),
  "RobertaForMaskedLM": (ROBERTA, MASKED, ""),
  "RobertaForSequenceClassification": (ROBERTA, (ClassifyHead(2, **DENSE),), "rte"),
  "RobertaForMultipleChoice": (ROBERTA, (ClassifyHead(4, "per_choice", **DENSE),), "race"),
  "AlbertForPreTraining": (ALBERT, PAIRS, ""),
  "AlbertForMaskedLM": (SILU_ALBERT, MASKED, ""),
  "AlbertForSequenceClassification": (ALBERT, (ClassifyHead(2, **POOLED),), "rte"),
}


@pytest.fixture(scope="module")
def vocabulary(tiny_tokenizer):
  return tiny_tokenizer.with_special("cls", "sep", "mask", "pad")


def parts_of(name, tokenizer):
  """What `save` is given after the folder, every parameter random."""
  trunk, heads, task = MODELS[name]
  sizes = {"vocab_size": tokenizer.vocab_size, "special_tokens": len(tokenizer.special)}
  spec = ModelConfig(dataclasses.replace(trunk, **sizes), heads, "bidirectional")
  params = random_params(spec, 0.1)
  # What no format keeps, the rows after the last token.
  rows = spec.trunk.vocab_size + spec.trunk.special_tokens
  params["trunk"]["tokens"][rows:] = 0
  if "masked" in params:
    params["masked"]["bias"][rows:] = 0
  meta = {"model": to_json(spec), "tokenizer_hash": tokenizer.hash}
  if task:
    meta["task"] = to_json(BuiltinTask(task))
  return params, meta, 5, tokenizer


def ids_and_types(tokenizer, rows=4, length=17):
  ids = np.random.default_rng(5).integers(tokenizer.vocab_size, size=(rows, length))
  types = np.arange(length) > length // 2
  return ids.astype(np.int32), np.broadcast_to(types, ids.shape).astype(np.int32)


def our_outputs(spec, params, ids, types, lengths=None):
  """{masked: [rows, T, V], sentence_pair: [rows, 2], head: [N, K]} of rows that are whole texts."""
  count, length = ids.shape
  columns = np.broadcast_to(np.arange(length, dtype=np.int32), ids.shape)
  lengths = np.full(count, length) if lengths is None else lengths
  segments = (columns < lengths[:, None]).astype(np.int32)
  anchors = np.arange(count, dtype=np.int32) * length
  choices = 1
  if spec.head and not spec.head.per_token and spec.head.pooling == "per_choice":
    choices = spec.head.num_classes if count % spec.head.num_classes == 0 else count
  batch = Batch(
    Rows(ids, columns, segments, types),
    predictions=Predictions(ids, columns, columns),
    labels=Labels(anchors.reshape(-1, choices), None, None),
  )
  states, outputs = jax.jit(spec.build().apply)({"params": params}, batch)
  rows = spec.trunk.vocab_size + spec.trunk.special_tokens
  result = {}
  for head, output in zip(spec.heads, outputs, strict=True):
    if head.scope == "masked":
      hidden, bias = output
      scores = np.asarray(logits(hidden, states.table, spec.trunk.rows))
      output = (scores + np.asarray(bias))[..., :rows]
    result[head.scope] = np.asarray(output)
  return result


def their_outputs(model, ids, types, mask=None, choices=0):
  """The same of a model of transformers."""
  import torch

  def tensor(x):
    x = torch.from_numpy(np.array(x)).long()
    return x.reshape(-1, choices, x.shape[-1]) if choices else x

  arguments = {} if mask is None else {"attention_mask": tensor(mask)}
  if model.config.type_vocab_size > 1:
    arguments["token_type_ids"] = tensor(types)
  with torch.no_grad():
    found = model(tensor(ids), **arguments)
  names = {
    "masked": "prediction_logits" if "PreTraining" in type(model).__name__ else "logits",
    "sentence_pair": "sop_logits" if "sop_logits" in found else "seq_relationship_logits",
    "head": "logits",
  }
  if "QuestionAnswering" in type(model).__name__:
    return {"span": np.stack([found["start_logits"], found["end_logits"]], axis=-1)}
  if "TokenClassification" in type(model).__name__:
    names = {"tags": "logits"}
  if "NextSentence" in type(model).__name__:
    names = {"sentence_pair": "logits"}
  return {scope: found[name].numpy() for scope, name in names.items() if name in found}


def same_outputs(found, expected):
  assert expected
  for scope, values in expected.items():
    assert values.std() > 0.02
    np.testing.assert_allclose(found[scope], values, **CLOSE, err_msg=scope)


@pytest.mark.parity
@pytest.mark.parametrize("name", MODELS)
def test_a_model_there_and_back(tmp_path, vocabulary, name):
  """Our logits there, of padded texts too; and what transformers saves again is the model here."""
  params, meta, *rest = parts_of(name, vocabulary)
  spec = from_json(meta["model"])
  hf.save(str(tmp_path / "out"), params, meta, *rest)
  model = load_theirs(name, tmp_path / "out", complete=True)
  config = json.loads((tmp_path / "out/config.json").read_text())
  assert config["architectures"] == [type(model).__name__]
  choices = 4 if "MultipleChoice" in name else 0
  ids, types = ids_and_types(vocabulary)
  expected = our_outputs(spec, params, ids, types)
  same_outputs(their_outputs(model, ids, types, choices=choices), expected)
  lengths = np.array([17, 9, 12, 4])
  mask = np.arange(17) < lengths[:, None]
  padded = np.where(mask, ids, vocabulary.special["pad"]).astype(np.int32)
  found = their_outputs(model, padded, types, mask, choices)
  ours = our_outputs(spec, params, padded, types, lengths)
  for scope, values in ours.items():
    inside = slice(None) if scope in ("sentence_pair", "head") else mask
    np.testing.assert_allclose(found[scope][inside], values[inside], **CLOSE)
  model.save_pretrained(tmp_path / "again")
  vocabulary.save(str(tmp_path / "again" / "tokenizer"))
  back = load_model(str(tmp_path / "again"))
  assert back.spec == spec
  same_outputs(our_outputs(back.spec, back.params, ids, types), expected)


def random_model(name, vocabulary):
  """One of their classes, drawn by torch, every parameter perturbed."""
  padding = vocabulary.special.pad
  sizes = {"vocab_size": vocabulary.vocab_size + len(vocabulary.special), "pad_token_id": padding}
  sizes |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
  sizes |= {"intermediate_size": 128, "max_position_embeddings": 24}
  if name.startswith("Roberta"):
    sizes |= {"max_position_embeddings": 25 + padding, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
  if name.startswith("Albert"):
    sizes["embedding_size"] = 16
  return draw_theirs(name, **sizes)


@pytest.mark.parity
@pytest.mark.parametrize(
  "name",
  # The head of others' question answering models is left out, with a warning.
  [*sorted(MODELS.keys() - {"BertForQuestionAnswering"}), "AlbertForMultipleChoice"],
)
def test_a_model_of_others(tmp_path, vocabulary, name):
  import torch

  model = random_model(name, vocabulary)
  model.save_pretrained(tmp_path)
  vocabulary.save(str(tmp_path / "tokenizer"))
  if name == "BertForMaskedLM":  # as TensorFlow's conversion wrote it, with the tied arrays
    (tmp_path / "model.safetensors").unlink()
    tensors = dict(model.state_dict())
    for new, old in (("weight", "gamma"), ("bias", "beta")):
      tensors = {key.replace(f"Norm.{new}", f"Norm.{old}"): x for key, x in tensors.items()}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
  found = load_model(str(tmp_path))
  assert found.spec.attention == "bidirectional"
  ids, types = ids_and_types(vocabulary)
  choices = 4 if "MultipleChoice" in name else 0
  expected = their_outputs(model, ids, types, choices=choices)
  spec = found.spec
  if choices:  # a folder does not say how many options there are
    spec = dataclasses.replace(spec, heads=(dataclasses.replace(spec.head, num_classes=4),))
  ours = our_outputs(spec, found.params, ids, types)
  same_outputs({scope: expected[scope] for scope in ours}, ours)


LANGUAGES = [
  "Die Katze saß auf der Matte, und der Hund lief zum Meer.",
  "Le chat était assis sur le tapis ; le chien courait vers la mer.",
  "кошка сидела на коврике, а собака бежала к морю",
  "猫がマットの上に座った。犬は海へ走った。",
]


def write_xlm_roberta(folder):
  """The files of XLM-RoBERTa's tokenizer: a SentencePiece model whose ids are fairseq's: they
  begin with four special tokens and end with the mask.
  """
  import sentencepiece

  content = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(LANGUAGES), model_writer=content, vocab_size=80, minloglevel=2
  )
  (folder / "sentencepiece.bpe.model").write_bytes(content.getvalue())
  proto = importlib.import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
  proto.ParseFromString(content.getvalue())
  special = ["<s>", "<pad>", "</s>", "<unk>"]
  pieces = [[piece.piece, piece.score] for piece in proto.pieces[3:]]
  pieces = [*([name, 0.0] for name in special), *pieces, ["<mask>", 0.0]]
  flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
  added = [{"id": i, "content": name, "special": True, **flags} for i, name in enumerate(special)]
  mask = {"id": len(pieces) - 1, "content": "<mask>", "special": True, **flags, "lstrip": True}
  charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
  spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
  content = {
    "version": "1.0",
    "added_tokens": [*added, mask],
    "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]},
    "decoder": spaces,
    "model": {"type": "Unigram", "unk_id": 3, "vocab": pieces},
  }
  (folder / "tokenizer.json").write_text(json.dumps(content))
  settings = {
    f"{name}_token": piece for name, piece in zip("bos pad eos unk".split(), special, strict=True)
  }
  settings |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
  settings |= {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512}
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  return len(pieces)


@pytest.mark.parity
@pytest.mark.parametrize(
  "name", ["XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification", "BertForMaskedLM"]
)
def test_an_encoder_of_many_languages(tmp_path, name):
  """Ids and outputs are those of transformers, there and back. A BERT may have such a
  vocabulary, as multilingual MiniLMs do.
  """
  import transformers

  is_bert = name.startswith("Bert")
  sizes = {"vocab_size": write_xlm_roberta(tmp_path), "pad_token_id": 0 if is_bert else 1}
  sizes["type_vocab_size"] = 2 if is_bert else 1
  sizes |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
  sizes |= {"intermediate_size": 128, "max_position_embeddings": 42, "layer_norm_eps": 1e-5}
  model = draw_theirs(name, **sizes, bos_token_id=0, eos_token_id=2, num_labels=3)
  model.save_pretrained(tmp_path)
  loaded, theirs = load_model(str(tmp_path)), transformers.AutoTokenizer.from_pretrained(tmp_path)
  texts = [*LANGUAGES, "  die\nKatze\u3000lief ☃ x", "Ｋａｔｚｅ", "a <mask> b"]
  for text in texts:
    assert loaded.tokenizer.encode(text).tolist() == theirs(text)["input_ids"][1:-1], text
  special = loaded.tokenizer.special
  assert (special.cls, special.pad, special.sep, special.mask) == (0, 1, 2, sizes["vocab_size"] - 1)
  ids, types = ids_and_types(loaded.tokenizer)
  ids = np.where(ids == 1, 5, ids)  # padding has no position there
  hf.save(str(tmp_path / "out"), loaded.params, loaded.meta, 0, loaded.tokenizer)
  (written,) = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"]
  ours = our_outputs(loaded.spec, loaded.params, ids, types)
  for theirs in (model, load_theirs(written, tmp_path / "out", complete=True)):
    found = their_outputs(theirs, ids, types)
    same_outputs({scope: found[scope] for scope in ours}, ours)
  (tmp_path / "tokenizer.json").unlink()
  message = "that of 'xlmroberta': without a tokenizer.json .* AutoTokenizer writes one"
  refused(message, load_model, str(tmp_path))


@pytest.mark.parametrize("mlp", [False, True])
@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_sentence_embeddings_there_and_back(tmp_path, vocabulary, attention, mlp):
  """The layer of a contrastive head, which embeddings do not have, is left out."""
  trunk = BERT if attention == "bidirectional" else TransformerConfig(24, 24, 2, 32, 4)
  sizes = {"vocab_size": vocabulary.vocab_size, "special_tokens": len(vocabulary.special)}
  head = ContrastiveHead("last", mlp=mlp)
  spec = ModelConfig(dataclasses.replace(trunk, **sizes), (head,), attention)
  params = random_params(spec, 0.1)
  meta = {"model": to_json(spec), "tokenizer_hash": vocabulary.hash}
  hf.save(str(tmp_path / "hf"), params, meta, 5, vocabulary)
  npz.save(str(tmp_path / "npz"), params, meta, 5, vocabulary)
  there, here = (gpt_jax.load(str(tmp_path / name)) for name in ("hf", "npz"))
  np.testing.assert_array_equal(there.embed(["the cat sat"]), here.embed(["the cat sat"]))


@pytest.mark.parametrize("name", MODELS)
def test_loads_back_equal(tmp_path, vocabulary, name):
  before = parts_of(name, vocabulary)
  hf.save(str(tmp_path / "out"), *before)
  params, *rest = hf.load(str(tmp_path / "out"))
  assert rest == [*before[1:]]
  assert jax.tree.structure(params) == jax.tree.structure(before[0])
  jax.tree.map(np.testing.assert_array_equal, params, before[0])
  card = (tmp_path / "out" / "README.md").read_text()
  per_token = {"QuestionAnswering": "a part of the context", "TokenClass": "other, person"}
  for kind, answer in per_token.items():
    if kind in name:
      assert answer in card and "The score is read at each token" in card


def test_a_temperature_divides_the_last_map_alone(tmp_path, vocabulary):
  params, meta, *rest = parts_of("RobertaForSequenceClassification", vocabulary)
  hf.save(str(tmp_path / "out"), params, {**meta, "temperature": 1.7}, *rest)
  found, back, *_ = hf.load(str(tmp_path / "out"))
  assert back["temperature"] == 1.7
  jax.tree.map(np.testing.assert_array_equal, found, params)
  arrays = safetensors.load_file(tmp_path / "out" / "model.safetensors")
  kernel = arrays["classifier.out_proj.weight"].T
  np.testing.assert_allclose(kernel, params["head"]["kernel"] / 1.7, rtol=1e-6)
  bias = arrays["classifier.out_proj.bias"]
  np.testing.assert_allclose(bias, params["head"]["bias"] / 1.7, rtol=1e-6)
  kernel = arrays["classifier.dense.weight"].T
  np.testing.assert_array_equal(kernel, params["head"]["dense"]["kernel"])


@pytest.mark.parity
def test_the_tokenizer_writes_pairs_with_types(tmp_path, vocabulary):
  import transformers

  hf.save(str(tmp_path / "out"), *parts_of("BertForSequenceClassification", vocabulary))
  tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
  a, b = vocabulary.encode_many(["the cat", "the dog ran"])
  special = vocabulary.special
  found = tokenizer("the cat", "the dog ran")
  assert found["input_ids"] == [special["cls"], *a, special["sep"], *b, special["sep"]]
  assert found["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
  text = (tmp_path / "out" / "README.md").read_text()
  assert "`<cls> A <sep> B <sep>`" in text and "read at the first token" in text
  hf.save(str(tmp_path / "roberta"), *parts_of("RobertaForSequenceClassification", vocabulary))
  tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "roberta"))
  ids = [special["cls"], *a, special["sep"], special["sep"], *b, special["sep"]]
  assert tokenizer("the cat", "the dog ran")["input_ids"] == ids


def test_what_writes_text_refuses_it_in_one_line(tmp_path, vocabulary):
  hf.save(str(tmp_path / "out"), *parts_of("BertForMaskedLM", vocabulary))
  path = str(tmp_path / "out")
  message = f"^{path}: a model with bidirectional attention"
  refused(message, generate.run, path, ["the cat"], max_tokens=2)
  refused(message, gpt_jax.load(path).log_probs, "the cat")


POOLED_HEAD = (ClassifyHead(2, **POOLED),)
REFUSED = [
  ({}, (ClassifyHead(2),), "Albert has shared .*; Bert's head has transform=pooler, this one's is"),
  ({}, POOLED_HEAD, "reads the first token, and this model's sequences are gpt_format"),
  ({}, (ClassifyHead(2, "mean", **POOLED),), "and this one reads more"),
  ({}, (MixedHead(ClassifyHead(2)),), "one token of the last layer, and this one"),
  ({}, (ClassifyHead(2, units=BERT.width, **POOLED),), "heads have no hidden layer"),
  ({"norm": "pre"}, MASKED, "which are post-norm"),
  (vars(ALBERT), PAIRS[1:], "no ALBERT with a sentence-pair head alone"),
  (vars(ROBERTA) | {"activation": "relu"}, MASKED, "masked head has activation=gelu whatever"),
  ({"shared_layers": True}, MASKED, "Albert has shared layers and narrower embeddings"),
]


@pytest.mark.parametrize("changes, heads, reason", REFUSED, ids=[row[-1] for row in REFUSED])
def test_what_no_folder_holds(tmp_path, vocabulary, changes, heads, reason):
  trunk = dataclasses.replace(BERT, **changes | {"vocab_size": 60})
  meta = {"model": to_json(ModelConfig(trunk, heads, "bidirectional"))}
  if heads == POOLED_HEAD:
    meta["sequence_format"] = {"type": "gpt_format"}
  with pytest.raises(InputError, match=f"^format=hf: .*{reason}.*; npz can hold it$"):
    hf.save(str(tmp_path / "out"), {}, meta, 1, vocabulary)
  assert not any(tmp_path.iterdir())


def settings(**changes):
  def change(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

  return change


@pytest.fixture
def saved(tmp_path, vocabulary):
  """saved(name): a folder without checksums, as others leave it."""

  def save(name):
    folder = tmp_path / name
    hf.save(str(folder), *parts_of(name, vocabulary))
    (folder / "sha256.json").unlink()
    return folder

  return save


def many_pieces(folder):
  """Of transformers' vocabulary, which is then the only one."""
  shutil.rmtree(folder / "tokenizer")
  vocab = {f"piece{i}": i for i in range(1000)}
  content = {"version": "1.0", "model": {"type": "WordPiece", "vocab": vocab}}
  (folder / "tokenizer.json").write_text(json.dumps(content))


DAMAGE = [
  (settings(hidden_act="mish"), "hidden_act is 'mish': only 'gelu' or"),
  (settings(intermediate_size=64), "intermediate_size is 64: only 128"),
  (settings(is_decoder=True), "is_decoder is True: only False"),
  (settings(position_embedding_type="relative_key"), "only 'absolute'"),
  (many_pieces, "tokenizer.json: has 1,000 pieces, and the model's vocab_size is 297"),
  (settings(architectures=["BertForSequenceClassification"]), "has an array classifier.weight, "),
]


@pytest.mark.parametrize("spoil, message", DAMAGE)
def test_damage_is_named(saved, spoil, message):
  folder = saved("BertForPreTraining")
  spoil(folder)
  assert str(folder) in refused(message, hf.load, str(folder))


def test_settings_that_a_config_leaves_out(saved):
  """Google's has no padding token; transformers takes the defaults of its classes."""
  folder = saved("BertForMaskedLM")
  config = json.loads((folder / "config.json").read_text())
  types, _ = config.pop("type_vocab_size"), config.pop("pad_token_id")
  (folder / "config.json").write_text(json.dumps(config))
  assert load_model(str(folder)).spec.trunk.token_types == types


def test_robertas_padding_is_that_of_the_vocabulary(saved, vocabulary):
  """Its positions are counted over all other tokens, and so over a text's."""
  folder = saved("RobertaForMaskedLM")
  load_model(str(folder))
  settings(pad_token_id=vocabulary.special.sep)(folder)
  message = "pad_token_id is .*, and the vocabulary's padding token is"
  refused(message, load_model, str(folder))


def test_robertas_masked_head_has_one_activation(saved):
  """Another one is that of the trunk alone, so only other heads read such a trunk."""
  masked, labels = saved("RobertaForMaskedLM"), saved("RobertaForSequenceClassification")
  for folder in (masked, labels):
    settings(hidden_act="gelu_new", gpt_jax=None)(folder)
  assert load_model(str(labels)).spec.trunk.activation == "gelu_tanh"
  message = f"^{masked}/config.json: hidden_act is 'gelu_new': only 'gelu' is .* here"
  refused(message, load_model, str(masked))
