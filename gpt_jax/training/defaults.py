"""Learning rate, warm-up and epochs of fine-tuning, from the sizes of the model and the data.

The paper's (section 4.1) are for its 117M parameters. A small model that is trained with them ends
at the majority class: its rate is too low and its updates are too few.
"""

import dataclasses
from typing import NamedTuple

from gpt_jax.errors import counted
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

PAPER_SIZE = 116_534_784  # parameters of GPT-1's trunk
PAPER_RATE, PAPER_EPOCHS, PAPER_WARMUP = 6.25e-5, 3, 0.002
PAPER_OPTIM = OptimConfig(
  learning_rate=PAPER_RATE, schedule="linear", warmup_steps=0, warmup_share=PAPER_WARMUP
)

# From GPT-1's rate to 5e-4 at 7.3M parameters, which configs/RESULTS.md has for gpt1:small, and at
# most 1e-3, which the quickstart has for 0.8M.
EXPONENT = 0.75
MAX_RATE = 1e-3
# A model below half of GPT-1's size knows less of the language, and sees the examples more often.
SMALL_UPDATES, MAX_EPOCHS, SMALL_WARMUP = 1000, 30, 0.1


class Defaults(NamedTuple):
  """Defaults of a fine-tuning run, for fields that its config leaves open."""

  learning_rate: float
  warmup_share: float
  epochs: int


def find_defaults(parameters: int, steps_per_epoch: int) -> Defaults:
  """The defaults for a trunk of so many parameters; exactly the paper's for GPT-1's size.

  The rate is 6.25e-5 * (GPT-1's size / parameters)^0.75, at most 1e-3, to three digits. Below half
  of GPT-1's size the warm-up takes a tenth of the run, and the epochs, 3 to 30, make 1,000 updates.
  """
  rate = PAPER_RATE * (PAPER_SIZE / parameters) ** EXPONENT
  rate = float(f"{min(rate, MAX_RATE):.3g}")
  if 2 * parameters >= PAPER_SIZE:
    return Defaults(rate, PAPER_WARMUP, PAPER_EPOCHS)
  # Rounded up: at least SMALL_UPDATES updates, if MAX_EPOCHS allows them.
  epochs = -(-SMALL_UPDATES // max(1, steps_per_epoch))
  return Defaults(rate, SMALL_WARMUP, min(max(epochs, PAPER_EPOCHS), MAX_EPOCHS))


def with_defaults(
  optim: OptimConfig, train: TrainConfig, parameters: int, steps_per_epoch: int
) -> tuple[OptimConfig, TrainConfig, list[str]]:
  """The configs with what they leave open set to the defaults, and a line on each such setting: of
  a learning rate and a warm-up share of None, and a run of 0 steps and 0 epochs.
  """
  chosen = find_defaults(parameters, steps_per_epoch)
  model = f"for a model of {format_size(parameters)} parameters"
  lines = []
  if optim.learning_rate is None:
    lines.append(f"learning rate {chosen.learning_rate:g} ({model}; optim.learning_rate sets it)")
    optim = dataclasses.replace(optim, learning_rate=chosen.learning_rate)
  if optim.warmup_share is None:
    # OptimConfig refuses both at once.
    share = 0.0 if optim.warmup_steps else chosen.warmup_share
    if share:
      lines.append(f"warm-up {share:.1%} of the run ({model}; optim.warmup_share sets it)")
    optim = dataclasses.replace(optim, warmup_share=share)
  if not train.steps and not train.epochs:
    lines.append(
      f"{counted(chosen.epochs, 'epoch')} of {counted(steps_per_epoch, 'update')} ({model}; "
      "train.epochs sets them)"
    )
    train = dataclasses.replace(train, epochs=chosen.epochs)
  return optim, train, lines


def format_size(parameters: int) -> str:
  """ "2.5M", "117M", "1.6B"."""
  if parameters >= 10**9:
    return f"{parameters / 1e9:.1f}B"
  millions = parameters / 1e6
  return f"{millions:.0f}M" if millions >= 10 else f"{millions:.1f}M"
