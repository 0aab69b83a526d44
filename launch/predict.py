"""Predicts labels with a fine-tuned checkpoint, for rows of text or a split of its task.

python launch/predict.py --checkpoint=DIR --input=FILE [--out=FILE]
python launch/predict.py --checkpoint=DIR --data=DIR [--split=train|dev|test] [--out=FILE]
python launch/predict.py --checkpoint=DIR --input=FILE --out=FILE --keep=id,text --precision=0.95
python launch/predict.py --checkpoint=BASE --adapter=topic=DIR --adapter=mood=DIR --input=FILE
  --out=FILE
"""

from absl import flags

import command_line
from gpt_jax.errors import InputError

PROGRAM = command_line.program("predict", "batch_size")
ADAPTER = flags.DEFINE_multi_string(
  "adapter", [], "NAME=DIR, an adapter trained on --checkpoint; all share the base's memory"
)


def main():
  from gpt_jax.programs import predict

  arguments = PROGRAM.arguments()
  if not ADAPTER.value:
    predict.run(**arguments)
    return
  base, *others = arguments.pop("checkpoint")
  if others:
    raise InputError("--adapter: goes with one --checkpoint, their base")
  predict.run_adapters(base, ADAPTER.value, **arguments)


if __name__ == "__main__":
  command_line.run(main)
