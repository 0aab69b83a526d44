import pytest

from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, make_run, tiny_tokenizer):
  """A checkpoint with random parameters."""
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=64, layers=1, width=32, heads=2)
  return make_run(tmp_path_factory.mktemp("pretrained") / "run", ModelConfig(trunk))
