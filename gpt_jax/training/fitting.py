"""Settings with which a training step fits into memory, found by compiling them."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import jax

from gpt_jax.errors import InputError
from gpt_jax.models.remat import POLICIES
from gpt_jax.training.forecast import Forecast, gigabytes


class Peak(Protocol):
  """Bytes at the peak with so many microbatches and a policy of rematerialization; compiles."""

  def __call__(self, microbatches: int, remat: str) -> float: ...


_MOST_COMPILATIONS = 6  # for a policy: minutes each for a large model


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

  Raises:
    InputError: the step does not fit into another device.
  """
  if forecast.fits:
    return
  platform = platform or jax.devices()[0].platform
  on_cpu = platform == "cpu"
  owner = "this machine has" if on_cpu else "a device has"
  line = (
    f"a training step needs {gigabytes(forecast.memory)} of memory, and {owner} "
    f"{gigabytes(forecast.limit)}"
  )
  found = None
  # Processes that compile different programs would wait for each other.
  if jax.process_count() == 1:
    policies = stricter_policies(remat, platform)
    found = settings_that_fit(peak, forecast.memory, forecast.limit, counts, policies)
  if found is not None:
    fields, then = found
    flags = " ".join(f"--config.{name}={value}" for name, value in fields.items())
    line += f"; it fits with {flags}, which makes it {gigabytes(then)}"
  else:
    line += f"; use {smaller}, more microbatches or devices"
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


def larger_counts(size: int, devices: int, microbatches: int) -> list[int]:
  """The number of microbatches, and the larger ones that divide a batch over the devices."""
  rows = size // devices
  return [count for count in range(microbatches, rows + 1) if rows % count == 0]


def stricter_policies(remat: str, platform: str) -> list[str]:
  """The policy of rematerialization, and those that keep less where the compiler honors them."""
  if platform == "cpu":  # XLA's compiler for CPUs keeps everything all the same
    return [remat]
  return list(POLICIES[POLICIES.index(remat) :])


def _microbatches(
  peak: Callable[..., float], needed: float, limit: float, counts: Sequence[int]
) -> tuple[int, float] | None:
  """A count that fits, and the peak with it; None if none was found.

  Goes on from each count that does not fit to the next that would if all of its memory went down in
  proportion to the size of a part, and at least to twice as many.
  """
  count = counts[0]
  for _ in range(_MOST_COMPILATIONS):
    if needed <= limit:
      return count, needed
    least = max(2 * count, count * needed / limit)
    count = next((larger for larger in counts if larger >= least), 0)
    if not count:
      return None
    needed = peak(microbatches=count)
  return (count, needed) if needed <= limit else None
