"""The files of sentence-transformers: how a text becomes a vector."""

import dataclasses
import os
from typing import Any

from gpt_jax.apps.interop.formats.hf.fields import VECTOR_FIELDS
from gpt_jax.apps.interop.formats.hf.weights import MODULES, first_module
from gpt_jax.checkpoints.saved import Embedding
from gpt_jax.data.tokenizers.base import TRANSFORMERS_CONFIG, Tokenizer
from gpt_jax.data.tokenizers.released import read_optional_json
from gpt_jax.errors import InputError, about

POOLING, SETTINGS = "1_Pooling", "config_sentence_transformers.json"
# The first is today's; older versions named the file by the class, which is now a Transformer.
_CLASSES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_ENCODERS = tuple(f"sentence_{name}_config.json" for name in _CLASSES)
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


def read_embedding(folder: str, tokenizer: Tokenizer) -> Embedding | None:
  """The Embedding that the files ask for, if any; it names what is not supported: the model is of
  use without its vectors.
  """
  root, modules = folder, _read(os.path.join(folder, MODULES), list)
  if modules is None:  # older versions put the model into a folder of the whole, 0_BERT
    root, name = os.path.split(os.path.abspath(folder))
    if first_module(root) == name:
      modules = _read(os.path.join(root, MODULES), list)
    else:
      root = folder
  pooling = _read(os.path.join(root, POOLING, "config.json"), dict)
  if modules is None and pooling is None:
    return None
  kinds, paths = _SUPPORTED[0], []
  if modules is not None:
    names = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if names[0].lower().replace("xlmr", "xlm-r") in _CLASSES:
      names[0] = "Transformer"
    kinds = ", ".join(names)
    if kinds not in _SUPPORTED:
      expected = " or ".join(map(repr, _SUPPORTED))
      return Embedding(unsupported=f"{MODULES} has {kinds!r}: only {expected} is supported")
    # modules.json names each module's folder, which is 1_Pooling by default only.
    paths = [os.path.join(root, str(module.get("path")), "config.json") for module in modules[1:]]
    pooling = _read(paths[0], dict) or {}
  modes = _pooling_modes(pooling)
  if len(modes) != 1 or modes[0] not in _POOLING:
    mode = " and ".join(modes) or "none"
    return Embedding(unsupported=f"pooling_mode is {mode!r}: only one of mean, max, cls, lasttoken")
  present = [name for name in _ENCODERS if os.path.isfile(os.path.join(folder, name))]
  encoder = os.path.join(folder, (present or _ENCODERS)[0])
  for path in (encoder, os.path.join(root, SETTINGS), *paths):
    settings = _read(path, dict) or {}
    reason = VECTOR_FIELDS.unsupported(path, settings)
    if settings.get("do_lower_case") and len({*map(str, tokenizer.encode_many(["Aa", "aa"]))}) > 1:
      reason = "do_lower_case is True, which is not supported"
    if reason:
      return Embedding(unsupported=reason)
  embedding = Embedding(_POOLING[modes[0]], kinds.endswith("Normalize"))
  # The longest text, in tokens: of versions up to 5, and of version 6.
  for path, setting in (
    (encoder, "max_seq_length"),
    (os.path.join(folder, TRANSFORMERS_CONFIG), "model_max_length"),
  ):
    longest = (_read(path, dict) or {}).get(setting)
    if longest is None or isinstance(longest, int | float) and longest > _UNLIMITED:
      continue
    with about(f"{path}: {setting}"):
      return dataclasses.replace(embedding, longest=longest)
  return embedding


def _pooling_modes(config: dict[str, Any]) -> list[str]:
  """The modes that are on: of later versions by one name, of earlier ones by a flag each."""
  if "pooling_mode" in config:
    named = config["pooling_mode"]
    return [str(mode) for mode in (named if isinstance(named, list) else [named])]
  prefix = "pooling_mode_"
  return [name.removeprefix(prefix) for name in config if name.startswith(prefix) and config[name]]


def _read(path: str, kind: type) -> Any:
  """The content of a JSON file, an object or a list of some; None if there is none."""
  content = read_optional_json(path)
  is_expected = content is None or isinstance(content, kind)
  if not is_expected or kind is list and not all(isinstance(x, dict) for x in content or ()):
    raise InputError(f"{path}: not a file of sentence-transformers; copy the folder again")
  return content
