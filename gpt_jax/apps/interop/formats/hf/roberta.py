"""`roberta`: no types, no pooler that was trained, a classifier of its own (Liu et al. 2019).

Its position embeddings begin after the padding token's id: no token reads the first two rows.
"""

from gpt_jax.apps.interop.formats.hf.bert import BLOCK, LAYER
from gpt_jax.apps.interop.formats.hf.encoder import EncoderFamily
from gpt_jax.apps.interop.formats.hf_tokenizer import Template
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.models.model import ModelConfig


def _is_like(spec: ModelConfig, tokenizer: Tokenizer) -> str:
  trunk = spec.trunk
  if trunk.shared_layers or trunk.table_width != trunk.width:
    return "RoBERTa has neither shared layers nor narrower embeddings alone"
  if any(head.scope == "sentence_pair" for head in spec.heads):
    return "RoBERTa has no sentence-pair head"
  reads_pooler = spec.head is not None and "pooler" in spec.head.reads
  if trunk.token_types > 1 or trunk.pooler and not reads_pooler:
    return "RoBERTa has neither token types nor a trained pooler"
  if "pad" not in tokenizer.special:
    return "RoBERTa's positions are counted from a padding token, and the vocabulary has no pad"
  return ""


FAMILIES = (
  EncoderFamily(
    "roberta",
    "Roberta",
    LAYER,
    BLOCK,
    "pooler.dense",
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder"),
    "",
    ("classifier.dense", "classifier.out_proj"),
    Template(("cls", "A", "sep"), ("cls", "A", "sep", "sep", "B", "sep")),
    {"type": "roberta_format"},
    "normal",
    _is_like,
    masked_activation="gelu",
    keeps_pooler=False,
    counts_from_padding=True,
  ),
)
