"""Where a run starts: a checkpoint's trunk, vocabulary and heads, or an untrained trunk."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.checkpoints.saved import SavedModel
from gpt_jax.config import field_values, from_json
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError, counted
from gpt_jax.files import exists
from gpt_jax.models.trunk import TABLES, TrunkConfig
from gpt_jax.parallel.mesh import path_name
from gpt_jax.tasks.formats import Format, GPTFormat, TextToText
from gpt_jax.training.step import TrainState
from gpt_jax.training.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Start:
  """A run's start: a checkpoint, or a trunk and a vocabulary. Optimizer and step are new."""

  trunk: TrunkConfig  # config of the trunk: the checkpoint's sizes, the run's dtype and dropout
  attention: str  # see ModelConfig
  tokenizer: Tokenizer  # the checkpoint's, with the special tokens that the run adds
  params: Any = None  # NumPy arrays of the whole model; None: they are initialized
  # Names of the special tokens whose embeddings the checkpoint has trained
  trained_special: tuple[str, ...] = ()
  identity: str = "none"  # identifies the parameters in config.json
  format: Format = GPTFormat()  # how examples become sequences
  checkpoint: str = ""  # as the user named it
  step: int = 0  # number of updates the checkpoint has had
  labels: tuple[str, ...] = ()  # of the checkpoint's head, if it was trained on a table
  # The checkpoint, a LoadedModel, where `trunk` and `params` are of a student of it
  teacher: Any = None
  # Compiled by `apply`, for the next seed or recipe.
  copies: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

  @property
  def reads(self) -> tuple[Tokenizer, int, Format]:
    """How it reads examples: the arguments of LabeledTask.encode after them."""
    return self.tokenizer, self.trunk.context, self.format

  def apply(
    self, state: TrainState, trainer: Trainer, layers: int | None = None, heads: bool = True
  ) -> TrainState:
    """The first state with the checkpoint's parameters, on the trainer's devices.

    Args:
      layers: how much of the trunk is taken, see transfer.
      heads: whether a head that the checkpoint has too, such as a masked language model's, is taken
        as well.
    """
    if self.params is None or (layers == -1 and not heads):  # nothing is taken
      return state
    special = self.tokenizer.special
    rows = [special[name] for name in self.trained_special]
    new = self.new_heads(_shapes(state.params)) if heads else state.params.keys()
    # In one order, or the processes of a run would compile different programs.
    taken = sorted(state.params.keys() - {"trunk", *new})

    def take(fresh: Any, loaded: Any) -> Any:
      if fresh.shape == loaded.shape:
        return jnp.asarray(loaded)
      return with_trained_rows(fresh, loaded, self.trunk.vocab_size, rows)

    def copy(fresh: Any, loaded: Any) -> Any:
      trunk = transfer(fresh["trunk"], loaded["trunk"], layers, self.trunk, rows)
      copied = {scope: jax.tree.map(take, fresh[scope], loaded[scope]) for scope in taken}
      return {**fresh, "trunk": trunk, **copied}

    # Compiled with the trainer's shardings, so that each device gets no more than its share.
    shardings, tree = jax.tree.flatten(trainer.shardings.params)
    key = layers, tuple(taken), tree, *shardings
    if key not in self.copies:
      self.copies[key] = jax.jit(copy, out_shardings=trainer.shardings.params)
    # Heads that are not taken need no room on the devices.
    loaded = {scope: self.params[scope] for scope in ("trunk", *taken)}
    return state._replace(params=self.copies[key](state.params, loaded))

  def apply_base(self, state: TrainState, trainer: Trainer) -> TrainState:
    """A state with the checkpoint's trunk as the base of its adapter."""
    return state._replace(base=self.base(trainer.shardings.base))

  def base(self, shardings: Any) -> Any:
    """The checkpoint's trunk as the base of an adapter, on the devices."""
    return jax.device_put({"trunk": self.params["trunk"]}, shardings)

  @property
  def as_json(self) -> dict[str, str]:
    """The checkpoint as others name it; of a run its step, since the run may go on."""
    of_step = os.path.join(self.checkpoint.removesuffix("/best"), "checkpoints", str(self.step))
    return {
      "checkpoint": of_step if exists(of_step) else self.checkpoint,
      "identity": self.identity,
    }

  @property
  def new_rows(self) -> list[int]:
    """Rows of the tables that the run's special tokens have and the checkpoint has not trained."""
    special = self.tokenizer.special
    return [special[name] for name in special.names if name not in self.trained_special]

  def new_heads(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Names of the heads that start from random weights, since the checkpoint has none of the kind;
    `shapes` are the run's, see models.model.parameter_shapes.
    """
    theirs = _shapes(self.params)
    (before, *_), *_ = [theirs[path] for name in TABLES if (path := f"trunk/{name}") in theirs]
    tables = self.trunk.rows, before
    scopes = {name.partition("/")[0] for name in shapes} - {"trunk"}
    return [scope for scope in sorted(scopes) if not _fits(scope, shapes, theirs, tables)]


def load_start(
  config: Any, checkpoint: str, tokenizer: str, set_fields: Sequence[str] = ()
) -> Start:
  """The start of a fine-tuning: a checkpoint, or for "none" the trunk of a FinetuneConfig and the
  tokenizer in a folder.

  set_fields: dotted names of fields that count as set, also at their default, which otherwise
    leaves a dtype or dropout to the checkpoint.
  """
  if checkpoint == "none":
    start, loaded = _start_from_scratch(config, tokenizer), None
  else:
    start, loaded = _start_from_checkpoint(config, checkpoint, tokenizer, set_fields)
  for method in config.methods:
    start = dataclasses.replace(start, format=method.change_format(start.format))
    start = method.change_start(start, loaded, config)
  return start


def _start_from_scratch(config: Any, tokenizer: str) -> Start:
  for method in config.methods:
    if method.reads_checkpoint:
      raise InputError(f"checkpoint=none: {method.slot} needs {method.reads_checkpoint}")
  if not tokenizer:
    raise InputError(
      "--checkpoint=none needs --tokenizer=DIR, the folder of a vocabulary "
      "(DIR/tokenizer of prepare)"
    )
  attention, format = _attention_and_format(
    config, config.trunk, config.trunk.default_attention, from_json(config.trunk.format), "none"
  )
  vocabulary = load_tokenizer(tokenizer).with_special(*format.special)
  return Start(config.trunk.with_vocabulary(vocabulary), attention, vocabulary, format=format)


def _start_from_checkpoint(
  config: Any, checkpoint: str, tokenizer: str, set_fields: Sequence[str]
) -> tuple[Start, LoadedModel]:
  if tokenizer:
    raise InputError(
      "--tokenizer is for --checkpoint=none; a checkpoint brings its own: leave it out"
    )
  loaded = load_model(
    checkpoint,
    check=lambda bare: _attention_and_format(
      config, bare.spec.trunk, bare.spec.attention, bare.format, checkpoint
    ),
  )
  # A GPT's classifier of others reads bare texts; the new head reads them as ours do.
  format = loaded.format.of_window if loaded.format.special else GPTFormat()
  whole = loaded.spec
  for method in config.methods:
    loaded = method.change_loaded(loaded)
  theirs = loaded.spec.trunk
  if loaded.spec != whole:
    format = from_json(theirs.format)
  # Runtime fields, such as dtype, are the run's where it sets them; all others the checkpoint's.
  changed, runtime = changed_fields(config.trunk, type(config).trunk), runtime_fields(theirs)
  was_set = {name.removeprefix("trunk.") for name in set_fields if name.startswith("trunk.")}
  mine = {field.name: value for field, value in field_values(config.trunk)}
  taken = runtime.keys() & mine.keys() & (changed.keys() | was_set)
  trunk = dataclasses.replace(theirs, **{name: mine[name] for name in taken})
  sizes = changed.keys() - runtime_fields(config.trunk).keys() - runtime.keys()
  if sizes and config.trunk != trunk:
    raise InputError(
      "config.trunk is for --checkpoint=none; a checkpoint brings its own: leave these settings out"
    )
  if (config.transfer_layers or 0) > trunk.layers:
    raise InputError(
      f"transfer_layers={config.transfer_layers}: the checkpoint has "
      f"{counted(trunk.layers, 'block')}; none takes all"
    )
  attention, format = _attention_and_format(
    config, theirs, loaded.spec.attention, format, checkpoint
  )
  vocabulary = loaded.tokenizer.with_special(*format.special)
  start = start_of(loaded, trunk, vocabulary, format, attention)
  # The zeros of new rows are not used: Start.apply takes trained rows, and keeps the run's others.
  params = loaded.params_with_rows(start.trunk.rows)
  return dataclasses.replace(start, params=params, checkpoint=loaded.lasting_path), loaded


def _attention_and_format(
  config: Any, trunk: TrunkConfig, attention: str, format: Format, checkpoint: str
) -> tuple[str, Format]:
  """The attention and the format of a run; a task that is answered in text has its own."""
  if not config.task.writes_text:
    return attention, format
  if attention == "bidirectional":
    raise InputError(
      f"checkpoint={checkpoint}: has bidirectional attention, and a task that is answered in "
      "text needs a model that writes from left to right, such as GPT's or T5's"
    )
  return trunk.writing_attention, TextToText()


def start_of(
  loaded: SavedModel, trunk: Any, tokenizer: Tokenizer, format: Format, attention: str = ""
) -> Start:
  """The start at a checkpoint, with the trunk and the special tokens of the run; attention "": the
  checkpoint's.
  """
  return Start(
    trunk.with_vocabulary(tokenizer),
    attention or loaded.spec.attention,
    tokenizer,
    loaded.params,
    tuple(loaded.meta.get("trained_special", ())),
    loaded.identity,
    format,
    loaded.path,
    loaded.step,
    tuple(loaded.meta.get("task", {}).get("labels", ())),
  )


def transform_of(start: Start) -> str:
  """The transform before W_y (see ClassifyHead.transform): BERT's pooler where the trunk has one,
  RoBERTa's dense layer, or none.
  """
  return "pooler" if "pooler" in start.trunk.gives else start.format.head_transform


def _fits(
  scope: str,
  shapes: Mapping[str, tuple[int, ...]],
  theirs: Mapping[str, tuple[int, ...]],
  tables: tuple[int, int],
) -> bool:
  """Whether two heads have the same arrays; those with a row for each id, of which `tables` are the
  numbers, may differ in rows.
  """
  ours = {name: shape for name, shape in shapes.items() if name.startswith(f"{scope}/")}
  loaded = {name: shape for name, shape in theirs.items() if name.startswith(f"{scope}/")}
  return ours.keys() == loaded.keys() and all(
    shape == loaded[name]
    or (shape[:1], loaded[name][:1]) == (tables[:1], tables[1:])
    and shape[1:] == loaded[name][1:]
    for name, shape in ours.items()
  )


def _shapes(params: Any) -> dict[str, tuple[int, ...]]:
  return {name: x.shape for name, x in flatten_dict(params, sep="/").items()}


def transfer(
  fresh: Any, loaded: Any, layers: int | None, trunk: TrunkConfig, trained_rows: Sequence[int] = ()
) -> Any:
  """A new trunk's parameters, replaced by a checkpoint's where they are transferred.

  Args:
    fresh: parameters of the trunk, initialized for this run.
    loaded: those of the checkpoint, of the same shapes but for the tables' numbers of rows.
    layers: -1 nothing; 0 token and position embeddings; k also the first k blocks; None everything
      (`openai/train.py:413-417`).
    trunk: the config of both.
    trained_rows: rows of the tables after the vocabulary (special tokens) that the checkpoint has
      trained; all others keep their fresh values.
  """

  def choose(path, fresh, loaded):
    name = path_name(path)
    # At -1 the embeddings, of depth 0, stay fresh too.
    if layers is not None and trunk.depth(name) > layers:
      return fresh
    # A row for each id: the run may have special tokens that the checkpoint lacks.
    if name in TABLES:
      return with_trained_rows(fresh, loaded, trunk.vocab_size, trained_rows)
    return jnp.asarray(loaded)

  return jax.tree_util.tree_map_with_path(choose, fresh, loaded)


def with_trained_rows(
  fresh: jax.Array, loaded: Any, vocab_size: int, trained_rows: Sequence[int]
) -> jax.Array:
  """A new table [R, …] with a checkpoint's rows for the vocabulary and trained special tokens.

  The checkpoint's table may have another number of rows: special tokens and padding follow the
  vocabulary.
  """
  # New rows keep their fresh draw, as OpenAI's for start, delimiter, extract (openai/train.py:410).
  table = jnp.asarray(fresh).at[:vocab_size].set(loaded[:vocab_size])
  rows = jnp.asarray(trained_rows, jnp.int32)
  return table.at[rows].set(jnp.asarray(loaded)[rows])


def runtime_fields(config: Any) -> dict[str, Any]:
  """Name -> value of the fields that may differ from those of a checkpoint."""
  return {
    field.name: value for field, value in field_values(config) if field.metadata.get("runtime")
  }


def changed_fields(config: Any, default: Any) -> dict[str, Any]:
  """Name -> value of the fields that differ from those of `default`, or that it lacks."""
  usual = vars(default)
  return {
    field.name: value for field, value in field_values(config) if value != usual.get(field.name)
  }
