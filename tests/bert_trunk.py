"""BERT's architecture, tiny."""

from typing import Any

from gpt_jax.models.transformer import TransformerConfig


def bert_trunk(vocab_size: int = 0, **sizes: Any) -> TransformerConfig:
  """A trunk of two layers of width 16, with these fields changed."""
  defaults: dict[str, Any] = {"context": 24, "layers": 2, "width": 16, "heads": 4}
  return TransformerConfig(
    vocab_size,
    token_types=2,
    embedding_norm=True,
    embedding_dropout_on="sum",
    pooler=True,
    activation="gelu",
    norm_epsilon=1e-12,
    init="truncated",
    **defaults | sizes,
  )
