"""Learning rate x seed: which runs learn, get stuck or diverge."""

import collections
import math
import statistics
from typing import Any

from gpt_jax.apps.diagnose.budget import Budget
from gpt_jax.apps.diagnose.short_runs import make_short_run, short_config
from gpt_jax.apps.diagnose.texts import Texts
from gpt_jax.apps.diagnose.workdir import measured
from gpt_jax.config import to_json
from gpt_jax.parallel.processes import log

OUTCOMES = ("learned", "stuck", "diverged")
_MARGIN = 0.1  # nats below the unigram entropy, from which on more than word frequencies is learned


def measure_rates(trunk: Any, texts: Texts, budget: Budget, workdir: str) -> dict[str, Any]:
  """JSON: unigram_entropy, steps, parameters, and for each rate its runs and share of outcomes.

  Args:
    trunk: see short_config.
    workdir: where each run leaves its result.
  """
  entropy, rates, parameters = texts.train.unigram_entropy, [], 0
  for rate in budget.rates:
    config = short_config(trunk, budget.rate_width, budget.rate_steps, texts.tokenizer, rate)
    train = None
    runs = []
    for seed in range(budget.seeds):

      def run(seed=seed, config=config) -> dict[str, Any]:
        nonlocal train
        train = train or make_short_run(config, texts)
        return train(seed)

      settings = {"config": to_json(config), "seed": seed, **texts.identity}
      result = measured(workdir, f"rate_{rate:g}_seed_{seed}", settings, run)
      result["outcome"] = outcome(result["loss"], result["first_loss"], entropy)
      runs.append(result)
    rates.append(_of_rate(rate, runs))
    parameters = runs[0]["parameters"]
    ends = ", ".join(f"{name} {rates[-1]['shares'][name]:.0%}" for name in OUTCOMES)
    log(f"rate {rate:g}: {ends}")
  return {
    "unigram_entropy": entropy,
    "steps": budget.rate_steps,
    "width": budget.rate_width,
    "parameters": parameters,
    "rates": rates,
  }


def _of_rate(rate: float, runs: list[dict[str, Any]]) -> dict[str, Any]:
  finite = [run["loss"] for run in runs if run["loss"] is not None]
  outcomes = collections.Counter(run["outcome"] for run in runs)
  shares = {name: outcomes[name] / len(runs) for name in OUTCOMES}
  return {
    "rate": rate,
    "shares": shares,
    "median_loss": statistics.median(finite) if finite else None,
    "refused": sum(run["refused"] for run in runs),
    "runs": runs,
  }


def outcome(loss: float | None, first_loss: float, unigram_entropy: float) -> str:
  """One of OUTCOMES; stuck are those between the unigram entropy and their first loss.

  Args:
    loss: held-out loss at the end, in nats per token; None or nan if the run broke off.
    first_loss: the same before the first update.
    unigram_entropy: of the text: the loss of a model that knows word frequencies and nothing else.
  """
  if loss is None or not math.isfinite(loss) or loss > first_loss:
    return "diverged"
  return "learned" if loss < unigram_entropy - _MARGIN else "stuck"
