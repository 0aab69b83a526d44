"""Numbers of a fixed set of runs, recorded in golden.json: a change of structure must not change
any of them.

To record them anew, where a change of the numbers is meant: GPT_JAX_RECORD_GOLDEN=1 pytest
  tests/test_golden.py.
Say in the commit what changed and why: runs begun before it will not resume exactly.
"""

import contextlib
import json
import os
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest
from shared_trainers import shared_trainers
from tiny_runs import entries, params_of

import gpt_jax
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import language_model
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs import finetune, pretrain
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.trainer import Trainer

RECORD = Path(__file__).with_name("golden.json")
TOLERANCE = 1e-6  # absolute or relative; a sum that changed its order stays within it
# The keys' bias has no gradient but rounding errors, which Adam scales up to whole updates.
KEY_BIAS, KEY_BIAS_TOLERANCE = "qkv/bias", 1e-5
TRUNKS = {
  "gpt1": TransformerConfig(context=128, layers=2, width=32, heads=2),
  "gpt2": TransformerConfig(context=128, layers=2, width=32, heads=2, norm="pre"),
  "lstm": LSTMConfig(context=128, width=32, units=24),
}
# One for each transformation.
TASKS = ("story-ending", "story-doing", "story-company", "story-next")
TEXTS = ("the cat sat on the mat and the dog ran to the sea", "the old red barn")


@pytest.fixture(scope="module")
def golden():
  """golden(name, value): compares with the record, or records."""
  recording = bool(os.environ.get("GPT_JAX_RECORD_GOLDEN"))
  record = json.loads(RECORD.read_text()) if RECORD.exists() else {}

  def check(name, value):
    value = json.loads(json.dumps(value))
    if recording:
      record[name] = value
      RECORD.write_text(json.dumps(record, indent=1) + "\n")
      return
    expected = record[name]
    assert jax.tree.structure(value) == jax.tree.structure(expected), name
    leaves = map(jax.tree_util.tree_leaves_with_path, (value, expected))
    for (path, a), (_, b) in zip(*leaves, strict=True):
      where = f"{name} {jax.tree_util.keystr(path, simple=True, separator='/')}"
      if isinstance(b, float):
        tolerance = KEY_BIAS_TOLERANCE if where.endswith(KEY_BIAS) else TOLERANCE
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=where)
      else:
        assert a == b, where

  return check


@pytest.fixture(scope="module")
def pretrained(prepared, tmp_path_factory):
  """pretrained(name): the workdir of 20 steps of a tiny model, dropout on."""
  folder, done = tmp_path_factory.mktemp("golden"), {}

  def run(name):
    if name not in done:
      done[name] = str(folder / name)
      config = PretrainConfig(
        trunk=TRUNKS[name],
        data=WindowsConfig(batch_size=8, length=32),
        optim=OptimConfig(learning_rate=1e-2, warmup_steps=10),
        mesh=MeshConfig(),
        train=TrainConfig(steps=20, log_every=1),
      )
      # The LSTM's numbers follow the order of sums over the 8 devices of the record.
      with contextlib.nullcontext() if name == "lstm" else shared_trainers():
        pretrain.run(config, prepared, done[name])
    return done[name]

  return run


def metrics_of(workdir, *names):
  """The values of every entry of metrics.jsonl, by name."""
  logged = entries(workdir)
  return {name: [entry[name] for entry in logged if name in entry] for name in names}


def sums_of(workdir):
  """Sum of the absolute values of each array, by its path: a change of any shows."""
  leaves = jax.tree_util.tree_leaves_with_path(params_of(workdir))
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): float(np.abs(x).sum())
    for path, x in leaves
  }


@pytest.mark.parametrize("name", TRUNKS)
def test_pretraining(golden, pretrained, name):
  workdir = pretrained(name)
  golden(
    f"pretrain {name}", metrics_of(workdir, "loss", "gradient_norm", "learning_rate", "valid_loss")
  )
  golden(f"pretrain {name} params", sums_of(workdir))


