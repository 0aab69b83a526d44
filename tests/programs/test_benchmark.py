"""The benchmark at a size that takes seconds: its parts, its rates, and the matrix products of a
step.
"""

import dataclasses
import itertools
import json
import os

import jax
import numpy as np
import pytest

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import benchmark
from gpt_jax.programs.benchmarks import growth, memory, timing
from gpt_jax.programs.benchmarks.finetuning import one_sequence_per_row
from gpt_jax.programs.benchmarks.peers.plain_gpt import plain_gpt
from gpt_jax.programs.benchmarks.peers.training import training_steps
from gpt_jax.programs.benchmarks.training import masked_batch, matrix_products, random_batch
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.task import find
from gpt_jax.training.flops import PEAK_FLOPS
from gpt_jax.training.loop import TrainConfig


@pytest.fixture
def config(monkeypatch):
  monkeypatch.setattr(timing, "ROUNDS", 1)
  for module in (benchmark, timing):
    monkeypatch.setattr(module, "seconds", lambda run: (run(), 0.5)[1])
  trunk = TransformerConfig(vocab_size=50, context=24, layers=1, width=16, heads=2)
  return PretrainConfig(trunk, data=WindowsConfig(batch_size=8, length=16))


def test_the_parts_measure(config, tmp_path, capsys):
  parts = tuple(part for part in benchmark.PARTS if part not in ("start", "memory"))
  rows = benchmark.run(config, parts, str(tmp_path / "out.json"))
  assert {row.part for row in rows} == set(parts)
  assert all(np.isfinite(row.value) and row.value > 0 for row in rows)
  saved = json.loads((tmp_path / "out.json").read_text())
  assert [tuple(row.values()) for row in saved["rows"]] == [tuple(row) for row in rows]
  assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1


@pytest.fixture(scope="module")
def glue(tmp_path_factory, tiny_tokenizer):
  """A folder with a few short rows of CoLA and MRPC, and one long row each; and a vocabulary."""
  folder = tmp_path_factory.mktemp("glue")
  for task in ("CoLA", "MRPC"):
    (folder / "glue" / task).mkdir(parents=True)
  texts = ["the cat", "sat"] * 20
  cola = [f"x\t{n % 2}\t\t{text}\n" for n, text in enumerate([*texts, " ".join(texts[:6])])]
  (folder / "glue/CoLA/train.tsv").write_text("".join(cola))
  header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
  mrpc = [
    f"{n % 2}\t{n}\t{n}\t{text}\t{text}\n" for n, text in enumerate([*texts, "the old red barn"])
  ]
  (folder / "glue/MRPC/msr_paraphrase_train.txt").write_text(header + "".join(mrpc))
  (folder / "glue/MRPC/dev_ids.tsv").write_text("0\t0\n")
  tiny_tokenizer.save(str(folder / "tokenizer"))
  return {"data_dir": str(folder), "tokenizer": str(folder / "tokenizer")}


def test_packing_is_measured_against_padding(config, glue):
  rows = {row.name: row for row in benchmark.run(config, ("finetuning",), **glue)}
  assert len(rows) == 2 * (1 + 2 * 3)
  for task in ("cola", "mrpc"):
    for work in ("training", "evaluation"):
      assert rows[f"{task} {work}, packed"].value == 1  # every duration is 0.5 s
      rates = [
        row for name, row in rows.items() if name.startswith(f"{task} {work}, pa") and " x " in name
      ]
      assert [row.value for row in rates] == [32 / 0.5] * 2
      packed, padded = ([int(n) for n in row.name.split(" to ")[1].split(" x ")] for row in rates)
      assert padded[0] == 32 * (2 if task == "mrpc" else 1) > packed[0]


