"""Where a run starts: a checkpoint's trunk, vocabulary and heads, or an untrained trunk."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from gpt_jax.checkpoints.saved import read_model
from gpt_jax.config import field_values, from_json, to_json
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import exists
from gpt_jax.models.trunk import TABLES, TrunkConfig
from gpt_jax.parallel.partition import path_name
from gpt_jax.tasks.formats import Format, GPTFormat
from gpt_jax.training.step import TrainState
from gpt_jax.training.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Start:
  """A run's start: a checkpoint, or a trunk and a vocabulary. Optimizer and step are new.

  Attributes:
    trunk: config of the trunk: the checkpoint's sizes, the run's dtype and dropout.
    attention: see ModelConfig.
    tokenizer: the checkpoint's, with the special tokens that the run adds.
    params: NumPy arrays of the whole model; None: they are initialized.
    trained_special: names of the special tokens whose embeddings the checkpoint has trained.
    identity: identifies the parameters in config.json.
    format: how examples become sequences.
    checkpoint: as the user named it.
    step: number of updates the checkpoint has had.
    teacher: the checkpoint, a LoadedModel, where `trunk` and `params` are of a student of it.
  """

  trunk: TrunkConfig
  attention: str
  tokenizer: Tokenizer
  params: Any = None
  trained_special: tuple[str, ...] = ()
  identity: str = "none"
  format: Format = GPTFormat()
  checkpoint: str = ""
  step: int = 0
  teacher: Any = None

  @property
  def reads(self) -> tuple[Tokenizer, int, Format]:
    """How it reads examples: the arguments of LabeledTask.encode after them."""
    return self.tokenizer, self.trunk.context, self.format

  def apply(
    self, state: TrainState, trainer: Trainer, layers: int | None = None, heads: bool = True
  ) -> TrainState:
    """The first state with the checkpoint's parameters, on the trainer's devices.

    Args:
      state: as initialized.
      trainer: of the run.
      layers: how much of the trunk is taken, see transfer.
      heads: whether a head that the checkpoint has too, such as a masked language model's, is taken
        as well.
    """
    if self.params is None:
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
    on_devices = jax.jit(copy, out_shardings=trainer.shardings.params)
    # Heads that are not taken need no room on the devices.
    loaded = {scope: self.params[scope] for scope in ("trunk", *taken)}
    return state._replace(params=on_devices(state.params, loaded))

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
    """Names of the heads that start from random weights, since the checkpoint has none of the kind.

    Args:
      shapes: of the run's parameters, see models.model.parameter_shapes.
    """
    theirs = _shapes(self.params)
    (before, *_), *_ = [theirs[path] for name in TABLES if (path := f"trunk/{name}") in theirs]
    tables = self.trunk.rows, before
    scopes = {name.partition("/")[0] for name in shapes} - {"trunk"}
    return [scope for scope in sorted(scopes) if not _fits(scope, shapes, theirs, tables)]


def load_pretrain_start(
  checkpoint: str,
  trunk: Any,
  attention: str,
  tokenizer: Tokenizer,
  special: Sequence[str],
  format: dict[str, Any],
  keeps_format: bool = False,
) -> Start:
  """Loads a checkpoint to continue with.

  Args:
    checkpoint: see read_model.
    trunk: the trunk of the run's config. A size left at its default becomes the checkpoint's.
    attention: the objective's, see ModelConfig.
    tokenizer: of the prepared data.
    special: names of the special tokens that the objective needs.
    format: the objective's, see Objective.format.
    keeps_format: whether the objective suits the checkpoint's format, too.
  """
  loaded = read_model(checkpoint)
  # An id must mean the same token in both; vocabularies of equal size need not agree.
  if loaded.tokenizer.hash != tokenizer.hash:
    raise InputError(
      f"checkpoint={checkpoint}: its vocabulary is not that of the prepared text, "
      f"{loaded.tokenizer.difference(tokenizer.hash)}; prepare the text with "
      "PrepareConfig(tokenizer=DIR), the folder of the checkpoint's tokenizer"
    )
  if loaded.spec.attention != attention:
    raise InputError(
      f"checkpoint={checkpoint}: has {loaded.spec.attention} attention, the config's objective "
      f"{attention}; use a config with the checkpoint's objective"
    )
  ours: Format = from_json(format)
  theirs = loaded.format if "sequence_format" in loaded.meta else ours
  if theirs != ours and not keeps_format:
    raise InputError(
      f"checkpoint={checkpoint}: its sequences are of {to_json(theirs)['type']}, those of the "
      f"config's objective of {format['type']}; use a config with the checkpoint's objective"
    )
  extended = loaded.tokenizer.with_special(*special)
  return Start(
    _with_sizes(trunk.with_pieces(loaded.tokenizer), loaded.spec.trunk, checkpoint).with_vocabulary(
      extended
    ),
    attention,
    extended,
    loaded.params,
    tuple(loaded.meta.get("trained_special", ())),
    loaded.identity,
    theirs,
    checkpoint,
    loaded.step,
  )


def _with_sizes(trunk: Any, loaded: Any, checkpoint: str) -> Any:
  """The checkpoint's trunk with the run's runtime fields: dtype, backend and dropout."""
  # A field at its default counts as not set, and the checkpoint decides it.
  default = type(trunk)()
  if type(trunk) is not type(loaded):
    changes = changed_fields(trunk, default)
    if changes.keys() <= runtime_fields(loaded).keys():  # none, or such as dtype
      return dataclasses.replace(loaded, **changes)
    kinds = f"{type(trunk).__name__}, the checkpoint a {type(loaded).__name__}"
    raise InputError(f"checkpoint={checkpoint}: the config's trunk is a {kinds}")
  changes, differences = runtime_fields(trunk), []
  values = zip(field_values(trunk), field_values(loaded), field_values(default), strict=True)
  for (field, mine), (_, theirs), (_, usual) in values:
    if field.name not in changes and mine not in (theirs, usual):
      differences.append(f"trunk.{field.name}={mine}, the checkpoint's is {theirs}")
  if differences:
    raise InputError(
      f"checkpoint={checkpoint} brings its own sizes: {'; '.join(differences)}; leave them out, "
      "as configs/gpt1.py does"
    )
  return dataclasses.replace(loaded, **changes)


def _fits(
  scope: str,
  shapes: Mapping[str, tuple[int, ...]],
  theirs: Mapping[str, tuple[int, ...]],
  tables: tuple[int, int],
) -> bool:
  """Whether two heads have the same arrays; those with a row for each id may differ in rows.

  Args:
    scope: of the head.
    shapes, theirs: of both models' parameters by path.
    tables: rows of both tables.
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
