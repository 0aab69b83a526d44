"""LoRA adapters of encoders and GPTs in the layout of PEFT, beside the folder of their base.

Needs the extra 'safetensors'. The search for registered names imports this file, so it imports JAX
only where it is used.
"""

import dataclasses
import functools
import json
import os
from typing import Any

import numpy as np

from gpt_jax.checkpoints.formats import Check, accept
from gpt_jax.checkpoints.released import is_released, locate
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import absolute, atomic_folder, write_json

HELP = "the LoRA adapter of an encoder or GPT as PEFT has it, without its base"
CONFIG, WEIGHTS, OURS = "adapter_config.json", "adapter_model.safetensors", "gpt_jax.json"
_OLD_WEIGHTS = "adapter_model.bin"
_PREFIX = "base_model.model."
_ROWS = "token_adapter.trainable_tokens_delta"  # the rows themselves, of peft 0.15 or newer
_CHANGES_BASE = "pissa", "olora", "corda", "loftq", "lora_ga"  # init_lora_weights that change W
_TASKS = {
  "ForSequenceClassification": "SEQ_CLS",
  "ForTokenClassification": "TOKEN_CLS",
  "ForQuestionAnswering": "QUESTION_ANS",
}

# Settings of what is more than W + alpha / r B A.
_PLAIN = {
  "peft_type": "LORA",
  "bias": "none",
  "use_dora": False,
  "use_rslora": False,
  "lora_bias": False,
  "rank_pattern": {},
  "alpha_pattern": {},
}

# Those that are read, or that what is in the arrays decides, or the training alone. Any other must
# be unset: one that we do not know may change what is computed.
_KNOWN = frozenset(
  """task_type auto_mapping peft_version base_model_name_or_path revision inference_mode r
  lora_alpha lora_dropout target_modules exclude_modules fan_in_fan_out modules_to_save
  init_lora_weights layers_to_transform layers_pattern trainable_token_indices megatron_core
  loftq_config eva_config corda_config lora_ga_config qalora_group_size""".split()
)


