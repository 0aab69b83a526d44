"""A Transformer whose blocks share attention or MLP and have the other one each (ALBERT, Lan et al.
2019, section 4.5 and table 4). One block for all layers is TransformerConfig.shared_layers.
"""

import dataclasses
from typing import Any

from gpt_jax.config import option, register
from gpt_jax.models.layers import LayerNorm
from gpt_jax.models.transformer import MLP, Attention, Block, Transformer, TransformerConfig
from gpt_jax.models.trunk import rematerialized


@register("partly_shared_transformer")
@dataclasses.dataclass(frozen=True)
class PartlySharedConfig(TransformerConfig):
  """A TransformerConfig; formats of other software have no such model."""

  shared: str = option(
    "attention", "the sublayer of all blocks, with its norm", choices=("attention", "mlp")
  )

  is_gpt = False
  blocks = 0  # wholly of their own

  @property
  def gives(self) -> frozenset[str]:
    return super().gives - {"blocks"}

  def build(self, attention: str = "causal", remat: str = "none") -> "PartlyShared":
    return PartlyShared(self, attention, remat)

  def parameter_count(self) -> int:
    d = self.width
    # Of each sublayer's matrices, biases and norm; see TransformerConfig._parameters.
    sizes = {"attention": 4 * d**2 + 6 * d, "mlp": 8 * d**2 + 7 * d}
    shared = sizes.pop(self.shared)
    (own,) = sizes.values()
    return super().parameter_count() + shared + self.layers * own

  def depth(self, path: str) -> int:
    """As a Transformer's; what is shared begins in the first block."""
    part = path.partition("/")[0]
    if part in ("last_norm", "pooler"):
      return self.layers
    return 1 if part.startswith("shared") else super().depth(path)


class PartlyShared(Transformer):
  """A Trunk: shared_attention or shared_mlp, its norm, and the other sublayer in each block_i."""

  config: PartlySharedConfig

  def setup(self):
    super().setup()
    c = self.config
    name = f"shared_{c.shared}"
    self.sublayer = {"attention": Attention, "mlp": MLP}[c.shared](c, name=name)
    self.sublayer_norm = LayerNorm(c.dtype, c.norm_epsilon, name=f"{name}_norm")
    block, shared = rematerialized(_Block, self.remat), (self.sublayer, self.sublayer_norm)
    self.blocks = [block(c, *shared, name=f"block_{i}") for i in range(c.layers)]


class _Block(Block):
  config: PartlySharedConfig
  sublayer: Any
  norm: Any

  def setup(self):
    c = self.config
    own_norm = LayerNorm(c.dtype, c.norm_epsilon)
    if c.shared == "attention":
      self.attention, self.attention_norm = self.sublayer, self.norm
      self.mlp, self.mlp_norm = MLP(c), own_norm
    else:
      self.attention, self.attention_norm = Attention(c), own_norm
      self.mlp, self.mlp_norm = self.sublayer, self.norm
