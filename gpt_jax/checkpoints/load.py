"""A trained model as it is used: the parameters of a checkpoint or another format, their config,
their vocabulary.
"""

import dataclasses
import os
from types import ModuleType
from typing import Any

from gpt_jax.checkpoints import store as checkpoint
from gpt_jax.checkpoints.formats import hf, npz, openai, safetensors
from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.config import from_json
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.models.model import Model, ModelConfig, language_model

# Each has is_one(path), load_model(path) -> (params, meta, step, tokenizer), save(folder, params, meta,
# step, tokenizer).
FORMATS = {"npz": npz, "safetensors": safetensors, "openai": openai, "hf": hf}


@dataclasses.dataclass(frozen=True)
class LoadedModel:
  """What `load` found.

  Attributes:
    spec: the model's config.
    params: float32 NumPy arrays, `{trunk}` or `{trunk, head}`.
    tokenizer: the vocabulary the model was trained with.
    meta: all that was saved with the parameters: `model`, `config`, `tokenizer_hash`, what the task
      was.
    step: updates made.
    path: as given to `load`.
  """

  spec: ModelConfig
  params: Any = dataclasses.field(repr=False)
  tokenizer: Tokenizer
  meta: dict = dataclasses.field(repr=False)
  step: int
  path: str

  @property
  def identity(self) -> str:
    """What tells the trunk's parameters from others."""
    return f"step {self.step}, checksum {checksum(self.params['trunk'])}"

  @property
  def model(self) -> Model:
    return self.spec.build()

  def language_model(self) -> Model:
    """The trunk, to generate or score text. Raises InputError where it is not causal."""
    return language_model(self.spec.trunk, self.spec.attention)


def load_model(path: str, format: str = "") -> LoadedModel:
  """Reads a trained model, verified.

  Args:
    path: a workdir (its newest checkpoint), `<workdir>/best`, `<workdir>/checkpoints/<step>`, an
      exported folder, OpenAI's released folder, or one of transformers'.
    format: one of FORMATS, where it may be no other; "" takes what is there.

  Raises:
    InputError: nothing of the kind there, damaged, or a vocabulary that is not the model's.
  """
  found = (
    find_format(format)
    if format
    else next((one for one in FORMATS.values() if one.detect(path)), None)
  )
  if found:
    params, meta, step, tokenizer = found.load(path)
    home = path
  else:
    params, meta, step = checkpoint.restore_params(path)
    home = _workdir_of(path)
    tokenizer = load_tokenizer(os.path.join(home, "tokenizer"))
  if tokenizer.hash != meta["tokenizer_hash"]:
    raise InputError(
      f"{path}: a checkpoint whose vocabulary is not the tokenizer's: it was trained with "
      f"{tokenizer.difference(meta['tokenizer_hash'])}; put its own tokenizer into {home}/tokenizer"
    )
  return LoadedModel(from_json(meta["model"]), params, tokenizer, meta, step, path)


def find_format(name: str) -> ModuleType:
  """The module of FORMATS. Raises InputError at another name."""
  if name not in FORMATS:
    raise InputError(f"--format={name}: must be one of {', '.join(FORMATS)}")
  return FORMATS[name]


def _workdir_of(path: str) -> str:
  """The folder of the run that a checkpoint's path is in."""
  folder = os.path.abspath(path)
  for _ in range(3):  # <workdir>/checkpoints/<step> is the deepest
    if os.path.exists(os.path.join(folder, "config.json")):
      return folder
    folder = os.path.dirname(folder)
  raise InputError(
    f"{path}: not inside the folder of a run, which has config.json and tokenizer/; give it there"
  )