@pytest.mark.parametrize("task", TASKS)
def test_finetuning(golden, pretrained, task, tmp_path):
  config = FinetuneConfig(
    task=BuiltinTask(task),
    batch_size=16,
    train_examples=64,
    dev_examples=16,
    optim=OptimConfig(learning_rate=1e-3, schedule="linear", warmup_steps=2),
    train=TrainConfig(epochs=2, log_every=1),
  )
  start = pretrained("gpt1")
  with shared_trainers():  # on one device: its numbers are those of any mesh
    finetune.run(config, "", start, str(tmp_path / "run"))
  names = ("loss", "task_loss", "lm_loss", "gradient_norm", "dev_loss", "dev_accuracy")
  golden(f"finetune {task}", metrics_of(tmp_path / "run", *names))


@pytest.mark.parametrize("name", TRUNKS)
def test_logits_and_generation(golden, pretrained, name):
  model = gpt_jax.load(pretrained(name))
  ids = model.loaded.tokenizer.encode(TEXTS[0])[None]
  rows = np.concatenate([ids, ids[:, :1]], axis=1)
  module = model.loaded.language_model()
  batch = causal_batch(rows)
  hidden, table, *_ = module.apply({"params": model.loaded.params}, batch.rows, method="states")
  scores = np.asarray(logits(hidden, table, module.num_tokens))[0, -1]
  golden(f"logits {name}", [float(x) for x in scores[:: len(scores) // 16]])
  golden(
    f"log_probs {name}",
    [scored.log_probs[1:].tolist() for scored in model.log_probs(list(TEXTS))],
  )
  texts = model.generate(list(TEXTS), max_tokens=20, temperature=0.0)
  texts += model.generate(list(TEXTS), max_tokens=20, temperature=0.8, top_k=20, top_p=0.9, seed=3)
  golden(f"generated {name}", texts)


def test_packed_batch(golden, tiny_tokenizer):
  task = BuiltinTask("story-company").build("")
  encoded = task.encode(task.examples("", "train")[:40], tiny_tokenizer, 128)
  batch = PackedBatches(encoded, 16, seed=1, epochs=2, groups=2, row_multiple=2)(3)
  rows, predictions = batch.rows, batch.predictions
  arrays = {
    "inputs": rows.inputs,
    "targets": predictions.targets,
    "positions": rows.positions,
    "segments": rows.segments,
    "anchors": batch.labels.anchors,
  }
  golden(
    "packed",
    {
      name: [list(x.shape), zlib.crc32(np.ascontiguousarray(x, np.int32))]
      for name, x in arrays.items()
    },
  )
  golden("packed ids", rows.inputs[0].tolist())
  weights, distributions = predictions.weights, batch.labels.distributions
  squares = float(np.square(weights).sum())
  golden("packed weights", [float(weights.sum()), squares, distributions.tolist()])


@pytest.mark.parametrize(
  "mesh, as_on",
  [
    (MeshConfig(data=8, backend="pmap"), "cpu"),
    (MeshConfig(data=2, model=2), "cpu"),
    (MeshConfig(data=2, model=2), "gpu"),  # in the order of operations there
  ],
  ids=["pmap", "2x2", "gpu"],
)
def test_one_step(golden, mesh, as_on, monkeypatch):
  for name in ("product", "cross_entropy"):
    monkeypatch.setattr(f"gpt_jax.ops.{name}.platform", lambda: as_on)
  trunk = TransformerConfig(vocab_size=60, context=8, layers=1, width=16, heads=4)
  rows = ((np.arange(16)[:, None] + 7 * np.arange(9)) % 60).astype(np.int32)
  where = make_mesh(mesh, jax.devices()[: mesh.data * mesh.model])
  model = language_model(trunk)
  trainer = Trainer.build(
    model,
    model_loss(model),
    causal_batch(rows),
    make_optimizer(OptimConfig(learning_rate=1e-2, warmup_steps=0), total_steps=20),
    where,
    rules=trunk.TENSOR_PARALLEL,
    backend=mesh.backend,
  )
  state, metrics = trainer.step(trainer.init(3), trainer.to_device(causal_batch(rows)), 3)
  values = [float(jax.device_get(metrics["loss"]).value), float(metrics["gradient_norm"])]
  values += [float(np.abs(x).sum()) for x in jax.tree.leaves(jax.device_get(state.params))]
  golden(f"one step {mesh.backend}", values)
