"""`openai-gpt` and `gpt2`. Kernels of their Conv1D are [in, out], as ours; only the classification
heads, which are Linear, are transposed.
"""

import dataclasses
import json
import os
import re
import shutil
import tempfile
from typing import Any

import numpy as np

from gpt_jax.apps.interop.formats.hf import labels
from gpt_jax.apps.interop.formats.hf.family import Array, Arrays, Family, declines_head, dense, norm
from gpt_jax.apps.interop.formats.hf.fields import ACTIVATIONS, Supported, their_activation
from gpt_jax.apps.interop.formats.hf.weights import Weights
from gpt_jax.apps.interop.formats.hf_tokenizer import GPT_TEMPLATE, Template
from gpt_jax.checkpoints.formats import layout
from gpt_jax.checkpoints.formats.folder import CONFIG, read_object
from gpt_jax.config import to_json
from gpt_jax.data.tokenizers.base import (
  MAX_FILE,
  METADATA,
  TRANSFORMERS_CONFIG,
  Tokenizer,
  load_released,
)
from gpt_jax.data.tokenizers.openai_files import FILES, is_release
from gpt_jax.errors import InputError
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.tasks.formats import PlainFormat
from gpt_jax.tasks.task import Task

_SCORE = "score.weight"
_NAMES = {
  "context": "n_positions",
  "layers": "n_layer",
  "width": "n_embd",
  "heads": "n_head",
  "residual_dropout": "resid_pdrop",
  "attention_dropout": "attn_pdrop",
  "embedding_dropout": "embd_pdrop",
}


