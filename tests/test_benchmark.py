"""The benchmark at a size that takes seconds: every part measures, and the matrix products are a step's work."""

import json

import numpy as np
import pytest

from gpt_jax import benchmark
from gpt_jax.data.tokens import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.pretrain import PretrainConfig
from gpt_jax.trunks.lstm import LSTMConfig
from gpt_jax.trunks.transformer import TransformerConfig


@pytest.fixture
def config(monkeypatch):
  monkeypatch.setattr(benchmark, "ROUNDS", 1)
  monkeypatch.setattr(benchmark, "seconds", lambda run: (run(), 0.5)[1])
  trunk = TransformerConfig(vocab_size=50, context=24, layers=1, width=16, heads=2)
  return PretrainConfig(trunk, data=WindowsConfig(batch_size=8, length=16))


def test_the_parts_measure(config, tmp_path, capsys):
  parts = tuple(part for part in benchmark.PARTS if part != "start")
  rows = benchmark.run(config, parts, str(tmp_path / "out.json"))
  assert {row.part for row in rows} == set(parts)
  assert all(np.isfinite(row.value) and row.value > 0 for row in rows)
  saved = json.loads((tmp_path / "out.json").read_text())
  assert [tuple(row.values()) for row in saved["rows"]] == [tuple(row) for row in rows]
  assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1


@pytest.mark.slow
def test_the_time_to_the_first_step(config, monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "")  # of the processes that it starts
  cold, warm = benchmark.run(config, ("start",))
  assert "cold" in cold.name and "warm" in warm.name
  assert min(cold.value, warm.value) > 0.5  # what importing JAX takes


def test_rates_follow_from_times(config):
  found = {row.name: row.value for row in benchmark.run(config, ("step",))}
  assert found["time of a step"] == 0.5
  assert found["tokens"] == 8 * 16 / 0.5
  np.testing.assert_allclose(
    found["work, attention counted whole"], 8 * 16 * config.trunk.flops_per_token(16) / 0.5 / 1e9
  )


@pytest.mark.parametrize("batch, length", [(1, 512), (64, 512), (3, 128)])
def test_the_matrix_products_are_the_work_of_a_step(batch, length):
  config = PretrainConfig(TransformerConfig(vocab_size=40478), data=WindowsConfig(batch_size=batch, length=length))
  work = sum(product.count * product.flops for product in benchmark.matrix_products(config, devices=1))
  # Beside them the formula counts what it takes for matrices: biases, norms and positions, under 1 %.
  np.testing.assert_allclose(work, batch * length * config.trunk.flops_per_token(length), rtol=0.01)


def test_another_trunk_is_measured_without_a_peak(config):
  config = PretrainConfig(LSTMConfig(vocab_size=50, context=24, width=8, units=8), data=config.data)
  assert [row.name for row in benchmark.run(config, ("step",))][:2] == ["time of a step", "tokens"]
  assert benchmark.matrix_products(config, 1) == []


def test_an_unknown_part(config):
  with pytest.raises(InputError, match="--only=steps: must be among step, data"):
    benchmark.run(config, ("steps",))