def test_padding_changes_no_example(config, glue, make_run, tiny_tokenizer):
  trunk = dataclasses.replace(config.trunk, vocab_size=tiny_tokenizer.vocab_size)
  task = find("mrpc")
  encoded = task.encode(task.examples(glue["data_dir"], "train"), tiny_tokenizer, trunk.context)
  spec = ModelConfig(trunk, (LanguageHead(0.5), ClassifyHead()))
  params = make_run.params_of(spec, 0)
  packed = PackedBatches(encoded, 32, seed=0, epochs=1, row_multiple=8)(0)
  padded = one_sequence_per_row(packed, 24)
  assert packed.rows.inputs.shape[0] < padded.rows.inputs.shape[0] == 64
  apply = jax.jit(spec.build().apply)
  scores = [apply({"params": params}, batch).heads[1] for batch in (packed, padded)]
  np.testing.assert_allclose(*scores, atol=1e-5)
  loss = model_loss(spec.build())
  totals = [jax.jit(loss)(params, batch, None)[0] for batch in (packed, padded)]
  np.testing.assert_allclose(*totals, rtol=1e-5)


@pytest.mark.parametrize("given", [{}, {"data_dir": "x"}, {"tokenizer": "x"}])
def test_finetuning_needs_its_data(config, given):
  with pytest.raises(InputError, match="finetuning needs both --data"):
    benchmark.run(config, ("finetuning",), **given)


@pytest.mark.slow
def test_the_time_to_the_first_step(config, monkeypatch):
  one_device = os.environ["XLA_FLAGS"].replace("count=8", "count=1")
  monkeypatch.setenv("XLA_FLAGS", one_device)  # for the processes it starts
  cold, warm = benchmark.run(config, ("start",))
  assert "cold" in cold.name and "warm" in warm.name
  assert min(cold.value, warm.value) > 0.5  # importing JAX takes longer


def test_memory_is_measured_in_a_process_of_its_own(config):
  data = dataclasses.replace(config.data, batch_size=16)
  config = dataclasses.replace(config, data=data, train=TrainConfig(microbatches=2))
  rows = {name: value for name, value, _ in itertools.islice(memory.memory(config), 6)}
  before = rows["pre-training, in use before the state is made"]
  assert 0.05 < before < rows["pre-training, peak"] < 5
  assert 0 < rows["pre-training, a step as compiled"] < 0.1
  assert 50 < rows["pre-training, planned over peak"] <= 110
  assert rows["pre-training, peak where freed memory is kept"] > 0.05
  sizes = memory.measure(config, "fine-tuning")  # here, for the time that a process takes
  assert 0 < sizes["step"] < sizes["before"] <= sizes["peak"]


def test_rates_follow_from_times(config, monkeypatch):
  flops_per_token = config.trunk.flops_per_token(16)
  peak = 8 * 16 * flops_per_token / jax.device_count()  # of a device that takes one second
  monkeypatch.setitem(PEAK_FLOPS, jax.devices()[0].device_kind, peak)
  rates = {row.name: row.value for row in benchmark.run(config, ("step",))}
  assert rates["time of a step"] == 0.5
  assert rates["tokens"] == 8 * 16 / 0.5
  np.testing.assert_allclose(
    rates["work, attention counted whole"], 8 * 16 * flops_per_token / 0.5 / 1e9
  )
  assert rates["MFU"] == pytest.approx(200)
  # All products in turn take 0.5 s each, as the step does.
  products = matrix_products(config, jax.device_count())
  count = sum(product.times for product in products)
  work = jax.device_count() * sum(product.times * product.flops for product in products)
  assert rates["matrix products alone, float32"] == pytest.approx(work / (0.5 * count) / 1e9)
  share = 8 * 16 * flops_per_token * count / work
  assert rates["share of that peak, float32"] == pytest.approx(100 * share)


@pytest.mark.parametrize("batch, length", [(1, 512), (64, 512), (3, 128)])
def test_the_matrix_products_are_the_work_of_a_step(batch, length):
  config = PretrainConfig(
    TransformerConfig(vocab_size=40478), data=WindowsConfig(batch_size=batch, length=length)
  )
  work = sum(product.times * product.flops for product in matrix_products(config, devices=1))
  # The formula also counts biases, norms and positions as if they were matrices: under 1 %.
  np.testing.assert_allclose(work, batch * length * config.trunk.flops_per_token(length), rtol=0.01)