def detect(path: str) -> bool:
  return os.path.isfile(os.path.join(path, CONFIG))


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """Writes a folder for PeftModel.from_pretrained; its README.md names the class of the base.

  The head is that of a model in transformers' format: divided by the temperature, and GPT's bias
  is in a norm, which is saved whole; see hf.write. Special tokens that the base has not trained
  are what PEFT calls trainable tokens.

  Args:
    params: `{adapter, base, heads…}`.
  """
  import jax
  from flax.traverse_util import flatten_dict

  from gpt_jax.apps.interop.formats import hf
  from gpt_jax.apps.interop.formats.hf.family import find_family, to_theirs
  from gpt_jax.apps.interop.formats.hf.write import adapt_head, orders_of
  from gpt_jax.checkpoints.formats import safetensors
  from gpt_jax.checkpoints.formats.folder import write_sums
  from gpt_jax.config import from_json, to_json
  from gpt_jax.models.trunk import BASE

  safetensors.library()  # fail before the expensive part
  meta = dict(meta)
  noted, temperature = meta.pop("adapter"), meta.pop("temperature", None)
  adapter, spec = from_json(noted["config"]), from_json(meta["model"])
  family = find_family(spec, meta, tokenizer, "peft")
  task = from_json(meta["task"]).build("") if "task" in meta else None
  arrays = jax.tree.map(np.asarray, flatten_dict({**params, **params[BASE]}, sep="/"))
  before = adapt_head(arrays, task, temperature)
  folded = family.fold(arrays, spec, orders_of(task, meta, family))
  notes: dict[str, Any] = jax.tree.map(np.ndarray.tolist, folded | before)
  if temperature is not None:
    notes["temperature"] = temperature
  config = family.config(spec, tokenizer, task)
  layout = family.arrays(spec, config)
  # Saved as they are: a head's arrays, and those of a layer with a folded one.
  layers = {os.path.dirname(name) for name in folded}
  own = [x for x in layout if not x.ours.startswith("trunk/") or os.path.dirname(x.ours) in layers]
  whole = to_theirs(own, arrays, family.prefix, family.heads)
  changes = _changes(params["adapter"], adapter.rank, layout, family.prefix)
  modules = list(dict.fromkeys(name.partition(".lora_")[0] for name in changes))
  rows = range(spec.trunk.vocab_size, family.rows(spec) if "tokens" in params["adapter"] else 0)
  table = next(array.theirs for array in layout if array.ours == "trunk/tokens")
  table = table.removesuffix(".weight")
  if rows:
    values = arrays["trunk/tokens"][rows] + params["adapter"]["tokens"][: len(rows)]
    changes[f"{family.prefix}{table}.{_ROWS}"] = np.asarray(values, np.float32)
  # PEFT saves a module as a whole: a head, or a layer of the trunk.
  saved = {
    name.rpartition(".")[0] if name.startswith(family.prefix) else name.partition(".")[0]
    for name in whole
  }
  model, base = config["architectures"][0], noted["base"]["checkpoint"]
  base = base if "/" in base else locate(base)  # peft knows no name of a package
  of_base = {"base_identity": noted["base"]["identity"]}
  if not (is_theirs := hf.detect(locate(base))):  # peft cannot read it: it goes along
    base, of_base = os.path.join(absolute(folder), "base"), {}
  kind = next((kind for kind in _TASKS if model.endswith(kind)), None)
  settings = {
    **_PLAIN,
    "task_type": kind and _TASKS[kind],
    "base_model_name_or_path": base,
    "r": adapter.rank,
    "lora_alpha": adapter.alpha,
    "lora_dropout": adapter.dropout,
    "target_modules": modules,
    "fan_in_fan_out": family.attention == "causal",  # GPT's Conv1D is [in, out]
    "modules_to_save": sorted(saved),
    "trainable_token_indices": {table: list(rows)} if rows else None,
    "inference_mode": True,
  }
  with atomic_folder(folder) as partial:
    tensors = {_PREFIX + name: x for name, x in (whole | changes).items()}
    path = os.path.join(partial, WEIGHTS)
    safetensors.write(path, tensors, {"format": "pt", "gpt_jax": json.dumps(notes)})
    write_json(os.path.join(partial, CONFIG), settings)
    write_json(os.path.join(partial, OURS), {"step": step, **meta, **of_base})
    write_sums(partial)
    with open(os.path.join(partial, "README.md"), "w", encoding="utf-8") as file:
      file.write(_card(settings, config, spec.head, rows))
    if not is_theirs:
      trunk_alone = to_json(dataclasses.replace(spec, heads=()))
      of_trunk = {name: x for name, x in meta.items() if name != "task"} | {"model": trunk_alone}
      hf.save(os.path.join(partial, "base"), params[BASE], of_trunk, step, tokenizer)


def _card(settings: dict[str, Any], config: dict[str, Any], head: Any, rows: range) -> str:
  """README.md: how to load the adapter, where its base has other heads and no new rows."""
  model, base = config["architectures"][0], settings["base_model_name_or_path"]
  labels = f", num_labels={head.num_classes}" if settings["task_type"] else ""
  if labels and settings["fan_in_fan_out"]:  # GPT's class refuses batches without it
    labels += f", pad_token_id={config['pad_token_id']}"
  resized = f"\nbase.resize_token_embeddings({rows.stop})" if rows else ""
  return f"""---
library_name: peft
base_model: {base}
---

Written by gpt_jax, which reads this folder like a checkpoint, where its base is there too.

```python
from peft import PeftModel
from transformers import {model}

base = {model}.from_pretrained("{base}"{labels}){resized}
model = PeftModel.from_pretrained(base, "FOLDER")
```
"""


def _changes(adapter: Any, rank: int, layout: Any, prefix: str) -> dict[str, Any]:
  """The matrices of an adapter by PEFT's names; layout: of all arrays of the model."""
  from flax.traverse_util import flatten_dict

  ours, theirs = flatten_dict(adapter, sep="/"), {}
  for path in ours:
    if not path.endswith(("/a", "/b")) and path != "tokens":
      raise InputError(
        f"format=peft: holds LoRA alone, and this adapter also changes {path}; format=hf holds the "
        "merged model"
      )
  for array in layout:
    path = array.ours.removeprefix("trunk/")
    if f"{path}/a" not in ours:
      continue
    # Queries, keys and values share our A. A part of a kernel's outputs has that part of B.
    a, b = ours[f"{path}/a"].reshape(-1, rank), ours[f"{path}/b"][array.part].reshape(rank, -1)
    module = prefix + array.theirs.removesuffix(".weight")
    for name, x in (("A", a), ("B", b)):
      theirs[f"{module}.lora_{name}.weight"] = np.ascontiguousarray(x.T, np.float32)
  return theirs


