"""`bert` (Devlin et al. 2018), `roberta` (Liu et al. 2019), `xlm-roberta` (Conneau et al.
2020) and `albert` (Lan et al. 2019).

Their Linear stores weights as [out, in]; queries, keys and values have a projection each.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt_jax.apps.interop.formats.hf import labels
from gpt_jax.apps.interop.formats.hf.family import Array, Family, declines_head, dense, norm
from gpt_jax.apps.interop.formats.hf.fields import ACTIVATIONS, Supported, their_activation
from gpt_jax.apps.interop.formats.hf.weights import Weights
from gpt_jax.apps.interop.formats.hf_tokenizer import Template
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.masked import MaskedHead, SentencePairHead
from gpt_jax.models.heads.tag import TagHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.tasks.task import Task

TOKENS = "embeddings.word_embeddings.weight"
POSITIONS = "embeddings.position_embeddings.weight"
TYPES = "embeddings.token_type_embeddings.weight"
SIZES = (
  *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
  *("max_position_embeddings", "type_vocab_size", "pad_token_id"),
)


@dataclasses.dataclass(frozen=True)
class EncoderFamily(Family):
  """A family of bidirectional, post-norm Transformers; the defaults are BERT's."""

  model_type: str
  classes: str  # prefix of its class names
  is_like: Callable[[ModelConfig, Tokenizer], str]  # what of a model the family has not, or ""
  masked: tuple[str, str, str, str]  # the head's map, norm, bias, and what is tied to the table
  masked_activation: str = ""  # the masked head's, as TransformerConfig.activation; "": the trunk's
  layer: str = "encoder.layer.{}."  # prefix of a block's arrays, with {} for its number
  # Names of a block's parts: query, key, value, the projection after attention, its norm, both maps
  # of the MLP, its norm.
  block: str = (
    "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm"
  )
  pooler: str = "pooler.dense"
  pair: str = ""  # name of the sentence-pair head; "": there is none
  # Names of the maps of a ForSequenceClassification before its last, and of the last.
  classifier: tuple[str, str] = ("", "classifier")
  around: Template = Template(("cls", "A", "sep"), ("cls", "A", "sep", "B", "sep"))
  format: dict = dataclasses.field(default_factory=lambda: {"type": "bert_format"})
  init: str = "truncated"  # value of TransformerConfig.init
  head_dropout: str = "classifier_dropout"  # name of the setting
  shared: bool = False  # whether it has one block, and a map of narrower embeddings
  keeps_pooler: bool = True  # whether a pooler in a file was trained by the objective
  counts_from_padding: bool = False  # whether positions count from the padding token's id on

  attention = "bidirectional"
  ignored = re.compile(r"embeddings\.(position_ids|token_type_ids)|pooler\..*")
  heads = re.compile(
    r"(cls|lm_head|predictions|sop_classifier|classifier|qa_outputs|seq_relationship)\..*"
  )

  @property
  def prefix(self) -> str:  # type: ignore[override]
    return f"{self.model_type.removeprefix('xlm-')}."  # XLM-RoBERTa's are RoBERTa's

  @property
  def sizes(self) -> tuple[str, ...]:  # type: ignore[override]
    return (*SIZES, "embedding_size") if self.shared else SIZES

  @property
  def defaults(self) -> dict[str, int]:  # type: ignore[override]
    return {"type_vocab_size": 2, "pad_token_id": int(self.counts_from_padding)}

  @property
  def ties(self) -> dict[str, str]:  # type: ignore[override]
    _, _, bias, decoder = self.masked
    return {f"{decoder}.weight": TOKENS, f"{decoder}.bias": bias}

  def supported(self, config: dict) -> Supported:
    return (
      ("hidden_act", tuple(ACTIVATIONS)),
      ("intermediate_size", (4 * config["hidden_size"],)),
      ("position_embedding_type", ("absolute",)),
      ("num_hidden_groups", (1,)),
      ("inner_group_num", (1,)),
      ("is_decoder", (False,)),
      ("add_cross_attention", (False,)),
      ("tie_word_embeddings", (True,)),
    )

  def model(
    self, config: dict, weights: Weights, tokenizer: Tokenizer, own: ModelConfig | None
  ) -> ModelConfig:
    """Heads and pooler are those in the file."""
    padding = dict(tokenizer.special.items()).get("pad")
    if self.counts_from_padding and config["pad_token_id"] != padding:
      raise InputError(
        f"pad_token_id is {config['pad_token_id']}, and the vocabulary's padding token is "
        f"{padding}: transformers gives tokens of that id no position"
      )
    head = self._labeled_head(config, weights, own)
    others: list[Any] = []
    if self.masked[2] in weights.shapes:
      others.append(MaskedHead())
    if self.pair and f"{self.pair}.weight" in weights.shapes:
      others.append(SentencePairHead())
    if own:  # with the weights of their losses
      by_scope = {head.scope: head for head in own.heads}
      others = [by_scope.get(new.scope, new) for new in others]
      if "contrastive" in by_scope:
        others.append(by_scope["contrastive"])
    heads = (*others, head) if head else tuple(others)
    reads_pooler = head is not None and "pooler" in head.reads
    has_pooler = f"{self.pooler}.weight" in weights.shapes
    trunk = self._trunk(config, weights, own)
    trunk = dataclasses.replace(trunk, pooler=reads_pooler or self.keeps_pooler and has_pooler)
    spec = ModelConfig(trunk.with_vocabulary(tokenizer), heads, self.attention)
    if reason := self._other_activation(spec):
      raise InputError(
        f"hidden_act is {config['hidden_act']!r}: only 'gelu' is supported here, since {reason}"
      )
    return spec

  def _other_activation(self, spec: ModelConfig) -> str:
    """How transformers' masked head differs from ours, by its activation; "" if it does not."""
    masked = any(head.scope == "masked" for head in spec.heads)
    if not masked or self.masked_activation in ("", spec.trunk.activation):
      return ""
    ours = f"activation={self.masked_activation}"
    return f"{self.classes}'s masked head has {ours} whatever the trunk's is"

  def _trunk(self, config: dict, weights: Weights, own: ModelConfig | None) -> TransformerConfig:
    rate = config.get("hidden_dropout_prob", 0.1)
    types = config["type_vocab_size"]
    # A single type is the same for every token; the released RoBERTa's is zero.
    if types == 1 and TYPES in weights.shapes and not weights.read(TYPES).any():
      types = 0
    activation = config.get("hidden_act", "gelu_new" if self.shared else "gelu")
    trunk = TransformerConfig(
      context=config["max_position_embeddings"] - self._skipped(config),
      layers=config["num_hidden_layers"],
      width=config["hidden_size"],
      heads=config["num_attention_heads"],
      residual_dropout=rate,
      embedding_dropout=rate,
      attention_dropout=config.get("attention_probs_dropout_prob", 0.1),
      token_types=types,
      embedding_norm=True,
      embedding_dropout_on="sum",
      embedding_width=config["embedding_size"] if self.shared else 0,
      shared_layers=self.shared,
      activation=ACTIVATIONS[activation],
      # The default of their classes; RoBERTa's released config.json says 1e-5.
      norm_epsilon=config.get("layer_norm_eps", 1e-12),
      init=self.init,
    )
    if self.shared and trunk.embedding_width == trunk.width:
      raise InputError(
        f"embedding_size is {trunk.width}, as hidden_size: only a smaller one is supported"
      )
    if own is None:
      return trunk
    trunk = dataclasses.replace(trunk, dtype=own.trunk.dtype, init=own.trunk.init)
    if own.trunk.residual_dropout == rate:  # they have one rate for both
      trunk = dataclasses.replace(trunk, embedding_dropout=own.trunk.embedding_dropout)
    return trunk

  def _skipped(self, config: dict) -> int:
    """Rows of the position table before the first token's."""
    return config["pad_token_id"] + 1 if self.counts_from_padding else 0

  def _labeled_head(self, config: dict, weights: Weights, own: ModelConfig | None) -> Any:
    """The head of a class with known inputs; in our own folders, as we saved it."""
    architecture = labels.architecture_of(config)
    kind = architecture.removeprefix(self.classes)
    if own and own.head and kind == labels.token_class(own.head)[0]:
      name = f"{labels.token_class(own.head)[1]}.weight"
      if name in weights.shapes and labels.outputs_of(weights, name) == own.head.num_classes:
        return own.head
    if kind not in ("ForMultipleChoice", "ForSequenceClassification", "ForTokenClassification"):
      return None
    chooses, tags = kind == "ForMultipleChoice", kind == "ForTokenClassification"
    name = "classifier" if chooses or tags else self.classifier[1]
    if f"{name}.weight" not in weights.shapes:
      raise InputError(f"architectures: {architecture} has an array {name}.weight, the file none")
    outputs = labels.outputs_of(weights, f"{name}.weight")
    rate = config.get(self.head_dropout)
    settings: dict[str, Any] = {"dropout": 0.1 if rate is None else rate}
    if tags:
      return TagHead(outputs, **settings)
    saved = own and own.head
    if saved and not saved.per_token and chooses == (saved.pooling == "per_choice"):
      if chooses or saved.num_classes == outputs:
        return saved
    if chooses:  # of any number of options
      return ClassifyHead(2, "per_choice", transform="pooler", **settings)
    settings["transform"] = "dense" if self.classifier[0] else "pooler"
    return labels.sequence_head(config, outputs, **settings)

  def rows(self, spec: ModelConfig) -> int:
    return spec.trunk.vocab_size + spec.trunk.special_tokens

  def arrays(self, spec: ModelConfig, config: dict) -> list[Array]:
    trunk, rows = spec.trunk, self.rows(spec)
    d, e, skipped = trunk.width, trunk.table_width, self._skipped(config)
    table = (trunk.rows, e)
    positions, types = (trunk.context, e), (trunk.token_types, e)
    stored = (trunk.context + skipped, e)
    arrays = [
      Array(TOKENS, "trunk/tokens", (rows, e), table, np.s_[:rows]),
      Array(POSITIONS, "trunk/positions", stored, positions, skipped=skipped),
      # Their classes always have the table of types: a row of zeros changes no sum.
      Array(TYPES, "trunk/types", types, types) if types[0] else Array(TYPES, "", (1, e), ()),
      *norm("embeddings.LayerNorm", "trunk/embedding_norm", e),
    ]
    if self.shared:
      arrays += dense("encoder.embedding_hidden_mapping_in", "trunk/embedding_map", e, d)
    for i in range(trunk.blocks):
      arrays += self._block(trunk, i)
    if trunk.pooler:
      arrays += dense(self.pooler, "trunk/pooler", d, d)
    return arrays + self._heads(spec, rows)

  def _block(self, trunk: TransformerConfig, i: int) -> list[Array]:
    d, h = trunk.width, trunk.heads
    *qkv, out, attention_norm, mlp_in, mlp_out, mlp_norm = (
      self.layer.format(i) + name for name in self.block.split()
    )
    ours, k = f"trunk/block_{i}", d // h
    kernel, bias = f"{ours}/attention/qkv/kernel", f"{ours}/attention/qkv/bias"
    arrays = []
    for n, name in enumerate(qkv):
      # Their three matrices are slices of our one.
      slices = (d, 3, h, k), np.s_[:, n]
      arrays.append(Array(f"{name}.weight", kernel, (d, d), *slices, transposed=True))
      arrays.append(Array(f"{name}.bias", bias, (d,), (3, h, k), np.s_[n]))
    return [
      *arrays,
      Array(f"{out}.weight", f"{ours}/attention/out/kernel", (d, d), (h, k, d), transposed=True),
      Array(f"{out}.bias", f"{ours}/attention/out/bias", (d,), (d,)),
      *norm(attention_norm, f"{ours}/attention_norm", d),
      *dense(mlp_in, f"{ours}/mlp/in", d, 4 * d),
      *dense(mlp_out, f"{ours}/mlp/out", 4 * d, d),
      *norm(mlp_norm, f"{ours}/mlp_norm", d),
    ]

  def _heads(self, spec: ModelConfig, rows: int) -> list[Array]:
    d, e = spec.trunk.width, spec.trunk.table_width
    arrays = []
    for head in spec.heads:
      if head.scope == "masked":
        transform, head_norm, bias, _ = self.masked
        arrays += dense(transform, "masked/transform", d, e)
        arrays += norm(head_norm, "masked/norm", e)
        arrays.append(Array(bias, "masked/bias", (rows,), (spec.trunk.rows,), np.s_[:rows]))
      elif head.scope == "sentence_pair":
        arrays += dense(self.pair, "sentence_pair", d, 2)
      elif name := labels.token_class(head)[1]:
        arrays += dense(name, head.scope, d, head.num_classes)
      elif not head.labeled:  # a contrastive head has no arrays
        continue
      elif head.pooling == "per_choice":
        # A layer of the head's own is where this class has the pooler, which computes the same.
        arrays += dense(self.pooler, "head/dense", d, d) if head.transform == "dense" else []
        arrays += dense("classifier", "head", d, 1)
      else:
        first, last = self.classifier
        arrays += dense(first, "head/dense", d, d) if first else []
        arrays += dense(last, "head", d, head.num_classes)
    return arrays

  def declines(self, spec: ModelConfig, meta: dict, tokenizer: Tokenizer) -> str:
    trunk, holds = spec.trunk, "of bidirectional models it holds BERT, RoBERTa and ALBERT"
    if "blocks" not in trunk.gives:
      return f"{holds}, this is a {type(trunk).__name__}"
    if trunk.attention_bias is not None or not trunk.learned_positions or trunk.norm == "pre":
      return f"{holds}, which are post-norm and have learned positions"
    if not trunk.embedding_norm:
      return f"{holds}, which normalize the sum of the embeddings"
    if {trunk.shared_layers, trunk.table_width != trunk.width} != {self.shared}:
      has = "has shared layers and" if self.shared else "has neither shared layers nor"
      return f"{self.classes} {has} narrower embeddings"
    head = spec.head
    if reason := declines_head(head) or self.is_like(spec, tokenizer):
      return reason
    if reason := self._other_activation(spec):
      return reason
    if head and meta.get("sequence_format", self.format) != self.format:
      name = meta["sequence_format"].get("type")
      return f"{self.classes}'s head reads the first token, and this model's sequences are {name}"
    if head and not head.per_token:
      transforms = ["dense"] if self.classifier[0] else ["pooler"]
      if self.classifier[0] and head.pooling == "per_choice":
        transforms.append("pooler")
      if head.transform not in transforms:
        wanted = " or ".join(transforms)
        return f"{self.classes}'s head has transform={wanted}, this one's is {head.transform}"
    return ""

  def config(self, spec: ModelConfig, tokenizer: Tokenizer, task: Task | None) -> dict[str, Any]:
    trunk, head, special = spec.trunk, spec.head, tokenizer.special
    config: dict[str, Any] = {
      "architectures": [self.classes + self._suffix(spec)],
      "model_type": self.model_type,
      "vocab_size": self.rows(spec),
      "hidden_size": trunk.width,
      "num_hidden_layers": trunk.layers,
      "num_attention_heads": trunk.heads,
      "intermediate_size": 4 * trunk.width,
      "hidden_act": their_activation(ACTIVATIONS, trunk.activation),
      "hidden_dropout_prob": trunk.residual_dropout,
      "attention_probs_dropout_prob": trunk.attention_dropout,
      "type_vocab_size": trunk.token_types or 1,
      "layer_norm_eps": trunk.norm_epsilon,
      "initializer_range": 0.02,
      "tie_word_embeddings": True,
      "pad_token_id": special["pad"] if "pad" in special else 0,
      "bos_token_id": special["cls"] if "cls" in special else None,
      "eos_token_id": special["sep"] if "sep" in special else None,
    }
    # RoBERTa has 514 rows for 512 positions: the first two are of padding.
    config["max_position_embeddings"] = trunk.context + self._skipped(config)
    if self.shared:
      config |= {"embedding_size": trunk.table_width, "num_hidden_groups": 1, "inner_group_num": 1}
    if head:
      config[self.head_dropout] = head.dropout
    if head and (head.per_token or head.pooling != "per_choice"):
      config |= labels.label_settings(head, task)
    return config

  def _suffix(self, spec: ModelConfig) -> str:
    head, scopes = spec.head, [head.scope for head in spec.heads]
    if head and head.per_token:
      return labels.token_class(head)[0]
    if head:
      return "ForMultipleChoice" if head.pooling == "per_choice" else "ForSequenceClassification"
    if "sentence_pair" in scopes:
      return "ForPreTraining" if "masked" in scopes else "ForNextSentencePrediction"
    return "ForMaskedLM" if "masked" in scopes else "Model"

  def template(self, spec: ModelConfig, tokenizer: Tokenizer) -> Template | None:
    names = {*self.around.single, *self.around.pair} - {"A", "B"}
    if not names <= {*tokenizer.special}:
      return None
    return self.around._replace(types=spec.trunk.token_types > 1)

  def describe(self, spec: ModelConfig, tokenizer: Tokenizer) -> list[str]:
    template = self.template(spec, tokenizer)
    read_at = "each token" if spec.head.per_token else "the first token"
    if template is None:
      return [f"The score is read at {read_at} of a sequence."]
    spelled = {name: tokenizer.spelling(i) for name, i in tokenizer.special.items()}

    def written(names: tuple[str, ...]) -> str:
      return " ".join(spelled.get(name, name) for name in names)  # "A" and "B" are texts

    single, pair = written(template.single), written(template.pair)
    types = " Its token types tell the two texts apart." if template.types else ""
    return [
      f"A text A is written as `{single}`, two texts as `{pair}`; the tokenizer does so.{types} "
      f"The score is read at {read_at}; pad after the last, with an `attention_mask`."
    ]


