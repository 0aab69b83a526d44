"""How long the gradient of a language model's loss is at each layer and position.

Long distances are hard to learn where the gradient of a prediction vanishes on its way back (Bengio
et al. 1994). A trunk adds zeros to its hidden states under the collection "hidden", by Linen's
`perturb`; the gradient with respect to these zeros is that of the states.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.apps.diagnose.texts import Budget, Texts, held_out_rows
from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.errors import InputError
from gpt_jax.models.model import Model

_MAX_LENGTH = 256  # tokens of a row
_ROWS = 8  # at a time


class Norms(NamedTuple):
  """L2 norms of d loss / d h, float64 [layers, positions], means over rows."""

  layers: list[str]  # names from the input on, such as "embedding", "block 1"
  of_text: np.ndarray  # the loss is the mean over all positions of a row
  of_last: np.ndarray  # the loss is that of the last prediction of a row


def gradient_norms(model: Model, params: Any, rows: np.ndarray) -> Norms:
  """Norms for a causal language model without dropout; rows are int32 [B, T + 1], unpadded."""
  length = rows.shape[1] - 1
  whole = np.full((1, length), 1 / length, np.float32)  # loss weights
  last = np.eye(1, length, length - 1, dtype=np.float32)
  sums: dict[str, np.ndarray] = {}
  for first in range(0, len(rows), _ROWS):
    some = rows[first : first + _ROWS]
    inputs = some[:, :-1]
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), inputs.shape)
    for i, weights in enumerate((whole, last)):
      predictions = Predictions(some[:, 1:], np.broadcast_to(weights, inputs.shape))
      batch = Batch(Rows(inputs, positions), predictions=predictions)
      norms = jax.device_get(_norms(model, params, batch))
      for name, norm in norms.items():
        sums.setdefault(name, np.zeros((2, length)))[i] += norm.astype(np.float64).sum(0)
  layers, means = [], []
  for name in sorted(sums, key=lambda name: int(name.partition("_")[0])):
    number, _, kind = name.partition("_")
    layers.append(f"{kind} {number}" if kind == "block" else kind)
    means.append(sums[name] / len(rows))
  return Norms(layers, *np.stack(means, axis=1))


@functools.partial(jax.jit, static_argnums=0)
def _norms(model: Model, params: Any, batch: Batch) -> dict[str, jax.Array]:
  """float32 [B, T] for each layer. The loss is the sum over rows, none of which depends on another,
  so the gradient at a row's states is that of its own loss.
  """
  head = model.config.heads[0]

  def created(params, batch):
    return model.apply({"params": params}, batch, mutable=["hidden"])[1]

  def loss(added):
    outputs: Any = model.apply({"params": params, "hidden": {"trunk": added}}, batch)
    return head.loss(outputs.heads[0], outputs.states, batch, model.num_tokens).total

  shapes: Any = jax.eval_shape(created, params, batch).get("hidden", {}).get("trunk", {})
  if not shapes:
    trunk = type(model.config.trunk).__name__
    raise InputError(f"trunk: a {trunk} does not name its hidden states, as Transformer does")
  zeros = {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}
  gradients = jax.grad(loss)(zeros)
  return {name: jnp.linalg.norm(x.astype(jnp.float32), axis=-1) for name, x in gradients.items()}


def decay_of(norms: np.ndarray) -> dict[str, float] | None:
  """How the gradient of a row's last prediction falls with the distance d, by a layer's norms [T]:
  the tokens over which exp(-d / c) halves, infinite if it does not, the exponent k of d^-k, and the
  share of the variance of its logarithm that each law explains; None where it is 0 almost
  everywhere. The norm of the predicting position itself is left out: it reaches the prediction on a
  way of its own, the residual stream.
  """
  by_distance = np.asarray(norms, np.float64)[::-1][1:]
  distances = np.arange(1, len(by_distance) + 1)
  above = by_distance > 0
  if above.sum() < 3:  # any line fits two
    return None
  logs, distances = np.log(by_distance[above]), distances[above]
  slope, exponential_fit = _line(distances, logs)
  exponent, power_fit = _line(np.log(distances), logs)
  half = float(np.log(2) / -slope) if slope < 0 else float("inf")
  return {
    "half_distance": half,
    "exponential_fit": exponential_fit,
    "exponent": -exponent,
    "power_fit": power_fit,
  }


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
  """The slope of the regression line, and the share of variance that it explains."""
  slope, offset = np.polyfit(x, y, 1)
  left = np.square(y - slope * x - offset).sum()
  total = np.square(y - y.mean()).sum()
  return float(slope), float(1 - left / total) if total > 0 else 1.0


def measure_gradients(loaded: LoadedModel, texts: Texts, budget: Budget) -> dict[str, Any]:
  """JSON: layers, rows, length, and for "trained" and "fresh" the norms and how they decay."""
  model = loaded.language_model()
  length = min(_MAX_LENGTH, trained_length(loaded))
  rows = held_out_rows(texts, length + 1, budget.gradient_rows)
  ids = np.zeros((1, 2), np.int32)
  fresh = jax.jit(lambda key: model.init(key, Batch(Rows(ids, ids)))["params"])(jax.random.key(0))
  result: dict[str, Any] = {"rows": len(rows), "length": length}
  for name, params in (("trained", jax.device_put(loaded.params)), ("fresh", fresh)):
    norms = gradient_norms(model, {"trunk": params["trunk"]}, rows)
    result["layers"] = norms.layers
    result[name] = {
      "of_text": norms.of_text.tolist(),
      "of_last": norms.of_last.tolist(),
      "decay": list(map(decay_of, norms.of_last)),
    }
  return result


def trained_length(loaded: LoadedModel) -> int:
  """Tokens of a row that the model was trained on; position embeddings beyond are noise."""
  context = loaded.spec.trunk.context
  data = loaded.config and loaded.config.data
  return min(context, data.length) if data else context
