"""transformers folders of `openai-gpt` and `gpt2`: config.json, weights, vocabulary.

Weights are model.safetensors or pytorch_model.bin. The kernels of their Conv1D are [in, out], as
ours; only the classification heads, which are Linear, are transposed.
"""

import dataclasses
import importlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt_jax.checkpoints.formats import hf_t5, layout, safetensors
from gpt_jax.checkpoints.formats.folder import (
  SUMS,
  TOKENIZER,
  check_finite,
  check_meta,
  check_sums,
  read_object,
  write_sums,
)
from gpt_jax.checkpoints.formats.hf_card import write_card
from gpt_jax.checkpoints.formats.hf_tokenizer import padding_token, write_tokenizer
from gpt_jax.config import from_json, to_json
from gpt_jax.data.tokenizers.base import (
  LARGEST_FILE,
  Tokenizer,
  load_released,
  load_tokenizer,
)
from gpt_jax.data.tokenizers.openai_files import END_OF_TEXT, FILES, MergesTokenizer, is_release
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_folder, write_json
from gpt_jax.models.heads.regress import in_units
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.tasks.multi_label import MultiLabelTask
from gpt_jax.tasks.regression import RegressionTask
from gpt_jax.tasks.task import Task

HELP = "a transformers folder, openai-gpt or gpt2"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SHARDED = tuple(f"{name}.index.json" for name in WEIGHTS)
_PREFIX = "transformer."  # absent from the names of a model without a head
_TABLE = "lm_head.weight"  # the tied embedding table, which a file may store under either name
_BUFFERS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|position_ids")
_HEADS = re.compile(r"(score|multiple_choice_head)\..*")


class _Family(NamedTuple):
  """An architecture of transformers.

  Attributes:
    model_type: its name in config.json.
    classes: prefix of its class names.
    norm: value of TransformerConfig.norm.
    tokens, positions: names of the embeddings.
    activation: name of the setting, and the values that mean tanh-GELU.
  """

  model_type: str
  classes: str
  norm: str
  tokens: str
  positions: str
  activation: tuple[str, tuple[str, ...]]


_FAMILIES = (
  _Family(
    "openai-gpt",
    "OpenAIGPT",
    "post",
    "tokens_embed.weight",
    "positions_embed.weight",
    ("afn", ("gelu", "gelu_new")),
  ),
  _Family(
    "gpt2",
    "GPT2",
    "pre",
    "wte.weight",
    "wpe.weight",
    ("activation_function", ("gelu_new", "gelu_pytorch_tanh")),
  ),
)


def detect(path: str) -> bool:
  if os.path.isfile(path):
    return path.endswith((".safetensors", ".bin")) and not safetensors.detect(path)
  return any(os.path.isfile(os.path.join(path, name)) for name in (*WEIGHTS, *_SHARDED))


# ------------------------------------------------------------------------------------------ Import


def load(path: str) -> tuple[dict, dict, int, Tokenizer]:
  """Reads a folder, or the weights file in it.

  The head is read only from folders that `save` wrote; other folders do not say which inputs their
  head expects, so it is left out with a warning. Rows missing from the embedding table are zero;
  fine-tuning initializes those it needs.

  Returns:
    params as float32 NumPy arrays, meta, step, tokenizer.

  Raises:
    InputError: unknown architecture or setting; an array that is missing, unknown or of another
      shape; another vocabulary; a damaged file. Nothing is unpickled except by
      torch.load(weights_only=True).
  """
  folder, weights_path = _find(path)
  if os.path.exists(os.path.join(folder, SUMS)):
    try:
      check_sums(folder)
    except (OSError, ValueError) as error:
      raise InputError(
        f"{folder}: {error}; if other software has changed the folder on purpose, remove its {SUMS}"
      ) from error
  if hf_t5.detect(folder):
    return hf_t5.load(folder, _open(weights_path))
  config, family = _read_config(os.path.join(folder, "config.json"))
  tokenizer = _read_vocabulary(folder)
  meta, spec = _model_of(folder, config, family, tokenizer)
  rows = spec.num_tokens
  if config["vocab_size"] != rows:
    raise InputError(
      f"{folder}/config.json: vocab_size is {config['vocab_size']:,}, and the vocabulary has "
      f"{tokenizer.vocab_size:,}"
    )
  weights = _open(weights_path)
  tokens = family.tokens
  if tokens not in weights.shapes and _TABLE in weights.shapes:
    tokens = _TABLE
  expected = _arrays(spec, family, tokens, rows)
  _check_arrays(weights, expected, family)
  arrays = {array.ours: _to_ours(array, weights.read(array.theirs)) for array in expected}
  try:
    check_finite(arrays)
    check_meta(meta, meta["step"])
  except ValueError as error:
    raise InputError(f"{folder}: {error}; export or copy the model again") from error
  if tokens != _TABLE and _TABLE in weights.shapes:
    if not np.array_equal(weights.read(_TABLE), arrays["trunk/tokens"]):
      raise InputError(
        f"{weights_path}: {_TABLE} is not {tokens}: the output is not tied to the table"
      )
  table = np.zeros((spec.trunk.rows, spec.trunk.width), np.float32)
  table[:rows] = arrays["trunk/tokens"]
  arrays["trunk/tokens"] = table
  if spec.head and spec.head.pooling == "sum":
    arrays["head/bias"] = np.zeros(spec.head.num_classes, np.float32)
  _unfold(arrays, weights, meta)
  return unflatten_dict(arrays, sep="/"), meta, meta.pop("step"), tokenizer


