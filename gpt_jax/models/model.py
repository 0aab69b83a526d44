"""Models: a trunk and its heads. Parameters are `{trunk}` and a subtree for each head."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict

from gpt_jax.batch import Batch, Labels, Predictions, Rows, Tags
from gpt_jax.config import from_json, option, register, validate
from gpt_jax.errors import InputError
from gpt_jax.models.heads.head import Head
from gpt_jax.models.trunk import States, TrunkConfig, for_devices
from gpt_jax.ops.dropout import Key


@register("model")
@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """All that is needed to rebuild a model around its parameters; it travels with a checkpoint."""

  trunk: Any = option(None, "config of the trunk, e.g. TransformerConfig")
  heads: tuple[Any, ...] = option(
    (from_json({"type": "language"}),), "what is computed from the hidden states"
  )
  attention: str = option(
    "causal", "what a position attends to", choices=("causal", "bidirectional", "prefix")
  )

  def __post_init__(self):
    validate(self)
    # JSON from elsewhere may hold anything.
    are_heads = all(isinstance(head, Head) for head in self.heads)
    if not isinstance(self.trunk, TrunkConfig) or not are_heads:
      raise InputError("ModelConfig: describes no model that can be built of a trunk and heads")
    if self.trunk.dtype == "auto":
      raise InputError("trunk.dtype=auto: only a training run chooses; name float32 or bfloat16")
    for head in self.heads:
      head.check_trunk(self.trunk)

  @property
  def head(self) -> Any:
    """The head that was trained on labels; None for a pre-trained model."""
    return next((head for head in self.heads if head.labeled), None)

  @property
  def kind(self) -> str:
    """The kind of model, whatever its task, e.g. "language model" or "encoder"."""
    if self.head:
      return "classifier"
    if self.trunk.reads_source:
      return "encoder-decoder"
    if self.attention == "causal":
      return "language model"
    if self.attention == "prefix":
      return "prefix language model"
    masked = any(head.scope == "masked" for head in self.heads)
    return "masked language model" if masked else "encoder"

  @property
  def predicts_tokens(self) -> bool:
    """Whether its loss is nats per token, which the unigram entropy bounds."""
    return any(head.per_token for head in self.heads)

  @property
  def token_metric(self) -> str:
    """The metric of model_loss that is nats per token: with further heads it is not `loss`."""
    first = self.heads[0]
    return "loss" if len(self.heads) == 1 and first.weight == 1 else first.metric

  @property
  def needs_whole_batch(self) -> bool:
    """Whether a loss compares the examples of a batch, so that the batch cannot be split."""
    return any(head.needs_whole_batch for head in self.heads)

  @property
  def num_tokens(self) -> int:
    """Ids that can be predicted: logits of the table's other rows are masked.

    Special tokens are predicted in labeled examples (openai/train.py:174-178), in the targets of an
    encoder-decoder, which end with one, and by a language head that says so.
    """
    head_does = any(head.special_tokens for head in self.heads)
    predicted = self.head or self.trunk.reads_source or head_does
    return self.trunk.vocab_size + (self.trunk.special_tokens if predicted else 0)

  @property
  def gives_text_probability(self) -> bool:
    """Whether it predicts every token of a text from those before it."""
    return self.attention == "causal" and self.predicts_tokens and not self.trunk.reads_source

  def with_trunk_dropout(self, rate: float) -> "ModelConfig":
    """The model with another rate for each dropout that its trunk has; 0: the trunk computes the
    same features at every step.
    """
    values = vars(self.trunk)
    rates = {name: rate for name, value in values.items() if name.endswith("_dropout") and value}
    return dataclasses.replace(self, trunk=dataclasses.replace(self.trunk, **rates))

  def build(self, remat: str = "none") -> "Model":
    """remat: what the blocks keep for the backward pass, see trunk.POLICIES."""
    return Model(self, remat)


def smallest_batch(spec: ModelConfig) -> Batch:
  """A batch of one row of two tokens, with all that any head reads."""
  ids, numbers = np.zeros((1, 2), np.int32), np.zeros((1, 2), np.float32)
  return Batch(
    Rows(ids, ids, ids),
    predictions=Predictions(ids, numbers, ids),
    labels=Labels(ids[:, :1], numbers, numbers[:, 0]),
    tags=Tags(ids, numbers),
    source=Rows(ids, ids) if spec.trunk.reads_source else None,
  )


def parameter_shapes(spec: ModelConfig) -> dict[str, tuple[int, ...]]:
  """The shape of every parameter, by its path; nothing is allocated."""
  # No shape of a parameter depends on the batch.
  batch = smallest_batch(spec)
  params = jax.eval_shape(spec.build().init, jax.random.key(0), batch)["params"]
  return {name: x.shape for name, x in flatten_dict(params, sep="/").items()}


def make_heads(trees: Sequence[dict]) -> tuple[Any, ...]:
  """The heads that JSON configs name. Raises InputError at an unknown name or field."""
  return tuple(from_json(tree) for tree in trees)


class Outputs(NamedTuple):
  """Outputs of a model: the trunk's states, and each head's outputs in the heads' order."""

  states: States
  heads: tuple[Any, ...]


