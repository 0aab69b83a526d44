"""The benchmark at a size that takes seconds: its parts, its rates, and the matrix products of a
step.
"""

import contextlib
import dataclasses
import io
import os
import subprocess
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from gpt_jax.apps.benchmark import adapters, benchmark, finetuning, growth, memory, training
from gpt_jax.apps.benchmark.finetuning import one_sequence_per_row
from gpt_jax.apps.benchmark.peers.plain_gpt import plain_gpt
from gpt_jax.apps.benchmark.peers.training import training_steps
from gpt_jax.apps.benchmark.training import masked_batch, matrix_products, random_batch
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.files import read_json
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.task import find
from gpt_jax.training import timing
from gpt_jax.training.flops import PEAK_FLOPS
from gpt_jax.training.loop import TrainConfig

pytestmark = pytest.mark.app
CONFIG = PretrainConfig(
  TransformerConfig(vocab_size=50, context=24, layers=1, width=16, heads=2),
  data=WindowsConfig(batch_size=8, length=16),
)
LSTM = PretrainConfig(LSTMConfig(vocab_size=50, context=24, width=8, units=8), data=CONFIG.data)
FLOPS = 8 * 16 * CONFIG.trunk.flops_per_token(16)  # of a step


def call_once(patch):
  """Every call is made once, and takes 0.5 s."""
  patch.setattr(timing, "ROUNDS", 1)
  for module in (benchmark, timing):
    patch.setattr(module, "seconds", lambda run: (run(), 0.5)[1])


@pytest.fixture
def config(monkeypatch):
  call_once(monkeypatch)
  return CONFIG


def no_step(trainer, batch):
  """In place of our_step, where another test has run the step."""
  return lambda: 0.0


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
  """All parts that need no process, measured once. Attributes: rows, saved, lines."""
  out = str(tmp_path_factory.mktemp("parts") / "out.json")
  only = tuple(part for part in benchmark.PARTS if part not in ("start", "memory"))
  with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
    call_once(patch)
    peak = FLOPS / jax.device_count()  # of a device that takes one second
    patch.setitem(PEAK_FLOPS, jax.devices()[0].device_kind, peak)
    rows = benchmark.run(CONFIG, only, out)
  return SimpleNamespace(rows=rows, saved=read_json(out), lines=printed.getvalue().splitlines())


def test_the_parts_measure(parts):
  assert {row.part for row in parts.rows} == benchmark.PARTS.keys() - {"start", "memory"}
  assert all(np.isfinite(row.value) and row.value > 0 for row in parts.rows)
  assert [tuple(row.values()) for row in parts.saved["rows"]] == [tuple(row) for row in parts.rows]
  assert len(parts.lines) == len(parts.rows) + 1
  assert f"jax {jax.__version__}, jaxlib " in parts.lines[0]
  assert f", processor {parts.saved['processor']}, " in parts.lines[0]


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


def test_packing_is_measured_against_padding(config, glue, monkeypatch):
  trained = []

  def step(trainer, batch):
    """Trains nothing: test_memory_is_measured_… trains such a model."""
    trained.append(batch.rows.inputs.shape)
    return no_step(trainer, batch)

  monkeypatch.setattr(finetuning, "our_step", step)
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
      assert {tuple(packed), tuple(padded)} <= set(trained)


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


def test_the_time_to_the_first_step(config, monkeypatch):
  """With a cold cache of compiled programs, whose run is a real one, and again with a warm one."""
  one_device = os.environ["XLA_FLAGS"].replace("count=8", "count=1")
  monkeypatch.setenv("XLA_FLAGS", one_device)  # for the process it starts
  monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
  start, started = subprocess.Popen, []

  def open_process(command, env, **options):
    cache = env["JAX_COMPILATION_CACHE_DIR"]
    started.append((os.path.basename(command[-1]), cache, os.path.isdir(cache)))
    assert cache != os.environ["JAX_COMPILATION_CACHE_DIR"]
    if len(started) == 2:
      assert os.listdir(cache)  # what the first has compiled
      command = ["sh", "-c", "echo compiling >&2; echo step 1/1 >&2"]
    return start(command, env=env, **options)

  monkeypatch.setattr(subprocess, "Popen", open_process)
  cold, warm = benchmark.run(config, ("start",))
  assert "cold" in cold.name and "warm" in warm.name
  assert cold.value > 0.5  # importing JAX takes longer
  assert warm.value > 0
  (first, cache, was_there), (second, *again) = started
  assert (first, second, was_there) == ("cold", "warm", False) and again == [cache, True]


