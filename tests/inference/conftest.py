import pytest

from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig


@pytest.fixture(scope="module", params=["transformer", "lstm"])
def language_model(request, tmp_path_factory, make_run, tiny_tokenizer):
  """The folder of a run with random parameters."""
  size = tiny_tokenizer.vocab_size
  trunks = {
    "transformer": TransformerConfig(size, context=48, layers=1, width=16, heads=2),
    "lstm": LSTMConfig(size, context=48, width=16, units=24),
  }
  return make_run(tmp_path_factory.mktemp("run"), ModelConfig(trunks[request.param]))