def _find(path: str) -> tuple[str, str]:
  """The folder, and the weights file in it."""
  if os.path.basename(path) in _SHARDED:
    path = os.path.dirname(path) or "."
  if os.path.isfile(path):
    return os.path.dirname(path) or ".", path
  names = [name for name in (*WEIGHTS, *_SHARDED) if os.path.isfile(os.path.join(path, name))]
  if not names:
    raise InputError(
      f"{path}: no {' or '.join(WEIGHTS)} here; give a folder that transformers' save_pretrained "
      "wrote"
    )
  if names[0] in _SHARDED:
    raise InputError(
      f"{path}: weights in several files; save_pretrained(DIR, max_shard_size='100GB') writes one"
    )
  return path, os.path.join(path, names[0])


def _read_config(path: str) -> tuple[dict, _Family]:
  """config.json and its family. Raises InputError if the Transformer trunk has no such model."""
  try:
    config = read_object(path)
  except FileNotFoundError as error:
    raise InputError(f"{path}: missing; it says which architecture the weights are of") from error
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error})") from error
  model_type = config.get("model_type")
  family = next((family for family in _FAMILIES if family.model_type == model_type), None)
  if family is None:
    names = ", ".join(family.model_type for family in _FAMILIES)
    raise InputError(f"{path}: model_type {model_type!r}: should be one of {names}")
  for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
    if type(config.get(name)) is not int:
      raise InputError(f"{path}: {name} is {config.get(name)!r}: should be a number")
  supported = (
    family.activation,
    ("layer_norm_epsilon", (1e-5,)),
    ("n_ctx", (config["n_positions"],)),
    ("n_inner", (None, 4 * config["n_embd"])),
    ("scale_attn_weights", (True,)),
    ("scale_attn_by_inverse_layer_idx", (False,)),
    ("reorder_and_upcast_attn", (False,)),
    ("add_cross_attention", (False,)),
    ("tie_word_embeddings", (True,)),
  )
  for name, values in supported:
    if config.get(name, values[0]) not in values:
      allowed = " or ".join(map(repr, values))
      raise InputError(f"{path}: {name} is {config[name]!r}: only {allowed} is supported")
  return config, family


def _read_vocabulary(folder: str) -> Tokenizer:
  """Our vocabulary if there is one, since it names the word splitter; else that of transformers."""
  own, single_file = os.path.join(folder, TOKENIZER), os.path.join(folder, "tokenizer.json")
  if os.path.isdir(own):
    return load_tokenizer(own)
  if is_release(folder):
    return load_released(folder)
  if not os.path.isfile(single_file):
    names = " and ".join(FILES[-1])
    raise InputError(f"{folder}: no vocabulary here; {names} belong beside the weights")
  with tempfile.TemporaryDirectory() as temporary:
    try:
      model = read_object(single_file, LARGEST_FILE)["model"]
      merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
      contents = json.dumps(model["vocab"]), "\n".join(["#version: 0.2", *merges, ""])
      for name, content in zip(FILES[-1], contents, strict=True):
        with open(os.path.join(temporary, name), "w", encoding="utf-8") as file:
          file.write(content)
      return load_released(temporary)
    except (OSError, ValueError, KeyError, TypeError) as error:
      reason = str(error).replace(temporary + os.sep, "")
      raise InputError(f"{single_file}: not GPT-1's or GPT-2's vocabulary ({reason})") from error


