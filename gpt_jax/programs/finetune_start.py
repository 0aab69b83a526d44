"""Start of a fine-tuning run: a checkpoint, or an untrained trunk and a vocabulary."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.config import field_values, from_json
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.errors import InputError, counted
from gpt_jax.files import absolute
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.start import Start, changed_fields, runtime_fields
from gpt_jax.tasks.formats import Format, GPTFormat, TextToText


def load_start(
  config: FinetuneConfig, pretrained: str, tokenizer: str, set_fields: Sequence[str] = ()
) -> Start:
  """The checkpoint to start from, or for "none" the config's trunk and the tokenizer in a folder.

  Args:
    set_fields: dotted names of fields that count as set, also at their default, which otherwise
      leaves a dtype or dropout to the checkpoint.
  """
  if pretrained == "none":
    for method in config.methods:
      if method.reads_checkpoint:
        raise InputError(f"checkpoint=none: {method.slot} needs {method.reads_checkpoint}")
    return _start_from_scratch(config, tokenizer)
  if tokenizer:
    raise InputError(
      "--tokenizer is for --checkpoint=none; a checkpoint brings its own: leave it out"
    )
  loaded = load_model(pretrained)
  # A GPT's classifier of others reads bare texts; the new head reads them as ours do.
  format = loaded.format.of_window if loaded.format.special else GPTFormat()
  whole = loaded.spec
  for method in config.methods:
    loaded = method.change_loaded(loaded)
  if loaded.spec != whole:
    format = from_json(loaded.spec.trunk.format)
  trunk = _with_runtime_fields(loaded.spec.trunk, config.trunk, set_fields)
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
    format,
    absolute(pretrained),
    loaded.step,
  )
  return _with_methods(config, start, loaded)


def _with_methods(config: FinetuneConfig, start: Start, loaded: LoadedModel | None) -> Start:
  for method in config.methods:
    start = dataclasses.replace(start, format=method.change_format(start.format))
    start = method.change_start(start, loaded, config)
  return start


def _with_runtime_fields(trunk: Any, config: Any, set_fields: Sequence[str]) -> Any:
  """The trunk with its runtime fields, such as dtype, where `config` sets them."""
  theirs = runtime_fields(trunk)
  was_set = {name.removeprefix("trunk.") for name in set_fields if name.startswith("trunk.")}
  was_set |= changed_fields(config, FinetuneConfig.trunk).keys()
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
  if not tokenizer:
    raise InputError(
      "--checkpoint=none needs --tokenizer=DIR, the folder of a vocabulary "
      "(DIR/tokenizer of prepare)"
    )
  format: Format = from_json(config.trunk.format)
  attention = config.trunk.default_attention
  if config.task.writes_text:
    attention, format = _writing(config.trunk, attention, "none")
  vocabulary = load_tokenizer(tokenizer).with_special(*format.special)
  trunk = config.trunk.with_vocabulary(vocabulary)
  return _with_methods(config, Start(trunk, attention, vocabulary, format=format), None)


def _writing(trunk: Any, attention: str, checkpoint: str) -> tuple[str, Format]:
  """The attention and the format with which a trunk learns to write answers."""
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
  return "pooler" if "pooler" in start.trunk.gives else start.format.head_transform
