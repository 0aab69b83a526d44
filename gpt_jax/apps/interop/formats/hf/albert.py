"""`albert`: one block for all layers, narrower embeddings, sentence order (Lan et al. 2019)."""

from gpt_jax.apps.interop.formats.hf.encoder import EncoderFamily
from gpt_jax.apps.interop.formats.hf_tokenizer import Template
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.models.model import ModelConfig


def _is_like(spec: ModelConfig, tokenizer: Tokenizer) -> str:
  del tokenizer
  trunk = spec.trunk
  if not trunk.shared_layers or trunk.table_width == trunk.width:
    return "ALBERT has shared layers and narrower embeddings"
  scopes = [head.scope for head in spec.heads]
  if "sentence_pair" in scopes and "masked" not in scopes:
    return "transformers has no ALBERT with a sentence-pair head alone"
  return ""


FAMILIES = (
  EncoderFamily(
    "albert",
    "Albert",
    # One group of one block, stored once whatever the number of layers.
    "encoder.albert_layer_groups.0.albert_layers.0.",
    (
      "attention.query",
      "attention.key",
      "attention.value",
      "attention.dense",
      "attention.LayerNorm",
      "ffn",
      "ffn_output",
      "full_layer_layer_norm",
    ),
    "pooler",
    ("predictions.dense", "predictions.LayerNorm", "predictions.bias", "predictions.decoder"),
    "sop_classifier.classifier",
    ("", "classifier"),
    Template(("cls", "A", "sep"), ("cls", "A", "sep", "B", "sep")),
    {"type": "bert_format"},
    "truncated",
    _is_like,
    head_dropout="classifier_dropout_prob",
    shared=True,
  ),
)
