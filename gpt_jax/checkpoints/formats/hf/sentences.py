"""The files that sentence-transformers puts beside a model: how a text becomes a vector."""

import dataclasses
import os
from typing import Any

from gpt_jax.checkpoints.embedding import Embedding
from gpt_jax.data.tokenizers.base import TRANSFORMERS_CONFIG
from gpt_jax.errors import InputError
from gpt_jax.files import read_optional_json

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
