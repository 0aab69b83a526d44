"""Gradient norms of a checkpoint and of the same model before training."""

from typing import Any

import jax
import numpy as np

from gpt_jax.apps.diagnose.budget import Budget
from gpt_jax.apps.diagnose.gradient_norms import Norms, decay_of, gradient_norms
from gpt_jax.apps.diagnose.texts import Texts, held_out_rows
from gpt_jax.batch import Batch, Rows
from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.models.model import Model

_LONGEST = 256  # tokens of a row


def measure_gradients(loaded: LoadedModel, texts: Texts, budget: Budget) -> dict[str, Any]:
  """JSON: layers, rows, length, and for "trained" and "fresh" the norms and how they decay."""
  model = loaded.language_model()
  length = min(_LONGEST, trained_length(loaded))
  rows = held_out_rows(texts, length + 1, budget.gradient_rows)
  fresh = _fresh(model)
  result: dict[str, Any] = {"rows": len(rows), "length": length}
  for name, params in (("trained", jax.device_put(loaded.params)), ("fresh", fresh)):
    norms = gradient_norms(model, {"trunk": params["trunk"]}, rows)
    result["layers"] = norms.layers
    result[name] = _as_json(norms)
  return result


def trained_length(loaded: LoadedModel) -> int:
  """Tokens of a row that the model was trained on; position embeddings beyond are noise."""
  context = loaded.spec.trunk.context
  if loaded.config is None or loaded.config.data is None:
    return context
  return min(context, loaded.config.data.length)


def _fresh(model: Model) -> Any:
  """First parameters with the seed 0."""
  ids = np.zeros((1, 2), np.int32)
  return jax.jit(lambda key: model.init(key, Batch(Rows(ids, ids)))["params"])(jax.random.key(0))


def _as_json(norms: Norms) -> dict[str, Any]:
  decays = list(map(decay_of, norms.of_last))
  return {
    "of_text": norms.of_text.tolist(),
    "of_last": norms.of_last.tolist(),
    "decay": [decay and decay._asdict() for decay in decays],
  }
