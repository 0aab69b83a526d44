"""A model as one function of token ids, with its parameters inside, for formats that hold programs.

Letters: N examples, C sequences per example, T positions, K classes, V vocabulary.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from gpt_jax.apps.interop.formats.hf.labels import scale_of
from gpt_jax.apps.interop.formats.hf_tokenizer import Template, template_of, write_tokenizer
from gpt_jax.batch import Batch, Labels, Rows
from gpt_jax.checkpoints.formats.folder import TOKENIZER, write_sums
from gpt_jax.config import from_json
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_folder, write_json
from gpt_jax.models.decoding_weights import in_place_of, matrices_of_batch, variables
from gpt_jax.models.heads.regress import in_units
from gpt_jax.models.layers import multiply
from gpt_jax.models.model import Model, ModelConfig, Outputs, language_model
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.programs.start import runtime_fields
from gpt_jax.tasks.formats import Format
from gpt_jax.tasks.task import Task

DESCRIPTION = "model.json"
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"

SOFTMAX = (
  "The softmax of the logits, which are divided by the temperature already, gives the "
  "probabilities of the labels."
)
_LOGITS = {  # LabeledTask.kind -> how to read the outputs
  "regression": "The logit is the number, in the units of the training data.",
  "multi-label": "The sigmoid of a logit gives the probability of its label.",
}


class Function(NamedTuple):
  # An int32 array of `shape` for each of `inputs` -> float32 `output_shape`
  call: Callable[..., jax.Array]
  # The shape of every input; letters are sizes that may be any
  shape: tuple[int | str, ...]
  output_shape: tuple[int | str, ...]  # the shape of the logits
  inputs: tuple[str, ...] = (IDS,)  # their names, as transformers has them


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Columns:
  """A kernel as a matrix [inputs, outputs], which other software multiplies as such: a product over
  several axes becomes an einsum, which runs slower and is not quantized.
  """

  values: jax.Array

  def astype(self, dtype: Any) -> "_Columns":
    del dtype  # functions are float32
    return self


@multiply.register
def _(kernel: _Columns, x: jax.Array, inputs: int, outputs: tuple[int, ...]) -> jax.Array:
  y = x.reshape(-1, kernel.values.shape[0]) @ kernel.values
  return y.reshape(*x.shape[: x.ndim - inputs], *outputs)


def _with_columns(model: Model, params: Any) -> dict[str, Any]:
  """The collections for Model.apply, with a transformer's kernels as _Columns."""
  if "blocks" not in model.config.trunk.gives:
    return {"params": params}
  matrices = flatten_dict(matrices_of_batch(model, params))
  kernels = {
    path: _Columns(matrix.values.T) for path, matrix in matrices.items() if path[-1] == "kernel"
  }
  return variables(in_place_of(params, kernels))


def save_function(
  folder: str,
  name: str,
  write: Callable[[str, Function, int], None],
  params: Any,
  meta: dict,
  step: int,
  tokenizer: Tokenizer,
) -> None:
  """Writes a folder of the function, its description model.json and its tokenizer, atomically.

  Args:
    name: the format's, and the suffix of the file `model.<name>`.
    write: write(path, function, context) writes that file; T is at most the context.
  """
  spec = from_json(meta["model"])
  task = from_json(meta["task"]).build("") if "task" in meta else None
  temperature = meta.get("temperature", 1.0)
  format = from_json(meta.get("sequence_format", spec.trunk.format))
  function = make_function(name, spec, params, tokenizer, task, format, temperature)
  context = spec.trunk.context
  template = template_of(format, tokenizer.special) if spec.head else None
  with atomic_folder(folder) as partial:
    write(os.path.join(partial, f"model.{name}"), function, context)
    description = _describe(f"model.{name}", function, context, tokenizer, format, template, task)
    if "temperature" in meta:
      description["temperature"] = temperature
    write_json(os.path.join(partial, DESCRIPTION), {**description, "step": step})
    tokenizer.save(os.path.join(partial, TOKENIZER))
    write_tokenizer(partial, tokenizer, context, template)
    write_sums(partial)


