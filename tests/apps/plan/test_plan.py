"""launch/plan.py: a pre-training's memory and time before it runs."""

import dataclasses
import json
import sys
from types import SimpleNamespace

import jax
import pytest
from refused import refused

from gpt_jax.apps import topologies
from gpt_jax.apps.plan import plan
from gpt_jax.apps.topologies import Chip, find_chip
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.masked_sentences import FullSentences
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.ops.cross_entropy import CHUNK_ELEMENTS
from gpt_jax.parallel.mesh import MeshConfig
from gpt_jax.programs.config_files import load_config, override
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.trainer import Trainer

TRUNK = TransformerConfig(vocab_size=125, context=32, layers=1, width=32, heads=2)
DATA = WindowsConfig(batch_size=16, length=32)
CONFIG = PretrainConfig(TRUNK, data=DATA, train=TrainConfig(steps=1000))
PARAMETERS = TRUNK.parameter_count() + 3 * TRUNK.width  # with the special tokens
DEEPER = dataclasses.replace(TRUNK, layers=2)  # of one layer, rematerialization saves nothing


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
  """GPUs have a formula alone, also where their compiler is installed."""
  for module in (plan, topologies):
    monkeypatch.setattr(module, "why_not_compiled", lambda kind: f"no compiler for {kind}")


@pytest.fixture(scope="module")
def here():
  """The plans for the 8 devices of this machine, plain and with FSDP; and the plain step's program.

  Attributes: plain, sharded, program.
  """
  compile_step, programs = Trainer.compile, []

  def keep(trainer, batch):
    programs.append(compile_step(trainer, batch))
    return programs[-1]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Trainer, "compile", keep)
    changes = (MeshConfig(), MeshConfig(fsdp=True))
    configs = [dataclasses.replace(CONFIG, mesh=mesh) for mesh in changes]
    plain, sharded = (plan.make_plan(config, jax.devices(), None) for config in configs)
  return SimpleNamespace(plain=plain, sharded=sharded, program=programs[0])


@pytest.fixture
def compiled(here, monkeypatch):
  """The batches of steps that are asked for; each gets the program of `here`."""
  batches = []

  def compiled_before(trainer, batch):
    batches.append(batch)
    return here.program

  monkeypatch.setattr(Trainer, "compile", compiled_before)
  return batches


def test_fsdp_needs_less_memory(here):
  # Seven of eight parts of parameters and two moments are elsewhere.
  assert here.plain.memory - here.sharded.memory > 0.5 * 7 / 8 * 12 * PARAMETERS


def test_bounds_are_work_over_rate(compiled):
  chip = Chip(memory=1e5, bandwidth=1e9, interconnect=1e8, flops=1e12)
  made = plan.make_plan(CONFIG, jax.devices(), chip)
  flops = 16 * 32 * TRUNK.flops_per_token(32) / 8
  assert made.times["arithmetic"] == pytest.approx(flops / 1e12)
  assert made.times["network"] == pytest.approx(2 * 4 * TRUNK.parameter_count() / 1e8)
  assert made.times["memory"] > 0
  assert made.step_time == max(made.times.values()) > 0
  assert not made.fits and made.capacity == 1e5
  assert "DOES NOT FIT" in plan.describe(made) and "1,000 steps" in plan.describe(made)


def test_a_gpus_step_is_told_by_its_kernels(here, monkeypatch):
  monkeypatch.setattr(plan, "compile_step", lambda *_: here.program)
  chip = Chip(memory=1e5, bandwidth=1e9, interconnect=1e8, flops=1e12)
  made = plan.make_plan(CONFIG, [SimpleNamespace(platform="gpu")] * 8, chip)
  assert made.moved["all-reduce"] >= 4 * PARAMETERS and made.moved["optimizer"] > 0
  assert made.step_time == sum(made.times.values()) > made.times["network"] > 0
  text = plan.describe(made)
  assert "  traffic  " in text and "all-reduce 0.0" in text and "  step     about " in text
  assert "DOES NOT FIT; use a smaller config.data.batch_size" in text


