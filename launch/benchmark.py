"""Benchmarks a config on this machine: training step, generation, attention, the parts of a step.

python launch/benchmark.py [--config=configs/gpt1.py] [--only=step,generation,attention,parts]
  [--peers] [--out=FILE]
"""

import dataclasses

from absl import flags

import command_line

PROGRAM = command_line.program("benchmark", config="gpt1")
BATCH_SIZE = flags.DEFINE_integer(
  "batch_size", 0, "rows per step; 0: 1 on a CPU, otherwise the config's", lower_bound=0
)


def main():
  import jax

  from gpt_jax.programs.pretrain import PretrainConfig

  arguments = PROGRAM.arguments()
  config = arguments["config"]
  if isinstance(config, PretrainConfig):  # the program refuses any other
    size = BATCH_SIZE.value or (1 if jax.default_backend() == "cpu" else config.data.batch_size)
    data = dataclasses.replace(config.data, batch_size=size)
    arguments["config"] = dataclasses.replace(config, data=data)
  PROGRAM.call(arguments)


if __name__ == "__main__":
  command_line.run(main)
