"""How the time of a training step grows with each size, and that of prepare with its corpus."""

import contextlib
import dataclasses
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from gpt_jax.apps.benchmark.training import benchmark_trainer, our_step, random_batch
from gpt_jax.data import storyworld
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.programs import prepare
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training import timing
from gpt_jax.training.timing import Measured

LENGTHS = (128, 256, 512, 1024, 2048, 4096)  # tokens of a row; one row a device
FACTORS = (1, 2, 4)  # of the config's batch size, and parts of its layers and width
CORPORA = (1, 2, 4, 8)  # megabytes of text


def growth(config: PretrainConfig) -> Measured:
  """Seconds of a step for growing sizes, the sizes of an axis in turns; and of prepare."""
  yield from _along("row of {:,} tokens", LENGTHS, lambda n: _with_length(config, n))
  sizes = [factor * config.data.batch_size for factor in FACTORS]
  yield from _along("batch of {:,} rows", sizes, lambda n: _with_batch(config, n))
  trunk = config.trunk
  if trunk.is_transformer:
    yield from _along("{:,} layers", _parts(trunk.layers), lambda n: _with(config, layers=n))
    size = trunk.width // trunk.heads
    widths = [heads * size for heads in _parts(trunk.heads)]
    yield from _along("width {:,}", widths, lambda n: _with(config, width=n, heads=n // size))
  yield from _preparation()


def _step(config: PretrainConfig) -> Callable[[], Any]:
  return our_step(benchmark_trainer(config), random_batch(config))


def _parts(whole: int) -> list[int]:
  return sorted({max(1, whole // factor) for factor in FACTORS})


def _with_length(config: PretrainConfig, length: int) -> PretrainConfig:
  """The config with one row of that many tokens a device."""
  config = _with(config, context=max(length, config.trunk.context))
  rows = make_mesh(config.mesh).shape["data"]
  data = dataclasses.replace(config.data, length=length, batch_size=rows)
  return dataclasses.replace(config, data=data)


def _with_batch(config: PretrainConfig, rows: int) -> PretrainConfig:
  return dataclasses.replace(config, data=dataclasses.replace(config.data, batch_size=rows))


def _with(config: PretrainConfig, **sizes: int) -> PretrainConfig:
  return dataclasses.replace(config, trunk=dataclasses.replace(config.trunk, **sizes))


def _along(name: str, sizes: Iterable[int], resized: Callable[[int], PretrainConfig]) -> Measured:
  steps: dict[str, Callable[[], Any]] = {name.format(size): _step(resized(size)) for size in sizes}
  for size, times in timing.in_turns(steps).items():
    yield f"step, {size}", statistics.median(times), "s"


def _preparation() -> Measured:
  """prepare on stories of the story world, with a new vocabulary of 1,000 ids."""
  with tempfile.TemporaryDirectory() as folder:
    for megabytes in CORPORA:
      source = f"{folder}/{megabytes}.txt"
      with open(source, "w", encoding="utf-8") as file:
        for book in storyworld.documents(size=int(megabytes * 1e6)):
          file.write(f"{book}\n\n")
      config = prepare.PrepareConfig(source, vocab_size=1000)
      times = []
      for turn in range(timing.ROUNDS):
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
          prepare.run(config, f"{folder}/{megabytes}.{turn}")
        times.append(time.perf_counter() - began)
      yield f"prepare, {megabytes} MB of text", statistics.median(times), "s"
