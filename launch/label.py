"""Makes a classifier of one table of labeled texts, and says what it can be trusted with.

python launch/label.py my.csv --checkpoint=runs/small --workdir=runs/my [--precision=0.95]
python launch/label.py my.csv --text=subject --text=body --label=team --checkpoint=DIR --workdir=DIR
python launch/label.py my.csv --checkpoint=DIR --workdir=DIR --epochs=3 --minutes=30
python launch/label.py my.csv --checkpoint=DIR --workdir=DIR --pool=unlabeled.csv
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("label")
INPUT = flags.DEFINE_string(
  "input", None, "CSV, TSV, JSON or Parquet file with a text and a label in each row", required=True
)
CHECKPOINT = command_line.define_checkpoint()
TEXT = flags.DEFINE_multi_string(
  "text", DEFAULTS["texts"], "text column, or two; default: text, or the one beside the label"
)
LABEL = flags.DEFINE_string(
  "label", DEFAULTS["label"], "label column; default: label, or that with fewer values of two"
)
PRECISION = flags.DEFINE_float(
  "precision", DEFAULTS["precision"], "share of right predictions that a threshold should promise"
)
EPOCHS = flags.DEFINE_integer(
  "epochs",
  DEFAULTS["epochs"],
  "epochs of fine-tuning, at most; 0: by the sizes of model and data, until three bring nothing",
)
MINUTES = flags.DEFINE_float(
  "minutes",
  DEFAULTS["minutes"],
  "minutes that fine-tuning may take now; the same command goes on with it; 0: no limit",
)
SKIP_FINETUNING = flags.DEFINE_boolean(
  "skip_finetuning",
  DEFAULTS["skip_finetuning"],
  "TF-IDF and the probe alone; false: all three. By default fine-tuning is skipped where the probe "
  "has fewer of the dev rows right than TF-IDF, and the 95 % interval of the difference on the "
  "same rows (McNemar's exact test) excludes a gain",
)
POOL = flags.DEFINE_string(
  "pool", DEFAULTS["pool"], "table without labels: write the rows of it to label next, pool.csv"
)
POOL_ROWS = flags.DEFINE_integer(
  "pool_rows", DEFAULTS["pool_rows"], "how many rows of the pool to name", lower_bound=1
)
SEED = flags.DEFINE_integer("seed", DEFAULTS["seed"], "seed of the splits and of fine-tuning")
WORKDIR = command_line.define_workdir()


def main():
  from gpt_jax.apps.label.table import find_columns

  find_columns(INPUT.value, TEXT.value, LABEL.value)  # before JAX is imported
  from gpt_jax.apps.label import label

  result = label.run(
    INPUT.value,
    CHECKPOINT.value,
    WORKDIR.value,
    texts=TEXT.value,
    label=LABEL.value,
    precision=PRECISION.value,
    epochs=EPOCHS.value,
    minutes=MINUTES.value,
    skip_finetuning=SKIP_FINETUNING.value,
    pool=POOL.value,
    pool_rows=POOL_ROWS.value,
    seed=SEED.value,
  )
  arguments = {"checkpoint": result["checkpoint"], "input": "FILE", "out": "FILE"}
  threshold = result["threshold"]
  if "problem" not in threshold:  # otherwise nobody has asked for what can be promised
    arguments["precision"] = f"{threshold['precision']:g}"
  command_line.print_closing(f"read {WORKDIR.value}/report.html", ("predict", arguments))


if __name__ == "__main__":
  command_line.run(main, positional="input")
