"""Benchmarks a config on this machine: training step, generation, attention, the parts of a step.

python launch/benchmark.py [--config=configs/gpt1.py] [--only=step,generation,attention,parts]
  [--peers] [--out=FILE]
"""

from absl import flags

import command_line

CONFIG = command_line.define_config(default="gpt1", takes="PretrainConfig")
BATCH_SIZE = flags.DEFINE_integer(
  "batch_size", 0, "rows per step; 0: 1 on a CPU, otherwise the config's", lower_bound=0
)
ONLY = flags.DEFINE_list(
  "only", [], "of step, generation, attention, parts; default: step,generation"
)
PEERS = flags.DEFINE_boolean(
  "peers", False, "let PyTorch and transformers train and generate in turns with ours"
)
OUT = flags.DEFINE_string("out", "", "file for the numbers")
OVERWRITE = command_line.define_overwrite()


def main():
  import dataclasses

  import jax

  from gpt_jax.apps.benchmark import benchmark
  from gpt_jax.programs.pretrain import PretrainConfig

  config = CONFIG.value
  if isinstance(config, PretrainConfig):  # run() refuses any other
    size = BATCH_SIZE.value or (1 if jax.default_backend() == "cpu" else config.data.batch_size)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, batch_size=size))
  benchmark.run(config, tuple(ONLY.value), OUT.value, peers=PEERS.value, overwrite=OVERWRITE.value)


if __name__ == "__main__":
  command_line.run(main)
