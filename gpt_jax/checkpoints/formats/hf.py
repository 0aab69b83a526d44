"""transformers' folders of `openai-gpt` and `gpt2`: config.json, model.safetensors (or
pytorch_model.bin), vocabulary.

Their kernels multiply from the right, [in, out], as ours do: nothing is transposed but the heads,
which are Linear.
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

from gpt_jax.checkpoints.formats import layout, safetensors
from gpt_jax.checkpoints.formats.folder import TOKENIZER, read_json
from gpt_jax.config import from_json, to_json
from gpt_jax.data.tokenizers.base import Tokenizer, load_released, load_tokenizer
from gpt_jax.data.tokenizers.gpt1 import GPT1Tokenizer
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import END_OF_TEXT, FILES, is_release
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_folder, write_json
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig

HELP = "a transformers folder, openai-gpt or gpt2"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SHARDED = tuple(f"{name}.index.json" for name in WEIGHTS)
_PREFIX = "transformer."  # which a model without a head leaves out
_NOT_OURS = re.compile(
  r"h\.\d+\.attn\.(bias|masked_bias)|position_ids|lm_head\.weight"
)  # buffers, and the table again
_HEADS = re.compile(r"(score|multiple_choice_head)\..*")


class _Family(NamedTuple):
  """One of transformers' architectures.

  Attributes:
    model_type: its name in config.json.
    classes: what its classes' names begin with.
    norm: TransformerConfig's.
    tokens, positions: names of the embeddings.
    activation: name of the setting, and the values that mean GELU in its tanh form.
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


# In.


def load(path: str) -> tuple[dict, dict, int, Tokenizer]:
  """Reads a folder, or the file of weights in it: params as float32 NumPy arrays, meta, step, the
  vocabulary.

  A head is read where `save` wrote the folder; of other folders nothing says what its texts look
  like, and it is left out with a warning. Rows of the table that the folder has none of are zero;
  fine-tuning draws those it needs.

  Raises:
    InputError: an unknown architecture or setting, an array missing, of another shape or of an
      unknown name, another vocabulary, or a damaged file; nothing is unpickled but by
      torch.load(weights_only=True).
  """
  folder, weights = _find(path)
  config, family = _config(os.path.join(folder, "config.json"))
  tokenizer = _vocabulary(folder)
  own = config.get("gpt_jax")
  meta = {"step": 0, "tokenizer_hash": tokenizer.hash, **(own if isinstance(own, dict) else {})}
  spec = from_json(meta["model"]) if "model" in meta else ModelConfig(TransformerConfig())
  if not isinstance(spec, ModelConfig) or not isinstance(spec.trunk, TransformerConfig):
    raise InputError(
      f"{folder}/config.json: gpt_jax.model is no Transformer; export the model again"
    )
  # What transformers' settings say holds, since the folder may have been changed and saved there.
  trunk = dataclasses.replace(_trunk(folder, config, family, tokenizer), dtype=spec.trunk.dtype)
  spec = dataclasses.replace(spec, trunk=trunk)
  meta["model"] = to_json(spec)
  rows = spec.num_tokens
  if config["vocab_size"] != rows:
    raise InputError(
      f"{folder}/config.json: vocab_size is {config['vocab_size']:,}, and the vocabulary has {tokenizer.vocab_size:,}"
    )

  shapes, read, notes = _open(weights)
  names = {name.removeprefix(_PREFIX): name for name in shapes}
  tokens = family.tokens
  if tokens not in names and "lm_head.weight" in names:  # of the two a file may have either
    tokens = "lm_head.weight"
  wanted = _arrays(spec, family, tokens, rows)
  for array in wanted:
    if array.theirs not in names:
      raise InputError(f"{weights}: holds no {array.theirs}, which {family.model_type} has")
    if shapes[names[array.theirs]] != array.shape:
      found = list(shapes[names[array.theirs]])
      raise InputError(
        f"{weights}: {array.theirs} has the shape {found}: should be {list(array.shape)}"
      )
  others = names.keys() - {array.theirs for array in wanted}
  if strangers := sorted(
    name for name in others if not (_NOT_OURS.fullmatch(name) or _HEADS.fullmatch(name))
  ):
    raise InputError(f"{weights}: holds {strangers[0]}, which no {family.model_type} has")
  if heads := sorted(filter(_HEADS.fullmatch, others)):
    warnings.warn(
      f"{weights}: {heads[0]} is left out: only folders that we exported say what it reads",
      stacklevel=3,
    )
  arrays = {array.ours: _ours(array, read(names[array.theirs])) for array in wanted}
  if "lm_head.weight" in others and not np.array_equal(
    read(names["lm_head.weight"]), arrays["trunk/tokens"]
  ):
    raise InputError(
      f"{weights}: lm_head.weight is not {tokens}: the output is not tied to the table, as it must be"
    )
  table = np.zeros((spec.trunk.rows, spec.trunk.width), np.float32)
  table[:rows] = arrays["trunk/tokens"]
  arrays["trunk/tokens"] = table
  if spec.head and spec.head.pooling == "sum":
    arrays["head/bias"] = np.zeros(spec.head.num_classes, np.float32)
  try:
    for name, values in json.loads(notes.get("gpt_jax", "{}")).items():  # what _fold changed
      arrays[name] = np.array(values, np.float32).reshape(arrays[name].shape)
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise InputError(
      f"{weights}: the note gpt_jax in it is damaged ({error}); export the model again"
    ) from error
  return unflatten_dict(arrays, sep="/"), meta, meta.pop("step"), tokenizer


