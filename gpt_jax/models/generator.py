"""The model that writes or scores text with a trained trunk."""

from typing import Any

from gpt_jax.errors import InputError
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.model import Model, ModelConfig


def language_model(trunk: Any, attention: str = "causal") -> Model:
  """A model that generates or scores text from left to right with a causal trunk."""
  if ModelConfig(trunk, ()).kind == "encoder-decoder":
    raise InputError(
      "an encoder-decoder gives a text no probability: it writes a target for a source, with "
      "generate.run"
    )
  if attention != "causal":
    raise InputError(
      f"a model with {attention} attention does not generate or score text from left to right; "
      "use a causal checkpoint"
    )
  return Model(ModelConfig(trunk))


def generator(spec: ModelConfig) -> Model:
  """A model that writes text: on from a prompt, which may be a prefix, or for a source.

  A bidirectional model has seen the tokens that it would predict, and is refused.
  """
  if spec.attention != "prefix" and spec.kind != "encoder-decoder":
    return language_model(spec.trunk, spec.attention)
  # The language head that was trained, since it says whether special tokens are predicted.
  heads = tuple(head for head in spec.heads if head.scope == "language")
  return Model(ModelConfig(spec.trunk, heads or (LanguageHead(),), spec.attention))
