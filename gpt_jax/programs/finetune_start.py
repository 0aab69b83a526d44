"""Start of a fine-tuning run: a checkpoint, or an untrained trunk and a vocabulary."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import field_values, from_json, to_json
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.word_vectors import read_word_vectors
from gpt_jax.errors import InputError, counted
from gpt_jax.files import absolute
from gpt_jax.programs.config_files import overridden
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_teacher import student_start
from gpt_jax.programs.start import Start, changed_fields, runtime_fields
from gpt_jax.tasks.formats import Format, GPTFormat, TextToText

WORD_VECTORS = "trunk/tokens"  # the parameter whose rows a file of word vectors gives


def load_start(config: FinetuneConfig, pretrained: str, tokenizer: str) -> Start:
  """The checkpoint to start from, or for "none" the config's trunk and the tokenizer in a folder.

  Raises:
    InputError: a tokenizer is missing or superfluous, or the config does not fit the checkpoint.
  """
  if pretrained == "none":
    return _start_from_scratch(config, tokenizer)
  if tokenizer:
    raise InputError(
      "--tokenizer is for --checkpoint=none; a checkpoint brings its own: leave it out"
    )
  loaded = load_model(pretrained)
  # A GPT's classifier of others reads bare texts; the new head reads them as ours do.
  format = loaded.format.of_window if loaded.format.special else GPTFormat()
  reads_encoder = config.mix is not None and config.mix.labeled
  if reads_encoder and loaded.spec.trunk.decoder:
    loaded = loaded.encoder_alone()
    format = from_json(loaded.spec.trunk.format)
  trunk = _with_runtime_fields(loaded.spec.trunk, config.trunk)
  if _sets_sizes(config.trunk, trunk) and config.trunk != trunk:
    raise InputError(
      "config.trunk is for --checkpoint=none; a checkpoint brings its own: leave these settings out"
    )
  blocks = trunk.layers
  if (config.transfer_layers or 0) > blocks:
    raise InputError(
      f"transfer_layers={config.transfer_layers}: the checkpoint has {counted(blocks, 'block')}; "
      "none takes all"
    )
  attention = loaded.spec.attention
  if config.task.writes_text:
    attention, format = _writing(loaded.spec.trunk, attention, pretrained)
  tokenizer_of_format = loaded.tokenizer.with_special(*format.special)
  trunk = trunk.with_vocabulary(tokenizer_of_format)
  start = Start(
    trunk,
    attention,
    tokenizer_of_format,
    # The zeros are not used: Start.apply takes trained rows, and keeps the run's own others.
    loaded.params_with_rows(trunk.rows),
    tuple(loaded.meta.get("trained_special", ())),
    loaded.identity,
    _in_windows(config, format),
    absolute(pretrained),
    loaded.step,
  )
  return start if config.distill is None else student_start(config, start, loaded)


def _with_runtime_fields(trunk: Any, config: Any) -> Any:
  """The trunk with its runtime fields, such as dtype, where `config` sets them."""
  theirs = runtime_fields(trunk)
  was_set = overridden(config) | changed_fields(config, FinetuneConfig.trunk).keys()
  changes = {}
  for field, value in field_values(config):
    if field.name in theirs and field.name in was_set:
      changes[field.name] = value
  return dataclasses.replace(trunk, **changes)


def _sets_sizes(config: Any, trunk: Any) -> bool:
  """Whether the config sets fields that are runtime fields neither of its trunk nor of `trunk`."""
  changed = changed_fields(config, FinetuneConfig.trunk).keys()
  return bool(changed - runtime_fields(config).keys() - runtime_fields(trunk).keys())


def _start_from_scratch(config: FinetuneConfig, tokenizer: str) -> Start:
  if config.distill is not None:
    raise InputError("--checkpoint=none: distill needs a teacher, a fine-tuned classifier")
  if not tokenizer:
    raise InputError(
      "--checkpoint=none needs --tokenizer=DIR, the folder of a vocabulary "
      "(DIR/tokenizer of prepare)"
    )
  format: Format = from_json(config.trunk.format)
  attention = config.trunk.attention
  if config.task.writes_text:
    attention, format = _writing(config.trunk, attention, "none")
  vocabulary = load_tokenizer(tokenizer).with_special(*format.special)
  trunk = config.trunk.with_vocabulary(vocabulary)
  return Start(trunk, attention, vocabulary, format=_in_windows(config, format))


def _in_windows(config: FinetuneConfig, format: Format) -> Format:
  if not config.windows:
    return format
  if format.writes_answers:
    raise InputError(
      f"windows={config.windows}: a text-to-text model writes its labels, and reads no windows; "
      "leave windows empty"
    )
  stride = config.window_stride
  return from_json({"type": "windowed_format", "format": to_json(format), "stride": stride})


def load_word_vectors(
  config: FinetuneConfig, start: Start, shapes: Mapping[str, tuple[int, ...]]
) -> np.ndarray:
  """The rows of the vocabulary in the trunk's table of embeddings, float32 [V, E].

  Args:
    shapes: of the model's parameters.

  Raises:
    InputError: there is a checkpoint, or no such table, or what read_word_vectors raises.
  """
  if start.params is not None:
    raise InputError("word_vectors: is for --checkpoint=none; a checkpoint brings its embeddings")
  if WORD_VECTORS not in shapes:
    raise InputError("word_vectors: the trunk reads characters, and has no table of embeddings")
  return read_word_vectors(config.word_vectors, start.tokenizer, shapes[WORD_VECTORS][1])


def apply_word_vectors(vectors: np.ndarray, state: Any, trainer: Any) -> Any:
  """The first state with these rows in the trunk's table of embeddings."""
  params, sharding = state.params, trainer.shardings.params["trunk"]["tokens"]
  place = jax.jit(lambda table: table.at[: len(vectors)].set(vectors), out_shardings=sharding)
  tokens = place(params["trunk"]["tokens"])
  return state._replace(params={**params, "trunk": {**params["trunk"], "tokens": tokens}})


def _writing(trunk: Any, attention: str, checkpoint: str) -> tuple[str, Format]:
  """The attention and the format with which a trunk learns to write answers.

  Raises:
    InputError: it has seen what follows, so it cannot write from left to right.
  """
  if attention == "bidirectional":
    raise InputError(
      f"checkpoint={checkpoint}: has bidirectional attention, and a task that is answered in "
      "text needs a model that writes from left to right, such as GPT's or T5's"
    )
  return trunk.writing_attention, TextToText()


def transform_of(start: Start) -> str:
  """The transform before W_y (see ClassifyHead.transform): BERT's pooler where the trunk has one,
  RoBERTa's dense layer, or none.
  """
  return "pooler" if start.trunk.pooler else start.format.head_transform
