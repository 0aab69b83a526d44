"""Samples of text that a language model writes along its pre-training."""

import dataclasses
from collections.abc import Callable

from gpt_jax.inference.samples import FIRST_SAMPLE, MIN_STEPS, make_writer, write_samples
from gpt_jax.programs.pretrain import MakeRecipe, pretrain_recipe
from gpt_jax.programs.pretrain_config import PretrainConfig
from gpt_jax.programs.pretrain_text import Text
from gpt_jax.training import hooks
from gpt_jax.training.recipe import Recipe, RunContext


def with_samples(make_recipe: MakeRecipe = pretrain_recipe) -> MakeRecipe:
  """What makes the same recipe with samples, if the run is long and its model can write them."""

  def make(config: PretrainConfig, text: Text) -> Recipe:
    recipe = make_recipe(config, text)
    tokenizer = recipe.tokenizer
    if not recipe.spec.gives_text_probability or recipe.total_steps < MIN_STEPS or not tokenizer:
      return recipe

    def sampling(context: RunContext) -> list[hooks.Hook]:
      write = make_writer(recipe.spec.build(), tokenizer, text.held_out, recipe.mesh)
      of_run = context.workdir, context.first, context.reporter
      return [write_samples(*of_run, write, samples_due(config))]

    programs = recipe.other_programs + 1
    return dataclasses.replace(recipe, further_hooks=sampling, other_programs=programs)

  return make


def samples_due(config: PretrainConfig) -> Callable[[int], bool]:
  """After evaluations, and after FIRST_SAMPLE updates times 1, 2, 4, …"""
  evaluating = hooks.every(config.train.evaluate_every)
  return hooks.any_of(evaluating, hooks.powers_of_two_times(FIRST_SAMPLE))
