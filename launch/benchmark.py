"""Benchmarks a config on this machine: training step, generation, attention, the parts of a step;
or says what bytes its step moves, on a GPU that need not be there.

python launch/benchmark.py [--config=configs/gpt1.py] [--only=step,generation,attention,parts]
  [--peers] [--out=FILE]
python launch/benchmark.py --only=bytes --topology=h200:1 [--config=configs/gpt1.py] [--out=FILE]
python launch/benchmark.py --only=bytes --topology=h200:1 --config=configs/finetune.py:sst2
  --data=DIR --tokenizer=DIR
"""

import dataclasses

from absl import flags

import command_line

PROGRAM = command_line.program("benchmark", config="gpt1")
BATCH_SIZE = flags.DEFINE_integer(
  "batch_size",
  0,
  "rows per step, or examples of a fine-tuning; 0: 1 on a CPU (rows), otherwise the config's",
  lower_bound=0,
)


def main():
  import jax

  from gpt_jax.programs.finetune_config import FinetuneConfig
  from gpt_jax.programs.pretrain import PretrainConfig

  arguments = PROGRAM.arguments()
  config = arguments["config"]
  if isinstance(config, PretrainConfig):
    on_cpu = not arguments["topology"] and jax.default_backend() == "cpu"
    size = BATCH_SIZE.value or (1 if on_cpu else config.data.batch_size)
    data = dataclasses.replace(config.data, batch_size=size)
    arguments["config"] = dataclasses.replace(config, data=data)
  elif isinstance(config, FinetuneConfig) and BATCH_SIZE.value:
    arguments["config"] = dataclasses.replace(config, batch_size=BATCH_SIZE.value)
  PROGRAM.call(arguments)


if __name__ == "__main__":
  command_line.run(main)
