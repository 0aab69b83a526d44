"""Settings with which a training step fits into memory, found by compiling them."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from gpt_jax.errors import InputError
from gpt_jax.models.trunk import POLICIES
from gpt_jax.parallel import memory
from gpt_jax.parallel.processes import largest, log
from gpt_jax.training.forecast import Forecast, gigabytes
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.trainer import Trainer


class Peak(Protocol):
  """The most bytes at the peak with so many microbatches and a policy of rematerialization.

  Compiles the step.
  """

  def __call__(self, microbatches: int, remat: str) -> float: ...


_MAX_COMPILATIONS = 6  # for a policy: minutes each for a large model
CPU_SHARE = 0.9  # of its memory, for a run; the rest is for other programs


def plan_training(
  train: TrainConfig,
  trainer: Trainer,
  example: Any,
  build: Callable[[TrainConfig], tuple[Trainer, Any]],
  batch_size: int,
  smaller: str,
  chooses: bool = False,
  limit: float = 0.0,
  whole: bool = False,
  other_programs: int = 1,
) -> tuple[Trainer, Forecast]:
  """Compiles the step; says what a run takes, and what to change if it does not fit.

  Args:
    train: of the run.
    trainer: with these settings.
    example: a global host batch, whose values are ignored.
    build: makes the trainer of other settings, and an example of its batch.
    batch_size: what microbatches divide.
    smaller: see check_fits.
    chooses: whether a trainer with more microbatches, with which a step fits, may take its place.
    limit: bytes of memory that each process has; 0: the least that one of them has.
    whole: whether the batch cannot be split, see ModelConfig.needs_whole_batch.
    other_programs: that the run compiles, such as that of its evaluations. Each may leave as much
      memory in use on a CPU as the compilation of the step does.

  Returns:
    The trainer of the run, and what it takes.
  """
  trainers = {trainer.microbatches: trainer}  # with what they have compiled
  needed: dict[int, memory.Needed] = {}
  devices, compiling = trainer.mesh.local_devices, 0.0

  @functools.cache
  def peak(microbatches: int, remat: str) -> float:
    other, batch = build(dataclasses.replace(train, microbatches=microbatches, remat=remat))
    sizes = other.memory_with(other.compile(batch))
    # Only these can become the run's trainer: another policy is advised, never chosen.
    if remat == train.remat:
      trainers[microbatches], needed[microbatches] = other, sizes
    return sizes.most + compiling

  # On a CPU compiling itself leaves memory in use; each other program will leave as much again.
  before = memory.in_use(devices)
  forecast = trainer.forecast(example)
  if forecast.memory and devices[0].platform == "cpu":
    compiling = other_programs * largest(max(0.0, memory.in_use(devices) - before))
  forecast = forecast._replace(
    limit=limit or forecast.limit, most_memory=forecast.most_memory + compiling
  )
  counts = [trainer.microbatches]  # the only one where a loss compares the whole batch
  if not whole:
    counts = larger_counts(batch_size, trainer.mesh.shape["data"], trainer.microbatches)
  count, forecast = fit_into_memory(forecast, peak, counts, train.remat, smaller, chooses)
  if count in needed:
    least, most, temporaries = needed[count]
    forecast = forecast._replace(
      memory=least, most_memory=most + compiling, temporaries=temporaries
    )
  return trainers[count], _with_kept(forecast)


def fit_into_memory(
  forecast: Forecast,
  peak: Peak,
  counts: Sequence[int],
  remat: str,
  smaller: str,
  chooses: bool = False,
  platform: str = "",
) -> tuple[int, Forecast]:
  """The number of microbatches that a run trains with, and its forecast.

  Several processes come to the same answer, by compiling the same programs: what is needed is that
  of the process that needs most, and the limit is that of the one that has least.

  Args:
    forecast, peak, counts, remat, smaller, platform: see check_fits.
    chooses: whether the number may be larger than configured.
  """
  platform = platform or jax.devices()[0].platform
  choice = None
  if chooses and forecast.limit:
    choice = _with_reserve(functools.partial(peak, remat=remat), forecast, counts, platform)
  if choice is None:
    check_fits(forecast, peak, counts, remat, smaller, platform)
    return counts[0], forecast
  count, needed = choice
  if count != counts[0]:
    log(
      f"microbatches {count}, so that training needs up to {gigabytes(needed)}, not "
      f"{gigabytes(forecast.most)}; there are {gigabytes(forecast.limit)}"
    )
    forecast = forecast._replace(memory=needed, most_memory=needed)
  return count, forecast


def check_fits(
  forecast: Forecast,
  peak: Peak,
  counts: Sequence[int],
  remat: str,
  smaller: str,
  platform: str = "",
) -> None:
  """Warns on CPUs, whose memory others may free, of a step that does not fit into it.

  Args:
    forecast: of the step as configured; its limit is what there is.
    peak, counts: see settings_that_fit.
    remat: the policy of rematerialization, as configured.
    smaller: the fields that help, too, when no setting does.
    platform: of the devices; "": of those here.
  """
  if forecast.fits:
    return
  platform = platform or jax.devices()[0].platform
  on_cpu = platform == "cpu"
  owner = "this machine has" if on_cpu else "a device has"
  line = (
    f"training needs up to {gigabytes(forecast.most)} of memory, and {owner} "
    f"{gigabytes(forecast.limit)}"
  )
  policies = stricter_policies(remat, platform)
  found = settings_that_fit(peak, forecast.most, forecast.limit, counts, policies)
  if found is not None:
    fields, then = found
    changes = " ".join(f"config.{name}={value}" for name, value in fields.items())
    line += f"; it fits with {changes}, which makes it {gigabytes(then)}"
  else:
    more = "more microbatches or devices" if len(counts) > 1 else "or more devices"
    line += f"; use {smaller}, {more}"
  if not on_cpu:
    raise InputError(line)
  warnings.warn(line, stacklevel=2)


def settings_that_fit(
  peak: Peak, needed: float, limit: float, counts: Sequence[int], policies: Sequence[str]
) -> tuple[dict[str, str], float] | None:
  """The fields of a config that make its step fit, and its peak then; None if none do.

  Microbatches alone come first, since they compute nothing twice.

  Args:
    peak: compiles.
    needed: the peak as configured, in bytes.
    limit: bytes that there are.
    counts: the configured number of microbatches, and the larger ones that divide the batch.
    policies: the configured policy of rematerialization, and those that keep less.
  """
  for policy in policies:
    # The first policy is that of the forecast, whose peak is known.
    if policy != policies[0]:
      needed = peak(counts[0], policy)
    found = _microbatches(functools.partial(peak, remat=policy), needed, limit, counts)
    if found is not None:
      count, bytes_then = found
      fields = {}
      if count != counts[0]:
        fields["train.microbatches"] = str(count)
      if policy != policies[0]:
        fields["train.remat"] = policy
      return fields, bytes_then
  return None


def _with_kept(forecast: Forecast) -> Forecast:
  """With two more blocks of temporaries that malloc may keep, if there is room for them."""
  most = forecast.most + 2 * forecast.temporaries  # the second: see FreedMemory, without waits
  if not forecast.temporaries or (forecast.limit and most > CPU_SHARE * forecast.limit):
    return forecast
  return forecast._replace(most_memory=most, kept_blocks=2)


def larger_counts(size: int, devices: int, microbatches: int) -> list[int]:
  """The number of microbatches, and the larger ones that divide a batch over the devices."""
  rows = size // devices
  return [count for count in range(microbatches, rows + 1) if rows % count == 0]


def stricter_policies(remat: str, platform: str) -> list[str]:
  """The policy of rematerialization, and those that keep less where the compiler honors them."""
  if platform == "cpu":  # XLA's compiler for CPUs keeps everything all the same
    return [remat]
  return list(POLICIES[POLICIES.index(remat) :])


def _with_reserve(
  peak: Callable[..., float], forecast: Forecast, counts: Sequence[int], platform: str
) -> tuple[int, float] | None:
  """See _microbatches; on CPUs with the reserve or, if nothing leaves that, without."""
  for share in (CPU_SHARE, 1.0) if platform == "cpu" else (1.0,):
    choice = _microbatches(peak, forecast.most, share * forecast.limit, counts)
    if choice is not None:
      return choice
  return None


def _microbatches(
  peak: Callable[..., float], needed: float, limit: float, counts: Sequence[int]
) -> tuple[int, float] | None:
  """A count that fits, and the peak with it; None if none was found.

  Goes on from each count that does not fit to the next that would if all of its memory went down in
  proportion to the size of a part, and at least to twice as many.
  """
  count = counts[0]
  for _ in range(_MAX_COMPILATIONS):
    if needed <= limit:
      return count, needed
    least = max(2 * count, count * needed / limit)
    count = next((larger for larger in counts if larger >= least), 0)
    if not count:
      return None
    needed = peak(microbatches=count)
  return (count, needed) if needed <= limit else None
