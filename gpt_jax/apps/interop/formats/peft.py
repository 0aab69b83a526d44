"""LoRA adapters of encoders in the layout of PEFT, beside the folder of their base.

Needs the extra 'safetensors'. The search for registered names imports this file, so it imports JAX
only where it is used.
"""

import functools
import json
import os
from typing import Any

from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_folder, write_json

HELP = "the LoRA adapter of an encoder as PEFT has it, without its base"
CONFIG, WEIGHTS, OURS = "adapter_config.json", "adapter_model.safetensors", "gpt_jax.json"
_PREFIX = "base_model.model."
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
  "rank_pattern": {},
  "alpha_pattern": {},
}


def detect(path: str) -> bool:
  return os.path.isfile(os.path.join(path, CONFIG))


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """Writes a folder for PeftModel.from_pretrained; its README.md names the class of the base.

  The head is that of a model in transformers' format: divided by the temperature, see hf.write.

  Args:
    params: `{adapter, heads…}`; others are ignored.

  Raises:
    InputError: the folder exists, no adapter, or one that PEFT's LoRA cannot express.
  """
  import jax
  import numpy as np
  from flax.traverse_util import flatten_dict

  from gpt_jax.apps.interop.formats.hf.family import find_family, to_theirs
  from gpt_jax.apps.interop.formats.hf.write import adapt_head
  from gpt_jax.checkpoints.formats import safetensors
  from gpt_jax.config import from_json

  safetensors.library()  # fail before the expensive part
  meta = dict(meta)
  noted, temperature = meta.pop("adapter"), meta.pop("temperature", None)
  adapter, spec = from_json(noted["config"]), from_json(meta["model"])
  if spec.attention != "bidirectional":
    raise InputError(f"format=peft: holds adapters of encoders, this is of {spec.attention} models")
  family = find_family(spec, meta, tokenizer)
  task = from_json(meta["task"]).build("") if "task" in meta else None
  arrays = jax.tree.map(np.asarray, flatten_dict(params, sep="/"))
  before = adapt_head(arrays, task, temperature)
  notes: dict[str, Any] = jax.tree.map(np.ndarray.tolist, before)
  if temperature is not None:
    notes["temperature"] = temperature
  config = family.config(spec, tokenizer, task)
  layout = family.arrays(spec, config)
  of_head = [array for array in layout if not array.ours.startswith("trunk/")]
  head = to_theirs(of_head, arrays, family.prefix, family.heads)
  changes, modules = _changes(params["adapter"], adapter.rank, layout, family.prefix)
  model, base = config["architectures"][0], noted["base"]["checkpoint"]
  kind = model[model.index("For") :]
  settings = {
    **_PLAIN,
    "task_type": _TASKS.get(kind),
    "base_model_name_or_path": base,
    "r": adapter.rank,
    "lora_alpha": adapter.alpha,
    "lora_dropout": adapter.dropout,
    "target_modules": modules,
    "modules_to_save": sorted({name.partition(".")[0] for name in head}),
    "inference_mode": True,
  }
  labels = f", num_labels={spec.head.num_classes}" if kind in _TASKS else ""
  with atomic_folder(folder) as partial:
    tensors = {_PREFIX + name: x for name, x in (head | changes).items()}
    path = os.path.join(partial, WEIGHTS)
    safetensors.write(path, tensors, {"format": "pt", "gpt_jax": json.dumps(notes)})
    write_json(os.path.join(partial, CONFIG), settings)
    write_json(os.path.join(partial, OURS), {"step": step, **meta})
    with open(os.path.join(partial, "README.md"), "w", encoding="utf-8") as file:
      file.write(_CARD.format(model=model, base=base, labels=labels))


