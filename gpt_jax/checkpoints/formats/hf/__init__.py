"""transformers folders: config.json, weights, vocabulary; a file for each family of models.

Weights are model.safetensors or pytorch_model.bin. To add a family, add a file with FAMILIES (see
family.Family), such as gpt.py; it edits no other.
"""

from gpt_jax.checkpoints.formats.hf.read import load
from gpt_jax.checkpoints.formats.hf.weights import detect
from gpt_jax.checkpoints.formats.hf.write import save

__all__ = ["HELP", "detect", "load", "save"]

HELP = "a transformers folder: openai-gpt, gpt2, bert, roberta, albert or t5"