def _is_bert(spec: ModelConfig, tokenizer: Tokenizer) -> str:
  """Two texts with types, a trained pooler."""
  trunk = spec.trunk
  # A padding token is all that RoBERTa's classes need besides.
  if not trunk.token_types and not trunk.pooler and "pad" in tokenizer.special:
    return "a model without types and pooler is a RoBERTa"
  return ""


def _is_roberta(spec: ModelConfig, tokenizer: Tokenizer) -> str:
  """No types, no pooler that was trained, a classifier of its own."""
  trunk = spec.trunk
  if any(head.scope == "sentence_pair" for head in spec.heads):
    return "RoBERTa has no sentence-pair head"
  reads_pooler = spec.head is not None and "pooler" in spec.head.reads
  if trunk.token_types > 1 or trunk.pooler and not reads_pooler:
    return "RoBERTa has neither token types nor a trained pooler"
  if "pad" not in tokenizer.special:
    return "RoBERTa's positions are counted from a padding token, and the vocabulary has no pad"
  return ""


def _is_albert(spec: ModelConfig, tokenizer: Tokenizer) -> str:
  """One block for all layers, narrower embeddings, sentence order."""
  scopes = [head.scope for head in spec.heads]
  if "sentence_pair" in scopes and "masked" not in scopes:
    return "transformers has no ALBERT with a sentence-pair head alone"
  return ""