def _find(path: str) -> tuple[str, str]:
  """The folder, and the file of weights."""
  if os.path.basename(path) in _SHARDED:
    path = os.path.dirname(path) or "."
  if os.path.isfile(path):
    return os.path.dirname(path) or ".", path
  found = [name for name in (*WEIGHTS, *_SHARDED) if os.path.isfile(os.path.join(path, name))]
  if not found:
    raise InputError(
      f"{path}: no {' or '.join(WEIGHTS)} here; give a folder that transformers' save_pretrained wrote"
    )
  if found[0] in _SHARDED:
    raise InputError(
      f"{path}: weights in several files; save_pretrained(DIR, max_shard_size='100GB') writes one"
    )
  return path, os.path.join(path, found[0])


def _config(path: str) -> tuple[dict, _Family]:
  """What config.json says, where it is of a model that the Transformer trunk is."""
  try:
    config = read_json(path)
  except FileNotFoundError as error:
    raise InputError(f"{path}: missing; it says which architecture the weights are of") from error
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error})") from error
  families = {family.model_type: family for family in _FAMILIES}
  if config.get("model_type") not in list(families):  # where what has no hash can be looked for
    raise InputError(
      f"{path}: model_type {config.get('model_type')!r}: should be one of {', '.join(families)}"
    )
  family = families[config["model_type"]]
  for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
    if type(config.get(name)) is not int:
      raise InputError(f"{path}: {name} is {config.get(name)!r}: should be a number")
  for name, allowed in (
    family.activation,
    ("layer_norm_epsilon", (1e-5,)),
    ("n_ctx", (config["n_positions"],)),
    ("n_inner", (None, 4 * config["n_embd"])),
    ("scale_attn_weights", (True,)),
    ("scale_attn_by_inverse_layer_idx", (False,)),
    ("reorder_and_upcast_attn", (False,)),
    ("add_cross_attention", (False,)),
    ("tie_word_embeddings", (True,)),
  ):
    if config.get(name, allowed[0]) not in allowed:
      raise InputError(
        f"{path}: {name} is {config[name]!r}: only {' or '.join(map(repr, allowed))} is what we have"
      )
  return config, family