def _model_of(
  folder: str, config: dict, family: _Family, tokenizer: Tokenizer
) -> tuple[dict, ModelConfig]:
  """meta and model config.

  Their settings decide, and our entry adds the rest: transformers may have changed the folder and
  saved it again.
  """
  own = config.get("gpt_jax")
  meta = {"step": 0, "tokenizer_hash": tokenizer.hash, **(own if isinstance(own, dict) else {})}
  spec = ModelConfig(TransformerConfig())
  if "model" in meta:
    try:
      spec = from_json(meta["model"])
    except InputError as error:
      raise InputError(f"{folder}/config.json: gpt_jax.model: {error}") from error
  if not isinstance(spec, ModelConfig) or not isinstance(spec.trunk, TransformerConfig):
    raise InputError(
      f"{folder}/config.json: gpt_jax.model is no Transformer; export the model again"
    )
  names = {
    "context": "n_positions",
    "layers": "n_layer",
    "width": "n_embd",
    "heads": "n_head",
    "residual_dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "embedding_dropout": "embd_pdrop",
  }
  settings = {ours: config[theirs] for ours, theirs in names.items() if theirs in config}
  try:
    trunk = TransformerConfig(
      tokenizer.vocab_size, norm=family.norm, dtype=spec.trunk.dtype, **settings
    )
  except InputError as error:
    raise InputError(f"{folder}/config.json: {error}") from error
  spec = dataclasses.replace(spec, trunk=trunk)
  meta["model"] = to_json(spec)
  return meta, spec


def _arrays(spec: ModelConfig, family: _Family, tokens: str, rows: int) -> list[layout.Array]:
  """All arrays of the file, with their and our names."""
  d, trunk, head = spec.trunk.width, spec.trunk, spec.head
  table, positions = (rows, d), (trunk.context, d)
  arrays = [
    layout.Array(tokens, "tokens", table, table),
    layout.Array(family.positions, "positions", positions, positions),
    *layout.of_blocks(trunk),
  ]
  if trunk.norm == "pre":
    arrays.append(layout.Array("ln_f.weight", "last_norm/scale", (d,), (d,)))
    arrays.append(layout.Array("ln_f.bias", "last_norm/bias", (d,), (d,)))
  arrays = [array._replace(ours=f"trunk/{array.ours}") for array in arrays]
  if head and head.pooling == "per_choice":
    name = "multiple_choice_head.summary"
    arrays.append(layout.Array(f"{name}.weight", "head/kernel", (1, d), (d, 1)))
    arrays.append(layout.Array(f"{name}.bias", "head/bias", (1,), (1,)))
  elif head:
    k = head.num_classes
    arrays.append(layout.Array("score.weight", "head/kernel", (k, d), (d, k)))
  return arrays


def _to_ours(array: layout.Array, values: np.ndarray) -> np.ndarray:
  return values.T if array.ours == "head/kernel" else values.reshape(array.our_shape)


class _Weights(NamedTuple):
  """An open weights file; names are without _PREFIX.

  Attributes:
    read: name -> float32 array.
    notes: metadata of the file.
  """

  path: str
  shapes: dict[str, tuple[int, ...]]
  read: Callable[[str], np.ndarray]
  notes: dict[str, str]


def _check_arrays(weights: _Weights, expected: list[layout.Array], family: _Family) -> None:
  """Raises InputError at a missing, unknown or misshapen array; warns of a head."""
  for array in expected:
    shape = weights.shapes.get(array.theirs)
    if shape is None:
      raise InputError(f"{weights.path}: holds no {array.theirs}, which {family.model_type} has")
    if shape != array.shape:
      raise InputError(
        f"{weights.path}: {array.theirs} has the shape {list(shape)}: should be {list(array.shape)}"
      )
  extra = sorted(weights.shapes.keys() - {array.theirs for array in expected} - {_TABLE})
  heads = [name for name in extra if _HEADS.fullmatch(name)]
  for name in extra:
    if name not in heads and not _BUFFERS.fullmatch(name):
      raise InputError(f"{weights.path}: holds {name}, which no {family.model_type} has")
  if heads:
    warnings.warn(
      f"{weights.path}: {heads[0]} is left out: only folders that we exported say what it reads",
      stacklevel=4,
    )


def _open(path: str) -> _Weights:
  if path.endswith(".bin"):
    return _open_torch(path)
  library = safetensors.library()
  try:
    file = library.safe_open(path, framework="np")
    slices = {name.removeprefix(_PREFIX): (name, file.get_slice(name)) for name in file.keys()}
  except (OSError, library.SafetensorError) as error:
    raise InputError(f"{path}: not a safetensors file ({error}); copy it again") from error

  def read(name: str) -> np.ndarray:
    full_name, part = slices[name]
    if part.get_dtype() not in ("F32", "F16", "BF16"):
      raise InputError(f"{path}: {full_name} is {part.get_dtype()}: should be F32, F16 or BF16")
    return np.asarray(file.get_tensor(full_name), np.float32)

  shapes = {name: tuple(part.get_shape()) for name, (_, part) in slices.items()}
  return _Weights(path, shapes, read, file.metadata() or {})


