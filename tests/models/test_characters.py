"""Tokens read as characters: the table of bytes, and the convolution against NumPy."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy_lstm import sigmoid
from numpy_transformer import random_params
from plain_rows import plain_rows
from refused import refused

from gpt_jax.config import difference, from_json, to_json
from gpt_jax.models.characters import CharacterConfig, character_table
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.programs.config_files import describe_config

SMALL = CharacterConfig(width=5, filters=(3, 2, 4), places=9, highways=2)
SIZES = {"context": 32, "embedding_width": 6, "units": (8,), "projection": 6}
TRUNK = LSTMStackConfig(**SIZES, directions="separate", characters=SMALL, tied=False)


def test_a_piece_is_its_bytes_between_marks(tiny_tokenizer):
  trunk = TRUNK.with_vocabulary(tiny_tokenizer)
  size, special = tiny_tokenizer.vocab_size, tiny_tokenizer.special
  table = character_table(trunk.characters, size, trunk.rows)
  (the,) = tiny_tokenizer.encode("the").tolist()
  assert tiny_tokenizer.piece(the) == "▁the"
  assert table[the].tolist() == [258, 0xE2, 0x96, 0x81, *b"the", 259, 260]
  assert table[special.start].tolist() == [256, *b"<start>"[:7], 257]
  # The name of a special token is cut where the places end.
  assert table[special.extract].tolist() == [256, *b"<extrac"[:7], 257]
  assert (table[size + special.count :] == 260).all()
  assert from_json(to_json(trunk)) == trunk
  # With other special tokens the pieces are theirs.
  further = trunk.with_vocabulary(tiny_tokenizer.with_special("mask"))
  assert further.characters.pieces == (*trunk.characters.pieces, "<mask>")


def numpy_characters(p, characters):
  """The embedding [E] of the characters [L] of one piece, filter by filter."""
  x, found = p["embedding"][characters].astype(np.float64), []
  for width in range(1, 4):
    if f"width_{width}" not in p:
      continue
    kernel, bias = p[f"width_{width}"]["kernel"], p[f"width_{width}"]["bias"]
    for f in range(kernel.shape[-1]):
      places = [
        (x[place : place + width] * kernel[..., f]).sum() + bias[f]
        for place in range(len(x) - width + 1)
      ]
      found.append(max(0, max(places)))
  y = np.array(found)
  for number in range(2):
    layer = p[f"highway_{number}"]
    gate = sigmoid(y @ layer["gate"]["kernel"] + layer["gate"]["bias"] - 2)
    made = np.maximum(0, y @ layer["make"]["kernel"] + layer["make"]["bias"])
    y = gate * made + (1 - gate) * y
  return y @ p["project"]["kernel"] + p["project"]["bias"]


@pytest.mark.parametrize("filters", [SMALL.filters, (0, 5, 4)])
def test_convolution_and_highways_equal_numpy(tiny_tokenizer, filters):
  characters = dataclasses.replace(SMALL, filters=filters)
  trunk = dataclasses.replace(TRUNK, characters=characters).with_vocabulary(tiny_tokenizer)
  module, ids = trunk.build("bidirectional"), np.array([[3, 290, 17, 17, 101, 9, 8, 292]], np.int32)
  rows = plain_rows(ids)
  params = random_params(ModelConfig(trunk, (), "bidirectional"), 0.5)["trunk"]
  read = jax.jit(lambda params: module.apply({"params": params}, rows, layers=True).layers[0])
  table = character_table(trunk.characters, trunk.vocab_size, trunk.rows)
  own = jax.tree.map(np.asarray, params["characters"])
  assert [f"width_{n}" in own for n in (1, 2, 3)] == [count > 0 for count in filters]
  wanted = [numpy_characters(own, table[i]) for i in ids[0]]
  # Layer 0 is the same for both directions.
  np.testing.assert_allclose(read(params)[0], np.tile(wanted, 2), rtol=2e-5, atol=2e-5)


def test_parameter_counts(tiny_tokenizer):
  trunk = TRUNK.with_vocabulary(tiny_tokenizer)
  shapes = parameter_shapes(ModelConfig(trunk, (), "bidirectional"))
  unused = (trunk.rows - trunk.vocab_size) * shapes["trunk/output"][1]
  assert sum(map(np.prod, shapes.values())) - unused == trunk.parameter_count()
  paths = [path.removeprefix("trunk/") for path in shapes if "characters" in path]
  assert set(map(trunk.depth, paths)) == {0}
  # Peters et al. 2018; the parts are those of SIZES in allenai/bilm-tf.
  assert CharacterConfig(highways=0)._per_place() == 199_168
  elmo = CharacterConfig()
  convolution = 261 * 16 + 199_168
  assert elmo.parameter_count(512) == convolution + 16_785_408 + 1_049_088


def test_settings_that_do_not_fit():
  for filters in ((), (0, 0)):
    refused(r"characters\.filters: there is none", dataclasses.replace, SMALL, filters=filters)
  message = r"trunk\.tied: there is no table .* trunk\.characters"
  refused(message, dataclasses.replace, TRUNK, tied=True)


def test_listings_leave_the_pieces_out(tiny_tokenizer):
  config = TRUNK.with_vocabulary(tiny_tokenizer)
  assert "characters.places" in describe_config(config)
  assert "pieces" not in describe_config(config)
  lines = difference(config, TRUNK.with_vocabulary(tiny_tokenizer.with_special("mask")))
  (line,) = [line for line in lines if line.startswith("characters.pieces: ('<unk>', ")]
  assert len(line) < 500
