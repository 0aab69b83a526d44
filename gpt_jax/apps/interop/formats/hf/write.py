"""Writing a transformers folder."""

import json
import os
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from gpt_jax.apps.interop.formats.hf import t5
from gpt_jax.apps.interop.formats.hf.family import (
  Arrays,
  Family,
  find_family,
  for_embeddings,
  to_theirs,
)
from gpt_jax.apps.interop.formats.hf.labels import scale_of
from gpt_jax.apps.interop.formats.hf.weights import WEIGHTS
from gpt_jax.apps.interop.formats.hf_card import write_card
from gpt_jax.apps.interop.formats.hf_tokenizer import write_tokenizer, write_vocabulary
from gpt_jax.checkpoints.formats import safetensors
from gpt_jax.checkpoints.formats.folder import write_sums
from gpt_jax.config import from_json, to_json
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.files import atomic_folder, write_json
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.regress import in_units
from gpt_jax.tasks.formats import Format, GPTFormat
from gpt_jax.tasks.task import Task


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """Writes a folder for transformers' from_pretrained; its README.md names the class to use.

  A "per_choice" head becomes that of a GPT's DoubleHeadsModel or of a ForMultipleChoice, any other
  that of a ForSequenceClassification. GPT's has no bias, so the bias of W_y is folded into the bias
  of the norm before it. The head is divided by the temperature, since transformers knows none and
  its pipeline should give calibrated probabilities. Of a regression task its logits are numbers in
  the task's units. `load` undoes all of it.
  """
  safetensors.library()  # fail before the expensive part
  spec = for_embeddings(from_json(meta["model"]))
  if isinstance(spec.trunk, T5Config):
    t5.save(folder, params, meta, step, tokenizer)
    return
  meta = {**meta, "model": to_json(spec)}
  family = find_family(spec, meta, tokenizer)
  task = from_json(meta["task"]).build("") if "task" in meta else None
  orders = orders_of(task, meta, family)
  arrays = {name: np.asarray(x, np.float32) for name, x in flatten_dict(params, sep="/").items()}
  temperature = meta.pop("temperature", None)
  # fold reads the adapted head. Where both change an array, `before` has the one to restore.
  before = adapt_head(arrays, task, temperature)
  folded = family.fold(arrays, spec, orders)
  notes = {"format": "pt"}  # transformers refuses a file without it
  ours: dict[str, Any] = {name: x.tolist() for name, x in (folded | before).items()}
  if temperature is not None:
    ours["temperature"] = temperature
  if ours:
    notes["gpt_jax"] = json.dumps(ours)
  config = family.config(spec, tokenizer, task)
  tensors = to_theirs(family.arrays(spec, config), arrays, family.prefix, family.heads)
  config["eos_token_id"] = meta.get("end_ids", config.get("eos_token_id"))
  config["gpt_jax"] = {"step": step, **meta}  # what `load` needs and transformers ignores
  with atomic_folder(folder) as partial:
    safetensors.write(os.path.join(partial, WEIGHTS[0]), tensors, notes)
    write_json(os.path.join(partial, "config.json"), config)
    template = family.template(spec, tokenizer)
    fills_masks = spec.head is None and spec.attention != "causal"
    write_tokenizer(partial, tokenizer, spec.trunk.context, template, fills_masks)
    write_vocabulary(partial, tokenizer)
    with open(os.path.join(partial, "README.md"), "w", encoding="utf-8") as file:
      sequences = family.describe(spec, tokenizer) if task else []
      details = task, orders, bool(folded), temperature, sequences
      file.write(write_card(config["architectures"][0], spec, meta, step, tokenizer, *details))
    write_sums(partial)


def orders_of(task: Task | None, meta: dict, family: Family) -> int:
  """Sequences per example, whose scores are added."""
  if not task or task.pooling != "sum":
    return 1
  tree = meta.get("sequence_format", family.format)
  format: Format = from_json(tree) if tree else GPTFormat()
  return len(task.sequences(task.columns, format))


def adapt_head(arrays: Arrays, task: Task | None, temperature: float | None) -> Arrays:
  """Changes the head so that transformers can use its logits; returns the arrays as they were.

  Those of a classifier are divided by its temperature; that of a regression gets the task's units.
  """
  if scale := scale_of(task):
    head = {name: arrays[f"head/{name}"].astype(np.float64) for name in ("kernel", "bias")}
    adapted = in_units(head, *scale)
  elif temperature not in (None, 1.0):
    adapted = {name: arrays[f"head/{name}"] / temperature for name in ("kernel", "bias")}
  else:
    return {}
  before = {f"head/{name}": arrays[f"head/{name}"] for name in adapted}
  arrays |= {f"head/{name}": x.astype(np.float32) for name, x in adapted.items()}
  return before
