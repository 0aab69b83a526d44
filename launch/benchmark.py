"""Benchmarks a config on this machine: training step, evaluation, memory, data, generation, time to
the first step, checkpoints; fine-tuning, and how the cost grows with each size.

python launch/benchmark.py [--config=configs/gpt1.py]
  [--only=step,evaluation,memory,data,generation,start,checkpoint] [--peers] [--out=FILE]
python launch/benchmark.py --config=configs/gpt1_small.py --only=finetuning
  --data=DIR --tokenizer=DIR [--peers]
python launch/benchmark.py --config=configs/gpt1_small.py
  --only=adapters,attention,classifier,growth,parts
"""

from absl import flags

import command_line

CONFIG = command_line.define_config(default="gpt1", takes="PretrainConfig")
BATCH_SIZE = flags.DEFINE_integer(
  "batch_size", 0, "rows per step; 0: 1 on a CPU, otherwise the config's", lower_bound=0
)
ONLY = flags.DEFINE_list(
  "only",
  [],
  "parts to measure; default: all but adapters, attention, classifier, finetuning, growth, masked, "
  "parts",
)
DATA = flags.DEFINE_string("data", "", "for finetuning: folder with glue/CoLA and glue/MRPC")
TOKENIZER = flags.DEFINE_string("tokenizer", "", "for finetuning: folder of a vocabulary")
PEERS = flags.DEFINE_boolean(
  "peers", False, "let PyTorch and transformers train, fine-tune and generate in turns with ours"
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
  benchmark.run(
    config,
    tuple(ONLY.value),
    OUT.value,
    data_dir=DATA.value,
    tokenizer=TOKENIZER.value,
    peers=PEERS.value,
    overwrite=OVERWRITE.value,
  )


if __name__ == "__main__":
  command_line.run(main)
