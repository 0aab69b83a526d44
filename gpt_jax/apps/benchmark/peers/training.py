"""The training step of the peers: forward, backward, clipping, AdamW."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from gpt_jax.apps.benchmark.peers.packages import check_trunk, find_device, import_packages
from gpt_jax.apps.benchmark.peers.plain_gpt import plain_gpt
from gpt_jax.apps.benchmark.peers.transformers_model import kind_of, transformers_model
from gpt_jax.apps.benchmark.peers.update import updates
from gpt_jax.models.transformer import TransformerConfig


def training_steps(trunk: Any, batch: int, length: int) -> Iterator[tuple[str, Callable[[], None]]]:
  """Yields (name, step) of each peer, on random tokens; a step returns when it is done.

  Each has parameters of its own, so take one after the other where memory is short.

  Raises:
    InputError: missing packages, or a trunk that peers do not have.
  """
  trunk = check_trunk(trunk)
  plain = functools.partial(plain_gpt, trunk)
  for name, make, compiled, mixed in (
    ("PyTorch", plain, False, False),
    ("PyTorch, compiled", plain, True, False),
    ("PyTorch, bfloat16 autocast", plain, False, True),
    ("PyTorch, compiled, bfloat16 autocast", plain, True, True),
    ("transformers", functools.partial(_transformers, trunk), False, False),
  ):
    yield name, _step(make(), trunk, batch, length, compiled, mixed)


def _step(
  model: Any, trunk: TransformerConfig, batch: int, length: int, compiled: bool, mixed: bool
) -> Callable[[], None]:
  torch = import_packages().torch
  device = find_device()
  model = model.to(device).train()
  update = updates(model, 2.5e-4)
  rows = torch.randint(trunk.vocab_size, (batch, length + 1), device=device)
  ids, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
  forward = torch.compile(model) if compiled else model

  def step() -> None:
    with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
      loss = forward(ids, targets)
    update(loss)

  return step


def _transformers(trunk: TransformerConfig) -> Any:
  """GPT-1 or, for pre-norm, GPT-2 of transformers: (ids, targets) -> mean cross-entropy."""
  import_packages()
  from torch import nn

  model = transformers_model(
    trunk,
    kind_of(trunk),
    "LMHeadModel",
    resid_pdrop=trunk.residual_dropout,
    attn_pdrop=trunk.attention_dropout,
    embd_pdrop=trunk.embedding_dropout,
  )

  class Loss(nn.Module):
    def __init__(self):
      super().__init__()
      self.model = model

    def forward(self, ids, targets):
      scores = self.model(input_ids=ids).logits
      return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

  return Loss()
