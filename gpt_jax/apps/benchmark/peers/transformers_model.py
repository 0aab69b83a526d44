"""transformers' models of a trunk's sizes."""

from typing import Any

from gpt_jax.apps.benchmark.peers.packages import find_device, import_packages
from gpt_jax.models.transformer import TransformerConfig


def transformers_model(trunk: TransformerConfig, kind: str, task: str, **options: Any) -> Any:
  """transformers' model of a task, such as LMHeadModel, with the trunk's sizes and random weights.

  Args:
    kind: "GPT2" or "OpenAIGPT".
    options: of its config.
  """
  transformers = import_packages().transformers
  config = getattr(transformers, f"{kind}Config")(
    vocab_size=trunk.vocab_size,
    n_positions=trunk.context,
    n_embd=trunk.width,
    n_layer=trunk.layers,
    n_head=trunk.heads,
    **options,
  )
  return getattr(transformers, f"{kind}{task}")(config).to(find_device())


def kind_of(trunk: TransformerConfig) -> str:
  """transformers' name of the model with the trunk's norms."""
  return "GPT2" if trunk.norm == "pre" else "OpenAIGPT"