def test_another_trunk_is_measured_without_a_peak(config):
  config = PretrainConfig(LSTMConfig(vocab_size=50, context=24, width=8, units=8), data=config.data)
  assert [row.name for row in benchmark.run(config, ("step",))][:2] == ["time of a step", "tokens"]
  assert matrix_products(config, 1) == []


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
def test_peers_take_turns(config, glue, monkeypatch):
  eager = "PyTorch, bfloat16 autocast", "transformers"  # compiling takes a minute
  steps = [step for step in training_steps(config.trunk, 8, 16) if step[0] in eager]
  monkeypatch.setattr("gpt_jax.programs.benchmarks.training.training_steps", lambda *sizes: steps)
  rows = benchmark.run(config, ("step", "finetuning"), **glue, peers=True)
  values = {(row.part, row.name): row.value for row in rows}
  for name in eager:
    assert values["step", f"{name}, time of a step"] == 0.5
    assert values["step", f"time of a step, beside {name}"] == 1
  # Eight batches of the peer in 0.5 s, one of ours.
  assert values["finetuning", "cola training, transformers, batches by length"] == 8 * 32 / 0.5
  assert values["finetuning", "with auxiliary loss, beside transformers"] == 1 / 8


def test_peers_have_no_lstm(config):
  config = PretrainConfig(LSTMConfig(vocab_size=50, context=24, width=8, units=8), data=config.data)
  with pytest.raises(InputError, match="--peers: they have no model like this trunk"):
    benchmark.run(config, ("step",), peers=True)


def test_attention_is_measured_with_each_backend_and_with_and_without_dropout(config):
  values = {row.name: row.value for row in benchmark.run(config, ("attention",))}
  assert values["plain, dropout 0.1, forward and backward"] == 500  # milliseconds
  # At least the probabilities: 8 rows x 2 heads x 16 x 16, of 4 bytes.
  assert values["plain, dropout 0, temporary"] > 8 * 2 * 16 * 16 * 4 / 1e6
  lstm = LSTMConfig(vocab_size=50, context=24, width=8, units=8)
  with pytest.raises(InputError, match="--only=attention: this trunk has no attention"):
    benchmark.run(PretrainConfig(lstm, data=config.data), ("attention",))


def test_a_masked_step_is_measured_beside_the_causal_one(config):
  values = {row.name: row.value for row in benchmark.run(config, ("masked",))}
  assert set(values) == {
    "time of a step, causal",
    "time of a step, masked",
    "masked, beside causal",
  }
  batch = masked_batch(config)
  most = round(0.15 * config.data.length)
  assert batch.predictions.at.shape == (config.data.batch_size, most)
  assert all(len(set(row)) == most for row in batch.predictions.at.tolist())
  targets = np.take_along_axis(batch.rows.inputs, batch.predictions.at, axis=1)
  np.testing.assert_array_equal(batch.predictions.targets, targets)


def test_growth_measures_each_axis(config, monkeypatch):
  monkeypatch.setattr(growth, "LENGTHS", (16, 32))
  monkeypatch.setattr(growth, "CORPORA", (0.02, 0.04))
  names = [row.name for row in benchmark.run(config, ("growth",))]
  assert names[:2] == ["step, row of 16 tokens", "step, row of 32 tokens"]
  assert names[2:5] == [f"step, batch of {n} rows" for n in (8, 16, 32)]
  assert names[5:] == [
    "step, 1 layers", "step, width 8", "step, width 16",
    "prepare, 0.02 MB of text", "prepare, 0.04 MB of text",
  ]  # fmt: skip


def test_an_unknown_part(config):
  with pytest.raises(InputError, match="--only=steps: must be among step, evaluation, memory"):
    benchmark.run(config, ("steps",))
