"""A family of transformers' models, and the conversion between its arrays and ours."""

import dataclasses
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpt_jax.apps.interop.formats.hf.fields import Supported
from gpt_jax.apps.interop.formats.hf.weights import Weights
from gpt_jax.apps.interop.formats.hf_tokenizer import Template
from gpt_jax.config import from_json
from gpt_jax.data.tokenizers.base import Tokenizer, load_released
from gpt_jax.errors import InputError, about
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.trunk import TrunkConfig
from gpt_jax.tasks.task import Task

Arrays = dict[str, np.ndarray]


class Array(NamedTuple):
  """An array in both layouts."""

  theirs: str  # transformers' name; "": they have none, and ours is zero
  ours: str  # path in our parameters; "": we have none, and theirs is zero
  shape: tuple[int, ...]  # the shape of transformers' array
  our_shape: tuple[int, ...]  # the shape of our whole array, of which theirs may be a part
  part: Any = ()  # index of the part of ours that theirs holds; elements are in the same order
  transposed: bool = False  # a Linear's weight is [out, in], our kernels [in, out]
  skipped: int = 0  # the first rows of theirs, which we have not; zero when written


def dense(theirs: str, ours: str, inputs: int, outputs: int) -> list[Array]:
  """A Linear and our Projection."""
  kernel = (inputs, outputs)
  return [
    Array(f"{theirs}.weight", f"{ours}/kernel", kernel[::-1], kernel, transposed=True),
    Array(f"{theirs}.bias", f"{ours}/bias", (outputs,), (outputs,)),
  ]


def norm(theirs: str, ours: str, width: int) -> list[Array]:
  """A LayerNorm."""
  return [
    Array(f"{theirs}.weight", f"{ours}/scale", (width,), (width,)),
    Array(f"{theirs}.bias", f"{ours}/bias", (width,), (width,)),
  ]


class Family(Protocol):
  """Base of the architectures of transformers."""

  model_type: str  # its name in config.json
  prefix: str  # name prefix of the trunk's arrays in a model with a head
  attention: str  # see ModelConfig
  format: dict | None  # JSON config of the Format of labeled examples that we write; None: GPT's
  sizes: tuple[str, ...]  # settings of config.json that must be numbers
  defaults: dict[str, int] = {}  # those that a config.json may leave out
  ties: dict[str, str]  # name -> another name of the same array, of which a file has either or both
  ignored: re.Pattern[str]  # names of arrays that nothing reads
  # Names of arrays of heads, which are left out with a warning where the model has none
  heads: re.Pattern[str]

  def supported(self, config: dict) -> Supported:
    """See fields.check_config."""

  def vocabulary(self, folder: str) -> Tokenizer:
    """The vocabulary as transformers or the authors of the model saved it. Raises InputError."""
    return load_released(folder)

  def format_of(self, config: dict, spec: ModelConfig) -> dict | None:
    """As `format`, for a folder that others wrote."""
    return self.format

  def model(
    self, config: dict, weights: Weights, tokenizer: Tokenizer, own: ModelConfig | None
  ) -> ModelConfig:
    """The model in a folder; `own` is what our entry in config.json says of it."""

  def rows(self, spec: ModelConfig) -> int:
    """Rows of the embedding table that a folder holds."""

  def arrays(self, spec: ModelConfig, config: dict) -> list[Array]:
    """All arrays of a folder with this config.json."""

  def declines(self, spec: ModelConfig, meta: dict, tokenizer: Tokenizer) -> str:
    """Why a folder of this family cannot hold a model; "" if it can."""

  def fold(self, arrays: Arrays, spec: ModelConfig, orders: int) -> Arrays:
    """Rewrites arrays that transformers' classes cannot express; returns the originals by name."""
    del arrays, spec, orders  # they express all
    return {}

  def config(self, spec: ModelConfig, tokenizer: Tokenizer, task: Task | None) -> dict[str, Any]:
    """The config.json of a folder."""

  def template(self, spec: ModelConfig, tokenizer: Tokenizer) -> Template | None:
    """The special tokens that the tokenizer adds to texts; None: it adds none."""

  def describe(self, spec: ModelConfig, tokenizer: Tokenizer) -> list[str]:
    """Paragraphs of the model card on how a labeled example is written."""


