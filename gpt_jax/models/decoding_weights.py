"""A model's parameters with the weights of products kept for decoding, see ops.kept_weights."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt_jax.batch import Rows
from gpt_jax.models.model import Model
from gpt_jax.models.weight import KEPT
from gpt_jax.ops.kept_weights import KeptWeights, check_kind, keep


def keep_weights(model: Model, params: Any, kind: str) -> Any:
  """The trunk's parameters, on the device, with KeptWeights where a product has its weights.

  Args:
    model: generates, see models.model.generator.
    params: of a trunk and any heads.
    kind: one of kept_weights.KINDS; float32 leaves the parameters as they are.

  Raises:
    InputError: an unknown kind.
  """
  check_kind(kind)
  params = {"trunk": jax.device_put(params["trunk"])}
  if kind == "float32":
    return params
  return unflatten_dict({**flatten_dict(params), **flatten_dict(_kept(model, params, kind))})


def variables(params: Any) -> dict[str, Any]:
  """The collections for Model.apply of parameters, some of which may be KeptWeights."""
  flat = flatten_dict(params)
  kept = {path: value for path, value in flat.items() if isinstance(value, KeptWeights)}
  if not kept:
    return {"params": params}
  rest = {path: value for path, value in flat.items() if path not in kept}
  return {"params": unflatten_dict(rest), KEPT: unflatten_dict(kept)}


@partial(jax.jit, static_argnums=(0, 2))
def _kept(model, params, kind):
  """The KeptWeights of all products that generation makes, as a tree of the parameters' paths."""
  # A prompt of one token meets all of them. XLA leaves out what it computes.
  ids = jnp.zeros((1, 1), jnp.int32)
  of_source = {"source": Rows(ids, ids)} if model.config.kind == "encoder-decoder" else {}
  _, written = model.apply(
    {"params": params}, ids, ids == 0, **of_source, method="read_prompt", mutable=[KEPT]
  )
  kept = flatten_dict(written[KEPT])
  return unflatten_dict(
    {path: keep(weights, kind, path[-1] == "tokens") for path, weights in kept.items()}
  )
