"""The speed of fine-tuning: examples packed into rows, or padded, and a peer's."""

import dataclasses
import functools
import statistics
from typing import Any, cast

import jax
import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig, Outputs, make_heads
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.programs.benchmarks import timing
from gpt_jax.programs.benchmarks.peers.finetuning import BATCHES, finetuning_steps
from gpt_jax.programs.benchmarks.timing import Measured
from gpt_jax.programs.benchmarks.training import TOTAL_STEPS
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.task import LabeledTask, find
from gpt_jax.training.optimizer import make_optimizer
from gpt_jax.training.trainer import Trainer

FINETUNING_BATCH = 32  # examples


def finetuning(
  config: PretrainConfig, data_dir: str, tokenizer: str, peers: bool = False
) -> Measured:
  """Examples per second of CoLA and MRPC: packed, as we fine-tune, and padded to the longest, as in
  OpenAI's code.

  Args:
    config: of the trunk, the optimizer and the mesh.
    data_dir: folder with glue/ in it.
    tokenizer: folder of a vocabulary.
    peers: whether to measure transformers' classifier on CoLA, too.
  """
  vocabulary = load_tokenizer(tokenizer)
  trunk = dataclasses.replace(config.trunk, vocab_size=vocabulary.vocab_size)
  config = dataclasses.replace(config, trunk=trunk)
  for name in ("cola", "mrpc"):
    task = find(name)
    encoded = task.encode(task.examples(data_dir, "train"), vocabulary, trunk.context)
    ratio = encoded.lengths.max() / encoded.lengths.mean()
    yield f"{name}, longest sequence over the mean", ratio, "times"
    yield from _packing(config, task, encoded)
    if peers and name == "cola":
      yield from _beside_transformers(config, task, encoded)


def _packing(config: PretrainConfig, task: LabeledTask, encoded: Encoded) -> Measured:
  """Training with the auxiliary loss and evaluation of one batch, packed and padded in turns."""
  model = ModelConfig(config.trunk, (LanguageHead(0.5), *make_heads([task.head]))).build()
  packed, trainer = _packed(config, encoded), _trainer(config, model, encoded)
  state = trainer.init(0)
  padded = one_sequence_per_row(packed, int(encoded.lengths.max()))
  batches = {"packed": trainer.to_device(packed), "padded": trainer.to_device(padded)}

  @jax.jit
  def scores(params, batch):
    outputs = model.apply({"params": params}, jax.tree.map(lambda x: x[0], batch))
    return cast(Outputs, outputs).heads[1]

  def training(layout):
    nonlocal state
    state, metrics = trainer.step(state, batches[layout], 0)
    return metrics["loss"]

  def evaluation(layout):
    return scores(state.params, batches[layout])

  for work in (training, evaluation):
    calls: dict[str, Any] = {layout: functools.partial(work, layout) for layout in batches}
    times = timing.in_turns(calls)
    name = f"{task.name} {work.__name__}"
    for layout, batch in batches.items():
      shape = " x ".join(map(str, batch.rows.inputs.shape[1:]))
      rate = FINETUNING_BATCH / statistics.median(times[layout])
      yield f"{name}, {layout} to {shape}", rate, "examples/s"
    yield f"{name}, packed", timing.ratio(times["padded"], times["packed"]), "times as fast"


def _beside_transformers(config: PretrainConfig, task: LabeledTask, encoded: Encoded) -> Measured:
  """Training with the paper's auxiliary loss, and without it as transformers does, in turns."""
  calls: dict[str, Any] = {}
  for name, language in (("with", (LanguageHead(0.5),)), ("without", ())):
    model = ModelConfig(config.trunk, (*language, *make_heads([task.head]))).build()
    trainer = _trainer(config, model, encoded)
    batch = trainer.to_device(_packed(config, encoded))
    calls[name] = _Steps(trainer, batch)
  calls["transformers"] = finetuning_steps(config.trunk, encoded, FINETUNING_BATCH)
  times = timing.in_turns(calls)
  theirs = [duration / BATCHES for duration in times.pop("transformers")]
  rate = FINETUNING_BATCH / statistics.median(theirs)
  yield f"{task.name} training, transformers, batches by length", rate, "examples/s"
  for name, ours in times.items():
    rate = FINETUNING_BATCH / statistics.median(ours)
    yield f"{task.name} training, packed, {name} auxiliary loss", rate, "examples/s"
    yield "beside transformers", timing.ratio(theirs, ours), "times as fast"


class _Steps:
  """Training steps on one batch; a call makes one, and gives its loss."""

  def __init__(self, trainer: Trainer, batch: Any):
    self._trainer, self._batch, self._state = trainer, batch, trainer.init(0)

  def __call__(self) -> Any:
    self._state, metrics = self._trainer.step(self._state, self._batch, 0)
    return metrics["loss"]


def _packed(config: PretrainConfig, encoded: Encoded) -> Batch:
  row_multiple = make_mesh(config.mesh).size
  return PackedBatches(encoded, FINETUNING_BATCH, seed=0, epochs=1, row_multiple=row_multiple)(0)


def _trainer(config: PretrainConfig, model: Any, encoded: Encoded) -> Trainer:
  return Trainer.build(
    model,
    model_loss(model),
    _packed(config, encoded),
    make_optimizer(config.optim, TOTAL_STEPS),
    make_mesh(config.mesh),
    rules=config.trunk.TENSOR_PARALLEL,
    fsdp=config.mesh.fsdp,
  )


def one_sequence_per_row(batch: Batch, length: int) -> Batch:
  """The same examples with each sequence in a row of its own, padded to `length`."""
  assert batch.labels is not None and batch.predictions is not None
  rows, anchors = batch.rows, batch.labels.anchors
  count = anchors.size
  packed = [*rows[:3], batch.predictions.targets, batch.predictions.weights]
  padded = [np.zeros((count, length), x.dtype) for x in packed]
  for row, anchor in enumerate(anchors.reshape(-1)):
    packed_row, last = divmod(int(anchor), rows.inputs.shape[1])
    first = last - int(rows.positions[packed_row, last])
    size = last + 1 - first
    for x, packed_x in zip(padded, packed, strict=True):
      x[row, :size] = packed_x[packed_row, first : last + 1]
    padded[2][row, :size] = 1  # segments
  sizes = (padded[2] > 0).sum(axis=1)
  new_anchors = (np.arange(count) * length + sizes - 1).reshape(anchors.shape).astype(np.int32)
  return Batch(
    Rows(*padded[:3]),
    predictions=Predictions(*padded[3:]),
    labels=batch.labels._replace(anchors=new_anchors),
  )