def load(path: str, check: Check = accept) -> tuple[dict, dict, int, Tokenizer]:
  """Reads an adapter, ours or another's, merged with its base, which is a transformers folder."""
  from gpt_jax.apps.interop.formats.hf import read
  from gpt_jax.checkpoints.formats.folder import SUMS, check_sums, read_object
  from gpt_jax.checkpoints.run_folder import checksum

  try:
    if os.path.exists(os.path.join(path, SUMS)):  # folders of others have none
      check_sums(path, (CONFIG, WEIGHTS))
    settings = read_object(os.path.join(path, CONFIG))
    ours = os.path.join(path, OURS)
    meta = read_object(ours) if os.path.exists(ours) else {}
  except InputError as error:
    raise InputError(f"{error}; if it was changed on purpose, remove {path}/{SUMS}") from error
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error}); copy the folder again") from error
  for name, value in sorted(settings.items(), key=lambda item: item[0] not in _PLAIN):
    plain = _PLAIN.get(name)
    if name not in _KNOWN and value not in (plain, None) and (name in _PLAIN or value):
      only = f"only {plain!r}" if name in _PLAIN else "only an adapter without it"
      raise InputError(f"{path}/{CONFIG}: {name} is {value!r}: {only} is supported")
  begin = str(settings.get("init_lora_weights")).lower()
  if begin.startswith(_CHANGES_BASE):
    raise InputError(
      f"{path}/{CONFIG}: init_lora_weights={begin} changes the base, too, which is not supported; "
      "convert the adapter to plain LoRA by PEFT"
    )
  for name in ("r", "lora_alpha"):
    value = settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
      wanted = f"{repr(value)[:40]}: should be a number above 0, below 1e9"
      raise InputError(f"{path}/{CONFIG}: {name} is {wanted}")
  link = os.path.join(path, "base")
  base = link if os.path.exists(link) else str(settings.get("base_model_name_or_path"))
  revision = settings.get("revision")
  if revision not in (None, "main") and is_released(base):  # a folder has none
    raise InputError(
      f"{path}/{CONFIG}: revision is {revision!r}: only 'main' of {base} is looked up; link the "
      f"folder of that revision as {link}"
    )
  identity = meta.pop("base_identity", None)
  try:
    folder = locate(base)
    merged = read.load(folder, check, functools.partial(_overlay, path, settings, meta), path)
    if identity:  # after the check, which is made before any weights are read
      params, _, step, _ = read.load(folder)
      found = f"step {step}, checksum {checksum(params['trunk'])}"
      if found != identity:
        raise InputError(f"has {found}, and should have {identity}")
    return merged
  except InputError as error:
    if str(error).startswith((f"{path}/adapter_", f"{path}/tokenizer", f"{path}: ")):
      # Not of the base.
      raise
    raise InputError(f"{path}: an adapter of {base}: {error}; or link it as {link}") from error


