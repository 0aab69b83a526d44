"""Forecast and outcome of a run: its memory and time."""

from typing import NamedTuple


class Forecast(NamedTuple):
  """Expected memory and step time of a run.

  Attributes:
    memory: bytes at the peak: of the fullest device or, on CPUs, of this process with all that it
      holds beside the training step; 0: unknown.
    limit: bytes available to it now; 0: unknown.
    step_time: seconds, measured on the first steps; 0: unknown.
    most_memory: as `memory`, plus, on CPUs, evaluations, samples, checkpoints and the blocks that
      malloc keeps; 0: the same.
    temporaries: see memory.Needed.
    kept_blocks: blocks of temporaries that malloc may keep, see memory.FreedMemory.
  """

  memory: float = 0.0
  limit: float = 0.0
  step_time: float = 0.0
  most_memory: float = 0.0
  temporaries: float = 0.0
  kept_blocks: int = 1

  @property
  def most(self) -> float:
    return max(self.memory, self.most_memory)

  @property
  def room(self) -> float:
    """Bytes by which a run may grow: the block in use, half a block, and those that are kept."""
    return (self.kept_blocks + 0.5) * self.temporaries

  @property
  def fits(self) -> bool:
    return not self.limit or self.most <= self.limit


class Outcome(NamedTuple):
  """Memory and time that a run took since its last start.

  Attributes:
    steps: number of steps made.
    memory: see Forecast.
    training: seconds spent in steps.
    other: seconds spent in evaluations, checkpoints and samples.
  """

  steps: int
  memory: float
  training: float
  other: float


def format_forecast(forecast: Forecast, steps: int) -> str:
  """The line at the head of a run of so many steps; "" if nothing is known."""
  parts = []
  if forecast.memory:
    there = f" of {gigabytes(forecast.limit)}" if forecast.limit else ""
    parts.append(f"{memory_range(forecast.memory, forecast.most)}{there}")
  if forecast.step_time:
    parts.append(duration(steps * forecast.step_time))
  return f"plan    {', '.join(parts)}" if parts else ""


def format_outcome(forecast: Forecast, outcome: Outcome, steps: int) -> str:
  """The line at the end of a run that should have made so many steps."""
  planned, came = [], []
  if forecast.memory:
    planned.append(memory_range(forecast.memory, forecast.most))
  if forecast.step_time:
    planned.append(duration(steps * forecast.step_time))
  if outcome.memory:
    came.append(gigabytes(outcome.memory))
  came.append(duration(outcome.training))
  if outcome.steps != steps:
    came[-1] += f" for {outcome.steps:,} of {steps:,} steps"
  line = f"was {', '.join(came)}"
  if planned:
    line = f"planned {', '.join(planned)}; {line}"
  if outcome.other >= 0.5:
    line += f", and {duration(outcome.other)} for evaluations and checkpoints"
  return line


def memory_range(least: float, most: float) -> str:
  """Such as "0.54 to 0.88 GB", or "0.54 GB" where both are the same."""
  low, high = gigabytes(least), gigabytes(most)
  return high if low == high else f"{low.removesuffix(' GB')} to {high}"


def gigabytes(size: float) -> str:
  """Such as "0.25 GB" or "11.2 GB"; a GB has 10^9 bytes, as in launch/plan.py."""
  return f"{size / 1e9:.{1 if size >= 9.995e9 else 2}f} GB"


def duration(seconds: float) -> str:
  """Such as "36 s", "36 min", "3 h 05 min" or "4.2 days"."""
  if seconds < 99.5:
    return f"{seconds:.0f} s"
  minutes = round(seconds / 60)
  if minutes < 100:
    return f"{minutes} min"
  hours = minutes // 60
  return f"{hours} h {minutes % 60:02} min" if hours < 100 else f"{hours / 24:.1f} days"
