"""The speed of fine-tuning: examples packed into rows, or padded, and a peer's."""

import dataclasses
import functools
import statistics
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np

from gpt_jax.apps.benchmark.peers.finetuning import BATCHES, finetuning_steps
from gpt_jax.apps.benchmark.training import our_step, trainer_with
from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.model import ModelConfig, Outputs, make_heads
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.task import find
from gpt_jax.training import timing
from gpt_jax.training.timing import Measured

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
  packed, heads = _packed(config, encoded), (LanguageHead(0.5), *make_heads([task.head]))
  padded = one_sequence_per_row(packed, int(encoded.lengths.max()))
  batches = {"packed": packed, "padded": padded}
  trainer = trainer_with(config, heads, packed)
  model, params = ModelConfig(config.trunk, heads).build(), trainer.init(0).params

  @jax.jit
  def scores(params, batch):
    return cast(Outputs, model.apply({"params": params}, batch)).heads[1]

  work: dict[str, Callable[[Batch], Callable[[], Any]]] = {
    "training": functools.partial(our_step, trainer),
    "evaluation": lambda batch: functools.partial(scores, params, jax.device_put(batch)),
  }
  for what, prepare in work.items():
    times = timing.in_turns({layout: prepare(batch) for layout, batch in batches.items()})
    for layout, batch in batches.items():
      shape = " x ".join(map(str, batch.rows.inputs.shape))
      rate = FINETUNING_BATCH / statistics.median(times[layout])
      yield f"{task.name} {what}, {layout} to {shape}", rate, "examples/s"
    faster = timing.ratio(times["padded"], times["packed"])
    yield f"{task.name} {what}, packed", faster, "times as fast"


def _beside_transformers(config: PretrainConfig, task: LabeledTask, encoded: Encoded) -> Measured:
  """Training with the paper's auxiliary loss, and without it as transformers does, in turns."""
  batch, head = _packed(config, encoded), make_heads([task.head])
  calls: dict[str, Any] = {}
  for name, heads in (("with", (LanguageHead(0.5), *head)), ("without", head)):
    calls[name] = our_step(trainer_with(config, heads, batch), batch)
  calls["transformers"] = finetuning_steps(config.trunk, encoded, FINETUNING_BATCH)
  times = timing.in_turns(calls)
  theirs = [duration / BATCHES for duration in times.pop("transformers")]
  rate = FINETUNING_BATCH / statistics.median(theirs)
  yield f"{task.name} training, transformers, batches by length", rate, "examples/s"
  for name, ours in times.items():
    rate = FINETUNING_BATCH / statistics.median(ours)
    yield f"{task.name} training, packed, {name} auxiliary loss", rate, "examples/s"
    faster = timing.ratio(theirs, ours)
    yield f"{name} auxiliary loss, beside transformers", faster, "times as fast"


def _packed(config: PretrainConfig, encoded: Encoded) -> Batch:
  row_multiple = make_mesh(config.mesh).size
  return PackedBatches(encoded, FINETUNING_BATCH, seed=0, epochs=1, row_multiple=row_multiple)(0)


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
