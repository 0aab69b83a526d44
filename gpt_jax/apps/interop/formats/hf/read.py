"""Reading a transformers folder."""

import os
from collections.abc import Callable

import numpy as np
from flax.traverse_util import unflatten_dict

from gpt_jax.apps.interop.formats.hf import t5
from gpt_jax.apps.interop.formats.hf.family import (
  Arrays,
  Family,
  families,
  meta_of,
  own_model,
  to_ours,
)
from gpt_jax.apps.interop.formats.hf.fields import GENERATION_FIELDS, check_config
from gpt_jax.apps.interop.formats.hf.labels import architecture_of, task_of
from gpt_jax.apps.interop.formats.hf.vectors import read_embedding
from gpt_jax.apps.interop.formats.hf.weights import (
  Weights,
  check_arrays,
  find,
  open_weights,
  without_padding,
)
from gpt_jax.apps.interop.formats.hf_tokenizer import read_vocabulary
from gpt_jax.checkpoints.formats import Check, accept
from gpt_jax.checkpoints.formats.folder import (
  SUMS,
  check_finite,
  check_meta,
  check_sums,
  read_object,
)
from gpt_jax.config import to_json
from gpt_jax.data.tokenizers.base import METADATA, TRANSFORMERS_CONFIG, Tokenizer
from gpt_jax.data.tokenizers.released import read_optional_json
from gpt_jax.errors import InputError, about
from gpt_jax.files import parse_json
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig

GENERATION = "generation_config.json"
# (config.json, family, weights) -> the weights that are read in their place; may change the config.
Overlay = Callable[[dict, Family, Weights], Weights]


def load(
  path: str, check: Check = accept, overlay: Overlay | None = None, beside: str = ""
) -> tuple[dict, dict, int, Tokenizer]:
  """Reads a folder, or the weights file in it, of a Transformer trunk with an overlay.

  A head that is neither of a pre-training objective nor of sequence or token classification is left
  out with a warning: that of questions and answers, or GPT's for multiple choice. Rows missing from
  the embedding table are zero; fine-tuning initializes those it needs.

  Args:
    beside: the folder of the overlay: a tokenizer and files of sentence-transformers there go
      before those of the folder.

  Returns:
    params as float32 NumPy arrays, meta, step, tokenizer.
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
  if t5.detect(folder):
    if overlay:
      raise InputError(f"{folder}: an adapter of a T5 is not supported; merge it by PEFT")
    arrays, meta, tokenizer = t5.load(folder, weights_path, check)
  else:
    arrays, meta, tokenizer = _load_transformer(folder, weights_path, check, overlay, beside)
  step = meta.pop("step")
  try:
    check_finite(arrays)
    check_meta(meta, step)
  except ValueError as error:
    raise InputError(f"{folder}: {error}; export or copy the model again") from error
  embedding = (beside and read_embedding(beside, tokenizer)) or read_embedding(folder, tokenizer)
  if embedding is not None:
    meta["embedding"] = to_json(embedding)
  return unflatten_dict(arrays, sep="/"), meta, step, tokenizer


def _load_transformer(
  folder: str, weights_path: str, check: Check, overlay: Overlay | None, beside: str
) -> tuple[Arrays, dict, Tokenizer]:
  """Arrays, meta with the step, and tokenizer of a family of the Transformer trunk."""
  path = os.path.join(folder, "config.json")
  config, family = _read_config(path)
  files = [os.path.join(beside, name) for name in (METADATA, TRANSFORMERS_CONFIG)]
  vocabulary = beside if beside and any(map(os.path.isfile, files)) else folder
  tokenizer = read_vocabulary(vocabulary, config["vocab_size"], family.vocabulary)
  weights = open_weights(weights_path, family.prefix, family.ties)  # names and shapes only
  weights = overlay(config, family, weights) if overlay else weights
  meta, spec = _model_of(path, config, family, weights, tokenizer)
  if spec.head is None and family.attention == "causal":
    ends = _ends(folder, config)
    if ends and ends != [tokenizer.end_id]:
      meta["end_ids"] = ends
  # All names and shapes are compared before the first array is read.
  layout, rows = family.arrays(spec, config), family.rows(spec)
  tables = [array.theirs for array in layout if array.part == np.s_[:rows]]
  weights = without_padding(path, weights, tables, config["vocab_size"], rows)
  shapes = {array.theirs: array.shape for array in layout if array.theirs}
  architecture = architecture_of(config) or "the model"
  check_arrays(weights, shapes, family.model_type, family.ignored, family.heads, architecture)
  check(meta)
  arrays = to_ours(layout, weights)
  _unfold(arrays, weights, meta)
  return arrays, meta, tokenizer


def _ends(folder: str, config: dict) -> list[int]:
  """The ids that end a text, of generation_config.json or, without it, config.json."""
  path = os.path.join(folder, GENERATION)
  settings = read_optional_json(path)
  if isinstance(settings, dict):
    GENERATION_FIELDS.unsupported(path, settings)
    config = settings
  ends = config.get("eos_token_id")
  ends = ends if isinstance(ends, list) else [ends]
  return [end for end in ends if type(end) is int]


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
  config = family.defaults | config
  check_config(path, config, family.sizes, family.supported)
  return config, family


def _model_of(
  path: str, config: dict, family: Family, weights: Weights, tokenizer: Tokenizer
) -> tuple[dict, ModelConfig]:
  """meta and model config.

  Their settings decide, and our entry adds the rest: transformers may have changed the folder and
  saved it again.
  """
  meta = meta_of(config, tokenizer)
  own = own_model(path, meta, TransformerConfig)
  with about(path):
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
