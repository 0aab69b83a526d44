"""The scaling law of small runs, and the next size, which it predicts without having seen it."""

from typing import Any

from gpt_jax.apps.diagnose.budget import Budget
from gpt_jax.apps.diagnose.scaling_law import fit_law, prediction_range
from gpt_jax.apps.diagnose.short_runs import make_short_run, short_config
from gpt_jax.apps.diagnose.texts import Texts
from gpt_jax.apps.diagnose.workdir import measured
from gpt_jax.config import to_json
from gpt_jax.parallel.processes import log


def measure_scaling(trunk: Any, texts: Texts, budget: Budget, workdir: str) -> dict[str, Any]:
  """JSON: the runs that are fitted, the law, and the next size: predicted, then trained.

  Args:
    trunk: see short_config.
    workdir: where each run leaves its result.
  """
  runs = []
  for width in budget.widths[:-1]:
    for steps in budget.steps[:-1]:
      runs.append(_run(trunk, width, steps, texts, workdir))
  result: dict[str, Any] = {"unigram_entropy": texts.train.unigram_entropy, "runs": runs}
  result |= {"text_tokens": texts.train.n_tokens, "bytes_per_token": _bytes_per_token(texts)}
  points = [(run["parameters"], run["tokens"], run["loss"]) for run in runs]
  losses = [run["loss"] for run in runs]
  if None in losses:
    return result  # a run without a loss: there is no law
  law = fit_law(points)
  result["law"] = law._asdict()
  for run in runs:
    run["fitted"] = law(run["parameters"], run["tokens"])
  # The prediction is made, and shown, before the run.
  config = short_config(trunk, budget.widths[-1], budget.steps[-1], texts.tokenizer)
  parameters = config.trunk.parameter_count()
  tokens = budget.steps[-1] * config.data.batch_size * config.data.length
  predicted = law(parameters, tokens)
  spread = prediction_range(law, points, (parameters, tokens))
  log(f"next size: {parameters:,} parameters, {tokens:,} tokens: {predicted:.4f} predicted")
  measured_run = _run(trunk, budget.widths[-1], budget.steps[-1], texts, workdir)
  result["next"] = measured_run | {
    "predicted": predicted,
    "range": list(spread),
    "parts": list(law.parts(parameters, tokens)),
    "best_fitted": min(losses),
  }
  return result


def _run(trunk: Any, width: int, steps: int, texts: Texts, workdir: str) -> dict[str, Any]:
  config = short_config(trunk, width, steps, texts.tokenizer)
  settings = {"config": to_json(config), "seed": 0, **texts.identity}
  name = f"width_{width}_steps_{steps}"
  result = measured(workdir, name, settings, lambda: make_short_run(config, texts)(0))
  loss = "none" if result["loss"] is None else f"{result['loss']:.4f}"
  log(
    f"width {width}, {result['parameters']:,} parameters, {result['tokens']:,} tokens: held-out "
    f"loss {loss}, {result['seconds']:.0f} s"
  )
  return result


def _bytes_per_token(texts: Texts) -> float:
  return texts.held_out.n_bytes / texts.held_out.n_tokens
