"""The config with which a checkpoint was pre-trained, or would be."""

from typing import Any

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.config import from_json
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.programs.pretrain_config import PretrainConfig


def config_of(loaded: LoadedModel) -> Any:
  """The config of the run that trained a model; of weights from elsewhere, one with its sizes and
  the objective of its heads.
  """
  if loaded.config is not None:
    return loaded.config
  trunk = loaded.spec.trunk
  return PretrainConfig(trunk, _objective_of(loaded.spec), WindowsConfig(length=trunk.context))


def _objective_of(spec: ModelConfig) -> Any:
  """The objective that suits a model's attention and heads."""
  if spec.kind == "encoder-decoder":
    return from_json({"type": "span_corruption", "layout": "encoder_decoder"})
  if spec.attention == "prefix":
    return from_json({"type": "prefix_lm"})
  if spec.attention == "causal":
    return from_json({"type": "causal"})
  if any(head.scope == "sentence_pair" for head in spec.heads):
    # Next sentence and sentence order have the same head: the trunk tells whose it is.
    second = "swapped" if spec.trunk.shared_layers else "random_document"  # ALBERT's, or BERT's
    return from_json({"type": "masked_pairs", "second": second})
  return from_json({"type": "masked"})
