"""transformers folders of `t5`: T5ForConditionalGeneration, and T5EncoderModel, the encoder alone.

Versions 1.0 and 1.1. read.py finds the files and calls `load`, write.py calls `save`.
"""

import os
import re
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from gpt_jax.apps.interop.formats.hf import family
from gpt_jax.apps.interop.formats.hf.fields import GENERATION_FIELDS, Supported, check_config
from gpt_jax.apps.interop.formats.hf.weights import check_arrays, open_weights, without_padding
from gpt_jax.apps.interop.formats.hf_tokenizer import read_vocabulary, write_tokenizer
from gpt_jax.checkpoints.formats import Check, safetensors
from gpt_jax.checkpoints.formats.folder import CONFIG, TOKENIZER, read_object, write_sums
from gpt_jax.config import from_json, to_json
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.tokenizers.released import read_optional_json
from gpt_jax.errors import InputError, about
from gpt_jax.files import atomic_folder, write_json
from gpt_jax.models.encoder_decoder import BUCKETS, MAX_DISTANCE, T5Config
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.model import ModelConfig, parameter_shapes

MODEL_TYPE = "t5"
_WEIGHTS, _GENERATION = "model.safetensors", "generation_config.json"
_TABLE, _HEAD = "shared.weight", "lm_head.weight"
# Other names of the table in older files, and an array that transformers once drew and never used.
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
_IGNORED = re.compile("|".join(map(re.escape, (_HEAD, _UNUSED))))
_NO_HEADS = re.compile(r"(?!)")  # for labels, of which a folder of T5 has none
_UNITS = {"relu": "1.0", "gated-gelu": "1.1"}
_DENSE = {"relu": "relu", "gated-gelu": "gelu_new"}
_NAMES = {
  "layers": "num_layers",
  "width": "d_model",
  "heads": "num_heads",
  "head_width": "d_kv",
  "units": "d_ff",
}


def detect(folder: str) -> bool:
  """Whether config.json says that the folder is of this family."""
  try:
    return read_object(os.path.join(folder, CONFIG)).get("model_type") == MODEL_TYPE
  except (OSError, ValueError):
    return False


def load(folder: str, weights_path: str, check: Check) -> tuple[family.Arrays, dict, Tokenizer]:
  """Arrays, meta with the step, and tokenizer; a file without a decoder is an encoder.

  Rows of the table after the vocabulary and its special tokens are left out: they are padding.
  """
  path = os.path.join(folder, CONFIG)
  config = read_object(path)
  # transformers 5 writes tie_word_embeddings: true for 1.1 too, and whether it scales by itself.
  scales = {"scale_decoder_outputs": config.get("tie_word_embeddings", True)}
  check_config(path, scales | config, ("vocab_size", *_NAMES.values()), _supported)
  ties = dict.fromkeys(_COPIES, _TABLE)
  if config.get("feed_forward_proj", "relu") == "relu":  # 1.1 has an output table of its own
    ties[_HEAD] = _TABLE
  weights = open_weights(weights_path, "", ties)
  # The prefix of T5ForSequenceClassification and T5ForTokenClassification.
  if any(name.startswith("transformer.") for name in weights.shapes):
    raise InputError(
      f"{path}: architectures is {config.get('architectures')!r}: of T5 only Model, EncoderModel "
      "and ForConditionalGeneration are supported"
    )
  tokenizer = read_vocabulary(folder, config["vocab_size"])
  decoder = any(name.startswith("decoder.block") for name in weights.shapes)
  spec = _model_of(path, config, tokenizer, decoder)
  meta = family.meta_of(config, tokenizer) | {"model": to_json(spec)}
  if decoder:
    meta.setdefault("sequence_format", {"type": "text_to_text"})
    _check_start_and_end(folder, tokenizer)
  meta.setdefault("trained_special", list(tokenizer.special))  # the rows in the file
  rows = spec.trunk.vocab_size + spec.trunk.special_tokens
  weights = without_padding(path, weights, (_TABLE, _HEAD), config["vocab_size"], rows)
  layout = _arrays(spec.trunk, rows, spec.trunk.has_output and _HEAD in weights.shapes)
  shapes = {array.theirs: array.shape for array in layout}
  check_arrays(weights, shapes, MODEL_TYPE, _IGNORED, _NO_HEADS, "")  # no head to warn of
  check(meta)
  arrays = family.to_ours(layout, weights)
  if spec.trunk.has_output and "output" not in arrays:
    arrays["output"] = arrays["tokens"].copy()  # tied, without 1.0's scale
  return {f"trunk/{name}": x for name, x in arrays.items()}, meta, tokenizer