def test_products_of_float32_take_twice_as_long(here, monkeypatch):
  monkeypatch.setattr(plan, "compile_step", lambda *_: here.program)
  chip, gpus = Chip(1e9, 1e18, 1e18, 1e12), [SimpleNamespace(platform="gpu")] * 8
  half = override(CONFIG, "trunk.dtype", "bfloat16")
  single, of_half = (plan.make_plan(config, gpus, chip).times for config in (CONFIG, half))
  assert single["products"] == pytest.approx(2 * of_half["products"]) and single["products"] > 0


def test_a_gpu_that_is_here_says_its_own_memory(here, monkeypatch):
  gpus = [SimpleNamespace(platform="gpu")] * 8
  monkeypatch.setattr(plan, "find_devices", lambda _: (gpus, "NVIDIA A100-SXM4-80GB"))
  monkeypatch.setattr(plan, "compile_step", lambda *_: here.program)
  monkeypatch.setattr(plan, "capacity", lambda _: 1e3)  # as of a part of it
  (made,) = plan.run(CONFIG)
  assert made.capacity == 1e3 and not made.fits


def test_the_formula_counts_no_scores_of_fused_attention():
  plain, fused = (
    dataclasses.replace(CONFIG, trunk=dataclasses.replace(TRUNK, attention_backend=name))
    for name in ("plain", "fused")
  )
  more = plan.make_plan(plain, [None], None).memory - plan.make_plan(fused, [None], None).memory
  # 5 a s s b of each block at 16 bits; TRUNK is float32.
  scores = CONFIG.data.batch_size * TRUNK.heads * CONFIG.data.length**2
  assert more == 5 * TRUNK.layers * scores * 2


def test_the_formula_counts_a_gpus_chunk_of_logits():
  rows = dataclasses.replace(TRUNK, vocab_size=2**20), dataclasses.replace(TRUNK, vocab_size=2**21)
  less, more = (
    plan.make_plan(dataclasses.replace(CONFIG, trunk=trunk), [None], None) for trunk in rows
  )
  # Both have more logits than a chunk; the larger table has its own rows more, of 16 bytes a value.
  assert more.memory - less.memory == 16 * 2**20 * TRUNK.width
  assert less.memory > 3 * 4 * 4 * CHUNK_ELEMENTS


def test_the_formula_counts_the_logits_of_bfloat16_once():
  few, many = (
    dataclasses.replace(TRUNK, dtype="bfloat16", vocab_size=2**power) for power in (10, 11)
  )
  less, more = (
    plan.make_plan(dataclasses.replace(CONFIG, trunk=trunk), [None], None) for trunk in (few, many)
  )
  # Fewer than a chunk; a further row of the table also has a copy in 16 bits.
  logits = 2 * CONFIG.data.batch_size * CONFIG.data.length * 2**10
  assert more.memory - less.memory == 18 * 2**10 * TRUNK.width + logits


@pytest.mark.parametrize("objective", [Masked(), FullSentences(unit="ngram"), SpanCorruption()])
def test_objectives_that_ask_a_tokenizer_need_none(objective, compiled):
  config = dataclasses.replace(CONFIG, objective=objective)
  assert plan.make_plan(config, jax.devices(), None).memory > 0
  (batch,) = compiled
  assert len(batch.rows.inputs) == len(batch.predictions.targets) == CONFIG.data.batch_size


def test_an_encoder_decoder(here, monkeypatch):
  trunk = T5Config(125, 32, 1, 16, 2, 8, 24)
  config = dataclasses.replace(CONFIG, trunk=trunk, objective=SpanCorruption("encoder_decoder"))
  monkeypatch.setattr(jax.stages.Lowered, "compile", lambda _: here.program)  # traced all the same
  assert plan.make_plan(config, jax.devices(), None).memory > 0
  lstm = dataclasses.replace(CONFIG, trunk=LSTMConfig(vocab_size=60, width=16, units=8))
  for other in (config, lstm):
    refused("only Transformers have a formula", plan.run, other, "h100:8")


