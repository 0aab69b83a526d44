"""Pre-training that goes on from a checkpoint: its trunk, vocabulary and heads, a new optimizer."""

import dataclasses

from gpt_jax.config import option, register, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.model import parameter_shapes
from gpt_jax.programs.pretrain import MakeRecipe, pretrain_recipe
from gpt_jax.programs.pretrain_config import PretrainConfig
from gpt_jax.programs.pretrain_text import Text, warn_when_stuck
from gpt_jax.programs.start import Start, load_pretrain_start
from gpt_jax.training.layerwise import Layerwise, below_head, layerwise_optimizer
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
  if not checkpoint:
    return _from_nothing

  def make_recipe(config: PretrainConfig, text: Text) -> Recipe:
    objective = config.objective
    start = load_pretrain_start(
      checkpoint,
      config.trunk,
      objective.attention,
      text.tokenizer,
      objective.special,
      objective.format,
      objective.keeps_format,
    )
    return started_recipe(config, text, start)

  return make_recipe


def _from_nothing(config: PretrainConfig, text: Text) -> Recipe:
  if config.layer_decay != 1:
    raise InputError(f"layer_decay={config.layer_decay}: goes with a checkpoint to start from")
  return pretrain_recipe(config, text)


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
  if config.layer_decay != 1:
    below = below_head(parameter_shapes(spec), spec.trunk)
    # The last block, 1 below the heads, has the full rate, as they have.
    layerwise = Layerwise(lambda path: config.layer_decay ** max(0, below(path) - 1))
    recipe = dataclasses.replace(
      recipe, optimizer=lambda total: layerwise_optimizer(config.optim, total, layerwise)
    )
  return dataclasses.replace(
    recipe,
    identity={**recipe.identity, "pretrained": start.identity},
    meta={**recipe.meta, **meta},
    start=start.apply,
    summary=[*recipe.summary, line],
    first_hooks=lambda: warn_when_stuck(config, spec, text.train, steps, new_heads),
  )
