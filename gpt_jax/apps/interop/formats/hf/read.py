"""Reading a transformers folder."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from flax.traverse_util import unflatten_dict

from gpt_jax.apps.interop.formats.hf import t5
from gpt_jax.apps.interop.formats.hf.family import Arrays, Family, families, to_ours
from gpt_jax.apps.interop.formats.hf.labels import architecture_of, task_of
from gpt_jax.apps.interop.formats.hf.vocabulary import read_vocabulary
from gpt_jax.apps.interop.formats.hf.weights import Weights, check_arrays, find, open_weights
from gpt_jax.checkpoints.embedding import Embedding
from gpt_jax.checkpoints.formats.folder import (
  SUMS,
  check_finite,
  check_meta,
  check_sums,
  read_object,
)
from gpt_jax.config import from_json, to_json
from gpt_jax.data.tokenizers.base import TRANSFORMERS_CONFIG, Tokenizer
from gpt_jax.data.tokenizers.released import read_optional_json
from gpt_jax.errors import InputError
from gpt_jax.files import parse_json
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig

# What sentence-transformers puts beside a model: how a text becomes a vector.
MODULES, POOLING, ENCODER = "modules.json", "1_Pooling", "sentence_bert_config.json"
# The file and the setting of the longest text, in tokens: of versions up to 5, and of version 6.
_LONGEST = ((ENCODER, "max_seq_length"), (TRANSFORMERS_CONFIG, "model_max_length"))
_UNLIMITED = 10**9  # transformers writes 10**30
_SUPPORTED = ("Transformer, Pooling", "Transformer, Pooling, Normalize")
# pooling_mode_… of a Pooling's config.json -> ours.
_POOLING = {
  "mean": "mean",
  "mean_tokens": "mean",
  "max": "max",
  "max_tokens": "max",
  "cls": "cls",
  "cls_token": "cls",
  "lasttoken": "last",
}


# (config.json, family, weights) -> the weights that are read in their place; may change the config.
Overlay = Callable[[dict, Family, Weights], Weights]


def load(path: str, overlay: Overlay | None = None) -> tuple[dict, dict, int, Tokenizer]:
  """Reads a folder, or the weights file in it, of a Transformer trunk with an overlay.

  A head that is neither of a pre-training objective nor of sequence or token classification is left
  out with a warning: that of questions and answers, or GPT's for multiple choice. Rows missing from
  the embedding table are zero; fine-tuning initializes those it needs.

  Returns:
    params as float32 NumPy arrays, meta, step, tokenizer.

  Raises:
    InputError: unknown architecture or setting; an array that is missing, unknown or of another
      shape; another vocabulary; a damaged file. Nothing is unpickled except by
      torch.load(weights_only=True).
  """
  folder, weights_path = find(path)
  # Folders of others have none.
  if os.path.exists(os.path.join(folder, SUMS)):
    try:
      check_sums(folder)
    except (OSError, ValueError) as error:
      raise InputError(
        f"{folder}: {error}; if other software has changed the folder on purpose, remove its {SUMS}"
      ) from error
  embedding = read_embedding(folder)
  if t5.detect(folder):
    loaded = t5.load(folder, open_weights(weights_path, prefix="", ties={}))
  else:
    loaded = _load_transformer(folder, weights_path, overlay)
  if embedding is not None:
    loaded[1]["embedding"] = to_json(embedding)
  return loaded


def _load_transformer(
  folder: str, weights_path: str, overlay: Overlay | None
) -> tuple[dict, dict, int, Tokenizer]:
  """As `load`, of a family of the Transformer trunk."""
  config, family = _read_config(os.path.join(folder, "config.json"))
  tokenizer = read_vocabulary(folder, config["vocab_size"], family.vocabulary)
  weights = open_weights(weights_path, family.prefix, family.ties)  # names and shapes only
  weights = overlay(config, family, weights) if overlay else weights
  meta, spec = _model_of(folder, config, family, weights, tokenizer)
  if config["vocab_size"] != family.rows(spec):
    raise InputError(
      f"{folder}/config.json: vocab_size is {config['vocab_size']:,}, and the vocabulary has "
      f"{tokenizer.vocab_size:,}"
    )
  # All names and shapes are compared before the first array is read.
  layout = family.arrays(spec, config)
  shapes = {array.theirs: array.shape for array in layout if array.theirs}
  architecture = architecture_of(config) or "the model"
  check_arrays(weights, shapes, family.model_type, family.ignored, family.heads, architecture)
  arrays = to_ours(layout, weights)
  try:
    check_finite(arrays)
    check_meta(meta, meta["step"])
  except ValueError as error:
    raise InputError(f"{folder}: {error}; export or copy the model again") from error
  _unfold(arrays, weights, meta)
  return unflatten_dict(arrays, sep="/"), meta, meta.pop("step"), tokenizer


def _read_config(path: str) -> tuple[dict, Family]:
  """config.json and its family. Raises InputError if the Transformer trunk has no such model."""
  try:
    config = read_object(path)
  except FileNotFoundError as error:
    raise InputError(f"{path}: missing; it says which architecture the weights are of") from error
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error})") from error
  known = families()
  model_type = config.get("model_type")
  family = next((family for family in known if family.model_type == model_type), None)
  if family is None:
    names = ", ".join([*(family.model_type for family in known), t5.MODEL_TYPE])
    raise InputError(f"{path}: model_type {model_type!r}: should be one of {names}")
  for name in family.sizes:
    if type(config.get(name)) is not int:
      raise InputError(f"{path}: {name} is {config.get(name)!r}: should be a number")
  for name, values in family.supported(config):
    if config.get(name, values[0]) not in values:  # absent: the default of transformers
      allowed = " or ".join(map(repr, values))
      raise InputError(f"{path}: {name} is {config[name]!r}: only {allowed} is supported")
  return config, family


def _model_of(
  folder: str, config: dict, family: Family, weights: Weights, tokenizer: Tokenizer
) -> tuple[dict, ModelConfig]:
  """meta and model config.

  Their settings decide, and our entry adds the rest: transformers may have changed the folder and
  saved it again.
  """
  entry: Any = config.get("gpt_jax")
  entry = entry if isinstance(entry, dict) else {}  # folders of others have none
  meta = {"step": 0, "tokenizer_hash": tokenizer.hash, **entry}
  own = None
  if "model" in meta:
    try:
      own = from_json(meta["model"])
    except InputError as error:
      raise InputError(f"{folder}/config.json: gpt_jax.model: {error}") from error
    if not isinstance(own, ModelConfig) or not isinstance(own.trunk, TransformerConfig):
      raise InputError(
        f"{folder}/config.json: gpt_jax.model is no Transformer; export the model again"
      )
  try:
    spec = family.model(config, weights, tokenizer, own)
    # Not the head of our entry: its labels and inputs are those that the folder names.
    if own is None or spec.head != own.head:
      rows = family.rows(spec)
      meta |= {
        "task": to_json(task_of(config, spec.head)),
        "sequence_format": family.format_of(config, spec),
        # Special tokens that have a row in the file; ours above the vocabulary have none.
        "trained_special": [name for name, i in tokenizer.special.items() if i < rows],
      }
  except InputError as error:
    raise InputError(f"{folder}/config.json: {error}") from error
  meta = {name: value for name, value in meta.items() if value is not None}
  meta["model"] = to_json(spec)
  return meta, spec


def _unfold(arrays: Arrays, weights: Weights, meta: dict) -> None:
  """Restores the arrays that `save` changed, and the temperature, from the notes in the file.

  They are in this file and not in config.json: software that trains the weights on drops them.
  """
  try:
    notes = parse_json(weights.notes.get("gpt_jax", "{}"))
    if "temperature" in notes:
      meta["temperature"] = float(notes.pop("temperature"))
    for name, values in notes.items():
      arrays[name] = np.array(values, np.float32).reshape(arrays[name].shape)
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise InputError(
      f"{weights.path}: the note gpt_jax in it is damaged ({error}); export the model again"
    ) from error


def read_embedding(folder: str) -> Embedding | None:
  """The Embedding that the files ask for; None if there are none.

  What is not supported is named in the result: the model is of use without its vectors.

  Raises:
    InputError: a damaged file.
  """
  modules = _read(os.path.join(folder, MODULES), list)
  pooling = _read(os.path.join(folder, POOLING, "config.json"), dict)
  if modules is None and pooling is None:
    return None
  kinds = _SUPPORTED[0]
  if modules is not None:
    kinds = ", ".join(str(module.get("type")).rpartition(".")[2] for module in modules)
    if kinds not in _SUPPORTED:
      expected = " or ".join(map(repr, _SUPPORTED))
      return Embedding(unsupported=f"{MODULES} has {kinds!r}: only {expected} is supported")
    # modules.json names each module's folder, which is 1_Pooling by default only.
    path = os.path.join(folder, str(modules[1].get("path")), "config.json")
    pooling = _read(path, dict) or {}
  modes = _pooling_modes(pooling)
  if len(modes) != 1 or modes[0] not in _POOLING:
    mode = " and ".join(modes) or "none"
    return Embedding(unsupported=f"pooling_mode is {mode!r}: only one of mean, max, cls, lasttoken")
  encoder = _read(os.path.join(folder, ENCODER), dict) or {}
  prompts = _read(os.path.join(folder, "config_sentence_transformers.json"), dict) or {}
  for name, value in (
    ("do_lower_case", encoder.get("do_lower_case")),
    ("default_prompt_name", prompts.get("default_prompt_name")),
  ):
    if value:
      return Embedding(unsupported=f"{name} is {value!r}, which is not supported")
  embedding = Embedding(_POOLING[modes[0]], kinds.endswith("Normalize"))
  for file, setting in _LONGEST:
    longest = (_read(os.path.join(folder, file), dict) or {}).get(setting)
    if longest is None or isinstance(longest, int | float) and longest > _UNLIMITED:
      continue
    try:
      return dataclasses.replace(embedding, longest=longest)
    except InputError as error:
      raise InputError(f"{folder}/{file}: {setting}: {error}") from error
  return embedding


def _pooling_modes(config: dict[str, Any]) -> list[str]:
  """The modes that are on: of later versions by one name, of earlier ones by a flag each."""
  if "pooling_mode" in config:
    named = config["pooling_mode"]
    return [str(mode) for mode in (named if isinstance(named, list) else [named])]
  prefix = "pooling_mode_"
  return [name.removeprefix(prefix) for name in config if name.startswith(prefix) and config[name]]


def _read(path: str, kind: type) -> Any:
  """The content of a JSON file; None if there is none."""
  content = read_optional_json(path)
  is_expected = content is None or isinstance(content, kind)
  if isinstance(content, list):
    is_expected = is_expected and all(isinstance(item, dict) for item in content)
  if not is_expected:
    raise InputError(f"{path}: not a file of sentence-transformers; copy the folder again")
  return content
