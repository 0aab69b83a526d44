"""Continued pre-training: a run that starts from the trunk and vocabulary of a checkpoint."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.models.trunk import TrunkConfig, with_vocabulary
from gpt_jax.training.step import TrainState
from gpt_jax.training.trainer import Trainer
from gpt_jax.training.transfer import transfer, with_trained_rows

RUNTIME_FIELDS = ("dtype", "attention_backend")  # and dropout rates: any value fits the parameters


@dataclasses.dataclass(frozen=True)
class WarmStart:
  """What a run takes from a checkpoint. The optimizer and the step are new.

  Attributes:
    checkpoint: as the user named it.
    step: number of updates that the checkpoint has had.
    trunk: config of the trunk: the checkpoint's sizes, the run's dtype and dropout.
    tokenizer: the checkpoint's, with the special tokens that the run's objective adds.
    params: of the whole model, NumPy arrays.
    trained_special: names of the special tokens whose embeddings the checkpoint has trained.
    format: how its examples become sequences, see Objective.format.
    identity: identifies the parameters in config.json.
  """

  checkpoint: str
  step: int
  trunk: TrunkConfig
  tokenizer: Tokenizer
  params: Any
  trained_special: tuple[str, ...]
  format: dict[str, Any]
  identity: str

  def apply(self, state: TrainState, trainer: Trainer) -> TrainState:
    """The first state with the checkpoint's parameters, on the trainer's devices.

    A head that the checkpoint has too, such as a masked language model's, is taken as well.
    """
    special = self.tokenizer.special
    rows = [special[name] for name in self.trained_special]
    taken = state.params.keys() - {"trunk", *self.new_heads(state.params)}

    def take(fresh: Any, loaded: Any) -> Any:
      if fresh.shape == loaded.shape:
        return jnp.asarray(loaded)
      return with_trained_rows(fresh, loaded, self.trunk.vocab_size, rows)

    def copy(fresh: Any, loaded: Any) -> Any:
      params = {**fresh, "trunk": transfer(fresh["trunk"], loaded["trunk"], None, self.trunk, rows)}
      for scope in taken:
        params[scope] = jax.tree.map(take, fresh[scope], loaded[scope])
      return params

    on_devices = jax.jit(copy, out_shardings=trainer.shardings.params)
    return state._replace(params=on_devices(state.params, self.params))

  def new_heads(self, params: Any) -> list[str]:
    """Names of the heads that start from random weights, since the checkpoint has none of the kind.

    Args:
      params: of the run, by the names of the trunk and of the heads.
    """
    rows, their_rows = self.trunk.rows, len(self.params["trunk"]["tokens"])
    return [
      scope
      for scope in sorted(params.keys() - {"trunk"})
      if not _fits(params[scope], self.params.get(scope), rows, their_rows)
    ]


def load_warm_start(
  checkpoint: str,
  trunk: Any,
  attention: str,
  tokenizer: Tokenizer,
  special: Sequence[str],
  format: dict[str, Any],
  keeps_format: bool = False,
) -> WarmStart:
  """Loads a checkpoint to continue with.

  Args:
    checkpoint: see load_model.
    trunk: the trunk of the run's config. A size left at its default becomes the checkpoint's.
    attention: the objective's, see ModelConfig.
    tokenizer: of the prepared data.
    special: names of the special tokens that the objective needs.
    format: the objective's, see Objective.format.
    keeps_format: whether the objective suits the checkpoint's format, too.

  Raises:
    InputError: no checkpoint, or one that fits neither config nor data.
  """
  loaded = load_model(checkpoint)
  if loaded.tokenizer.hash != tokenizer.hash:
    raise InputError(
      f"--checkpoint={checkpoint}: its vocabulary is not that of the prepared text, "
      f"{loaded.tokenizer.difference(tokenizer.hash)}; prepare the text with --tokenizer=DIR, the "
      "folder of the checkpoint's tokenizer"
    )
  if loaded.spec.attention != attention:
    raise InputError(
      f"--checkpoint={checkpoint}: has {loaded.spec.attention} attention, the config's objective "
      f"{attention}; use a config with the checkpoint's objective"
    )
  theirs = loaded.meta.get("sequence_format", format)
  if theirs != format and not keeps_format:
    raise InputError(
      f"--checkpoint={checkpoint}: its sequences are of {theirs.get('type')}, those of the "
      f"config's objective of {format['type']}; use a config with the checkpoint's objective"
    )
  extended = loaded.tokenizer.with_special(*special)
  return WarmStart(
    checkpoint,
    loaded.step,
    with_vocabulary(_with_sizes(trunk, loaded.spec.trunk, checkpoint), extended),
    extended,
    loaded.params,
    tuple(loaded.meta.get("trained_special", ())),
    theirs,
    loaded.identity,
  )


def _with_sizes(trunk: Any, loaded: Any, checkpoint: str) -> Any:
  """The checkpoint's trunk, with the run's dtype, backend and dropout.

  Raises:
    InputError: the config sets a size that is not the checkpoint's.
  """
  default = type(trunk)()
  if type(trunk) is not type(loaded):
    if trunk == default:
      return loaded
    kinds = f"{type(trunk).__name__}, the checkpoint a {type(loaded).__name__}"
    raise InputError(f"--checkpoint={checkpoint}: the config's trunk is a {kinds}")
  changes, differences = {}, []
  for field in dataclasses.fields(trunk):
    mine, theirs = getattr(trunk, field.name), getattr(loaded, field.name)
    if field.name in RUNTIME_FIELDS or field.name.endswith("dropout"):
      changes[field.name] = mine
    elif mine not in (theirs, getattr(default, field.name)):
      differences.append(f"trunk.{field.name}={mine}, the checkpoint's is {theirs}")
  if differences:
    raise InputError(
      f"--checkpoint={checkpoint} brings its own sizes: {'; '.join(differences)}; leave them out, "
      "as configs/gpt1.py does"
    )
  return dataclasses.replace(loaded, **changes)


def _fits(fresh: Any, loaded: Any, rows: int, their_rows: int) -> bool:
  """Whether two heads have the same arrays; those with a row for each id may differ in rows."""
  ours, theirs = _shapes(fresh), _shapes(loaded)
  return ours.keys() == theirs.keys() and all(
    shape == theirs[name]
    or (shape[:1], theirs[name][:1]) == ((rows,), (their_rows,))
    and shape[1:] == theirs[name][1:]
    for name, shape in ours.items()
  )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}
