"""Short runs of small language models, and which learning rates learn, get stuck or diverge."""

import collections
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from gpt_jax.apps.diagnose.texts import Budget, Texts
from gpt_jax.apps.study import Study
from gpt_jax.config import to_json
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.processes import log
from gpt_jax.programs.pretrain import text_recipe
from gpt_jax.programs.pretrain_config import PretrainConfig
from gpt_jax.programs.pretrain_text import make_measure
from gpt_jax.training.hooks import Diverged
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.recipe import make_trainer

# The recipe of configs/story.py, tuned for width 128; narrower models take higher rates.
_LENGTH, _ROWS, _LAYERS, _HEADS = 64, 16, 3, 4
_RATE, _WIDTH_OF_RATE = 1e-3, 128
_WARMUP_STEPS, _MAX_WARMUP = 150, 0.25
_UNITS_PER_WIDTH = 2.5  # of an LSTM, as configs/lstm.py:small
_EVALUATION_BATCHES = 40


def short_config(
  trunk: Any, width: int, steps: int, tokenizer: Tokenizer, learning_rate: float | None = None
) -> PretrainConfig:
  """A run of a small model of a trunk's kind, by default GPT-1's, without dropout.

  The width D is a multiple of 4; the peak learning rate is by default 1e-3 (128 / D)^1/2.
  """
  trunk = TransformerConfig() if trunk is None else trunk
  names = {field.name for field in dataclasses.fields(trunk)}
  sizes: dict[str, Any] = {
    "vocab_size": 0,
    "context": _LENGTH,
    "width": width,
    "dtype": "float32",
    "layers": _LAYERS,
    "heads": _HEADS,
    "units": round(_UNITS_PER_WIDTH * width),
  }
  if isinstance(trunk, LSTMStackConfig):
    trunk = trunk.resized(sizes.pop("units"), width)
  sizes |= {name: 0.0 for name in names if name.endswith("_dropout")}
  small = dataclasses.replace(trunk, **{k: v for k, v in sizes.items() if k in names})
  if learning_rate is None:
    learning_rate = _RATE * (_WIDTH_OF_RATE / width) ** 0.5
  warmup = min(_WARMUP_STEPS, round(_MAX_WARMUP * steps))
  return PretrainConfig(
    trunk=small.with_vocabulary(tokenizer),
    data=WindowsConfig(batch_size=_ROWS, length=_LENGTH),
    optim=OptimConfig(learning_rate=learning_rate, warmup_steps=warmup),
    train=TrainConfig(steps=steps, microbatches=1),
    evaluation_batches=_EVALUATION_BATCHES,
  )


def make_short_run(config: PretrainConfig, texts: Texts) -> Callable[[int], dict[str, Any]]:
  """The function from a seed to what a run of it measured; all seeds share a compiled step.

  first_loss and loss are of held-out text, before and after; nan after ten updates in a row without
  a finite loss or gradient. flops are those of training.
  """
  recipe, steps = text_recipe(config, texts), config.train.steps
  trainer, measure = make_trainer(recipe), make_measure(config, texts, recipe.mesh)
  tokens = steps * config.data.batch_size * config.data.length

  def train(seed: int) -> dict[str, Any]:
    batch_at = recipe.batches(dataclasses.replace(config.train, seed=seed)).at
    state = trainer.init(seed)
    first_loss = measure(state.params)["valid_loss"]
    began = time.monotonic()
    try:
      state, _ = trainer.fit(state, batch_at, steps, seed, ())
      seconds, loss = time.monotonic() - began, measure(state.params)["valid_loss"]
    except Diverged:
      seconds, loss = time.monotonic() - began, float("nan")
    return {
      "width": config.trunk.width,
      "parameters": config.trunk.parameter_count(),
      "steps": steps,
      "tokens": tokens,
      "flops": tokens * config.trunk.flops_per_token(config.data.length),
      "seed": seed,
      "first_loss": first_loss,
      "loss": loss,
      "seconds": round(seconds, 2),
    }

  return train


OUTCOMES = ("learned", "stuck", "diverged")
_MARGIN = 0.1  # nats below the unigram entropy, from which on more than word frequencies is learned


def measure_rates(trunk: Any, texts: Texts, budget: Budget, study: Study) -> dict[str, Any]:
  """JSON: unigram_entropy, steps, parameters, and for each rate its runs and share of outcomes."""
  entropy = texts.train.unigram_entropy
  rates: list[dict[str, Any]] = []
  for rate in budget.rates:
    config = short_config(trunk, budget.rate_width, budget.rate_steps, texts.tokenizer, rate)
    # Compiled for the first seed whose result is missing.
    train = functools.cache(functools.partial(make_short_run, config, texts))
    runs = []
    for seed in range(budget.seeds):

      def run(seed=seed, train=train) -> dict[str, Any]:
        return train()(seed)

      settings = {"config": to_json(config), "seed": seed, **texts.identity}
      result = study.part(f"measured/rate_{rate:g}_seed_{seed}", settings, run)
      result["outcome"] = outcome(result["loss"], result["first_loss"], entropy)
      runs.append(result)
    finite = [run["loss"] for run in runs if run["loss"] is not None]
    outcomes = collections.Counter(run["outcome"] for run in runs)
    entry: dict[str, Any] = {
      "rate": rate,
      "shares": {name: outcomes[name] / len(runs) for name in OUTCOMES},
      "median_loss": statistics.median(finite) if finite else None,
      "runs": runs,
    }
    rates.append(entry)
    ends = ", ".join(f"{name} {entry['shares'][name]:.0%}" for name in OUTCOMES)
    log(f"rate {rate:g}: {ends}")
  return {
    "unigram_entropy": entropy,
    "steps": budget.rate_steps,
    "width": budget.rate_width,
    "parameters": rates[0]["runs"][0]["parameters"],
    "rates": rates,
  }


def outcome(loss: float | None, first_loss: float, unigram_entropy: float) -> str:
  """One of OUTCOMES, of a run's held-out losses in nats per token at the end, None or nan if it
  broke off, and before the first update.
  """
  if loss is None or not math.isfinite(loss) or loss > first_loss:
    return "diverged"
  return "learned" if loss < unigram_entropy - _MARGIN else "stuck"
