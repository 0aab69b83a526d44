"""Timing: calls take turns, so that all of them meet the same load."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from gpt_jax.training.recipe import Recipe, make_trainer

ROUNDS = 5  # medians are of so many

Measured = Iterator[tuple[str, float, str]]  # name, value, unit


def seconds(run: Callable[[], Any], least: float = 0.1) -> float:
  """Mean time of a call, over as many calls as take `least` seconds; waits for the device."""

  def mean_of(calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
      result = run()
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / calls

  # Calls return before their work is done, so their number is fixed beforehand, from the first one.
  first = mean_of(1)
  return first if first >= least else mean_of(math.ceil(least / first))


def in_turns(calls: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
  """The seconds of each call in each of ROUNDS rounds, after one that is not counted."""
  for call in calls.values():
    jax.block_until_ready(call())  # compiles
  times: dict[str, list[float]] = {name: [] for name in calls}
  for _, (name, call) in itertools.product(range(ROUNDS), calls.items()):
    times[name].append(seconds(call))
  return times


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
  """The median of the ratios of each round."""
  pairs = zip(numerators, denominators, strict=True)
  return statistics.median(a / b for a, b in pairs)


def paces(recipes: Mapping[str, Recipe]) -> dict[str, float]:
  """Seconds of a training step of each run, its batch included: medians of steps in turns, since a
  shared machine is not equally busy in all runs.
  """

  def stepper(recipe: Recipe) -> Callable[[], Any]:
    train = recipe.config.train
    trainer, batch_at = make_trainer(recipe), recipe.batches(train).at
    state, numbers = trainer.init(train.seed), itertools.cycle(range(train.steps))

    def step():
      nonlocal state
      state, metrics = trainer.step(state, trainer.to_device(batch_at(next(numbers))), train.seed)
      return metrics["loss"]

    return step

  times = in_turns({name: stepper(recipe) for name, recipe in recipes.items()})
  return {name: statistics.median(rounds) for name, rounds in times.items()}