FAMILIES: tuple[EncoderFamily, ...] = (
  EncoderFamily(
    "albert",
    "Albert",
    _is_albert,
    ("predictions.dense", "predictions.LayerNorm", "predictions.bias", "predictions.decoder"),
    # One group of one block, stored once whatever the number of layers.
    layer="encoder.albert_layer_groups.0.albert_layers.0.",
    block=(
      "attention.query attention.key attention.value attention.dense attention.LayerNorm ffn "
      "ffn_output full_layer_layer_norm"
    ),
    pooler="pooler",
    pair="sop_classifier.classifier",
    head_dropout="classifier_dropout_prob",
    shared=True,
  ),
  EncoderFamily(
    "bert",
    "Bert",
    _is_bert,
    (
      "cls.predictions.transform.dense",
      "cls.predictions.transform.LayerNorm",
      "cls.predictions.bias",
      "cls.predictions.decoder",
    ),
    pair="cls.seq_relationship",
  ),
  # No token reads the first two rows of positions, which begin after the padding token's id.
  EncoderFamily(
    "roberta",
    "Roberta",
    _is_roberta,
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder"),
    masked_activation="gelu",
    classifier=("classifier.dense", "classifier.out_proj"),
    around=Template(("cls", "A", "sep"), ("cls", "A", "sep", "sep", "B", "sep")),
    format={"type": "roberta_format"},
    init="normal",
    keeps_pooler=False,
    counts_from_padding=True,
  ),
)
# Written as a RoBERTa, which it is but for its vocabulary.
FAMILIES += (dataclasses.replace(FAMILIES[-1], model_type="xlm-roberta", classes="XLMRoberta"),)