def _supported(config: dict) -> Supported:
  units = config.get("feed_forward_proj", "relu")
  return (
    ("feed_forward_proj", tuple(_UNITS)),
    ("dense_act_fn", (None, _DENSE.get(units))),
    ("scale_decoder_outputs", (units == "relu",)),
    ("num_decoder_layers", (None, config["num_layers"])),
    ("relative_attention_num_buckets", (BUCKETS,)),
    ("relative_attention_max_distance", (MAX_DISTANCE,)),
    ("layer_norm_epsilon", (1e-6,)),
  )


def _check_start_and_end(folder: str, tokenizer: Tokenizer) -> None:
  """Raises InputError if targets begin or end with other ids than ours, <pad> and </s>."""
  for name in (CONFIG, _GENERATION):  # older folders have no settings of generation
    path = os.path.join(folder, name)
    config = read_optional_json(path)
    if not isinstance(config, dict):
      continue
    if name == _GENERATION:
      GENERATION_FIELDS.unsupported(path, config)
    start = "decoder_start_token_id"
    if config.get(start) is None:
      start = "bos_token_id"  # which transformers then takes, if there is one
    for setting, token in ((start, "pad"), ("eos_token_id", "sep")):
      if token not in tokenizer.special:  # then it does not generate
        continue
      expected = tokenizer.special[token]
      value = config.get(setting, expected)
      is_left_out = setting == "bos_token_id" and value is None
      if value not in (expected, [expected]) and not is_left_out:
        spelling = tokenizer.spelling(expected)
        raise InputError(
          f"{path}: {setting} is {value!r}: only {expected}, {spelling}, is supported"
        )


def _model_of(path: str, config: dict, tokenizer: Tokenizer, decoder: bool) -> ModelConfig:
  """The model's config: their settings, and of ours the type to compute in."""
  own = family.own_model(path, family.meta_of(config, tokenizer), T5Config)
  with about(path):
    trunk = T5Config(
      tokenizer.vocab_size,
      context=config.get("n_positions", 512),
      version=_UNITS[config.get("feed_forward_proj", "relu")],
      residual_dropout=config.get("dropout_rate", 0.1),
      dtype=own.trunk.dtype if own else "float32",
      special_tokens=tokenizer.special.count,
      decoder=decoder,
      **{ours: config[theirs] for ours, theirs in _NAMES.items()},
    )
  if not decoder:
    # Without parameters of its own, it says how a text becomes a vector.
    contrastive = [head for head in (own.heads if own else ()) if head.scope == "contrastive"]
    return ModelConfig(trunk, tuple(contrastive), "bidirectional")
  return ModelConfig(trunk, (LanguageHead(),))