def test_plans_side_by_side(tmp_path, capsys):
  out = str(tmp_path / "plans.json")
  vary = ["data.batch_size=64,128", "train.remat=none,full"]
  config = dataclasses.replace(CONFIG, trunk=dataclasses.replace(DEEPER, vocab_size=0))
  plans = plan.run(config, "h100:8", vary, price=3.6, out=out)
  assert [dict(made.changes)["data.batch_size"] for made in plans] == ["64", "64", "128", "128"]
  text = capsys.readouterr().out
  assert "h100:8: 8 x NVIDIA H100" in text and "by a formula" in text
  assert "nothing is compiled: no compiler for NVIDIA H100\n" in text
  assert "least memory: --config.data.batch_size=128 --config.train.remat=full" in text
  # 8 devices at 3.6 an hour: 0.008 a second.
  seconds = 1000 * plans[0].step_time
  assert f"{0.008 * round(seconds):,.2f} at 3.6 a device and hour" in text
  with open(out) as file:
    saved = json.load(file)
  assert [made["memory"] for made in saved["plans"]] == [made.memory for made in plans]


def test_a_type_that_is_left_open_is_planned_as_it_runs():
  auto, half = plan.run(CONFIG, "h100:8", ["trunk.dtype=auto,bfloat16"])
  assert auto.memory == half.memory and auto.times == half.times


def test_what_does_not_fit_is_told_what_does(capsys, monkeypatch):
  monkeypatch.setattr(plan, "JAX", (0, 1))  # an older one has no kernels of its own
  config = load_config("gpt2:medium")
  (made,) = plan.run(config, "a100:8", price=2.0)
  fitting = override(config, "train.microbatches", "8")
  (other,) = plan.run(fitting, "a100:8")
  assert other.fits and not made.fits
  hopper, ampere = (
    plan.run(override(config, "trunk.dtype", "bfloat16"), gpus)[0] for gpus in ("h100:8", "a100:8")
  )
  assert hopper.memory < ampere.memory  # its attention keeps no scores
  out = capsys.readouterr().out
  told = "DOES NOT FIT; it fits with config.train.microbatches=8, which makes it "
  assert f"{told}{other.memory / 1e9:.1f} GB; a run chooses its microbatches\n" in out
  assert "price    unknown: give --data=DIR, or --config.train.steps=N --config.tr" in out
  (made,) = plan.run(override(fitting, "train.microbatches", "2"), "a100:8")
  assert made.remedy.endswith(f"{other.memory / 1e9:.1f} GB")  # as it is set
  (made,) = plan.run(override(load_config("gpt2:large"), "data.batch_size", "8"), "t4:8")
  assert made.remedy.startswith("it fits with config.train.remat=")
  (made,) = plan.run(load_config("gpt2:xl"), "t4:8")
  assert made.remedy.startswith("use a smaller config.data.batch_size or config.data.length, ")


def test_the_formula_counts_what_each_device_holds():
  def memory(**changes):
    config = dataclasses.replace(CONFIG, trunk=DEEPER, **changes)
    return plan.make_plan(config, [None] * 8, None).memory

  whole, fsdp = memory(), memory(mesh=MeshConfig(fsdp=True))
  assert whole - fsdp == pytest.approx(7 / 8 * 16 * DEEPER.parameter_count())
  remat = {name: memory(train=TrainConfig(steps=1, remat=name)) for name in ("none", "full")}
  assert remat["full"] < remat["none"] == whole
  # 34 s b h + 5 a s s b bytes in 16 bits, for two rows.
  activations = DEEPER.layers * 2 * (2 * 34 * 2 * 32 * 32 + 2 * 5 * 2 * 2 * 32 * 32) / 2
  logits = 3 * 4 * 2 * 32 * 128
  assert whole == pytest.approx(16 * DEEPER.parameter_count() + activations + logits)


