"""Text embeddings of checkpoints that had no contrastive training."""

import dataclasses

from gpt_jax.config import Config, option, register


@register("embedding")
@dataclasses.dataclass(frozen=True)
class Embedding(Config):
  """A vector of the last hidden states; Model.embed computes it."""

  pooling: str = option(
    "mean",
    "how tokens become one vector: their mean or maximum, the first token (cls) or the last",
    choices=("mean", "max", "cls", "last"),
  )
  normalize: bool = option(False, "whether vectors have length 1")
  longest: int | None = option(
    None, "longest sequence with its special tokens; none: the context", low=8, unit="tokens"
  )
  unsupported: str = option("", "what the model's folder asks for besides, and `embed` refuses")
