"""Metrics that /metrics reports, in Prometheus text format."""

from collections.abc import Callable
from typing import Any


class Counters:
  """Counts of requests, texts and tokens, with the times and batch sizes behind them."""

  def __init__(self, waiting: Callable[[], float]):
    """waiting: the number of texts that wait for the model."""
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    self._registry = registry = CollectorRegistry()
    self.requests: Any = Counter(
      "gpt_jax_requests", "requests by route and status", ["route", "status"], registry=registry
    )
    self.seconds: Any = Histogram(
      "gpt_jax_request_seconds",
      "time until a response, or the first event of a stream",
      ["route"],
      registry=registry,
    )
    self.batch: Any = Histogram(
      "gpt_jax_batch_texts",
      "texts that the model processed together",
      ["kind"],
      buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
      registry=registry,
    )
    self.tokens: Any = Counter("gpt_jax_generated_tokens", "tokens generated", registry=registry)
    Gauge("gpt_jax_waiting_texts", "texts in the queue", registry=registry).set_function(waiting)

  def text(self) -> bytes:
    from prometheus_client import generate_latest

    return generate_latest(self._registry)