def test_a_run_that_ends_before_its_first_step_says_why(tmp_path, monkeypatch):
  monkeypatch.setattr(benchmark, "_START", "raise SystemExit('no first step')")
  with pytest.raises(RuntimeError, match="no first step"):
    benchmark._time_to_first_step(str(tmp_path), str(tmp_path / "run"), dict(os.environ))


def test_memory_is_measured_in_a_process_of_its_own(config, monkeypatch):
  data = dataclasses.replace(config.data, batch_size=16)
  config = dataclasses.replace(config, data=data, train=TrainConfig(microbatches=2))
  run, done, asked = subprocess.run, [], []

  def run_once(command, env, **options):
    """One real process; the others' numbers are its own."""
    asked.append((command[-1], env["GLIBC_TUNABLES"]))
    done.append(done[0] if done else run(command, env=env, **options))
    return done[-1]

  monkeypatch.setattr(subprocess, "run", run_once)
  measured = list(memory.memory(config))
  rows = {name: value for name, value, _ in measured}
  assert len(rows) == len(measured) == 2 * 7
  before = rows["pre-training, in use before the state is made"]
  assert 0.05 < before < rows["pre-training, peak"] < 5
  assert 0 < rows["pre-training, a step as compiled"] < 0.1
  assert before < rows["pre-training, planned at most"] < before + 0.2
  assert 50 < rows["pre-training, planned over peak"] <= 110
  assert rows["fine-tuning, peak where freed memory is kept"] == rows["pre-training, peak"]
  kinds = "pre-training", "fine-tuning"
  assert asked == [(kind, tunables) for kind in kinds for tunables in ("", memory._KEEP)]
  sizes = memory.measure(config, "fine-tuning")  # here, for the time that a process takes
  assert 0 < sizes["step"] < sizes["before"] <= sizes["peak"]


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
  monkeypatch.setattr(training, "our_step", no_step)
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
def test_peers_take_turns(config, glue, monkeypatch):
  eager = "PyTorch, bfloat16 autocast", "transformers"  # compiling takes a minute
  steps = [step for step in training_steps(config.trunk, 8, 16) if step[0] in eager]
  monkeypatch.setattr("gpt_jax.apps.benchmark.training.training_steps", lambda *sizes: steps)
  rows = benchmark.run(config, ("step", "finetuning"), **glue, peers=True)
  values = {(row.part, row.name): row.value for row in rows}
  for name in eager:
    assert values["step", f"{name}, time of a step"] == 0.5
    assert values["step", f"time of a step, beside {name}"] == 1
  # Eight batches of the peer in 0.5 s, one of ours.
  assert values["finetuning", "cola training, transformers, batches by length"] == 8 * 32 / 0.5
  assert values["finetuning", "with auxiliary loss, beside transformers"] == 1 / 8


def test_peers_have_no_lstm(config):
  with pytest.raises(InputError, match="--peers: they have no model like this trunk"):
    benchmark.run(LSTM, ("step",), peers=True)


def test_attention_is_measured_with_each_backend_and_with_and_without_dropout(config):
  values = {row.name: row.value for row in benchmark.run(config, ("attention",))}
  assert values["plain, dropout 0.1, forward and backward"] == 500  # milliseconds
  # At least the probabilities: 8 rows x 2 heads x 16 x 16, of 4 bytes.
  assert values["plain, dropout 0, temporary"] > 8 * 2 * 16 * 16 * 4 / 1e6
  with pytest.raises(InputError, match="--only=attention: this trunk has no attention"):
    benchmark.run(LSTM, ("attention",))


def test_a_masked_step_is_measured_beside_the_causal_one(config, monkeypatch):
  batches, our_step = [], training.our_step

  def step(trainer, batch):
    batches.append(batch)
    is_causal = batch.predictions.at is None
    return no_step(trainer, batch) if is_causal else our_step(trainer, batch)

  monkeypatch.setattr(training, "our_step", step)
  values = {row.name: row.value for row in benchmark.run(config, ("masked",))}
  assert set(values) == {
    "time of a step, causal",
    "time of a step, masked",
    "masked, beside causal",
  }
  causal, masked = batches
  assert causal.rows.inputs.shape == masked.rows.inputs.shape == (8, 16)
  batch = masked_batch(config)
  most = round(0.15 * config.data.length)
  assert batch.predictions.at.shape == (config.data.batch_size, most)
  assert all(len(set(row)) == most for row in batch.predictions.at.tolist())
  targets = np.take_along_axis(batch.rows.inputs, batch.predictions.at, axis=1)
  np.testing.assert_array_equal(batch.predictions.targets, targets)


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