def _vocabulary(folder: str) -> Tokenizer:
  """Ours where there is one, since it names the splitter of words; else transformers', in two
  files or in one.
  """
  own, together = os.path.join(folder, TOKENIZER), os.path.join(folder, "tokenizer.json")
  if os.path.isdir(own):
    return load_tokenizer(own)
  if is_release(folder):
    return load_released(folder)
  if not os.path.isfile(together):
    raise InputError(
      f"{folder}: no vocabulary here; {' and '.join(FILES[-1])} belong beside the weights"
    )
  with tempfile.TemporaryDirectory() as apart:
    try:
      model = read_json(together)["model"]
      merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
      texts = json.dumps(model["vocab"]), "\n".join(["#version: 0.2", *merges, ""])
      for name, text in zip(FILES[-1], texts, strict=True):
        with open(os.path.join(apart, name), "w", encoding="utf-8") as file:
          file.write(text)
      return load_released(apart)
    except (OSError, ValueError, KeyError, TypeError) as error:
      reason = str(error).replace(apart + os.sep, "")
      raise InputError(f"{together}: not GPT-1's or GPT-2's vocabulary ({reason})") from error


def _trunk(folder: str, config: dict, family: _Family, tokenizer: Tokenizer) -> TransformerConfig:
  names = {"context": "n_positions", "layers": "n_layer", "width": "n_embd", "heads": "n_head"}
  names |= {
    "residual_dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "embedding_dropout": "embd_pdrop",
  }
  settings = {ours: config[theirs] for ours, theirs in names.items() if theirs in config}
  try:
    return TransformerConfig(tokenizer.vocab_size, norm=family.norm, **settings)
  except InputError as error:
    raise InputError(f"{folder}/config.json: {error}") from error


def _arrays(spec: ModelConfig, family: _Family, tokens: str, rows: int) -> list[layout.Array]:
  """What the files hold, by theirs and our names."""
  d, trunk = spec.trunk.width, spec.trunk
  table, places = (rows, d), (trunk.context, d)
  arrays = [
    layout.Array(tokens, "tokens", table, table),
    layout.Array(family.positions, "positions", places, places),
    *layout.of_blocks(trunk),
  ]
  if trunk.norm == "pre":
    arrays.append(layout.Array("ln_f.weight", "last_norm/scale", (d,), (d,)))
    arrays.append(layout.Array("ln_f.bias", "last_norm/bias", (d,), (d,)))
  arrays = [array._replace(ours=f"trunk/{array.ours}") for array in arrays]
  if spec.head and spec.head.pooling == "per_choice":
    arrays.append(
      layout.Array("multiple_choice_head.summary.weight", "head/kernel", (1, d), (d, 1))
    )
    arrays.append(layout.Array("multiple_choice_head.summary.bias", "head/bias", (1,), (1,)))
  elif spec.head:
    arrays.append(
      layout.Array(
        "score.weight", "head/kernel", (spec.head.num_classes, d), (d, spec.head.num_classes)
      )
    )
  return arrays


def _ours(array: layout.Array, found: np.ndarray) -> np.ndarray:
  return found.T if array.ours == "head/kernel" else found.reshape(array.our_shape)


def _open(
  path: str,
) -> tuple[dict[str, tuple[int, ...]], Callable[[str], np.ndarray], dict[str, str]]:
  """Shapes by name, a function that reads one array, and the notes in the file."""
  if path.endswith(".bin"):
    return _open_torch(path)
  library = safetensors.library()
  try:
    file = library.safe_open(path, framework="np")
    slices = {name: file.get_slice(name) for name in file.keys()}
  except (OSError, library.SafetensorError) as error:
    raise InputError(f"{path}: not a safetensors file ({error}); copy it again") from error

  def read(name: str) -> np.ndarray:
    if slices[name].get_dtype() not in ("F32", "F16", "BF16"):
      raise InputError(f"{path}: {name} is {slices[name].get_dtype()}: should be F32, F16 or BF16")
    return np.asarray(file.get_tensor(name), np.float32)

  return (
    {name: tuple(found.get_shape()) for name, found in slices.items()},
    read,
    file.metadata() or {},
  )