def _open_torch(path: str) -> _Weights:
  try:
    torch = importlib.import_module("torch")
  except ImportError as error:
    raise InputError(
      f"{path}: is read by torch, which is not installed; a model.safetensors needs none"
    ) from error
  try:
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    names = {name.removeprefix(_PREFIX): name for name in tensors}
    shapes = {name: tuple(tensors[names[name]].shape) for name in names}
  except Exception as error:  # a damaged or foreign pickle can raise anything
    reason = str(error).partition("\n")[0].partition(". ")[0]
    raise InputError(
      f"{path}: torch.load(weights_only=True) refuses it ({type(error).__name__}: {reason})"
    ) from error

  def read(name: str) -> np.ndarray:
    tensor = tensors[names[name]]
    if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
      raise InputError(
        f"{path}: {names[name]} is {tensor.dtype}: should be float32, float16 or bfloat16"
      )
    return tensor.detach().to(torch.float32).numpy()  # a saved Parameter requires a gradient

  return _Weights(path, shapes, read, {})


def _unfold(arrays: dict[str, np.ndarray], weights: _Weights, meta: dict) -> None:
  """Restores the arrays that `save` changed, and the temperature, from the notes in the file.

  They are in this file and not in config.json: software that trains the weights on drops them.
  """
  try:
    notes = json.loads(weights.notes.get("gpt_jax", "{}"))
    if "temperature" in notes:
      meta["temperature"] = float(notes.pop("temperature"))
    for name, values in notes.items():
      arrays[name] = np.array(values, np.float32).reshape(arrays[name].shape)
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise InputError(
      f"{weights.path}: the note gpt_jax in it is damaged ({error}); export the model again"
    ) from error


# ------------------------------------------------------------------------------------------ Export


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """Writes a folder for transformers' from_pretrained; its README.md names the class to use.

  A "per_choice" head becomes that of a DoubleHeadsModel, any other head that of a
  ForSequenceClassification. The latter has no bias, so the bias of W_y is folded into the bias of
  the norm before it. The head is divided by the temperature, since transformers knows none and its
  pipeline should give calibrated probabilities. Of a regression task its logits are numbers in the
  task's units. `load` undoes all of it.

  Raises:
    InputError: the folder exists, or the model is not a causal Transformer.
  """
  safetensors.library()  # fail before the expensive part
  if hf_t5.holds(meta):
    hf_t5.save(folder, params, meta, step, tokenizer)
    return
  spec = layout.decoder(meta, "hf")
  if spec.head and spec.head.pooling == "mean":
    raise InputError(
      "--format=hf: transformers reads no mean of the tokens, as this head does; export as npz"
    )
  family = next(family for family in _FAMILIES if family.norm == spec.trunk.norm)
  rows = spec.num_tokens
  task = from_json(meta["task"]).build("") if "task" in meta else None
  orders = len(task.transform(*task.columns)) if task and task.pooling == "sum" else 1
  arrays = {name: np.asarray(x, np.float32) for name, x in flatten_dict(params, sep="/").items()}
  arrays["trunk/tokens"] = arrays["trunk/tokens"][:rows]
  meta = dict(meta)
  temperature = meta.pop("temperature", None)
  before = _adapt_head(arrays, task, temperature)
  folded = {}
  if spec.head and spec.head.pooling == "sum":
    folded = _fold(arrays, spec.trunk, orders)
  ours: dict[str, Any] = {name: x.tolist() for name, x in (folded | before).items()}
  if temperature is not None:
    ours["temperature"] = temperature
  notes = {"format": "pt"}
  if ours:
    notes["gpt_jax"] = json.dumps(ours)
  tensors = {}
  for array in _arrays(spec, family, family.tokens, rows):
    prefix = "" if _HEADS.fullmatch(array.theirs) else _PREFIX
    tensors[prefix + array.theirs] = np.ascontiguousarray(_to_theirs(array, arrays[array.ours]))
  config = _their_config(spec, family, rows, tokenizer, task)
  config["gpt_jax"] = {"step": step, **meta}
  with atomic_folder(folder) as partial:
    safetensors.write(os.path.join(partial, WEIGHTS[0]), tensors, notes)
    write_json(os.path.join(partial, "config.json"), config)
    _write_vocabulary(partial, tokenizer, spec.trunk.context, bool(spec.head))
    with open(os.path.join(partial, "README.md"), "w", encoding="utf-8") as file:
      file.write(
        write_card(
          config["architectures"][0],
          spec,
          meta,
          step,
          tokenizer,
          task,
          orders,
          bool(folded),
          temperature,
        )
      )
    write_sums(partial)