def make_function(
  name: str,
  spec: ModelConfig,
  params: Any,
  tokenizer: Tokenizer,
  task: Task | None,
  format: Format,
  temperature: float = 1.0,
) -> Function:
  """The classifier, or the language model of a checkpoint without a labeled head.

  A classifier's logits are divided by the temperature.
  """
  trunk = dataclasses.replace(spec.trunk, dtype="float32")
  if "attention_backend" in runtime_fields(trunk):
    # Plain operations, which every format can express; backends compute the same.
    trunk = dataclasses.replace(trunk, attention_backend="plain")
  params = jax.tree.map(jnp.asarray, params)
  if spec.head is None:
    try:
      model = language_model(trunk, spec.attention)
    except InputError as error:
      raise InputError(
        f"format={name}: holds classifiers and causal language models, not this {spec.kind}; use "
        "npz or hf, or fine-tune a classifier"
      ) from error
    collections = _with_columns(model, {"trunk": params["trunk"]})

    def call(ids):  # [N, T] -> [N, T, V]
      states = cast(Outputs, model.apply(collections, Batch(_rows(ids)))).states
      return logits(states.hidden, states.table[: model.num_tokens], model.num_tokens)

    return Function(call, ("N", "T"), ("N", "T", model.num_tokens))
  _check_classifier(name, spec, format)
  sequences = 1
  if task:
    sequences = len(task.sequences(task.columns, format))
  elif spec.head.pooling == "per_choice":
    sequences = spec.head.num_classes
  classifier = ModelConfig(trunk, (spec.head,), spec.attention).build()
  params = {scope: params[scope] for scope in ("trunk", spec.head.scope)}
  if scale := scale_of(task):
    params[spec.head.scope] = in_units(params[spec.head.scope], *scale)
  inputs = [IDS]
  if spec.attention != "causal":  # it would attend to the padding
    inputs.append(MASK)
    if "types" in trunk.gives and format.types((1,)) is not None:
      inputs.append(TYPES)
  reads_text = "text" in spec.head.reads
  is_read_first = format.anchor(np.arange(2)) == 0
  extract = None if is_read_first else tokenizer.special.extract
  collections = _with_columns(classifier, params)

  def classify(ids, mask=None, types=None):  # [N, T] or [N, C, T] each -> [N, K]
    length = ids.shape[-1]
    rows = ids.reshape(-1, length)
    mask, types = (None if x is None else x.reshape(-1, length) for x in (mask, types))
    columns = jnp.zeros_like(rows[:, 0])
    if extract is not None:
      # Each sequence is read at its extract token, so no lengths are needed.
      columns = jnp.argmax(rows == extract, axis=1).astype(jnp.int32)
    first = jax.lax.broadcasted_iota(jnp.int32, columns.shape, 0) * length
    anchors = (first + columns).reshape(-1, sequences)
    if reads_text:  # the head finds the tokens of a text by its segment, here the row's number
      number = 1 + jax.lax.broadcasted_iota(jnp.int32, rows.shape, 0)
      place = jax.lax.broadcasted_iota(jnp.int32, rows.shape, 1)
      is_token = place <= columns[:, None] if mask is None else mask > 0
      mask = jnp.where(is_token, number, 0)
    # Attention stays among equal segments.
    batch = Batch(_rows(rows, mask, types), labels=Labels(anchors, None, None))
    return cast(Outputs, classifier.apply(collections, batch)).heads[0] / temperature

  shape = ("N", "T") if sequences == 1 else ("N", sequences, "T")
  return Function(classify, shape, ("N", spec.head.num_classes), tuple(inputs))


def _check_classifier(name: str, spec: ModelConfig, format: Format) -> None:
  if spec.head.per_token:
    raise InputError(
      f"format={name}: holds language models and classifiers; this one has a head for every token"
    )
  if spec.head.reads - {"pooler", "text"}:
    raise InputError(f"format={name}: reads the states of the last layer; this head reads more")
  if not format.special:
    raise InputError(
      f"format={name}: finds a text's last token by its id, and this model, which was imported, "
      "reads texts without special tokens; npz can hold it"
    )


def refuse_to_load(name: str, path: str, check: Any = None) -> NoReturn:
  raise InputError(
    f"{path}: a model in {name} format runs without gpt_jax and cannot be read back; give the "
    "checkpoint it was exported from"
  )


def detect_function(name: str, path: str) -> bool:
  """Whether path is a folder that `save_function` wrote, or the file in it."""
  file = f"model.{name}"
  return os.path.basename(path) == file or os.path.isfile(os.path.join(path, file))


def _rows(
  ids: jax.Array, segments: jax.Array | None = None, types: jax.Array | None = None
) -> Rows:
  # Not jnp.arange: jax2onnx makes another size of it.
  return Rows(ids, jax.lax.broadcasted_iota(jnp.int32, ids.shape, 1), segments, types)


def _describe(
  file: str,
  function: Function,
  context: int,
  tokenizer: Tokenizer,
  format: Format,
  template: Template | None,
  task: Task | None,
) -> dict[str, Any]:
  """model.json: what the function takes and gives. Only a classifier has a template."""
  sizes = {"N": "any", "T": f"1 to {context}"}
  each = {"dtype": "int32", "shape": function.shape, "sizes": sizes}
  description: dict[str, Any] = {
    "file": file,
    "inputs": [{"name": name, **each} for name in function.inputs],
    "outputs": [{"name": "logits", "dtype": "float32", "shape": function.output_shape}],
    "special_tokens": dict(tokenizer.special.items()),
    "use": "Logits of the token after each position. Put padding after a text, with any id.",
  }
  if template:
    padding = "put padding after it, with any id but these"
    if MASK in function.inputs:
      padding += f"; {MASK} is 1 for its tokens and 0 for padding"
    types = f" {TYPES} is 0 up to the first sep, then 1." if TYPES in function.inputs else ""
    description |= {
      "single": template.single,
      "pair": template.pair,
      "use": (
        "A sequence is as `single` says, or as `pair` of two texts: special tokens around the "
        f"texts A and B; {padding}.{types} {_LOGITS.get(task.kind if task else '', SOFTMAX)}"
      ),
    }
  if template and task:
    description |= {
      "task": task.name,
      "labels": task.labels,
      "columns": task.columns,
      "sequences": task.sequences([f"{{{column}}}" for column in task.columns], format),
    }
  return description
