"""The config with which a checkpoint was pre-trained, or would be."""

from typing import Any

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.objectives.causal import Causal
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.masked_pairs import MaskedPairs
from gpt_jax.objectives.prefix_lm import PrefixLM
from gpt_jax.objectives.span_corruption import SpanCorruption
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
  if spec.trunk.reads_source:
    return SpanCorruption("encoder_decoder")
  if spec.attention == "prefix":
    return PrefixLM()
  if spec.attention == "causal":
    return Causal()
  if any(head.scope == "sentence_pair" for head in spec.heads):
    # Next sentence and sentence order have the same head: the trunk tells whose it is.
    is_albert = spec.trunk.shared_layers
    return MaskedPairs(second="swapped" if is_albert else "random_document")
  return Masked()
