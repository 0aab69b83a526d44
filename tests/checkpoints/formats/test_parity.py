"""The Transformer against OpenAIGPTLMHeadModel on random weights: logits, loss, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import language_model
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.ops.cross_entropy import logits

pytestmark = pytest.mark.parity

SIZES = {
  "tiny": TransformerConfig(vocab_size=61, context=24, layers=3, width=32, heads=4),
  "one layer as large as GPT-1's": TransformerConfig(vocab_size=40478, context=512, layers=1),
}


@pytest.fixture(scope="module", params=SIZES, ids=["tiny", "real"])
def pair(request):
  """(config, our parameters with perturbed biases and norms, the same in torch, rows of ids)."""
  config = SIZES[request.param]
  rng = np.random.default_rng(0)
  length = config.context + 1 if config.width < 100 else 49
  rows = rng.integers(config.vocab_size, size=(2, length)).astype(np.int32)
  params = language_model(config).init(jax.random.key(0), causal_batch(rows))["params"]
  perturbed = lambda x: np.asarray(x + 0.05 * rng.normal(size=x.shape), np.float32)
  params = jax.tree.map(perturbed, params)
  return config, params, torch_model(config, params), rows


def torch_model(config, params):
  import torch
  from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

  sizes = {
    "n_positions": config.context,
    "n_embd": config.width,
    "n_layer": config.layers,
    "n_head": config.heads,
  }
  model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=config.vocab_size, **sizes)).eval()
  arrays = to_transformers(config, params["trunk"])
  arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
  missing, unexpected = model.load_state_dict(arrays, strict=False)
  assert not unexpected and set(missing) <= {"lm_head.weight", "transformer.position_ids"}
  return model


def to_transformers(config, trunk):
  """transformers' names and shapes; their Conv1D multiplies from the right: no transpose."""
  d = config.width
  arrays = {
    "tokens_embed.weight": trunk["tokens"][: config.vocab_size],
    "positions_embed.weight": trunk["positions"],
  }
  for i in range(config.layers):
    block = trunk[f"block_{i}"]
    for theirs, ours, shape in (
      ("attn.c_attn", block["attention"]["qkv"], (d, 3 * d)),
      ("attn.c_proj", block["attention"]["out"], (d, d)),
      ("mlp.c_fc", block["mlp"]["in"], (d, 4 * d)),
      ("mlp.c_proj", block["mlp"]["out"], (4 * d, d)),
    ):
      arrays[f"h.{i}.{theirs}.weight"] = ours["kernel"].reshape(shape)
      arrays[f"h.{i}.{theirs}.bias"] = ours["bias"].reshape(-1)
    for theirs, ours in (("ln_1", block["attention_norm"]), ("ln_2", block["mlp_norm"])):
      arrays[f"h.{i}.{theirs}.weight"], arrays[f"h.{i}.{theirs}.bias"] = ours["scale"], ours["bias"]
  return {f"transformer.{name}": np.array(array) for name, array in arrays.items()}


def test_logits(pair):
  import torch

  config, params, theirs, rows = pair
  batch = causal_batch(rows)
  hidden, table, *_ = jax.jit(language_model(config).apply)({"params": params}, batch).states
  ours = logits(hidden, table, config.vocab_size)[..., : config.vocab_size]
  with torch.no_grad():
    expected = theirs(torch.from_numpy(batch.rows.inputs).long()).logits.numpy()
  assert expected.std() > 0.1
  np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=0)


def test_loss_and_gradients(pair):
  import torch

  config, params, theirs, rows = pair

  def loss(params):
    return model_loss(language_model(config))(params, causal_batch(rows), None)[0]

  value, gradients = jax.jit(jax.value_and_grad(loss))(jax.tree.map(jnp.asarray, params))
  scores = theirs(torch.from_numpy(rows[:, :-1]).long()).logits
  expected = torch.nn.functional.cross_entropy(
    scores.flatten(0, 1), torch.from_numpy(rows[:, 1:]).long().flatten()
  )
  expected.backward()
  np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
  ours = to_transformers(config, jax.tree.map(np.asarray, gradients)["trunk"])
  found = {name: parameter.grad.numpy() for name, parameter in theirs.named_parameters()}
  assert found.keys() == ours.keys()
  for name, gradient in found.items():
    atol = 1e-5 * max(1, np.abs(gradient).max())
    np.testing.assert_allclose(ours[name], gradient, atol=atol, rtol=1e-3, err_msg=name)
  unused = gradients["trunk"]["tokens"][config.vocab_size :]
  np.testing.assert_array_equal(unused, 0)
