"""A trained model as it was saved, from a run or another format: parameters, config, tokenizer."""

import contextlib
import dataclasses
import functools
import os
import shutil
from collections.abc import Iterable
from typing import Any

from gpt_jax.batch import POOLINGS
from gpt_jax.checkpoints.formats import Check, accept, detect_format, find_format
from gpt_jax.checkpoints.released import is_released, locate, no_network, tfidf_folder
from gpt_jax.checkpoints.restore import restore_params, saved_meta, saved_steps
from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.config import Config, from_json, option, register
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError, about
from gpt_jax.files import absolute, announced, atomic_folder, exists, local_copy, refuse_url
from gpt_jax.models.adapter import BASE, merged, with_rows
from gpt_jax.models.model import ModelConfig
from gpt_jax.parallel.processes import is_main_process, log
from gpt_jax.tasks.formats import Format

_KEPT = "kept_base"  # in the folder of an adapter's run
# One of them is in a folder of each format.
EXPORTS = ("config.json", "params_shapes.json", "adapter_config.json")


@register("embedding")
@dataclasses.dataclass(frozen=True)
class Embedding(Config):
  """How Model.embed makes a vector of the last hidden states, without contrastive training."""

  pooling: str = option(
    "mean",
    "how tokens become one vector: their mean or maximum, the first token (cls) or the last",
    choices=("max", *POOLINGS),
  )
  normalize: bool = option(False, "whether vectors have length 1")
  longest: int | None = option(
    None, "longest sequence with its special tokens; none: the context", low=8, unit="tokens"
  )
  unsupported: str = option("", "what the model's folder asks for besides, and `embed` refuses")


@dataclasses.dataclass(frozen=True)
class SavedModel:
  """A trained model."""

  spec: ModelConfig
  params: Any = dataclasses.field(repr=False)  # float32 NumPy arrays, `{trunk}` or `{trunk, head}`
  tokenizer: Tokenizer
  # JSON saved with the parameters: `model`, `config`, `tokenizer_hash`, `sequence_format`, `task`
  # if it was fine-tuned, `embedding` if it was imported with one
  meta: dict = dataclasses.field(repr=False)
  step: int
  path: str  # the path given to `read_model`
  folder: str = ""  # the folder of the run, or of the export

  @functools.cached_property
  def identity(self) -> str:
    """Identifies the parameters of the trunk."""
    return f"step {self.step}, checksum {checksum(self.params['trunk'])}"

  @property
  def lasting_path(self) -> str:
    """The path as a run keeps it; of a released model the name, since its folder may move."""
    return self.path if is_released(self.path) else absolute(self.path)

  @functools.cached_property
  def format(self) -> Format:
    """How labeled examples are written for it; a checkpoint that names none has its trunk's."""
    return read_json(self.meta.get("sequence_format", self.spec.trunk.format), self.path)

  @property
  def config(self) -> Any:
    """The config of the run that trained the model; None for released or foreign weights."""
    return read_json(self.meta["config"], self.path) if "config" in self.meta else None


def read_model(
  path: str,
  format: str = "",
  base: SavedModel | None = None,
  merges: bool = True,
  check: Check = accept,
) -> SavedModel:
  """Reads and verifies a trained model.

  Args:
    path: a workdir (its newest checkpoint), `<workdir>/best`, `<workdir>/checkpoints/<step>`, or a
      model in one of formats/: an export, OpenAI's release, a transformers folder; or the name of a
      released model, see released.py.
    format: the only format to accept; "" detects it.
    base: of an adapter, where the caller has it already.
    merges: False: path must hold an adapter, whose parameters are then `{adapter, base, heads…}`;
      `meta` has `adapter`.
    check: see formats.Check.
  """
  with announced(f"loading the model from {path}"):
    model = _read(locate(path), format, base, merges, check)
  return dataclasses.replace(model, path=path)


