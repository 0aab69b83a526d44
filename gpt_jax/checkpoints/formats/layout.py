"""The decoder's arrays in OpenAI's order, names and shapes (openai/train.py:143-166)."""

from typing import NamedTuple

from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig


class Array(NamedTuple):
  """An array in both layouts; its elements are in the same order."""

  # Transformers' name, e.g. h.0.attn.c_attn.weight; OpenAI's is model/h0/attn/c_attn/w.
  theirs: str
  ours: str  # path in our trunk
  shape: tuple[int, ...]  # their shape, [in, out] for a kernel
  our_shape: tuple[int, ...]  # our shape, with a heads axis


def of_blocks(trunk: TransformerConfig) -> list[Array]:
  """The twelve arrays of each block, in OpenAI's order."""
  d, h, k, f = trunk.width, trunk.heads, trunk.width // trunk.heads, 4 * trunk.width
  block = (
    # Queries, keys and values side by side, heads within each: a reshape splits the last axis.
    ("attn.c_attn.weight", "attention/qkv/kernel", (d, 3 * d), (d, 3, h, k)),
    ("attn.c_attn.bias", "attention/qkv/bias", (3 * d,), (3, h, k)),
    ("attn.c_proj.weight", "attention/out/kernel", (d, d), (h, k, d)),
    ("attn.c_proj.bias", "attention/out/bias", (d,), (d,)),
    ("ln_1.weight", "attention_norm/scale", (d,), (d,)),
    ("ln_1.bias", "attention_norm/bias", (d,), (d,)),
    ("mlp.c_fc.weight", "mlp/in/kernel", (d, f), (d, f)),
    ("mlp.c_fc.bias", "mlp/in/bias", (f,), (f,)),
    ("mlp.c_proj.weight", "mlp/out/kernel", (f, d), (f, d)),
    ("mlp.c_proj.bias", "mlp/out/bias", (d,), (d,)),
    ("ln_2.weight", "mlp_norm/scale", (d,), (d,)),
    ("ln_2.bias", "mlp_norm/bias", (d,), (d,)),
  )
  arrays = []
  for i in range(trunk.layers):
    for theirs, ours, shape, our_shape in block:
      arrays.append(Array(f"h.{i}.{theirs}", f"block_{i}/{ours}", shape, our_shape))
  return arrays


def other_than_gpt(spec: ModelConfig) -> str | None:
  """Describes a model that is no GPT, or whose head reads every token; None for any other."""
  trunk, kind = spec.trunk, None
  if "blocks" not in trunk.gives:
    kind = f"a {type(trunk).__name__}"
  elif spec.attention != "causal":
    kind = f"a {spec.attention} model"
  elif trunk.attention_bias is not None or not trunk.learned_positions:
    kind = "a model without GPT's position embeddings"
  elif not trunk.is_gpt:
    kind = "a model with parts that GPT has not"
  elif spec.head and spec.head.per_token:
    kind = "a model with a head for every token"
  return kind
