"""Makes a classifier of one table of labeled texts, and says what it can be trusted with.

python launch/label.py my.csv --checkpoint=runs/small --workdir=runs/my [--precision=0.95]
python launch/label.py my.csv --text=subject --text=body --label=team --checkpoint=DIR --workdir=DIR
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("label")
INPUT = flags.DEFINE_string(
  "input", None, "CSV, TSV or JSONL file with a text and a label in each row", required=True
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
SEED = flags.DEFINE_integer("seed", DEFAULTS["seed"], "seed of the splits and of fine-tuning")
WORKDIR = command_line.define_workdir()


def main():
  from gpt_jax.programs.labeling.columns import find_columns

  find_columns(INPUT.value, TEXT.value, LABEL.value)  # before JAX is imported
  from gpt_jax.programs import label

  result = label.run(
    INPUT.value,
    CHECKPOINT.value,
    WORKDIR.value,
    texts=TEXT.value,
    label=LABEL.value,
    precision=PRECISION.value,
    seed=SEED.value,
  )
  arguments = {"checkpoint": result["checkpoint"], "input": "FILE", "out": "FILE"}
  if "precision" in result["threshold"]:
    arguments["precision"] = f"{result['threshold']['precision']:g}"
  command_line.print_closing(f"read {WORKDIR.value}/report.html", ("predict", arguments))


if __name__ == "__main__":
  command_line.run(main, positional="input")
