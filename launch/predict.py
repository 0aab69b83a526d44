"""Predicts labels with a fine-tuned checkpoint, for rows of text or a split of its task.

python launch/predict.py --checkpoint=DIR --input=FILE [--out=FILE]
python launch/predict.py --checkpoint=DIR --data=DIR [--split=train|dev|test] [--out=FILE]
python launch/predict.py --checkpoint=DIR --input=FILE --out=FILE --keep=id,text --precision=0.95
python launch/predict.py --checkpoint=BASE --adapter=topic=DIR --adapter=mood=DIR --input=FILE
  --out=FILE
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("predict")
CHECKPOINT = command_line.define_checkpoints(
  "several, or the WORKDIR of several seeds, are averaged"
)
ADAPTER = command_line.define_adapters()
INPUT = flags.DEFINE_string(
  "input",
  DEFAULTS["source"],
  "TSV, CSV, JSON or Parquet file with the task's text columns; - for stdin",
)
DATA = flags.DEFINE_string(
  "data", DEFAULTS["data_dir"], "instead of --input: folder of the task's official files"
)
SPLIT = flags.DEFINE_string(
  "split", DEFAULTS["split"], "split of --data: train, dev or test (default test)"
)
OUT = flags.DEFINE_string(
  "out", DEFAULTS["output"], "file to write: .tsv, .csv or .jsonl; - for TSV on stdout"
)
OVERWRITE = command_line.define_overwrite()
KEEP = flags.DEFINE_list(
  "keep", DEFAULTS["keep"], "columns of --input to copy into the output, or all"
)
CALIBRATE = flags.DEFINE_boolean(
  "calibrate",
  DEFAULTS["calibrate"],
  "scale probabilities by the temperature that fine-tuning found on the dev set",
)
THRESHOLD = flags.DEFINE_float(
  "threshold", DEFAULTS["threshold"], "leave out predictions with a lower probability"
)
PRECISION = flags.DEFINE_float(
  "precision",
  DEFAULTS["precision"],
  "choose the threshold on the dev set so that this share of the predictions is right, with 95 % "
  "confidence",
)
BEAMS = flags.DEFINE_integer("beams", DEFAULTS["beams"], "candidates of a search; 1: greedy")
LENGTH_PENALTY = flags.DEFINE_float(
  "length_penalty", DEFAULTS["length_penalty"], "of the search: above 0 favors long translations"
)
WEIGHTS = flags.DEFINE_string(
  "weights", DEFAULTS["weights"], "float32, bfloat16 or int8: type of the weights in products"
)


def main():
  from gpt_jax.errors import InputError
  from gpt_jax.programs import predict

  options = {
    "data_dir": DATA.value,
    "split": SPLIT.value,
    "overwrite": OVERWRITE.value,
    "keep": KEEP.value,
    "calibrate": CALIBRATE.value,
    "threshold": THRESHOLD.value,
    "precision": PRECISION.value,
    "beams": BEAMS.value,
    "length_penalty": LENGTH_PENALTY.value,
    "weights": WEIGHTS.value,
  }
  if ADAPTER.value:
    if len(CHECKPOINT.value) > 1:
      raise InputError("--adapter: goes with one --checkpoint, their base")
    predict.run_adapters(CHECKPOINT.value[0], ADAPTER.value, INPUT.value, OUT.value, **options)
    return
  predict.run(CHECKPOINT.value, INPUT.value, OUT.value, **options)


if __name__ == "__main__":
  command_line.run(main)