def test_a_ladder_needs_a_transformer(config):
  with pytest.raises(InputError, match="parts: needs a Transformer, not LSTMConfig"):
    benchmark.run(LSTM, ("parts",))


def test_adapters_are_measured_beside_training_everything(config, monkeypatch):
  monkeypatch.setattr(adapters, "our_step", no_step)
  monkeypatch.setattr(timing, "ratio", lambda ours, theirs: 0.5)
  rows = benchmark.run(config, ("adapters",))
  values = {(row.name, row.unit): row.value for row in rows}
  for name in ("LoRA, attention", "LoRA, all kernels", "biases"):
    trained = values[f"{name}: trained parameters", "MB"]
    # Two moments of each, and a few numbers.
    assert values[f"{name}: optimizer", "MB"] == pytest.approx(2 * trained, abs=1e-4)
    shares = [values[key] for key in values if key[0].startswith(name) and "%" in key[1]]
    assert len(shares) == 4 and max(shares) < 100
    assert values[f"{name}: time", "% of everything"] == 50
  width = config.trunk.width  # its kernels are [D, 3 D] and [D, D]; the head has two classes
  counted = 8 * (width + 3 * width + width + width) + 2 * width + 2
  expected = pytest.approx(4e-6 * counted)
  assert values["LoRA, attention: trained parameters", "MB"] == expected


def test_a_classifier_is_measured_with_each_type_of_weights(config, monkeypatch):
  monkeypatch.setattr(timing, "ratio", lambda theirs, ours: 2.0)
  rows = benchmark.run(config, ("classifier",))
  values = {(row.name, row.unit): row.value for row in rows}
  kinds = "float32", "bfloat16", "int8"
  saved = values["float32 weights", "MB"] - values["int8 weights", "MB"]
  trunk = config.trunk
  matrices = 12 * trunk.layers * trunk.width**2 + trunk.rows * trunk.width
  # A number of 4 bytes for each output is added.
  assert saved == pytest.approx(1e-6 * (3 * matrices - 4 * (9 * trunk.width + trunk.rows)))
  for kind in kinds:
    rates = [values[f"{kind} weights, {size} a call", "examples/s"] for size in (1, 16)]
    assert rates == [1 / 0.5, 16 / 0.5]
  assert values["int8 weights, 1 a call", "times float32"] == 2


def test_growth_measures_each_axis(config, monkeypatch):
  sizes = []

  def step(trainer, batch):
    shapes = jax.eval_shape(trainer.make_state, np.uint32(0)).params["trunk"]
    layers = sum(name.startswith("block_") for name in shapes)
    sizes.append((*batch.rows.inputs.shape, layers, shapes["tokens"].shape[1]))
    return no_step(trainer, batch)

  monkeypatch.setattr(growth, "our_step", step)
  monkeypatch.setattr(growth, "LENGTHS", (16, 32))
  monkeypatch.setattr(growth, "CORPORA", (0.02, 0.04))
  trunk = dataclasses.replace(config.trunk, layers=4)
  config = dataclasses.replace(config, trunk=trunk)
  names = [row.name for row in benchmark.run(config, ("growth",))]
  assert names[:2] == ["step, row of 16 tokens", "step, row of 32 tokens"]
  assert names[2:5] == [f"step, batch of {n} rows" for n in (8, 16, 32)]
  assert names[5:] == [
    "step, 1 layers", "step, 2 layers", "step, 4 layers", "step, width 8", "step, width 16",
    "prepare, 0.02 MB of text", "prepare, 0.04 MB of text",
  ]  # fmt: skip
  assert sizes[:2] == [(8, length, 4, 16) for length in (16, 32)]
  assert sizes[2:5] == [(rows, 16, 4, 16) for rows in (8, 16, 32)]
  assert sizes[5:8] == [(8, 16, layers, 16) for layers in (1, 2, 4)]
  assert sizes[8:] == [(8, 16, 4, width) for width in (8, 16)]


def test_an_unknown_part(config):
  with pytest.raises(InputError, match="--only=steps: must be among step, evaluation, memory"):
    benchmark.run(config, ("steps",))
