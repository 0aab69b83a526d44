"""Rematerialization: what a block keeps of its forward pass, and what is computed anew.

Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost.
"""

import flax.linen as nn
import jax

# What is kept besides a block's inputs. Everything: as many bytes as the backward pass reads;
# dots: the results of matrix products with parameters; full: nothing, one more forward pass.
_KEPT = {
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "full": jax.checkpoint_policies.nothing_saveable,
}
POLICIES = ("none", *_KEPT)


def rematerialized(block: type[nn.Module], remat: str) -> type[nn.Module]:
  """The module with the policy `remat`, one of POLICIES; values and gradients stay the same."""
  if remat == "none":
    return block
  return nn.remat(block, policy=_KEPT[remat])
