"""The update that all peers are trained with."""

from collections.abc import Callable
from typing import Any

from gpt_jax.apps.benchmark.peers.packages import import_packages


def updates(model: Any, learning_rate: float) -> Callable[[Any], None]:
  """The function that takes a loss of the model and updates it, by AdamW with clipping."""
  torch = import_packages().torch
  optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=0.01, fused=True)

  def update(loss: Any) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()  # waits for the device

  return update
