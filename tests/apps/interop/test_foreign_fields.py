"""Every field that transformers and sentence-transformers write is on a list of fields.py.

A field that a new version brings fails here: read it, refuse it, or name it as without effect.
"""

import inspect
import json

import pytest

from gpt_jax.apps.interop.formats.hf.family import families
from gpt_jax.apps.interop.formats.hf.fields import CONFIG_FIELDS, TOKENIZER_FIELDS, VECTOR_FIELDS

pytestmark = pytest.mark.parity
KINDS = ("Bert", "Roberta", "Albert", "GPT2", "OpenAIGPT", "T5")
# Parameters of a tokenizer's class that no file has: the vocabulary, and what others stand for.
ARGUMENTS = {"self", "vocab", "merges", "kwargs", "_spm_precompiled_charsmap"}


def listed(fields):
  return {*fields.known.split(), *fields.values}


@pytest.mark.parametrize("kind", KINDS)
def test_config_json(kind, tmp_path):
  transformers = pytest.importorskip("transformers")
  config = getattr(transformers, f"{kind}Config")()
  config.save_pretrained(tmp_path)
  written = json.loads((tmp_path / "config.json").read_text())
  assert not {*config.to_dict(), *written} - listed(CONFIG_FIELDS)
  assert CONFIG_FIELDS.unsupported("config.json", config.to_dict()) == ""
  for family in families():
    sizes = dict.fromkeys(family.sizes, 8)
    assert not {*sizes, *dict(family.supported(sizes))} - listed(CONFIG_FIELDS)


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_config_json(kind, tmp_path):
  transformers = pytest.importorskip("transformers")
  cls = getattr(transformers, f"{kind}Tokenizer")
  assert not {*inspect.signature(cls.__init__).parameters} - ARGUMENTS - listed(TOKENIZER_FIELDS)
  cls().save_pretrained(tmp_path)
  written = json.loads((tmp_path / "tokenizer_config.json").read_text())
  assert not written.keys() - listed(TOKENIZER_FIELDS)
  # The files beside it, all of which are read.
  assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}


def test_the_files_of_sentence_transformers():
  library = pytest.importorskip("sentence_transformers")
  from sentence_transformers.base.modules import normalize, transformer
  from sentence_transformers.sentence_transformer.modules import pooling

  known = listed(VECTOR_FIELDS)
  for cls in (transformer.Transformer, pooling.Pooling, normalize.Normalize):
    assert not {*cls.config_keys} - known
  assert (
    not library.SentenceTransformer(modules=[normalize.Normalize()])._get_model_config().keys()
    - known
  )