def _overlay(path: str, settings: dict, meta: dict, config: dict, family: Any, base: Any) -> Any:
  """The base's weights with the adapter's head, and each changed matrix as it is read."""
  from gpt_jax.apps.interop.formats.hf.weights import open_weights
  from gpt_jax.models.adapter import low_rank_product

  files = [os.path.join(path, name) for name in (WEIGHTS, _OLD_WEIGHTS)]
  own = open_weights(next(filter(os.path.isfile, files), files[0]), _PREFIX, {})
  names, changed, whole = {}, set(), {}
  for stored, shape in own.shapes.items():
    name = stored.removeprefix(family.prefix)
    if name in names:
      raise InputError(f"{own.path}: holds {name} twice, with and without {family.prefix}")
    names[name] = stored
    module, is_change, part = name.partition(".lora_")
    if not is_change:
      whole[name] = shape  # of the head
    elif f"{module}.weight" not in base.shapes:
      raise InputError(f"{own.path}: {name}: the base has no {module}.weight")
    elif part in ("A.weight", "B.weight"):
      changed.add(module)
    else:
      raise InputError(f"{own.path}: {name}: only lora_A.weight and lora_B.weight are supported")
  _check_saved(own.path, whole, base, family, settings)
  is_conv = family.attention == "causal"  # GPT's Conv1D is [in, out], a Linear [out, in] as B A is
  for module in sorted(changed):
    shape = base.shapes[f"{module}.weight"][:: -1 if is_conv else 1]
    _check_change(own, names, module, shape, settings["r"])
  # Others may give a list: then the array of rows is refused, as one that no trunk has.
  given = settings.get("trainable_token_indices")
  rows = given if isinstance(given, dict) else {}
  for table, ids in rows.items():
    size, *width = base.shapes.get(f"{table}.weight", (0,))
    is_list = isinstance(ids, list) and {*map(type, ids)} == {int}
    shape = whole.pop(f"{table}.{_ROWS}", ())
    # An empty row before these would have no values.
    fits = is_list and shape == (len(ids), *width)
    if not fits or min(ids) < 0 or max(ids) >= size + len(ids):
      raise InputError(
        f"{path}/{CONFIG}: trainable_token_indices: {table} should have an id for each row of "
        f"{table}.{_ROWS}, of the base's {size} rows or directly after them"
      )
    grown = max(0, max(ids) + 1 - size)
    config["vocab_size"] += grown
    whole[f"{table}.weight"] = (size + grown, *width)
  if meta:
    config["gpt_jax"] = meta
  for suffix, task_type in _TASKS.items():
    if settings.get("task_type") == task_type:
      config["architectures"] = [family.classes + suffix]
      ends = ("classifier.weight", "score.weight", "out_proj.weight")
      sizes = [shape[0] for name, shape in whole.items() if name.endswith(ends)]
      # As peft does, where the base has as many; meta has the labels of our own adapters.
      if meta or sizes != [len(config.get("id2label") or ())]:
        config.pop("id2label", None)

  def own_values(name: str) -> np.ndarray:
    x = own.read(names[name])
    if not np.isfinite(x).all():
      raise InputError(f"{own.path}: {name} holds numbers that are not finite; copy it again")
    return x

  def read(name: str) -> Any:
    module = name.removesuffix(".weight")
    if module in rows:
      x = base.read(name)
      x = np.pad(x, [(0, whole[name][0] - len(x)), (0, 0)])
      x[rows[module]] = own_values(f"{module}.{_ROWS}")
      return x
    if name in whole:
      return own_values(name)
    x = base.read(name)
    if module == name or module not in changed:
      return x
    a, b = own_values(f"{module}.lora_A.weight"), own_values(f"{module}.lora_B.weight")
    change = low_rank_product(a.T, b.T) if is_conv else low_rank_product(b, a)
    with np.errstate(over="ignore"):
      result = x + settings["lora_alpha"] / settings["r"] * change
    if np.isfinite(x).all() and not np.isfinite(result).all():
      raise InputError(f"{own.path}: {module}: the change is too large for float32")
    return result

  return base._replace(shapes={**base.shapes, **whole}, read=read, notes=own.notes)


def _check_saved(path: str, whole: Any, base: Any, family: Any, settings: dict) -> None:
  """Refuses arrays saved whole (by their names in the base) that are not of modules_to_save."""
  # peft leaves an output that is tied to a saved table as it was.
  tied = {*family.ties.values()}
  tables = tied & whole.keys()
  has_output = family.attention == "causal" or (tied - tables) & base.shapes.keys()
  if tables and has_output and settings.get("task_type") not in _TASKS.values():
    raise InputError(f"{path}: holds {min(tables)}: only an output tied to it is supported")
  saved = settings.get("modules_to_save")
  for module in saved if isinstance(saved, list) else []:
    inside = f".{str(module).removeprefix(family.prefix)}."
    if missing := [x for x in base.shapes if inside in f".{x}" and x not in whole]:
      raise InputError(f"{path}: holds no {missing[0]}, and modules_to_save names {module}")


def _check_change(
  own: Any, names: dict[str, str], module: str, shape: tuple[int, ...], rank: int
) -> None:
  """Refuses an open adapter without A and B for a matrix of this shape, [out, in].

  names: of its arrays, by their names in the base.
  """
  if len(shape) != 2:
    raise InputError(f"{own.path}: {module}: is no matrix in the base")
  outputs, inputs = shape
  for part, expected in (("A", (rank, inputs)), ("B", (outputs, rank))):
    name = f"{module}.lora_{part}.weight"
    if name not in names:
      raise InputError(f"{own.path}: holds no {name}")
    found = own.shapes[names[name]]
    if found != expected:
      raise InputError(f"{own.path}: {name} is {[*found]}, and should be {[*expected]}")