def _to_theirs(array: layout.Array, values: np.ndarray) -> np.ndarray:
  return values.T if array.ours == "head/kernel" else values.reshape(array.shape)


def _adapt_head(
  arrays: dict[str, np.ndarray], task: Task | None, temperature: float | None
) -> dict[str, np.ndarray]:
  """Changes the head so that transformers can use its logits; returns the arrays as they were.

  Those of a classifier are divided by its temperature; that of a regression gets the task's units.
  """
  if isinstance(task, RegressionTask):
    head = {name: arrays[f"head/{name}"].astype(np.float64) for name in ("kernel", "bias")}
    adapted = in_units(head, *task.scale)
  elif temperature not in (None, 1.0):
    adapted = {name: arrays[f"head/{name}"] / temperature for name in ("kernel", "bias")}
  else:
    return {}
  before = {f"head/{name}": arrays[f"head/{name}"] for name in adapted}
  arrays |= {f"head/{name}": x.astype(np.float32) for name, x in adapted.items()}
  return before


def _fold(
  arrays: dict[str, np.ndarray], trunk: TransformerConfig, orders: int
) -> dict[str, np.ndarray]:
  """Folds the head's bias into the bias of the norm before it, by the smallest change possible.

  Args:
    orders: sequences per example whose scores are added; each gets its share of the bias.

  Returns:
    The arrays as they were, by name; none if the bias is zero.
  """
  norm = "trunk/last_norm/bias"
  if trunk.norm == "post":
    norm = f"trunk/block_{trunk.layers - 1}/mlp_norm/bias"
  before = {name: arrays[name] for name in ("head/bias", norm)}
  kernel, bias = arrays["head/kernel"].astype(np.float64), arrays["head/bias"] / orders
  if not bias.any():
    return {}
  change = np.linalg.lstsq(kernel.T, bias, rcond=None)[0]
  arrays[norm] = (arrays[norm] + change).astype(np.float32)
  error = np.abs((arrays[norm] - before[norm]) @ kernel - bias)
  if (error > 1e-5 * np.maximum(1, np.abs(bias))).any():
    raise InputError(
      "--format=hf: cannot hold this head's bias, since its kernel has not full rank; npz can"
    )
  return before


def _their_config(
  spec: ModelConfig, family: _Family, rows: int, tokenizer: Tokenizer, task: Task | None
) -> dict[str, Any]:
  """The config.json of transformers."""
  trunk, head = spec.trunk, spec.head
  suffix = "LMHeadModel"
  if head:
    suffix = "DoubleHeadsModel" if head.pooling == "per_choice" else "ForSequenceClassification"
  pieces = getattr(tokenizer, "pieces", ())
  end = pieces.index(END_OF_TEXT) if END_OF_TEXT in pieces else None
  padding = padding_token(tokenizer)
  config = {
    "architectures": [family.classes + suffix],
    "model_type": family.model_type,
    "vocab_size": rows,
    "n_positions": trunk.context,
    "n_ctx": trunk.context,
    "n_embd": trunk.width,
    "n_layer": trunk.layers,
    "n_head": trunk.heads,
    family.activation[0]: family.activation[1][0],
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": trunk.residual_dropout,
    "attn_pdrop": trunk.attention_dropout,
    "embd_pdrop": trunk.embedding_dropout,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "bos_token_id": end,
    "eos_token_id": end,
  }
  if head and head.pooling == "sum":
    labels = task.labels if task else tuple(str(i) for i in range(head.num_classes))
    if isinstance(task, RegressionTask):
      labels, config["problem_type"] = ("value",), "regression"
    elif isinstance(task, MultiLabelTask):
      config["problem_type"] = "multi_label_classification"
    config["id2label"] = {str(i): label for i, label in enumerate(labels)}
    config["label2id"] = {label: i for i, label in enumerate(labels)}
    # The class refuses batches without it, and reads the last token that is another.
    config["pad_token_id"] = padding[1] if padding else 0
  return config


def _write_vocabulary(folder: str, tokenizer: Tokenizer, context: int, classifies: bool) -> None:
  """Our vocabulary, and that of transformers."""
  tokenizer.save(os.path.join(folder, TOKENIZER))
  write_tokenizer(folder, tokenizer, context, classifies)
  if isinstance(tokenizer, MergesTokenizer):
    for name, content in zip(FILES[-1], tokenizer.files.values(), strict=True):
      with open(os.path.join(folder, name), "wb") as file:
        file.write(content)