def families() -> list[Family]:
  """All families, by the order of their files."""
  folder = sys.modules[__package__].__path__
  # A family is a file of this folder: adding one edits no other.
  names = sorted(module.name for module in pkgutil.iter_modules(folder))
  found: list[Family] = []
  for name in names:
    found += getattr(importlib.import_module(f"{__package__}.{name}"), "FAMILIES", ())
  return found


def find_family(spec: ModelConfig, meta: dict, tokenizer: Tokenizer, format: str = "hf") -> Family:
  """The family that a model can be written as. Raises InputError, with all reasons, if none."""
  candidates = [family for family in families() if family.attention == spec.attention]
  reasons = []
  for family in candidates:
    reason = family.declines(spec, meta, tokenizer)
    if not reason:
      return family
    reasons.append(reason)
  reasons = reasons or [f"transformers has no model of {spec.attention} attention"]
  raise InputError(f"format={format}: {'; '.join(dict.fromkeys(reasons))}; npz can hold it")


def declines_head(head: Any) -> str:
  """Why no family holds a head for labels, or ""; None is no head."""
  if head and head.reads - {"pooler"}:
    return "transformers' heads read one token of the last layer, and this one reads more"
  if head and not head.per_token and head.units:
    return "transformers' heads have no hidden layer, and this one has (head_units)"
  return ""


def for_embeddings(spec: ModelConfig) -> ModelConfig:
  """The model without the layer of a contrastive head, which only its loss reads."""
  heads = list(spec.heads)
  for i, head in enumerate(heads):
    if head.scope == "contrastive":
      heads[i] = dataclasses.replace(head, mlp=False)
  return dataclasses.replace(spec, heads=tuple(heads))


def meta_of(config: dict, tokenizer: Tokenizer) -> dict[str, Any]:
  """The step and what else our entry in config.json says; folders of others have none."""
  entry = config.get("gpt_jax")
  own = entry if isinstance(entry, dict) else {}
  return {"step": 0, "tokenizer_hash": tokenizer.hash, **own}


def own_model(path: str, meta: dict, trunk: type[TrunkConfig]) -> ModelConfig | None:
  """The model of our entry in the config.json at `path`; None: the folder is of others."""
  if "model" not in meta:
    return None
  with about(f"{path}: gpt_jax.model"):
    spec = from_json(meta["model"])
    if not isinstance(spec, ModelConfig) or not isinstance(spec.trunk, trunk):
      raise InputError(f"no model with a {trunk.__name__}; export it again")
  return spec


def to_ours(layout: Iterable[Array], weights: Weights) -> Arrays:
  """Our arrays, of those of an open file."""
  arrays: Arrays = {}
  for array in layout:
    if not array.ours:
      continue
    # Several of theirs may be parts of one of ours, as q, k and v are.
    if array.ours not in arrays:
      arrays[array.ours] = np.zeros(array.our_shape, np.float32)
    if array.theirs:
      part = arrays[array.ours][array.part]
      values = weights.read(array.theirs)[array.skipped :]
      values = values.T if array.transposed else values
      arrays[array.ours][array.part] = values.reshape(part.shape)
  return arrays


def to_theirs(layout: Iterable[Array], arrays: Arrays, prefix: str, heads: re.Pattern) -> Arrays:
  """Their arrays by their full names."""
  tensors = {}
  for array in layout:
    if not array.theirs:
      continue
    values = np.zeros(array.shape, np.float32)
    if array.ours:
      rows, *others = array.shape
      shape = (rows - array.skipped, *others)
      part = arrays[array.ours][array.part]
      # [in, out] first, which joins our axis of heads, then theirs, [out, in].
      part = part.reshape(shape[::-1]).T if array.transposed else part.reshape(shape)
      values = np.concatenate([values[: array.skipped], part]) if array.skipped else part
    # Heads stand beside the trunk, and so without its prefix.
    name = array.theirs if heads.fullmatch(array.theirs) else prefix + array.theirs
    tensors[name] = np.ascontiguousarray(values)
  return tensors
