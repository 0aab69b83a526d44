"""The traffic of compiled programs: by hand for a text, by the arithmetic of a step, and guards of
what a GPU's step moves.
"""

import dataclasses
import os
import re

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from gpt_jax.apps import traffic
from gpt_jax.apps.benchmark import benchmark
from gpt_jax.apps.benchmark.bytes_moved import audit
from gpt_jax.apps.topologies import Chip
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.files import read_json
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.ops.attention_auto import JAX
from gpt_jax.ops.dropout import step_key
from gpt_jax.programs.config_files import load_config, override_all
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.formats import GPTFormat
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig

CONFIG = PretrainConfig(
  TransformerConfig(vocab_size=50, context=24, layers=1, width=16, heads=2),
  data=WindowsConfig(batch_size=16, length=16),
)
# Gigabytes that two layers of GPT-1 move in a step of 64 x 512 on an H200, by cause (jax 0.11.2,
# 2026-11-28); lower a figure when a copy has gone.
MOST = {
  "products": 14.66,
  "attention": 1.63,
  "optimizer": 1.80,
  "logits": 8.68,
  "embedding": 0.622,
  "norm, residual, dropout": 2.59,
  "weights in 16 bits": 0.085,
  "MLP activation": 2.23,
  "q, k, v layout": 0.613,
  "other": 0.011,
}
MOST_TABLES = 6  # times that anything but the optimizer writes an array of the table's size
MOST_COPIES = 2  # of q, k, v and their gradients in a layer, and of the hidden states
PROGRAM = """
%part (p: f32[8,100], i: s32[]) -> f32[1,100] {
  %p = f32[8,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %row = f32[1,100]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,100}
}

%body (s: (s32[], f32[8,100])) -> (s32[], f32[8,100]) {
  %s = (s32[], f32[8,100]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%s), index=0
  %x = f32[8,100]{1,0} get-tuple-element(%s), index=1
  ROOT %f = f32[1,100]{1,0} fusion(%x, %j), calls=%part, metadata={op_name="jit(f)/jvp(loss)/x"}
}

%small (q: f32[10]) -> f32[10] {
  ROOT %q = f32[10]{0} parameter(0)
}

%large (r: f32[10]) -> f32[10] {
  %r = f32[10]{0} parameter(0)
  ROOT %c = f32[10]{0} copy(%r), metadata={op_name="cond/optimizer/add"}
}

ENTRY %main (s: (s32[], f32[8,100]), v: f32[10]) -> f32[10] {
  %t = (s32[], f32[8,100]{1,0}) parameter(0)
  %v = f32[10]{0} parameter(1)
  %w = (s32[], f32[8,100]{1,0}) while(%t), body=%body, config={"known_trip_count":{"n":"6"}}
  %k = (f32[10]{0}, s8[99]{0}) custom-call(%v), metadata={op_name="block_3/attention/forward"}
  %e = f32[30]{0} custom-call(), metadata={op_name="attention/e"}
  %g = (f32[10], f32[30]) custom-call(%v, %e), output_to_operand_aliasing={{1}: (1, {})}, \
metadata={op_name="attention/g"}
  %a = ((f32[10]{0}), f32[10]{0}) all-reduce-start(%v), to_apply=%small
  %d = f32[10]{0} all-reduce-done(%a), metadata={op_name="n"}
  %p = f32[5]{0} reduce-scatter(%v), to_apply=%small, metadata={op_name="r"}
  ROOT %o = f32[10]{0} conditional(%v, %v, %v), branch_computations={%small, %large}
}
"""


def test_kernels_and_their_time():
  kernels = traffic.kernels(PROGRAM)
  assert {x.path: (x.cause, x.runs, x.read, x.written) for x in kernels} == {
    "jvp(loss)/x": ("logits", 6, 6 * (400 + 4), 6 * 400),  # of a slice its part; in a loop
    "block_N/attention/forward": ("attention", 1, 40, 40),  # without its workspace
    "attention/e": ("attention", 1, 0, 120),
    "attention/g": ("attention", 1, 40, 40),  # what it writes into e has been counted
    "n": ("all-reduce", 1, 0, 40),
    "r": ("reduce-scatter", 1, 0, 40),  # what it is given
    "cond/optimizer/add": ("optimizer", 1, 40, 40),  # the larger branch
  }
  assert traffic.by_cause([*kernels, *kernels])["logits"].moved == 12 * 804
  chip = Chip(memory=1e9, bandwidth=1e3, interconnect=80, flops=1e4)
  traffic_time = 4904 / (traffic.BANDWIDTH_SHARE * 1e3)
  expected = {"products": 0.0, "attention": 1.0, "network": 1.5, "other traffic": traffic_time}
  assert traffic.seconds(kernels, chip, attention=1900) == pytest.approx(expected)


