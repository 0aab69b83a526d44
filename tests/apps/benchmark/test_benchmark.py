"""The benchmark at a size that takes seconds: its parts, rates, and matrix products."""

import contextlib
import dataclasses
import io
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax.apps import timing
from gpt_jax.apps.benchmark import benchmark, training
from gpt_jax.apps.benchmark.peers import plain_gpt, training_steps
from gpt_jax.apps.benchmark.training import matrix_products, random_batch
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.files import read_json
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.reporter import PEAK_FLOPS

CONFIG = PretrainConfig(
  TransformerConfig(vocab_size=50, context=24, layers=1, width=16, heads=2),
  data=WindowsConfig(batch_size=8, length=16),
)
LSTM = PretrainConfig(LSTMConfig(vocab_size=50, context=24, width=8, units=8), data=CONFIG.data)
FLOPS = 8 * 16 * CONFIG.trunk.flops_per_token(16)  # of a step


def call_once(patch):
  """Every call is made once, and takes 0.5 s."""
  patch.setattr(timing, "ROUNDS", 1)
  patch.setattr(timing, "seconds", lambda run: (run(), 0.5)[1])


@pytest.fixture
def config(monkeypatch):
  call_once(monkeypatch)
  return CONFIG


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
  """The default parts, measured once. Attributes: rows, saved, lines."""
  out = str(tmp_path_factory.mktemp("parts") / "out.json")
  with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
    call_once(patch)
    peak = FLOPS / jax.device_count()  # of a device that takes one second
    patch.setitem(PEAK_FLOPS, jax.devices()[0].device_kind, peak)
    rows = benchmark.run(CONFIG, out=out)
  return SimpleNamespace(rows=rows, saved=read_json(out), lines=printed.getvalue().splitlines())


def test_the_parts_measure(parts):
  assert {row.part for row in parts.rows} == {"step", "generation"}
  assert all(np.isfinite(row.value) and row.value > 0 for row in parts.rows)
  assert [tuple(row.values()) for row in parts.saved["rows"]] == [tuple(row) for row in parts.rows]
  assert len(parts.lines) == len(parts.rows) + 1
  assert f"jax {jax.__version__}, jaxlib " in parts.lines[0]
  assert f", processor {parts.saved['processor']}, " in parts.lines[0]


def test_rates_follow_from_times(parts):
  rates = {row.name: row.value for row in parts.rows if row.part == "step"}
  assert rates["time of a step"] == 0.5
  assert rates["tokens"] == 8 * 16 / 0.5
  np.testing.assert_allclose(rates["work, attention counted whole"], FLOPS / 0.5 / 1e9)
  assert rates["MFU"] == pytest.approx(200)
  # All products in turn take 0.5 s each, as the step does.
  products = matrix_products(CONFIG, jax.device_count())
  count = sum(product.times for product in products)
  work = jax.device_count() * sum(product.times * product.flops for product in products)
  assert rates["matrix products alone, float32"] == pytest.approx(work / (0.5 * count) / 1e9)
  assert rates["share of that peak, float32"] == pytest.approx(100 * FLOPS * count / work)


@pytest.mark.parametrize("batch, length", [(1, 512), (64, 512), (3, 128)])
def test_the_matrix_products_are_the_work_of_a_step(batch, length):
  config = PretrainConfig(
    TransformerConfig(vocab_size=40478), data=WindowsConfig(batch_size=batch, length=length)
  )
  work = sum(product.times * product.flops for product in matrix_products(config, devices=1))
  # The formula also counts biases, norms and positions as if they were matrices: under 1 %.
  np.testing.assert_allclose(work, batch * length * config.trunk.flops_per_token(length), rtol=0.01)


def test_another_trunk_is_measured_without_a_peak(config, monkeypatch):
  monkeypatch.setattr(training, "our_step", lambda trainer, batch: lambda: 0.0)
  names = [row.name for row in benchmark.run(LSTM, ("step",))]
  assert names == ["time of a step", "tokens", "work, attention counted whole"]
  assert matrix_products(LSTM, 1) == []


