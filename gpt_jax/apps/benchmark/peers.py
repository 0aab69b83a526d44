"""Baselines of the benchmark: the same work in PyTorch and transformers, as users write it."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from gpt_jax.errors import InputError, require
from gpt_jax.models.transformer import TransformerConfig


def _package(name: str) -> Any:
  return require(name, "--peers", name, "peers")


def _check_trunk(trunk: Any) -> TransformerConfig:
  if not trunk.is_gpt or trunk.activation != "gelu_tanh":
    raise InputError("--peers: they have no model like this trunk; use GPT-1's or GPT-2's parts")
  return trunk


def _device() -> str:
  return "cuda" if _package("torch").cuda.is_available() else "cpu"


def _transformers_model(trunk: TransformerConfig, kind: str, **options: Any) -> Any:
  """transformers' language model, GPT2 or OpenAIGPT, with the trunk's sizes and random weights."""
  transformers = _package("transformers")
  config = getattr(transformers, f"{kind}Config")(
    vocab_size=trunk.vocab_size,
    n_positions=trunk.context,
    n_embd=trunk.width,
    n_layer=trunk.layers,
    n_head=trunk.heads,
    **options,
  )
  return getattr(transformers, f"{kind}LMHeadModel")(config).to(_device())


def plain_gpt(trunk: TransformerConfig) -> Any:
  """A torch module of the trunk's sizes: (ids [B, T], targets [B, T]) -> mean cross-entropy.

  It has the arithmetic of our model, but that dropout acts on the sum of the embeddings.
  """
  torch = _package("torch")
  from torch import nn
  from torch.nn import functional

  width, rate = trunk.width, trunk.residual_dropout

  class Block(nn.Module):
    def __init__(self):
      super().__init__()
      self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
      self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
      self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
      self.dropout = nn.Dropout(rate)

    def forward(self, x):
      if trunk.norm == "pre":
        x = x + self.dropout(self.attend(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
      x = self.attention_norm(x + self.dropout(self.attend(x)))
      return self.mlp_norm(x + self.dropout(self.mlp(x)))

    def attend(self, x):
      batch, length, _ = x.shape
      q, k, v = (
        y.view(batch, length, trunk.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)
      )
      dropout = trunk.attention_dropout if self.training else 0.0
      y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
      return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def mlp(self, x):
      return self.down(functional.gelu(self.up(x), approximate="tanh"))

  class GPT(nn.Module):
    def __init__(self):
      super().__init__()
      self.tokens = nn.Embedding(trunk.vocab_size, width)
      self.positions = nn.Embedding(trunk.context, width)
      self.dropout = nn.Dropout(trunk.embedding_dropout)
      self.blocks = nn.ModuleList(Block() for _ in range(trunk.layers))
      self.last_norm = nn.LayerNorm(width) if trunk.norm == "pre" else nn.Identity()
      nn.init.normal_(self.tokens.weight, std=0.02)
      nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, ids, targets):
      positions = torch.arange(ids.shape[1], device=ids.device)
      x = self.dropout(self.tokens(ids) + self.positions(positions))
      for block in self.blocks:
        x = block(x)
      scores = self.last_norm(x) @ self.tokens.weight.T
      return functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())

  return GPT()


def training_steps(trunk: Any, batch: int, length: int) -> Iterator[tuple[str, Callable[[], None]]]:
  """Yields (name, step) of each peer, on random tokens; a step returns when it is done.

  Each has parameters of its own, so take one after the other where memory is short.
  """
  trunk, torch = _check_trunk(trunk), _package("torch")
  for mixed, compiled in itertools.product((False, True), repeat=2):
    model = plain_gpt(trunk).to(_device())
    forward = torch.compile(model) if compiled else model
    name = f"PyTorch{', compiled' if compiled else ''}{', bfloat16 autocast' if mixed else ''}"
    yield name, _step(model, forward, trunk.vocab_size, (batch, length), mixed)

  theirs = _transformers_model(
    trunk,
    "GPT2" if trunk.norm == "pre" else "OpenAIGPT",
    resid_pdrop=trunk.residual_dropout,
    attn_pdrop=trunk.attention_dropout,
    embd_pdrop=trunk.embedding_dropout,
  )

  def loss(ids: Any, targets: Any) -> Any:
    scores = theirs(input_ids=ids).logits
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

  yield "transformers", _step(theirs, loss, trunk.vocab_size, (batch, length), mixed=False)


def _step(
  model: Any, forward: Callable, vocab_size: int, shape: tuple[int, int], mixed: bool
) -> Callable[[], None]:
  """A training step by AdamW with clipping; forward: (ids, targets) -> mean cross-entropy."""
  torch, device = _package("torch"), _device()
  model.train()
  optimizer = torch.optim.AdamW(model.parameters(), 2.5e-4, weight_decay=0.01, fused=True)
  rows = torch.randint(vocab_size, (shape[0], shape[1] + 1), device=device)
  ids, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

  def step() -> None:
    with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
      loss = forward(ids, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()  # waits for the device

  return step


def generator(trunk: Any, prompt: int, dtype: str = "float32") -> Callable[[int, int], None]:
  """(batch, new tokens) -> greedy continuations of `prompt` tokens, in a type of torch."""
  torch = _package("torch")
  # OpenAIGPT has no cache.
  model = _transformers_model(_check_trunk(trunk), "GPT2").eval().to(getattr(torch, dtype))

  def generate(batch: int, new: int) -> None:
    starts = torch.arange(batch, device=model.device)
    ids = starts[:, None] + torch.arange(prompt, device=model.device)
    with torch.inference_mode():
      model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=new,
        max_new_tokens=new,
        pad_token_id=0,
        use_cache=True,
      ).cpu()

  return generate
