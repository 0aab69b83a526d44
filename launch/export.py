"""Exports a checkpoint to a folder with float32 arrays, config and vocabulary.

The folder loads wherever a checkpoint does.

python launch/export.py --checkpoint=DIR --out=DIR [--format=NAME]
python launch/export.py --checkpoint=DIR --out=DIR --format=onnx_int8 --data=DIR [--keep=0.99]
"""

from absl import flags

import command_line
from gpt_jax.checkpoints.formats import describe_formats

DEFAULTS = command_line.defaults("export")
CHECKPOINT = command_line.define_checkpoint()
OUT = flags.DEFINE_string("out", None, "folder to create", required=True)
FORMAT = flags.DEFINE_string("format", DEFAULTS["format"], describe_formats())
DATA = flags.DEFINE_string(
  "data",
  DEFAULTS["data"],
  "of onnx_int8: folder of the task's files, to compare it with float32 on",
)
SPLIT = flags.DEFINE_string("split", DEFAULTS["split"], "of --data: train, dev or test")
KEEP = flags.DEFINE_float(
  "keep",
  DEFAULTS["keep"],
  "of onnx_int8: the share of float32's labels and of its accuracy to keep, or nothing is written",
)


def main():
  from gpt_jax.programs import export

  export.run(
    CHECKPOINT.value,
    OUT.value,
    FORMAT.value,
    data=DATA.value,
    split=SPLIT.value,
    keep=KEEP.value,
  )


if __name__ == "__main__":
  command_line.run(main)