def _read(
  path: str, format: str, base: SavedModel | None, merges: bool, check: Check
) -> SavedModel:
  if tfidf_folder(path):
    raise no_network(path)
  # On a store, an export is copied here as a whole; of a run restore.py reads what is needed.
  is_run = exists(os.path.join(path, "checkpoints"))
  is_export = not is_run and any(exists(os.path.join(path, name)) for name in EXPORTS)
  with local_copy(path) if is_export else contextlib.nullcontext(path) as copy:
    reader = find_format(format) if format else detect_format(copy)
    if reader:
      params, meta, step, tokenizer = reader.load(copy, check)
      folder = path
  if not reader:
    params, meta, step = restore_params(path, check=check)
    folder = _find_workdir(path)
    tokenizer = load_tokenizer(os.path.join(folder, "tokenizer"))
  if "adapter" in meta:
    is_kept = os.path.basename(absolute(path)) == _KEPT  # of an adapter, and an adapter itself
    params = _beside_base(params, meta, path if is_kept else folder, base)
    if merges:
      params = merged(params, read_json(meta["adapter"]["config"], path))
      meta = {name: value for name, value in meta.items() if name != "adapter"}
  elif not merges:
    raise InputError(f"{path}: a whole model; give the run of an adapter")
  if tokenizer.hash != meta["tokenizer_hash"]:
    raise InputError(
      f"{path}: a checkpoint whose vocabulary is not the tokenizer's: it was trained with "
      f"{tokenizer.difference(meta['tokenizer_hash'])}; put its own tokenizer into "
      f"{folder}/tokenizer"
    )
  return SavedModel(read_json(meta["model"], path), params, tokenizer, meta, step, path, folder)


def _beside_base(params: dict, meta: dict, folder: str, base: SavedModel | None) -> dict:
  """The parameters of an adapter and its heads beside those of its base."""
  noted, link = meta["adapter"]["base"], os.path.join(folder, BASE)
  if base is None:
    places = (link, os.path.join(folder, _KEPT))
    try:
      base = read_model(next(filter(exists, places), noted["checkpoint"]))
    except InputError as error:
      if "the base of this adapter:" in str(error):  # it is linked to itself
        raise
      raise InputError(
        f"{folder}: the base of this adapter: {error}; or link it as {link}"
      ) from error
  if base.identity != noted["identity"]:
    raise InputError(
      f"{folder}: an adapter of {noted['identity']}, and {base.path} is {base.identity}; give its "
      f"own, or link it as {link}"
    )
  trunk = with_rows(base.params["trunk"], read_json(meta["model"], folder).trunk.rows)
  return {**params, BASE: {"trunk": trunk}}


def keep_base(workdir: str, checkpoint: str) -> None:
  """Keeps the step that an adapter is of, which its own run may remove, by links to its files.

  Where that cannot be, as on a store or another file system, a line in the log says so.
  """
  kept, parent = os.path.join(workdir, _KEPT), os.path.dirname(checkpoint)
  if not is_main_process() or exists(kept) or os.path.basename(parent) != "checkpoints":
    return
  try:
    refuse_url(workdir)
    with atomic_folder(kept) as partial:
      shutil.copytree(checkpoint, partial, copy_function=os.link, dirs_exist_ok=True)
      if exists(of_base := os.path.join(os.path.dirname(parent), _KEPT)):  # an adapter, too
        shutil.copytree(of_base, os.path.join(partial, _KEPT), copy_function=os.link)
  except (InputError, OSError):
    log(
      f"warning: the adapter needs {checkpoint}, which its run removes if it trains on; copy it, "
      f"and if it is gone, link the copy as {os.path.join(workdir, BASE)}"
    )


def own_base(checkpoint: str, workdirs: Iterable[str]) -> tuple[str, str]:
  """The step of a run that an adapter in one of these folders is of: its path, and where it is.

  Both are `checkpoint` if it is not that run: a base may train on, and remove the step, before the
  run of its adapter resumes.
  """
  for workdir in workdirs:
    with contextlib.suppress(InputError, KeyError):
      meta = saved_meta(workdir, saved_steps(workdir)[-1])
      noted = meta["adapter"]["base"]["checkpoint"]
      run = os.path.dirname(os.path.dirname(noted))
      if absolute(checkpoint).removesuffix("/best") in (noted, run):
        place = next(filter(exists, (noted, os.path.join(workdir, _KEPT))), noted)
        log(f"{workdir}: an adapter of {place}")
        return noted, place
  return checkpoint, checkpoint


def read_json(tree: Any, path: str) -> Any:
  """The config of a checkpoint's metadata."""
  with about(path):
    return from_json(tree)


def _find_workdir(path: str) -> str:
  """The run folder of a checkpoint."""
  folder = absolute(path)
  for _ in range(3 + folder.count(_KEPT)):  # <workdir>/checkpoints/<step>, or its base's base
    if exists(os.path.join(folder, "config.json")):
      return folder
    folder = os.path.dirname(folder)
  raise InputError(
    f"{path}: not inside the folder of a run, which has config.json and tokenizer/; give it there"
  )
