"""Time and memory of a step that trains an adapter, beside one that trains everything."""

import statistics
from typing import Any

import jax

from gpt_jax.apps.benchmark.memory import labeled_batch
from gpt_jax.apps.benchmark.training import our_step, trainer_with
from gpt_jax.models.adapter import Adapter
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.parallel.memory import bytes_needed
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training import timing
from gpt_jax.training.timing import Measured

ADAPTERS = {
  "everything": None,
  "LoRA, attention": Adapter(),
  "LoRA, all kernels": Adapter(targets="kernel"),
  "biases": Adapter(rank=0, trained="/bias$"),
}


def adapters(config: PretrainConfig) -> Measured:
  """A step that trains a classifier's trunk, and those of adapters, in turns.

  One example of the config's length in each row, read at its end; no auxiliary loss.
  """
  batch, steps, sizes = labeled_batch(config), {}, {}
  for name, adapter in ADAPTERS.items():
    trainer = trainer_with(config, [ClassifyHead()], batch, adapter=adapter)
    shapes, program = trainer.abstract_state(), trainer.compile(batch)
    sizes[name] = {
      "trained parameters": _bytes(shapes.params) / 1e6,
      "optimizer": _bytes(shapes.opt_state) / 1e6,
      "memory of a step": bytes_needed(program) / 1e6,
    }
    steps[name] = our_step(trainer, batch)
  times = timing.in_turns(steps)  # so that all of them meet the same load
  whole = sizes["everything"]
  for name, own in sizes.items():
    yield f"{name}: time of a step", 1e3 * statistics.median(times[name]), "ms"
    for what, size in own.items():
      yield f"{name}: {what}", size, "MB"
    if own is not whole:
      yield f"{name}: time", 100 * timing.ratio(times[name], times["everything"]), "% of everything"
      for what, size in own.items():
        yield f"{name}: {what}", 100 * size / whole[what], "% of everything"


def _bytes(tree: Any) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
