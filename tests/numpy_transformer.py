"""The Transformer of models/transformer.py in NumPy, one text at a time, nothing shared with it;
and random parameters, so that each of them matters.
"""

import math
from typing import Any

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from gpt_jax.models.model import ModelConfig, parameter_shapes


def random_params(spec: ModelConfig, scale: float = 0.3) -> dict[str, Any]:
  """Normal draws of that deviation; those of norms have the mean 1."""
  rng = np.random.default_rng(1)
  draws = {
    name: np.asarray(name.endswith("scale") + scale * rng.normal(size=shape), np.float32)
    for name, shape in parameter_shapes(spec).items()
  }
  return unflatten_dict(draws, sep="/")


def numpy_norm(x, p, epsilon=1e-5):
  centered = x - x.mean(-1, keepdims=True)
  scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)
  return scaled * p["scale"] + p["bias"]


NUMPY_ACTIVATIONS = {
  "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
  "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
  "relu": lambda x: np.maximum(x, 0),
  "silu": lambda x: x / (1 + np.exp(-x)),
}


def numpy_dense(x, p):
  return x @ p["kernel"] + p["bias"]


def numpy_transformer(config, params, ids, types=None, causal=False, maps=None):
  """Hidden states [T, D], float64, of a whole text.

  Args:
    params: of the trunk.
    maps: gets the attention probabilities [T, T] of each head of each layer.
  """
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  length, pre, epsilon = len(ids), config.norm == "pre", config.norm_epsilon
  x = p["tokens"][ids] + p["positions"][:length]
  if config.token_types:
    x = x + p["types"][types]
  if config.embedding_norm:
    x = numpy_norm(x, p["embedding_norm"], epsilon)
  if config.embedding_width:
    x = numpy_dense(x, p["embedding_map"])
  for i in range(config.layers):
    block = p["block_0" if config.shared_layers else f"block_{i}"]
    read = numpy_norm(x, block["attention_norm"], epsilon) if pre else x
    qkv, out = block["attention"]["qkv"], block["attention"]["out"]
    q, k, v = np.einsum("td,dchk->chtk", read, qkv["kernel"]) + qkv["bias"][:, :, None]
    scores = np.einsum("htk,hsk->hts", q, k) / math.sqrt(config.width // config.heads)
    if causal:
      scores = np.where(np.tri(length) == 1, scores, -1e9)
    w = np.exp(scores - scores.max(-1, keepdims=True))
    w = w / w.sum(-1, keepdims=True)
    if maps is not None:
      maps.extend(w)
    merged = np.einsum("hts,hsk->thk", w, v)
    x = x + np.einsum("thk,hkd->td", merged, out["kernel"]) + out["bias"]
    x = x if pre else numpy_norm(x, block["attention_norm"], epsilon)
    read = numpy_norm(x, block["mlp_norm"], epsilon) if pre else x
    inner = NUMPY_ACTIVATIONS[config.activation](numpy_dense(read, block["mlp"]["in"]))
    x = x + numpy_dense(inner, block["mlp"]["out"])
    x = x if pre else numpy_norm(x, block["mlp_norm"], epsilon)
  return numpy_norm(x, p["last_norm"], epsilon) if pre else x
