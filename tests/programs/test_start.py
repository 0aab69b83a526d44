"""Continued pre-training with more special tokens than the checkpoint has."""

import types
from typing import Any

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.heads.masked import MaskedHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.pretrain_start import load_pretrain_start
from gpt_jax.training.step import TrainState

MORE = tuple(f"more_{i}" for i in range(200))  # more than fit into the padding of a table


@pytest.mark.parametrize(
  ("trunk", "head", "attention", "tables"),
  [
    (
      TransformerConfig(context=16, layers=1, width=16, heads=2, pooler=True),
      MaskedHead(),
      "bidirectional",
      ["trunk/tokens", "masked/bias"],
    ),
    (
      T5Config(context=16, layers=1, width=16, heads=2, head_width=8, units=16, version="1.1"),
      LanguageHead(),
      "causal",
      ["trunk/tokens", "trunk/output"],
    ),
  ],
  ids=["masked", "T5 1.1"],
)
def test_tables_keep_their_rows(trunk, head, attention, tables, make_run, tiny_tokenizer, tmp_path):
  """Of the vocabulary and of trained special tokens; all other rows are as initialized."""
  tokenizer = tiny_tokenizer.with_special("pad", "sep", "mask")
  spec = ModelConfig(trunk.with_vocabulary(tokenizer), (head,), attention)
  format = {"type": "text_to_text"}
  about = {"trained_special": ["mask"], "sequence_format": format}
  folder = make_run(tmp_path / "run", spec, tokenizer=tokenizer, **about)
  objective = types.SimpleNamespace(
    attention=attention, special=MORE, format=format, keeps_format=False
  )
  config: Any = types.SimpleNamespace(trunk=type(trunk)(), objective=objective)
  start = load_pretrain_start(folder, config, tokenizer)
  fresh = make_run.params_of(ModelConfig(start.trunk, (head,), attention), 8)
  trainer: Any = types.SimpleNamespace(shardings=types.SimpleNamespace(params=None))
  after = start.apply(TrainState(0, fresh, None), trainer).params
  before, after, fresh = (
    flatten_dict(params, sep="/") for params in (make_run.params_of(spec, 7), after, fresh)
  )
  known = [*range(tokenizer.vocab_size), tokenizer.special.mask]
  for name, array in after.items():
    values = np.asarray(array)
    if name not in tables:
      np.testing.assert_array_equal(values, before[name], err_msg=name)
      continue
    assert len(values) == start.trunk.rows > len(before[name])
    np.testing.assert_array_equal(values[known], before[name][known], err_msg=name)
    others = np.delete(values, known, axis=0)
    np.testing.assert_array_equal(others, np.delete(fresh[name], known, axis=0), err_msg=name)