def _changes(adapter: Any, rank: int, layout: Any, prefix: str) -> tuple[dict[str, Any], list[str]]:
  """The matrices of an adapter by PEFT's names, and the modules that they change.

  layout: of all arrays of the model.
  """
  import numpy as np
  from flax.traverse_util import flatten_dict

  ours, theirs, modules = flatten_dict(adapter, sep="/"), {}, []
  for path in ours:
    if not path.endswith(("/a", "/b")):
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
    modules.append(module)
    for name, x in (("A", a), ("B", b)):
      theirs[f"{module}.lora_{name}.weight"] = np.ascontiguousarray(x.T, np.float32)
  return theirs, modules


def load(path: str) -> tuple[dict, dict, int, Tokenizer]:
  """Reads an adapter, ours or another's, merged with its base, which is a transformers folder.

  Raises:
    InputError: the base is not there; a kind of adapter that is not LoRA alone; a damaged file.
  """
  from gpt_jax.apps.interop.formats.hf import read
  from gpt_jax.checkpoints.formats.folder import read_object

  try:
    settings = read_object(os.path.join(path, CONFIG))
    ours = os.path.join(path, OURS)
    meta = read_object(ours) if os.path.exists(ours) else {}
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error}); copy the folder again") from error
  for name, value in _PLAIN.items():
    if settings.get(name, value) not in (value, None):
      raise InputError(
        f"{path}/{CONFIG}: {name} is {settings[name]!r}: only {value!r} is supported"
      )
  link = os.path.join(path, "base")
  base = link if os.path.exists(link) else str(settings.get("base_model_name_or_path"))
  try:
    return read.load(base, functools.partial(_overlay, path, settings, meta))
  except InputError as error:
    raise InputError(f"{path}: an adapter of {base}: {error}; or link it as {link}") from error


def _overlay(path: str, settings: dict, meta: dict, config: dict, family: Any, base: Any) -> Any:
  """The base's weights with the adapter's head, and each changed matrix as it is read."""
  from gpt_jax.apps.interop.formats.hf.weights import open_weights

  own = open_weights(os.path.join(path, WEIGHTS), _PREFIX, {})
  names, changed, whole = {}, set(), {}
  for stored, shape in own.shapes.items():
    name = stored.removeprefix(family.prefix)
    names[name] = stored
    module, is_change, _ = name.partition(".lora_")
    if not is_change:
      whole[name] = shape  # of the head
    elif f"{module}.weight" in base.shapes:
      changed.add(module)
    else:
      raise InputError(f"{own.path}: {name}: the base has no {module}.weight")
  for module in sorted(changed):
    for part in "AB":
      if f"{module}.lora_{part}.weight" not in names:
        raise InputError(f"{own.path}: holds no {module}.lora_{part}.weight")
  if meta:
    config["gpt_jax"] = meta
  for suffix, task_type in _TASKS.items():
    if settings.get("task_type") == task_type:
      config["architectures"] = [family.classes + suffix]
      config.pop("id2label", None)  # of the base; meta has the labels of our own adapters

  def read(name: str) -> Any:
    if name in whole:
      return own.read(names[name])
    x, module = base.read(name), name.removesuffix(".weight")
    if module == name or module not in changed:
      return x
    a, b = own.read(names[f"{module}.lora_A.weight"]), own.read(names[f"{module}.lora_B.weight"])
    # A Linear is [out, in], as B A is; GPT's Conv1D is [in, out].
    change = a.T @ b.T if settings.get("fan_in_fan_out") else b @ a
    if change.shape != x.shape:
      raise InputError(f"{own.path}: B A of {module} is {list(change.shape)}, not {list(x.shape)}")
    return x + settings["lora_alpha"] / settings["r"] * change

  return base._replace(shapes={**base.shapes, **whole}, read=read, notes=own.notes)


_CARD = """---
library_name: peft
base_model: {base}
---

Written by gpt_jax, which reads this folder like a checkpoint, where its base is there too.

```python
from peft import PeftModel
from transformers import {model}

base = {model}.from_pretrained("{base}"{labels})
model = PeftModel.from_pretrained(base, "FOLDER")
```
"""