class Model(nn.Module):
  """A trunk, and heads that read its hidden states."""

  config: ModelConfig
  remat: str = "none"

  def setup(self):
    # The type is chosen anew on each machine; the config that travels with the checkpoint keeps its
    # own.
    trunk = for_devices(self.config.trunk)
    self.trunk = trunk.build(self.config.attention, self.remat)
    for head in self.config.heads:
      # The name of the attribute is that of the parameters' subtree beside `trunk`.
      setattr(self, head.scope, head.build(trunk))

  def __call__(self, batch: Batch, key: Key | None = None, layers: bool = False) -> Outputs:
    """key: dropout key; None evaluates. layers: whether States.layers is wanted."""
    trunk_key, head_keys = _split(key, self.config.heads)
    # Else no step keeps them.
    layers = layers or any("layers" in head.reads for head in self.config.heads)
    if batch.source is None:
      states = self.trunk(batch.rows, trunk_key, layers=layers)  # hidden [B, T, D], table [R, D]
    elif self.config.trunk.reads_source:
      states = self.trunk(batch.rows, trunk_key, batch.source, layers=layers)
    else:
      raise InputError("trunk: reads no source, and these inputs have one; T5Config reads it")
    outputs = []
    for head, head_key in zip(self.config.heads, head_keys, strict=True):
      module = getattr(self, head.scope)
      outputs.append(module(states, batch, head_key))
    return Outputs(states, tuple(outputs))

  def states(self, rows: Rows, key: Key | None = None, layers: bool = False) -> States:
    """The trunk alone; see trunk.Trunk."""
    return self.trunk(rows, key, layers=layers)

  def start(self, batch_size: int, length: int | None = None, **of_source):
    """See trunk.Trunk; of_source: `source_length` of an encoder-decoder."""
    return self.trunk.start(batch_size, length, **of_source)

  def read_prompt(self, inputs, valid, **of_source):
    """See trunk.Trunk; of_source: `source` of an encoder-decoder."""
    return self.trunk.read_prompt(inputs, valid, **of_source)

  def extend(self, inputs, positions, valid, state):
    """See trunk.Trunk."""
    return self.trunk.extend(inputs, positions, valid, state)

  @property
  def num_tokens(self) -> int:
    """Rows of the table that are tokens; the logits of all others are masked."""
    return self.config.num_tokens


def _split(key: Key | None, heads: Sequence[Head]) -> tuple[Key | None, list[Key | None]]:
  """The keys of the trunk and of each head. Without a labeled head all get `key` itself."""
  if key is None or not any(head.labeled for head in heads):
    return key, [key] * len(heads)
  # Fold 0 is the trunk's, 1 that of the first labeled head, and so on. The heads of pre-training
  # in heads/ drop nothing, so what key they get does not matter.
  folds = itertools.count(1)
  keys: list[Key | None] = [key.fold(next(folds)) if head.labeled else key for head in heads]
  return key.fold(0), keys


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
  return Model(ModelConfig(spec.trunk, heads or ModelConfig.heads, spec.attention))