@pytest.mark.parity
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_plain_gpt_computes_our_loss(config, make_run, norm):
  import torch

  trunk = dataclasses.replace(config.trunk, norm=norm, layers=2)
  batch = random_batch(dataclasses.replace(config, trunk=trunk))
  spec = ModelConfig(trunk)
  params = make_run.params_of(spec, 0)
  ours = jax.jit(model_loss(spec.build()))(params, batch, None)[0]

  model = plain_gpt(trunk).eval()
  model.load_state_dict(plain_weights(params["trunk"], trunk))
  ids, targets = (
    torch.tensor(np.asarray(x)).long() for x in (batch.rows.inputs, batch.predictions.targets)
  )
  np.testing.assert_allclose(model(ids, targets).item(), ours, rtol=1e-5)


def plain_weights(params, trunk):
  """Our parameters under the names and shapes of torch.nn."""
  import torch

  names = {"attention/qkv": "qkv", "attention/out": "out", "mlp/in": "up", "mlp/out": "down"}
  tokens = params["tokens"][: trunk.vocab_size]
  weights = {"tokens.weight": tokens, "positions.weight": params["positions"]}

  def norm(name, scale_and_bias):
    weights[f"{name}.weight"], weights[f"{name}.bias"] = scale_and_bias.values()

  for i in range(trunk.layers):
    block = params[f"block_{i}"]
    for path, name in names.items():
      room, layer = path.split("/")
      kernel, bias = block[room][layer]["kernel"], block[room][layer]["bias"].reshape(-1)
      weights[f"blocks.{i}.{name}.weight"] = kernel.reshape(-1, bias.size).T
      weights[f"blocks.{i}.{name}.bias"] = bias
    for name in ("attention_norm", "mlp_norm"):
      norm(f"blocks.{i}.{name}", {key: block[name][key] for key in ("scale", "bias")})
  if trunk.norm == "pre":
    norm("last_norm", {key: params["last_norm"][key] for key in ("scale", "bias")})
  return {name: torch.tensor(np.array(x)) for name, x in weights.items()}


@pytest.mark.parity
def test_peers_take_turns(config, monkeypatch):
  eager = "PyTorch, bfloat16 autocast", "transformers"  # compiling takes a minute
  steps = [step for step in training_steps(config.trunk, 8, 16) if step[0] in eager]
  monkeypatch.setattr("gpt_jax.apps.benchmark.training.training_steps", lambda *sizes: steps)
  rows = benchmark.run(config, ("step",), peers=True)
  values = {(row.part, row.name): row.value for row in rows}
  for name in eager:
    assert values["step", f"{name}, time of a step"] == 0.5
    assert values["step", f"time of a step, beside {name}"] == 1


def test_attention_is_measured_with_each_backend_and_with_and_without_dropout(config):
  values = {row.name: row.value for row in benchmark.run(config, ("attention",))}
  assert values["plain, dropout 0.1, forward and backward"] == 500  # milliseconds
  # At least the probabilities: 8 rows x 2 heads x 16 x 16, of 4 bytes.
  assert values["plain, dropout 0, temporary"] > 8 * 2 * 16 * 16 * 4 / 1e6


def test_the_ladder_leads_to_the_step(config):
  rows = benchmark.run(config, ("parts",))
  values = {row.name: row.value for row in rows}
  assert all(np.isfinite(value) and value > 0 for value in values.values())
  assert values["product, share of the product's"] == 100
  shares = [name for name in values if name.endswith(", share of the product's")]
  steps = ["product", "projection", "attention", "block", "trunk", "vocabulary", "step"]
  assert list(dict.fromkeys(name.partition(",")[0] for name in shares)) == steps
  whole, *parts = (
    values[f"{name}, rate"] * values[name]
    for name in ("step", "trunk, both ways", "vocabulary, both ways")
  )
  # Rate times time is the work, which only biases, norms and positions are missing from.
  np.testing.assert_allclose(sum(parts), whole, rtol=0.15)


@pytest.mark.parametrize(
  "asked, part, peers, message",
  [
    (LSTM, "step", True, "--peers: they have no model like this trunk"),
    (LSTM, "attention", False, "--only=attention: this trunk has no attention"),
    (LSTM, "parts", False, "parts: needs a Transformer, not LSTMConfig"),
    (CONFIG, "steps", False, "--only=steps: must be one of step, generation, att"),
  ],
)
def test_what_cannot_be_measured_is_refused(asked, part, peers, message):
  refused(message, benchmark.run, asked, (part,), peers=peers)
