"""The speed of generation: reading the prompt, and each new token, beside transformers'."""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpt_jax.apps import timing
from gpt_jax.apps.benchmark.peers import generator
from gpt_jax.apps.benchmark.training import benchmark_trainer
from gpt_jax.apps.timing import Measured
from gpt_jax.inference.decoding import MAX_STEPS
from gpt_jax.inference.stream import Sampling, Stream, Text
from gpt_jax.models.decoding_weights import KINDS, keep_weights
from gpt_jax.models.model import Model, language_model
from gpt_jax.programs.pretrain import PretrainConfig

_PROMPT = 32  # tokens
_NEW = 96  # tokens, or as many as fit into the context

Generate = Callable[[int, int], Any]  # (batch, new tokens): greedy, from prompts of _PROMPT tokens


def generation(config: PretrainConfig, peers: bool = False) -> Measured:
  """Greedy generation with random parameters at batch 1 and 16, in turns with transformers' GPT-2
  of the same sizes if `peers` are asked for.
  """
  trunk = config.trunk
  params = benchmark_trainer(config).init(config.train.seed).params
  prompt = min(_PROMPT, trunk.context // 2)
  new = min(_NEW, trunk.context - prompt)
  model, systems, theirs = language_model(trunk), {}, {}
  for kind in KINDS:
    name = "" if kind == "float32" else f"{kind} weights, "
    systems[name] = _ours(model, keep_weights(model, params, kind), prompt)
    if peers and kind in KINDS[:2]:
      theirs[f"transformers, {name}"] = generator(trunk, prompt, kind)
  for batch in (1, 16):
    rates = _rates(systems | theirs, batch, new)
    for name, pairs in rates.items():
      first = statistics.median(first for first, _ in pairs)
      yield f"{name}batch {batch}, {prompt} tokens and the first new one", first, "s"
      yield f"{name}batch {batch}, each further token", _median(pairs), "tokens/s"
    if theirs:
      plain = (rates[""], rates["transformers, "])
      best = (max((rates[name] for name in names), key=_median) for names in (systems, theirs))
      for name, (ours, other) in (("", plain), ("best weights, ", best)):
        ratio = statistics.median(a[1] / b[1] for a, b in zip(ours, other, strict=True))
        yield f"{name}batch {batch}, each further token", ratio, "times transformers"


def _median(pairs: Sequence[tuple[float, float]]) -> float:
  return statistics.median(rate for _, rate in pairs)


def _rates(
  systems: Mapping[str, Generate], batch: int, new: int
) -> dict[str, list[tuple[float, float]]]:
  """Seconds to the first new token and further tokens/s, by system and round."""
  calls: dict[str, Callable[[], Any]] = {}
  for name, generate in systems.items():
    calls[f"first {name}"] = functools.partial(generate, batch, 1)
    calls[f"all {name}"] = functools.partial(generate, batch, new)
  times = timing.in_turns(calls)
  rates: dict[str, list[tuple[float, float]]] = {}
  for name in systems:
    rounds = zip(times[f"first {name}"], times[f"all {name}"], strict=True)
    rates[name] = [(first, batch * (new - 1) / max(total - first, 1e-9)) for first, total in rounds]
  return rates


def _ours(model: Model, params: Any, prompt: int) -> Generate:
  def generate(batch, new):
    stream = Stream(model, params)
    settings = Sampling(new, temperature=0.0)
    stream.add(*[Text(range(i, i + prompt), settings) for i in range(batch)])
    while stream.advance(MAX_STEPS):
      pass

  return generate
