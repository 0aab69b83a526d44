"""Settings of the layers in heads, which continue those of the trunk."""

from typing import Any, NamedTuple


class Style(NamedTuple):
  """Settings that all layers of a model share, besides their sizes.

  Attributes:
    dtype: type of activations and matrix products.
    init: initializer of the kernels, one of INITS.
    activation: one of ACTIVATIONS.
    epsilon: added to the variance in a norm.
  """

  dtype: str
  init: str
  activation: str
  epsilon: float


def style_of(trunk: Any) -> Style:
  """The style of a trunk, for heads whose layers continue it; BERT's where a trunk has none."""
  return Style(trunk.dtype, trunk.init, trunk.activation, trunk.norm_epsilon)
