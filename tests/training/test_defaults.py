"""The recipe of fine-tuning: the paper's for its model, others by size; what is set stays."""

import pytest
from refused import refused

from gpt_jax.training.defaults import PAPER_SIZE, Defaults, find_defaults, with_defaults
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig, make_optimizer

OPEN = OptimConfig(learning_rate=None, schedule="linear", warmup_steps=0, warmup_share=None)


def test_gpt1_has_the_papers_recipe_and_smaller_models_larger_rates_up_to_a_limit():
  for steps_per_epoch in (1, 268, 12_000):
    assert find_defaults(PAPER_SIZE, steps_per_epoch) == Defaults(6.25e-5, 0.002, 3)
  sizes = [10**9, PAPER_SIZE, 30_000_000, 7_300_000, 2_500_000, 800_000, 1]
  rates = [find_defaults(size, 100).learning_rate for size in sizes]
  assert rates == sorted(rates)
  assert rates[-3:] == [1e-3, 1e-3, 1e-3]


@pytest.mark.parametrize(
  "steps_per_epoch, epochs", [(0, 30), (1, 30), (50, 20), (75, 14), (500, 3), (10**6, 3)]
)
def test_a_small_model_makes_a_thousand_updates(steps_per_epoch, epochs):
  chosen = find_defaults(2_500_000, steps_per_epoch)
  assert (chosen.epochs, chosen.warmup_share) == (epochs, 0.1)


def test_what_is_open_is_set_and_told_and_what_is_set_stays():
  optim, train, lines = with_defaults(OPEN, TrainConfig(), 2_500_000, 75)
  assert (optim.learning_rate, optim.warmup_share, train.epochs, train.steps) == (1e-3, 0.1, 14, 0)
  assert lines == [
    "learning rate 0.001 (for a model of 2.5M parameters; optim.learning_rate sets it)",
    "warm-up 10.0% of the run (for a model of 2.5M parameters; optim.warmup_share sets it)",
    "14 epochs of 75 updates (for a model of 2.5M parameters; train.epochs sets them)",
  ]
  optim, train = OptimConfig(learning_rate=0.0, warmup_steps=7), TrainConfig(steps=5)
  assert with_defaults(optim, train, 2_500_000, 75) == (optim, train, [])
  # Warm-up steps take the place of the share.
  optim = OptimConfig(learning_rate=None, warmup_steps=7, warmup_share=None)
  optim, _, lines = with_defaults(optim, TrainConfig(steps=5), 2_500_000, 75)
  assert (optim.warmup_share, optim.warmup_length(100)) == (0.0, 7.0)
  assert len(lines) == 1


@pytest.mark.parametrize("name", ["learning_rate", "warmup_share"])
def test_pre_training_has_no_recipe(name):
  config = OptimConfig(warmup_steps=0, **{name: None})
  refused("must be numbers when pre-training", make_optimizer, config, 10)
