"""Settings with which a training step fits into memory, found by compiling them."""

import functools
import warnings
from collections.abc import Callable, Sequence

from gpt_jax.errors import InputError
from gpt_jax.models.trunk import POLICIES
from gpt_jax.parallel import memory
from gpt_jax.parallel.memory import Forecast, gigabytes
from gpt_jax.parallel.processes import largest, log, smallest
from gpt_jax.training.recipe import Recipe, make_trainer
from gpt_jax.training.trainer import Trainer

_MAX_COMPILATIONS = 6  # for a policy: minutes each for a large model
CPU_SHARE = 0.9  # of its memory, for a run; the rest is for other programs


def plan_training(recipe: Recipe, trainer: Trainer, chooses: bool) -> tuple[Trainer, Forecast]:
  """Compiles the step; says what a run takes, and what to change if it does not fit.

  Returns the trainer of the run, which with `chooses` has more microbatches where only then a step
  fits, and what the run takes: nothing is known under pmap.
  """
  if trainer.backend == "pmap":
    return trainer, Forecast()
  remat, devices = recipe.config.train.remat, trainer.mesh.local_devices
  platform = devices[0].platform

  @functools.cache
  def compiled(microbatches: int, remat: str) -> tuple[Trainer, memory.Needed]:
    other = recipe.with_train(microbatches=microbatches, remat=remat)
    is_own = (microbatches, remat) == (trainer.microbatches, recipe.config.train.remat)
    made = trainer if is_own else make_trainer(other)
    return made, made.memory_with(made.compile(other.batches(other.config.train).example()))

  before, compiling = memory.in_use(devices), 0.0
  compiled(trainer.microbatches, remat)
  if platform == "cpu":
    # Compiling leaves memory in use; each other program of the run will leave as much again.
    grown = largest(max(0.0, memory.in_use(devices) - before))
    compiling = recipe.other_programs * grown
  limit = smallest(memory.limit(devices))
  counts = [trainer.microbatches]  # the only one where a loss compares the whole batch
  if not recipe.spec.needs_whole_batch:
    counts = larger_counts(recipe.batch_size, trainer.mesh.shape["data"], trainer.microbatches)
  count = fit_into_memory(
    lambda microbatches, remat: compiled(microbatches, remat)[1].most + compiling,
    counts,
    remat,
    limit,
    recipe.smaller,
    chooses,
    platform,
  )
  chosen, (most, temporaries) = compiled(count, remat)
  most += compiling
  # Malloc may keep two more blocks of temporaries if there is room for them, see FreedMemory.
  if limit and most + 2 * temporaries > CPU_SHARE * limit:
    return chosen, Forecast(most, limit, 1.5 * temporaries, waits=True)
  return chosen, Forecast(most + 2 * temporaries, limit, 2.5 * temporaries)


def fit_into_memory(
  peak: Callable[[int, str], float],
  counts: Sequence[int],
  remat: str,
  limit: float,
  smaller: str,
  chooses: bool = False,
  platform: str = "cpu",
) -> int:
  """The number of microbatches that a run trains with.

  Several processes come to the same answer, by compiling the same programs: what is needed is that
  of the process that needs most, and the limit is that of the one that has least. On CPUs, whose
  memory others may free, a step that does not fit is warned of.

  Args:
    peak: (microbatches, policy of rematerialization) -> bytes; compiles the step, once.
    counts: the configured number of microbatches, and the larger ones that divide the batch.
    chooses: whether a larger number may be taken.
    limit: bytes that there are; 0: unknown.
    smaller: the fields that help, too, when no setting does.
  """
  configured, on_cpu = counts[0], platform == "cpu"
  needed = peak(configured, remat)
  if not limit:
    return configured
  # With a reserve on CPUs or, if nothing leaves that, without.
  shares = [CPU_SHARE, 1.0] if on_cpu and chooses else [1.0]
  for share in shares:
    count = _fitting_count(peak, remat, share * limit, counts)
    if count == configured:
      return configured
    if count and chooses:
      log(
        f"microbatches {count}, so that training needs up to {gigabytes(peak(count, remat))}, not "
        f"{gigabytes(needed)}; there are {gigabytes(limit)}"
      )
      return count
  owner = "this machine has" if on_cpu else "a device has"
  line = f"training needs up to {gigabytes(needed)} of memory, and {owner} {gigabytes(limit)}"
  line += f"; {what_fits(peak, counts, remat, limit, smaller, platform)}"
  if not on_cpu:
    raise InputError(line)
  warnings.warn(line, stacklevel=2)
  return configured


def what_fits(
  peak: Callable[[int, str], float],
  counts: Sequence[int],
  remat: str,
  limit: float,
  smaller: str,
  platform: str,
) -> str:
  """The settings with which a step fits into memory, in words; arguments as of fit_into_memory."""
  # Microbatches alone come first, since they compute nothing twice. XLA's compiler for CPUs keeps
  # everything whatever the policy.
  for policy in [remat] if platform == "cpu" else POLICIES[POLICIES.index(remat) :]:
    if count := _fitting_count(peak, policy, limit, counts):
      changes = f" config.train.microbatches={count}" if count != counts[0] else ""
      changes += f" config.train.remat={policy}" if policy != remat else ""
      return f"it fits with{changes}, which makes it {gigabytes(peak(count, policy))}"
  more = "more microbatches or devices" if len(counts) > 1 else "or more devices"
  return f"use {smaller}, {more}"


def larger_counts(size: int, devices: int, microbatches: int) -> list[int]:
  """The number of microbatches, and the larger ones that divide a batch over the devices."""
  rows = size // devices
  return [count for count in range(microbatches, rows + 1) if rows % count == 0]


def _fitting_count(
  peak: Callable[[int, str], float], remat: str, limit: float, counts: Sequence[int]
) -> int:
  """A number of microbatches with which a step fits; 0 if none was found.

  The next number is scaled by the overshoot, as if all memory went down in proportion to the size
  of a part, and is at least doubled.
  """
  count = counts[0]
  for _ in range(_MAX_COMPILATIONS):
    needed = peak(count, remat)
    if needed <= limit:
      return count
    least = max(2 * count, count * needed / limit)
    count = next((larger for larger in counts if larger >= least), 0)
    if not count:
      return 0
  return count if peak(count, remat) <= limit else 0