def test_the_products_of_a_step_are_its_arithmetic(tmp_path, capsys):
  """On this machine's devices; the second time in a loop of two microbatches."""
  for parts in (1, 2):
    config = dataclasses.replace(CONFIG, train=TrainConfig(steps=1, microbatches=parts))
    out = str(tmp_path / f"{parts}.json")
    rows = benchmark.run(config, ("bytes",), out=out)
    saved = read_json(out)
    flops = sum(kernel["flops"] for kernel in saved["operations"]) * jax.device_count()
    # All but biases, norms and the lookup of positions and tokens, which the formula counts.
    assert flops == pytest.approx(16 * 16 * CONFIG.trunk.flops_per_token(16), rel=0.15)
    values = {row.name: row.value for row in rows}
    assert values["all"] == pytest.approx(sum(values[x] for x in traffic.CAUSES if x in values))
    assert values["optimizer"] >= 1e-9 * 7 * 4 * CONFIG.trunk.parameter_count()
    assert 0 < saved["ideal"]["logits"] < 1e9 * values["logits"]
  assert "| attention" in capsys.readouterr().out


def test_the_products_of_fine_tuning_are_of_its_packed_rows(prepared, tmp_path, capsys):
  trunk = dataclasses.replace(CONFIG.trunk, vocab_size=0, context=64)
  config = FinetuneConfig(BuiltinTask("story-ending"), trunk=trunk, batch_size=16)
  tokenizer, out = os.path.join(prepared, "tokenizer"), str(tmp_path / "out.json")
  benchmark.run(config, ("bytes",), out=out, tokenizer=tokenizer)
  said = re.search(r"in (\d+) rows of (\d+) tokens", capsys.readouterr().out)
  rows, length = map(int, said.groups())
  flops = sum(kernel["flops"] for kernel in read_json(out)["operations"]) * jax.device_count()
  trunk = trunk.with_vocabulary(load_tokenizer(tokenizer).with_special(*GPTFormat().special))
  assert flops == pytest.approx(rows * length * trunk.flops_per_token(length), rel=0.2)


def test_q_k_and_v_are_copied_no_more_than_they_were():
  """In the program that XLA is given, for a GPU; needs no compiler."""
  trunk = dataclasses.replace(
    CONFIG.trunk, context=64, width=256, dtype="bfloat16", attention_backend="fused"
  )
  batch, rows = causal_batch(np.zeros((2, 65), np.int32)), 2 * 64
  model = ModelConfig(trunk).build()
  params = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
  gpu = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
  with use_abstract_mesh(AbstractMesh((1,), ("devices",), abstract_device=gpu)):
    loss = model_loss(model)
    gradient = jax.jit(jax.grad(lambda params: loss(params, batch, step_key(0, 0))[0]))
    program = gradient.trace(params).lower(lowering_platforms=("cuda",)).as_text()
  made = re.findall(r"stablehlo\.(?:transpose|slice|concatenate).*-> tensor<([\dx]*)x\w+>", program)
  sizes = [int(np.prod([int(size) for size in dims.split("x")])) for dims in made]
  copies = [size for size in sizes if size in (rows * 256, 3 * rows * 256)]
  assert 0 < len(copies) <= MOST_COPIES
  assert "x64x64x" not in program and program.count("custom_call") == 3


@pytest.mark.parity("cuda")
@pytest.mark.skipif(jax.__version_info__ < JAX, reason="attention has no kernels")
def test_a_step_on_a_gpu_moves_no_more_than_it_did():
  changes = [("trunk.dtype", "bfloat16"), ("trunk.layers", "2"), ("trunk.vocab_size", "40478")]
  found = audit(override_all(load_config("gpt1"), changes), "h200:1").kernels
  moved = {cause: kernel.moved / 1e9 for cause, kernel in traffic.by_cause(found).items()}
  assert moved.keys() <= MOST.keys()
  more = {cause: size for cause, size in moved.items() if size > 1.01 * MOST[cause]}
  assert not more, more
  scores = [kernel for kernel in found if "512,512]" in kernel.result]
  assert not scores
  tables = [
    kernel for kernel in found if re.search(r"\b(40\d{3},768|768,40\d{3})\b", kernel.result)
  ]
  assert sum(kernel.runs for kernel in tables if kernel.cause != "optimizer") <= MOST_TABLES
