"""Pre-training that goes on from a checkpoint: its trunk, vocabulary and heads, a new optimizer."""

import dataclasses

from gpt_jax.config import to_json
from gpt_jax.models.model import parameter_shapes
from gpt_jax.programs.pretrain import MakeRecipe, pretrain_recipe
from gpt_jax.programs.pretrain_config import PretrainConfig
from gpt_jax.programs.pretrain_text import Text, warn_when_stuck
from gpt_jax.programs.start import Start, load_pretrain_start
from gpt_jax.training.recipe import Recipe


def from_checkpoint(checkpoint: str) -> MakeRecipe:
  """What makes the recipe of a run that starts from a checkpoint; "": from random weights."""
  if not checkpoint:
    return pretrain_recipe

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
    recipe,
    identity={**recipe.identity, "pretrained": start.identity},
    meta={**recipe.meta, **meta},
    start=start.apply,
    summary=[*recipe.summary, line],
    first_hooks=lambda: warn_when_stuck(config, spec, text.train, steps, new_heads),
  )
