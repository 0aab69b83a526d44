"""Pre-training on several prepared folders, with shares of rows and a held-out loss of each."""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt_jax.data.mixture import MixedText, MixedWindows, mixture_shares
from gpt_jax.errors import InputError
from gpt_jax.files import real_path, split_names
from gpt_jax.programs.pretrain import MakeRecipe, pretrain_recipe
from gpt_jax.programs.pretrain_config import PretrainConfig
from gpt_jax.programs.pretrain_text import Text, load_text
from gpt_jax.training.recipe import Recipe


class Mixture(Text):
  """The texts of several folders; `train` and `held_out` are of type MixedText."""

  def windows(self, config: PretrainConfig, tokens: Any, seed: int = 0) -> MixedWindows:
    # TrainConfig.seed has 32 bits, so no two sources of any two runs share their noise.
    sources = [
      config.objective.windows(file, config.data, seed + (number << 32))
      for number, file in enumerate(tokens.files)
    ]
    return MixedWindows(sources, tokens.shares)


def mix(config: PretrainConfig, texts: Sequence[Text]) -> Text:
  """Several texts as one, with the shares of the config; a single one as it is."""
  tokenizer = texts[0].tokenizer
  for text in texts:
    text.train.check_vocabulary(tokenizer)
  if len(texts) == 1:
    return texts[0]
  train, held_out = [text.train for text in texts], [text.held_out for text in texts]
  shares = mixture_shares(train, config.data)
  return Mixture(MixedText(train, shares), MixedText(held_out, shares), tokenizer)


def load_texts(config: PretrainConfig, data: str) -> Text:
  """The text of a prepared folder, or of several, separated by commas; see mix."""
  return mix(config, [load_text(config, folder) for folder in split_names(data)])


def with_sources(folders: Sequence[str], make_recipe: MakeRecipe = pretrain_recipe) -> MakeRecipe:
  """Makes the recipe of a run on several folders, of which the run's `data` is the first; with one
  it is that of make_recipe.

  Beside the measures of the mixture, means weighted by the shares, there are those of each source,
  such as valid_novels_loss for data/novels.
  """
  if len(folders) == 1:
    return make_recipe
  names = source_names(folders)

  def make(config: PretrainConfig, text: Text) -> Recipe:
    texts = [text, *(load_text(config, folder) for folder in folders[1:])]
    recipe = make_recipe(config, mix(config, texts))
    config, evaluation = recipe.config, recipe.evaluation
    assert evaluation is not None
    shares = mixture_shares([text.train for text in texts], config.data)
    held_out = [config.objective.windows(text.held_out, config.data) for text in texts]
    measure = _measure(evaluation.measure, dict(zip(names, held_out, strict=True)), shares)
    rows = recipe.total_steps * config.data.batch_size
    lines = []
    for name, share, source in zip(names, shares, texts, strict=True):
      epochs = share * rows / config.objective.windows(source.train, config.data).spans_per_epoch
      lines.append(f"source  {name}: {share:.1%} of the rows, {epochs:.2f} epochs")
    return dataclasses.replace(
      recipe, evaluation=evaluation._replace(measure=measure), summary=[*recipe.summary, *lines]
    )

  return make


def _measure(
  measure: Callable[..., dict[str, float]], held_out: dict[str, Any], shares: Sequence[float]
) -> Callable[[Any], dict[str, float]]:
  """The function from parameters to the measures of a mixture and of its sources."""

  def measure_all(params) -> dict[str, float]:
    # By one compiled function, whose windows are given in place of the first source's.
    sources = {name: measure(params, windows) for name, windows in held_out.items()}
    values = {}
    for metric in next(iter(sources.values())):
      of_each = np.array([measures[metric] for measures in sources.values()])
      # A perplexity is the exponential of a mean, so it is averaged as its logarithm.
      is_power = metric.endswith("perplexity")
      mean = float(np.dot(np.log(of_each) if is_power else of_each, shares))
      values[metric] = math.exp(mean) if is_power else mean
    for name, measures in sources.items():
      for metric, value in measures.items():
        values[metric.replace("valid_", f"valid_{name}_", 1)] = value
    return values

  return measure_all


def source_names(folders: Sequence[str]) -> list[str]:
  """A name for each folder: its last part, or as many parts as tell it from the others."""
  # Whatever their spelling, or links to them.
  places = set(map(real_path, folders))
  if len(places) < len(folders):
    raise InputError(f"{','.join(folders)}: a folder is there twice; its share is data.weights")
  parts = [os.path.normpath(folder).split("/") for folder in folders]
  for count in range(1, max(map(len, parts)) + 1):
    names = [re.sub(r"[^\w.-]", "_", "_".join(path[-count:])) for path in parts]
    if len(set(names)) == len(names):
      return names
  raise InputError(
    f"{','.join(folders)}: two names differ by marks alone; rename one of the folders"
  )