def test_the_steps_of_epochs_need_data(prepared, capsys):
  trunk = dataclasses.replace(TRUNK, vocab_size=0)
  config = dataclasses.replace(CONFIG, trunk=trunk, train=TrainConfig(epochs=3))
  assert plan.run(config, "a100:8")[0].steps == 0
  made = plan.run(config, "a100:8", data=prepared)[0]
  assert made.steps > 0 and made.steps % 3 == 0
  varied = plan.run(config, "a100:8", ["data.batch_size=64,128"], prepared)
  assert [other.steps for other in varied] == [9, 6]  # in an epoch 2.5 and 1.3 batches, whole ones
  # Nobody trains at the peak.
  assert "; arithmetic only, at the peak of the GPUs: expect far more" in plan.describe(made)
  assert "arithmetic only" not in plan.describe(made._replace(compiled=True))


@pytest.mark.parametrize(
  "arguments, message",
  [
    ({"topology": "h100"}, "--topology=h100: name the number of GPUs, such as h100:8"),
    ({"topology": "h100:0"}, "name the number of GPUs"),
    ({"topology": "h100:12"}, "more than 8 GPUs are whole hosts of 8"),
    ({"topology": "v5e-16"}, r"--topology=v5e-16: did you mean v5e:4x4\? \(examples: v5e:4x4, "),
    ({"topology": "v5litepod-8"}, r"did you mean v5e:2x4\?"),
    ({"topology": "v4-8"}, r"did you mean v4:2x2x1\?"),  # 8 cores
    ({"topology": "v5p-64"}, r"did you mean v5p:2x4x4\?"),
    ({"topology": "v5e-12"}, "--topology=v5e-12: name the shape of the chips "),
    ({"topology": "v5e:4x4"}, r"--topology=v5e:4x4 needs libtpu: pip install 'gpt_jax\[tpu\]'"),
    ({"vary": ["nothing"]}, "--vary=nothing: must be FIELD=VALUE,VALUE,…"),
    ({"vary": ["data.nothing=1"]}, "nothing"),
    ({"vary": ["data.batch_size=12"]}, "data.batch_size=12: must be a multiple of 8"),
    ({"topology": "h100:8", "vary": ["mesh.model=3"]}, "mesh.model=3: there are 8 GPUs"),
    ({"vary": ["mesh.backend=pmap"]}, "mesh.backend=pmap: only jit compiles ahead of time"),
  ],
)
def test_wrong_arguments(arguments, message, monkeypatch):
  monkeypatch.setitem(sys.modules, "libtpu", None)
  refused(message.replace("…", "."), plan.run, CONFIG, **arguments)


def test_what_libtpu_says_is_one_line(monkeypatch):
  def locked(**_):
    raise RuntimeError("ABORTED: Internal error when accessing libtpu lockfile.\nMore.")

  monkeypatch.setitem(sys.modules, "libtpu", object())
  monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", locked)
  refused("--topology=v5e:2x2: .* libtpu lockfile. .examples:", plan.run, CONFIG, "v5e:2x2")


def test_chips():
  v5e = find_chip("TPU v5 lite")
  assert v5e is not None and 16e9 <= v5e.memory <= 17.2e9 and v5e.flops == 197e12
  v5p = find_chip("TPU v5")
  assert v5p is not None and 9.0e10 <= v5p.memory <= 1.03e11
  h100 = find_chip("NVIDIA H100 80GB HBM3")
  assert h100 is not None and h100.memory == 80e9
  # The longest name: an L40S is no L4, and there are two sizes of an A100.
  names = "NVIDIA L40S", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"
  assert [find_chip(name).memory for name in names] == [48e9, 40e9, 80e9, 24e9]
  assert find_chip("cpu") is None
