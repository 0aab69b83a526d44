"""Pre-training that goes on from a checkpoint: its trunk, vocabulary and heads, a new optimizer."""

import dataclasses
from typing import Any

from gpt_jax.checkpoints.saved import read_model
from gpt_jax.config import field_values, from_json, option, register, to_json
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.models.model import parameter_shapes
from gpt_jax.programs.pretrain import MakeRecipe, pretrain_recipe
from gpt_jax.programs.pretrain_config import PretrainConfig
from gpt_jax.programs.pretrain_text import Text, warn_when_stuck
from gpt_jax.programs.start import Start, changed_fields, runtime_fields, start_of
from gpt_jax.tasks.formats import Format
from gpt_jax.training.layerwise import Layerwise, OptimizerOf, below_head
from gpt_jax.training.recipe import Recipe


@register("layerwise_pretrain")
@dataclasses.dataclass(frozen=True)
class LayerwiseConfig(PretrainConfig):
  """A run that starts from a checkpoint, with lower rates below: ULMFiT on the texts of a task
  (Howard and Ruder 2018, section 3.2).
  """

  layer_decay: float = option(
    1.0, "learning rate of a layer, relative to the layer above it", low=0.01, high=1.0
  )


def from_checkpoint(checkpoint: str) -> MakeRecipe:
  """Makes the recipe of a run that starts from a checkpoint; "": from random weights."""

  def make_recipe(config: PretrainConfig, text: Text) -> Recipe:
    if not checkpoint and config.layer_decay != 1:
      raise InputError(f"layer_decay={config.layer_decay}: goes with a checkpoint to start from")
    if not checkpoint:
      return pretrain_recipe(config, text)
    start = load_pretrain_start(checkpoint, config, text.tokenizer)
    return started_recipe(config, text, start)

  return make_recipe


def started_recipe(config: PretrainConfig, text: Text, start: Start) -> Recipe:
  """The recipe of a pre-training run; its trunk and tokenizer become those of the start."""
  config = dataclasses.replace(config, trunk=start.trunk)
  recipe = pretrain_recipe(config, text._replace(tokenizer=start.tokenizer))
  spec, steps = recipe.spec, recipe.total_steps
  new_heads = start.new_heads(parameter_shapes(spec))
  heads = "".join(f"the {name} head and " for name in new_heads)
  line = (
    f"start   {start.checkpoint}, step {start.step:,}: sizes, vocabulary and weights; {heads}the "
    f"optimizer {'are' if heads else 'is'} new"
  )
  trained = dict.fromkeys((*start.trained_special, *config.objective.special))
  meta = {"trained_special": list(trained), "sequence_format": to_json(start.format)}
  return dataclasses.replace(
    with_layer_decay(recipe, config.layer_decay),
    identity={**recipe.identity, "pretrained": start.identity},
    meta={**recipe.meta, **meta},
    start=start.apply,
    summary=[*recipe.summary, line],
    first_hooks=lambda: warn_when_stuck(config, spec, text.train, steps, new_heads),
  )


def with_layer_decay(recipe: Recipe, decay: float) -> Recipe:
  """The recipe, in which each layer has the rate of the layer above it times `decay`."""
  if decay == 1:
    return recipe
  below = below_head(parameter_shapes(recipe.spec), recipe.spec.trunk)
  # The last block, 1 below the heads, has the full rate, as they have.
  layerwise = Layerwise(lambda path: decay ** max(0, below(path) - 1))
  return dataclasses.replace(recipe, optimizer=OptimizerOf(recipe.config.optim, layerwise))


def load_pretrain_start(checkpoint: str, config: PretrainConfig, tokenizer: Tokenizer) -> Start:
  """Loads a checkpoint, see read_model, for a run on data with this tokenizer. A size of the
  config's trunk that is left at its default becomes the checkpoint's.
  """
  loaded, objective = read_model(checkpoint), config.objective
  # An id must mean the same token in both; vocabularies of equal size need not agree.
  if loaded.tokenizer.hash != tokenizer.hash:
    raise InputError(
      f"checkpoint={checkpoint}: its vocabulary is not that of the prepared text, "
      f"{loaded.tokenizer.difference(tokenizer.hash)}; prepare the text with "
      "PrepareConfig(tokenizer=DIR), the folder of the checkpoint's tokenizer"
    )
  if loaded.spec.attention != objective.attention:
    raise InputError(
      f"checkpoint={checkpoint}: has {loaded.spec.attention} attention, the config's objective "
      f"{objective.attention}; use a config with the checkpoint's objective"
    )
  ours: Format = from_json(objective.format)
  theirs = loaded.format if "sequence_format" in loaded.meta else ours
  if theirs != ours and not objective.keeps_format:
    raise InputError(
      f"checkpoint={checkpoint}: its sequences are of {to_json(theirs)['type']}, those of the "
      f"config's objective of {objective.format['type']}; use a config with the checkpoint's "
      "objective"
    )
  trunk = _with_sizes(config.trunk.with_pieces(loaded.tokenizer), loaded.spec.trunk, loaded.path)
  return start_of(loaded, trunk, loaded.tokenizer.with_special(*objective.special), theirs)


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