def _open_torch(
  path: str,
) -> tuple[dict[str, tuple[int, ...]], Callable[[str], np.ndarray], dict[str, str]]:
  try:
    torch = importlib.import_module("torch")
  except ImportError as error:
    raise InputError(
      f"{path}: is read by torch, which is not installed; a model.safetensors needs none"
    ) from error
  try:
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
  except Exception as error:  # what a damaged or foreign pickle raises may be of any type
    reason = str(error).partition("\n")[0].partition(". ")[0]
    raise InputError(
      f"{path}: torch.load(weights_only=True) refuses it ({type(error).__name__}: {reason})"
    ) from error

  def read(name: str) -> np.ndarray:
    if tensors[name].dtype not in (torch.float32, torch.float16, torch.bfloat16):
      raise InputError(
        f"{path}: {name} is {tensors[name].dtype}: should be float32, float16 or bfloat16"
      )
    return (
      tensors[name].detach().to(torch.float32).numpy()
    )  # detached, since a saved Parameter wants a gradient

  return shapes, read, {}


# Out.


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """Writes a folder that transformers' from_pretrained reads; README.md in it says with which
  class, and how.

  A head of one score a sequence ("per_choice") becomes that of the DoubleHeadsModel, any other that of
  ForSequenceClassification. The latter has no bias, so that of W_y goes into the bias of the last
  norm, which the head reads; `load` takes it out again.

  Raises:
    InputError: the folder is there, or the model is no Transformer.
  """
  safetensors.library()  # missing, it is to be met before the work
  spec = layout.decoder(meta, "hf")
  family = next(family for family in _FAMILIES if family.norm == spec.trunk.norm)
  rows = spec.num_tokens
  task = from_json(meta["task"]).build("") if spec.head and "task" in meta else None
  orders = len(task.transform(*task.columns)) if task and task.pooling == "sum" else 1
  arrays = {name: np.asarray(x, np.float32) for name, x in flatten_dict(params, sep="/").items()}
  arrays["trunk/tokens"] = arrays["trunk/tokens"][:rows]
  changed = _fold(arrays, spec.trunk, orders) if spec.head and spec.head.pooling == "sum" else {}
  notes = {"format": "pt"}
  if changed:
    notes["gpt_jax"] = json.dumps({name: x.tolist() for name, x in changed.items()})
  tensors = {}
  for array in _arrays(spec, family, family.tokens, rows):
    name = array.theirs if _HEADS.fullmatch(array.theirs) else _PREFIX + array.theirs
    x = arrays[array.ours]
    tensors[name] = np.ascontiguousarray(
      x.T if array.ours == "head/kernel" else x.reshape(array.shape)
    )
  config = _their_config(spec, family, rows, tokenizer, task) | {"gpt_jax": {"step": step, **meta}}
  with atomic_folder(folder) as partial:
    safetensors.write(os.path.join(partial, WEIGHTS[0]), tensors, notes)
    write_json(os.path.join(partial, "config.json"), config)
    _write_vocabulary(partial, tokenizer)
    with open(os.path.join(partial, "README.md"), "w", encoding="utf-8") as file:
      file.write(_readme(config["architectures"][0], tokenizer, task, orders, bool(changed)))


def _fold(
  arrays: dict[str, np.ndarray], trunk: TransformerConfig, orders: int
) -> dict[str, np.ndarray]:
  """Moves the head's bias into that of the norm before it, by the smallest change that does; what
  both were, by name.

  Args:
    orders: the sequences of an example whose scores are added; each gets its share of the bias.
  """
  norm = (
    "trunk/last_norm/bias"
    if trunk.norm == "pre"
    else f"trunk/block_{trunk.layers - 1}/mlp_norm/bias"
  )
  before = {name: arrays[name] for name in ("head/bias", norm)}
  kernel, bias = arrays["head/kernel"].astype(np.float64), arrays["head/bias"] / orders
  if not bias.any():
    return {}
  change = np.linalg.lstsq(kernel.T, bias, rcond=None)[0]
  arrays[norm] = (arrays[norm] + change).astype(np.float32)
  if np.abs((arrays[norm] - before[norm]) @ kernel - bias).max() > 1e-5:
    raise InputError(
      "--format=hf: cannot hold this head's bias, since its kernel has not full rank; npz can"
    )
  return before


