"""A GPT in PyTorch as its users write it: torch.nn layers and scaled dot product attention."""

from typing import Any

from gpt_jax.apps.benchmark.peers.packages import import_packages
from gpt_jax.models.transformer import TransformerConfig


def plain_gpt(trunk: TransformerConfig) -> Any:
  """A torch module of the trunk's sizes: (ids [B, T], targets [B, T]) -> mean cross-entropy.

  It has the arithmetic of our model, but that dropout acts on the sum of the embeddings.
  """
  import_packages()
  import torch
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