@dataclasses.dataclass(frozen=True)
class GPTFamily(Family):
  model_type: str
  classes: str  # prefix of its class names
  norm: str  # value of TransformerConfig.norm
  tokens: str  # names of the embeddings
  positions: str
  activation: str  # name of the setting
  activations: dict[str, str]  # its values, and ours for each; see fields.ACTIVATIONS

  prefix = "transformer."
  attention = "causal"
  format = None
  sizes = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
  # Causal masks, which older versions saved beside the parameters.
  ignored = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|position_ids")
  heads = re.compile(r"(score|multiple_choice_head)\..*")

  @property
  def ties(self) -> dict[str, str]:  # type: ignore[override]
    return {"lm_head.weight": self.tokens}

  def supported(self, config: dict) -> Supported:
    return (
      (self.activation, tuple(self.activations)),
      ("layer_norm_epsilon", (1e-5,)),
      ("n_ctx", (config["n_positions"],)),
      ("n_inner", (None, 4 * config["n_embd"])),
      ("scale_attn_weights", (True,)),
      ("scale_attn_by_inverse_layer_idx", (False,)),
      ("reorder_and_upcast_attn", (False,)),
      ("add_cross_attention", (False,)),
      ("tie_word_embeddings", (True,)),
    )

  def vocabulary(self, folder: str) -> Tokenizer:
    single_file = os.path.join(folder, METADATA)
    if is_release(folder):
      return load_released(folder)
    if not os.path.isfile(single_file):
      names = " and ".join(FILES[-1])
      raise InputError(f"{folder}: no vocabulary here; {names} belong beside the weights")
    with tempfile.TemporaryDirectory() as temporary:
      try:
        tree = read_object(single_file, MAX_FILE)
        if (tree.get("pre_tokenizer") or {}).get("type") == "BertPreTokenizer":
          return load_released(folder)  # another way to split a text than OpenAI's
        model = tree["model"]
        # As text in older files, as a pair in newer ones.
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        # As vocab.json and merges.txt, which is how the authors released theirs.
        contents = json.dumps(model["vocab"]), "\n".join(["#version: 0.2", *merges, ""])
        for name, content in zip(FILES[-1], contents, strict=True):
          with open(os.path.join(temporary, name), "w", encoding="utf-8") as file:
            file.write(content)
        for name in (METADATA, TRANSFORMERS_CONFIG, CONFIG):
          if os.path.isfile(os.path.join(folder, name)):
            shutil.copy(os.path.join(folder, name), temporary)
        return load_released(temporary)
      except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).replace(temporary + os.sep, "")
        raise InputError(f"{single_file}: not GPT-1's or GPT-2's vocabulary ({reason})") from error

  def model(
    self, config: dict, weights: Weights, tokenizer: Tokenizer, own: ModelConfig | None
  ) -> ModelConfig:
    """The model, with a head only from our own folders or others' ForSequenceClassification: the
    head of a DoubleHeadsModel does not say which inputs it expects.
    """
    settings = {ours: config[theirs] for ours, theirs in _NAMES.items() if theirs in config}
    spec = own or ModelConfig(TransformerConfig())
    trunk = TransformerConfig(
      tokenizer.vocab_size,
      norm=self.norm,
      activation=self.activations[config.get(self.activation, "gelu_new")],
      dtype=spec.trunk.dtype,
      special_tokens=spec.trunk.special_tokens,
      **settings,
    )
    classifies = labels.architecture_of(config) == f"{self.classes}ForSequenceClassification"
    if spec.head is None and classifies and _SCORE in weights.shapes:
      # Its tokenizer adds no special tokens, so its table has no rows for them.
      trunk = dataclasses.replace(trunk, special_tokens=0)
      head = labels.sequence_head(config, labels.outputs_of(weights, _SCORE))
      return dataclasses.replace(spec, trunk=trunk, heads=(head,))
    return dataclasses.replace(spec, trunk=trunk)

  def format_of(self, config: dict, spec: ModelConfig) -> dict | None:
    if spec.head is None:
      return None
    padding = config.get("pad_token_id")
    return to_json(PlainFormat(-1 if padding is None else padding))

  def rows(self, spec: ModelConfig) -> int:
    return spec.num_tokens

  def arrays(self, spec: ModelConfig, config: dict) -> list[Array]:
    d, trunk, head, rows = spec.trunk.width, spec.trunk, spec.head, self.rows(spec)
    positions = (trunk.context, d)
    arrays = [
      Array(self.tokens, "tokens", (rows, d), (trunk.rows, d), np.s_[:rows]),
      Array(self.positions, "positions", positions, positions),
      *(Array(*array) for array in layout.of_blocks(trunk)),
    ]
    if trunk.norm == "pre":  # GPT-2 alone has a norm after the last block
      arrays += norm("ln_f", "last_norm", d)
    arrays = [array._replace(ours=f"trunk/{array.ours}") for array in arrays]
    if head and head.pooling == "per_choice":
      arrays += dense("multiple_choice_head.summary", "head", d, 1)
    elif head:
      k = head.num_classes
      arrays.append(Array(_SCORE, "head/kernel", (k, d), (d, k), transposed=True))
      arrays.append(Array("", "head/bias", (), (k,)))  # see fold
    return arrays

  def declines(self, spec: ModelConfig, meta: dict, tokenizer: Tokenizer) -> str:
    if kind := layout.other_than_gpt(spec):
      return f"holds causal Transformers only, this is {kind}"
    if meta.get("sequence_format", {}).get("type") == "plain_format":
      return "it came from a folder of others, whose tokenizer adds no special tokens"
    if reason := declines_head(spec.head):
      return reason
    if spec.head and spec.head.transform != "none":
      return f"transformers' GPT has no head with transform={spec.head.transform}"
    if spec.trunk.activation not in self.activations.values():
      return f"{self.model_type} has no activation={spec.trunk.activation}"
    return "" if spec.trunk.norm == self.norm else f"{self.model_type} is {self.norm}-norm"

  def fold(self, arrays: Arrays, spec: ModelConfig, orders: int) -> Arrays:
    """Folds the head's bias, which the class lacks, into the bias of the norm before it.

    orders: sequences per example whose scores are added; each gets its share of the head's bias.
    Returns the original arrays, by name; none if the head's bias is zero.
    """
    if not spec.head or spec.head.pooling != "sum":
      return {}
    # The bias that is added last to the hidden state that W_y reads.
    norm = "trunk/last_norm/bias"
    if self.norm == "post":
      norm = f"trunk/block_{spec.trunk.layers - 1}/mlp_norm/bias"
    before = {name: arrays[name] for name in ("head/bias", norm)}
    kernel, bias = arrays["head/kernel"].astype(np.float64), arrays["head/bias"] / orders
    if not bias.any():
      return {}
    # K equations for D unknowns: of all solutions the one with the smallest norm.
    change = np.linalg.lstsq(kernel.T, bias, rcond=None)[0]
    arrays[norm] = (arrays[norm] + change).astype(np.float32)
    error = np.abs((arrays[norm] - before[norm]) @ kernel - bias)  # [K]
    if (error > 1e-5 * np.maximum(1, np.abs(bias))).any():
      raise InputError(
        "format=hf: cannot hold this head's bias, since its kernel has not full rank; npz can"
      )
    return before

  def config(self, spec: ModelConfig, tokenizer: Tokenizer, task: Task | None) -> dict[str, Any]:
    trunk, head = spec.trunk, spec.head
    suffix = "LMHeadModel"
    if head:
      suffix = "DoubleHeadsModel" if head.pooling == "per_choice" else "ForSequenceClassification"
    config = {
      "architectures": [self.classes + suffix],
      "model_type": self.model_type,
      "vocab_size": self.rows(spec),
      **{theirs: vars(trunk)[ours] for ours, theirs in _NAMES.items()},
      "n_ctx": trunk.context,
      self.activation: their_activation(self.activations, trunk.activation),
      "layer_norm_epsilon": 1e-5,
      "initializer_range": 0.02,
      "tie_word_embeddings": True,
      "bos_token_id": tokenizer.end_id,
      "eos_token_id": tokenizer.end_id,
    }
    if head and head.pooling == "sum":
      config |= labels.label_settings(head, task)
      # The class refuses batches without it, and reads the last token that is another.
      config["pad_token_id"] = tokenizer.padding_id or 0
    return config

  def template(self, spec: ModelConfig, tokenizer: Tokenizer) -> Template | None:
    return GPT_TEMPLATE if spec.head else None

  def describe(self, spec: ModelConfig, tokenizer: Tokenizer) -> list[str]:
    special = tokenizer.special
    paragraphs = [
      f"A sequence is {special.start}, the "
      f"ids of its texts, {special.extract}; {special.delimiter} separates the last text from "
      "those before it. The tokenizer adds these to a text, or to a text and its `text_pair`. The "
      f"score is read at {special.extract}; pad after it, with `pad_token_id`."
    ]
    if spec.head.pooling == "per_choice":
      paragraphs.append(
        f"Each option is a sequence. Give the positions of {special.extract} as `mc_token_ids`: "
        "without them this class reads the last position of every row, padding included."
      )
    return paragraphs


FAMILIES = (
  GPTFamily(
    "openai-gpt",
    "OpenAIGPT",
    "post",
    "tokens_embed.weight",
    "positions_embed.weight",
    "afn",
    # OpenAIGPT alone calls the tanh form "gelu"; elsewhere that is the erf form.
    ACTIVATIONS | {"gelu": "gelu_tanh"},
  ),
  GPTFamily("gpt2", "GPT2", "pre", "wte.weight", "wpe.weight", "activation_function", ACTIVATIONS),
)