def _their_config(
  spec: ModelConfig, family: _Family, rows: int, tokenizer: Tokenizer, task: Any
) -> dict[str, Any]:
  """What transformers needs in config.json."""
  trunk, head = spec.trunk, spec.head
  kinds = {
    None: "LMHeadModel",
    "per_choice": "DoubleHeadsModel",
    "sum": "ForSequenceClassification",
  }
  pieces = getattr(tokenizer, "pieces", ())
  end = pieces.index(END_OF_TEXT) if END_OF_TEXT in pieces else None
  config = {
    "architectures": [family.classes + kinds[head and head.pooling]],
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
    labels = task.labels if task else [str(i) for i in range(head.num_classes)]
    config["id2label"] = {str(i): label for i, label in enumerate(labels)}
    config["label2id"] = {label: i for i, label in enumerate(labels)}
    config["pad_token_id"] = 0  # without one the class takes no batches
  return config


def _write_vocabulary(folder: str, tokenizer: Tokenizer) -> None:
  """Ours, and transformers' where it has a class for such a vocabulary."""
  tokenizer.save(os.path.join(folder, TOKENIZER))
  kinds = {
    GPT1Tokenizer.kind: "OpenAIGPTTokenizer",
    GPT2Tokenizer.kind: "GPT2Tokenizer",
  }
  if tokenizer.kind not in kinds:
    return
  for name, content in zip(FILES[-1], tokenizer.files.values(), strict=True):
    with open(os.path.join(folder, name), "wb") as file:
      file.write(content)
  write_json(
    os.path.join(folder, "tokenizer_config.json"), {"tokenizer_class": kinds[tokenizer.kind]}
  )


def _readme(model: str, tokenizer: Tokenizer, task: Any, orders: int, folded: bool) -> str:
  special = tokenizer.special
  ids = f"Its own ids are `gpt_jax.data.tokenizers.base.load_tokenizer('FOLDER/{TOKENIZER}').encode(text)`."
  paragraphs = [
    f"# {model}",
    "Written by gpt_jax's launch/export.py; gpt_jax reads the folder wherever it reads a checkpoint.",
    f"    from transformers import {model}\n    model = {model}.from_pretrained(FOLDER)",
    {
      GPT2Tokenizer.kind: "`AutoTokenizer.from_pretrained(FOLDER)` gives the ids of a text.",
      GPT1Tokenizer.kind: "`AutoTokenizer.from_pretrained(FOLDER)` splits words otherwise than OpenAI's "
      f"code, with which the model was trained, and so finds other ids for about one token in ten. {ids}",
    }.get(
      tokenizer.kind,
      f"The vocabulary is {tokenizer.kind}, for which transformers has no class. {ids}",
    ),
  ]
  if task:
    paragraphs.append(
      f"Fine-tuned on {task.name}: {', '.join(task.labels)}. A sequence is {special.start}, the ids of its texts, "
      f"{special.extract}; before the last of several texts stands {special.delimiter}. The score is read at "
      f"{special.extract}; what fills a batch up comes behind it, and is 0."
    )
  if task and task.pooling == "per_choice":
    paragraphs.append(
      f"Each option is a sequence. Give the places of {special.extract} as `mc_token_ids`: without them this class "
      "reads the last place of every row, filled up or not."
    )
  if orders > 1:
    paragraphs.append("Put the two texts in both orders, and add the logits.")
  if folded:
    paragraphs.append(
      "`score` has no bias: that of W_y is in the bias of the last norm, so that the logits of this class are the "
      "model's. Those of a language model made from this folder are not; gpt_jax reads both as they were."
    )
  return "\n\n".join(paragraphs) + "\n"
