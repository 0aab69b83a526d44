"""ALBERT's LAMB: lr r (s + wd p), r = |p| / |s + wd p| (google-research/albert)."""

import optax

from gpt_jax.training.matrices import per_matrix
from gpt_jax.training.update_rules import bert_adam, decayed, scaled


def lamb(b1: float, b2: float, eps: float, weight_decay: float) -> optax.GradientTransformation:
  """ALBERT's LAMB, still to be multiplied by the learning rate.

  BERT's Adam, whose update of each matrix is as long as the matrix itself. Biases and gains have
  neither decay nor ratio. `optax.lamb` corrects the bias, and has a ratio for every tensor.
  """
  # |p| / |update| of each matrix, not of a stack of three or of a vector.
  # 1 where either norm is 0, as ALBERT's.
  ratio = optax.masked(per_matrix(optax.scale_by_trust_ratio()), decayed)
  return optax.chain(bert_adam(b1, b2, eps, weight_decay), ratio)


rule = scaled(lamb)
