"""`bert`: two texts with types, a trained pooler, erf GELU (Devlin et al. 2018)."""

from gpt_jax.apps.interop.formats.hf.encoder import EncoderFamily
from gpt_jax.apps.interop.formats.hf_tokenizer import Template
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.models.model import ModelConfig

LAYER = "encoder.layer.{}."
# In the order of EncoderFamily.block.
BLOCK = (
  "attention.self.query",
  "attention.self.key",
  "attention.self.value",
  "attention.output.dense",
  "attention.output.LayerNorm",
  "intermediate.dense",
  "output.dense",
  "output.LayerNorm",
)


def _is_like(spec: ModelConfig, tokenizer: Tokenizer) -> str:
  trunk = spec.trunk
  if trunk.shared_layers or trunk.table_width != trunk.width:
    return "BERT has neither shared layers nor narrower embeddings alone"
  # A padding token is all that RoBERTa's classes need besides.
  if not trunk.token_types and not trunk.pooler and "pad" in tokenizer.special:
    return "a model without types and pooler is a RoBERTa"
  return ""


FAMILIES = (
  EncoderFamily(
    "bert",
    "Bert",
    LAYER,
    BLOCK,
    "pooler.dense",
    (
      "cls.predictions.transform.dense",
      "cls.predictions.transform.LayerNorm",
      "cls.predictions.bias",
      "cls.predictions.decoder",
    ),
    "cls.seq_relationship",
    ("", "classifier"),
    Template(("cls", "A", "sep"), ("cls", "A", "sep", "B", "sep")),
    {"type": "bert_format"},
    "truncated",
    _is_like,
  ),
)
