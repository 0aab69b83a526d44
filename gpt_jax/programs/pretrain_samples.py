"""Samples along a pre-training run: a few words that the model writes at each evaluation.

A compiled program writes them; it reads the prompts token by token, which compiles in half the time
of generate.py's two programs.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.files import parse_json
from gpt_jax.models.model import Model
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.parallel.processes import is_main_process
from gpt_jax.programs.pretrain import MakeRecipe, pretrain_recipe
from gpt_jax.programs.pretrain_config import PretrainConfig
from gpt_jax.programs.pretrain_text import Text
from gpt_jax.training import hooks
from gpt_jax.training.recipe import Recipe
from gpt_jax.training.run_log import cut_back, open_to_append, read_lines

SAMPLES = "samples.jsonl"
# Of a run. Compiling and writing take 1.1 of the 25.6 CPU-seconds of 100 steps of the quickstart.
MIN_STEPS = 100
FIRST_SAMPLE = 100  # steps; see hooks.powers_of_two_times
_TOKENS = 48  # of a sample, with its prompt
_PROMPT = 8
_MAX_SAMPLES = 100_000  # that are read


def with_samples(make_recipe: MakeRecipe = pretrain_recipe) -> MakeRecipe:
  """Makes the same recipe with samples, if the run is long and its model can write them."""

  def make(config: PretrainConfig, text: Text) -> Recipe:
    recipe = make_recipe(config, text)
    tokenizer = recipe.tokenizer
    if not recipe.spec.gives_text_probability or recipe.total_steps < MIN_STEPS or not tokenizer:
      return recipe

    def sampling(context: hooks.RunContext) -> list[hooks.Hook]:
      write = make_writer(recipe.spec.build(), tokenizer, text.held_out, recipe.mesh)
      # The first lines show noise, later ones words, phrases, sense; most of that happens early.
      evaluating = hooks.every(config.train.evaluate_every)
      due = hooks.any_of(evaluating, hooks.powers_of_two_times(FIRST_SAMPLE))
      return [write_samples(context, write, due)]

    programs = recipe.other_programs + 1
    return dataclasses.replace(recipe, further_hooks=sampling, other_programs=programs)

  return make


class Sample(NamedTuple):
  """A prompt, and its continuation by the model after `step` updates."""

  step: int
  prompt: str
  text: str


def write_samples(
  context: hooks.RunContext,
  write: Callable[[Any], list[tuple[str, str]]],
  due: Callable[[int], bool],
) -> hooks.Hook:
  """Appends what write(params), of make_writer, gives to samples.jsonl, on process 0; all processes
  call it. Samples of steps after the run's first are removed, since they will be written again.
  """
  path = os.path.join(context.workdir, SAMPLES)
  if is_main_process():
    cut_back(path, context.first)

  def run(moment: hooks.StepContext) -> None:
    with context.reporter.paused():
      pairs = write(moment.state.params)
      if not is_main_process():
        return
      with open_to_append(path) as file:
        for prompt, text in pairs:
          entry = {"step": moment.step, "prompt": prompt, "text": text}
          file.write(json.dumps(entry) + "\n")

  return hooks.Hook(run, due)


def make_writer(
  model: Model, tokenizer: Tokenizer, held_out: TokenFile, mesh: Mesh, temperature: float = 0.8
) -> Callable[[Any], list[tuple[str, str]]]:
  """The function from parameters, sharded or not, to pairs of prompt and continuation.

  A text depends on the parameters alone; at temperature 0 it is greedy. The prompts are the first
  words of a line in the middle of the held-out text, and nothing: a line break, where the
  vocabulary has one.
  """
  prompts = [_prompt(held_out, tokenizer)]
  if tokenizer.line_id is not None:
    prompts.append([tokenizer.line_id])
  length = min(_TOKENS, model.config.trunk.context)
  rows = np.zeros((len(prompts), length), np.int32)
  for row, ids in zip(rows, prompts, strict=True):
    row[: len(ids)] = ids
  lengths = np.array([len(ids) for ids in prompts])

  def complete(params):
    return _complete(model, params, rows, lengths, temperature)

  # Every process gets the whole text, whatever the layout of the parameters. LLVM's optimizations
  # would take longer than they save.
  fast = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
  complete = jax.jit(complete, out_shardings=NamedSharding(mesh, P()), compiler_options=fast)

  def write(params) -> list[tuple[str, str]]:
    pairs = []
    for ids, prompt in zip(np.asarray(complete(params)).tolist(), prompts, strict=True):
      given = tokenizer.decode(prompt)
      # ids begin at position 1, so from len(prompt) - 1 on they are the continuation.
      whole = tokenizer.decode([*prompt, *ids[len(prompt) - 1 :]])
      pairs.append((given.strip(), whole.removeprefix(given)))
    return pairs

  return write


def _prompt(held_out: TokenFile, tokenizer: Tokenizer) -> list[int]:
  """The first tokens of a line near the middle, or of the document there."""
  middle = held_out.n_tokens // 2
  document = int(np.searchsorted(held_out.offsets, middle, side="right")) - 1
  begin, end = map(int, held_out.offsets[document : document + 2])
  following = held_out.read(middle, min(1000, end - middle))
  lines = middle + 1 + np.flatnonzero(following == tokenizer.line_id)
  lines = lines[lines + _PROMPT <= end]
  if len(lines):
    begin = int(lines[0])
  return held_out.read(begin, min(_PROMPT, end - begin)).tolist()


def _complete(model: Model, params: Any, rows: np.ndarray, lengths: np.ndarray, temperature: float):
  """The tokens at positions 1, 2, … of rows [B, T], of which lengths [B] are given: [B, T - 1]."""
  batch, width = rows.shape
  vocab_size = model.num_tokens
  valid = jnp.ones((batch, 1), bool)

  def add(carry, inputs):
    ids, state = carry
    position, given = inputs
    positions = jnp.full((batch, 1), position)
    outputs: Any = model.apply(
      {"params": params}, ids[:, None], positions, valid, state, method="extend"
    )
    hidden, table, state = outputs
    scores = logits(hidden[:, 0], table, vocab_size)[:, :vocab_size]
    # A key of the position alone: samples of different steps differ by their parameters.
    gumbel = jax.random.gumbel(jax.random.fold_in(jax.random.key(0), position), scores.shape)
    chosen = jnp.argmax(scores + temperature * gumbel, axis=-1).astype(jnp.int32)
    # Within the prompt the given token is fed, whatever was chosen.
    ids = jnp.where(position + 1 < lengths, given, chosen)
    return (ids, state), ids

  state = model.apply({"params": params}, batch, method="start")
  inputs = jnp.arange(width - 1), jnp.asarray(rows.T[1:])
  _, added = jax.lax.scan(add, (jnp.asarray(rows[:, 0]), state), inputs)
  return added.T


def read_samples(workdir: str) -> list[Sample]:
  """The samples of a run, in order, without lines that are none; [] if missing. Raises OSError."""
  samples = []
  try:
    lines = list(itertools.islice(read_lines(os.path.join(workdir, SAMPLES)), _MAX_SAMPLES))
  except FileNotFoundError:
    return []
  for line in lines:
    try:
      entry = parse_json(line)
      sample = Sample(entry["step"], entry["prompt"], entry["text"])
    except (ValueError, KeyError, TypeError):
      continue  # cut off by a kill, or not ours
    if isinstance(sample.step, int) and isinstance(sample.prompt + sample.text, str):
      samples.append(sample)
  return samples