def _arrays(trunk: T5Config, rows: int, output: bool) -> list[family.Array]:
  """All arrays, with so many rows of the tables; `output`: whether the output has its own."""
  d, inner = trunk.width, trunk.heads * trunk.head_width
  arrays = []

  def table(theirs: str, ours: str) -> None:
    arrays.append(family.Array(theirs, ours, (rows, d), (trunk.rows, d), np.s_[:rows]))

  def norm(theirs: str, ours: str) -> None:
    arrays.append(family.Array(f"{theirs}.weight", f"{ours}/scale", (d,), (d,)))

  def kernel(theirs: str, ours: str, inputs: int, outputs: int) -> None:
    shape = (inputs, outputs)
    name = f"{theirs}.weight"
    arrays.append(family.Array(name, f"{ours}/kernel", shape[::-1], shape, transposed=True))

  table(_TABLE, "tokens")
  if output:
    table(_HEAD, "output")
  # 1.1 computes gelu(wi_0 x) * (wi_1 x): wi_0 is the gate.
  units = [("in", "wi_1"), ("gate", "wi_0")] if trunk.gated else [("in", "wi")]
  own, cross = ("attention", "SelfAttention"), ("cross_attention", "EncDecAttention")
  stacks = {"encoder": [own]}
  if trunk.decoder:
    stacks["decoder"] = [own, cross]
  for stack, sublayers in stacks.items():
    # A stack's layers share one table, kept in its first; cross-attention has none.
    relative = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    shape = (BUCKETS, trunk.heads)
    arrays.append(family.Array(relative, f"{stack}/relative/table", shape, shape))
    norm(f"{stack}.final_layer_norm", f"{stack}/last_norm")
    for block in range(trunk.layers):
      theirs, ours = f"{stack}.block.{block}.layer", f"{stack}/block_{block}"
      for number, (name, their_name) in enumerate(sublayers):
        norm(f"{theirs}.{number}.layer_norm", f"{ours}/{name}_norm")
        for part, letter in (("query", "q"), ("key", "k"), ("value", "v")):
          kernel(f"{theirs}.{number}.{their_name}.{letter}", f"{ours}/{name}/{part}", d, inner)
        kernel(f"{theirs}.{number}.{their_name}.o", f"{ours}/{name}/out", inner, d)
      # layer.0 is self-attention, a decoder's layer.1 cross-attention, the last one the MLP.
      last = f"{theirs}.{len(sublayers)}"
      norm(f"{last}.layer_norm", f"{ours}/mlp_norm")
      for part, letters in units:
        kernel(f"{last}.DenseReluDense.{letters}", f"{ours}/mlp/{part}", d, trunk.units)
      kernel(f"{last}.DenseReluDense.wo", f"{ours}/mlp/out", trunk.units, d)
  return arrays


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """Writes a folder for transformers' from_pretrained; its README.md names the class to use."""
  safetensors.library()  # fail before the expensive part
  spec = family.for_embeddings(from_json(meta["model"]))
  heads = {name.partition("/")[0] for name in parameter_shapes(spec)} - {"trunk"}
  if heads:
    names = ", ".join(sorted(heads))
    raise InputError(
      f"format=hf: holds a T5 without heads, and this one has {names}; npz can hold it"
    )
  meta = {**meta, "model": to_json(spec)}
  trunk = spec.trunk
  rows = trunk.vocab_size + trunk.special_tokens
  trained = flatten_dict(params["trunk"], sep="/")
  ours = {name: np.asarray(x, np.float32) for name, x in trained.items()}
  tensors = family.to_theirs(_arrays(trunk, rows, trunk.has_output), ours, "", _NO_HEADS)
  special = tokenizer.special
  start, end = (special[name] if name in special else None for name in ("pad", "sep"))
  model = "T5ForConditionalGeneration" if trunk.decoder else "T5EncoderModel"
  config = {
    "architectures": [model],
    "model_type": MODEL_TYPE,
    "vocab_size": rows,
    "n_positions": trunk.context,
    **{theirs: vars(trunk)[ours] for ours, theirs in _NAMES.items()},
    "num_decoder_layers": trunk.layers,
    "feed_forward_proj": "gated-gelu" if trunk.gated else "relu",
    "relative_attention_num_buckets": BUCKETS,
    "relative_attention_max_distance": MAX_DISTANCE,
    "layer_norm_epsilon": 1e-6,
    "dropout_rate": trunk.residual_dropout,
    # 1.0 multiplies hidden states by D^-0.5 and the tied table; 1.1 has an output table of its own.
    "tie_word_embeddings": not trunk.gated,
    "scale_decoder_outputs": not trunk.gated,
    "is_encoder_decoder": trunk.decoder,
    "decoder_start_token_id": start,
    "pad_token_id": start,
    "eos_token_id": end,
    "gpt_jax": {"step": step, **meta},
  }
  card = [
    f"# {model}\n",
    "Written by gpt_jax, which reads this folder like a checkpoint.\n",
    f"```python\nfrom transformers import {model}\n\nmodel = {model}.from_pretrained(DIR)\n```\n",
    f"Special tokens and their ids: {', '.join(f'{name} {i}' for name, i in special.items())}",
  ]
  if end is not None:
    card.append(f"\nA source ends with {end}; the decoder begins with {start}.")
  with atomic_folder(folder) as partial:
    safetensors.write(os.path.join(partial, _WEIGHTS), tensors, {"format": "pt"})
    write_json(os.path.join(partial, CONFIG), config)
    tokenizer.save(os.path.join(partial, TOKENIZER))
    write_tokenizer(partial, tokenizer, trunk.context, template=None)
    with open(os.path.join(partial, "README.md"), "w", encoding="utf-8") as file:
      file.write("\n".join(card) + "\n")
    write_sums(partial)
