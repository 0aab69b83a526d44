"""Makes a classifier of one table of labeled texts, and says what it can be trusted with.

python launch/label.py my.csv --checkpoint=runs/small --workdir=runs/my [--precision=0.95]
python launch/label.py my.csv --text=subject --text=body --label=team --checkpoint=DIR --workdir=DIR
python launch/label.py my.csv --checkpoint=DIR --workdir=DIR --epochs=3 --minutes=30
python launch/label.py my.csv --checkpoint=DIR --workdir=DIR --pool=unlabeled.csv
python launch/label.py next_week.csv --from=runs/my --workdir=runs/my2 [--slices=language]
"""

import command_line

PROGRAM = command_line.program("label", checkpoint="")


def main():
  from gpt_jax.apps.label.previous import read_previous
  from gpt_jax.apps.label.table import find_columns

  arguments = PROGRAM.arguments()
  # Without JAX.
  asked = (arguments[name] for name in ("previous", "checkpoint", "texts", "label"))
  previous = read_previous(*asked)
  find_columns(arguments["source"], previous.columns, previous.label)
  result = PROGRAM.call(arguments)
  following = {"checkpoint": result["checkpoint"], "input": "FILE", "out": "FILE"}
  threshold = result["threshold"]
  if "problem" not in threshold:  # otherwise nobody has asked for what can be promised
    following["precision"] = f"{threshold['precision']:g}"
  page = f"{arguments['workdir']}/report.html"
  served = {"checkpoint": result["checkpoint"]}
  command_line.print_closing(f"read {page}", ("predict", following), ("serve", served))


if __name__ == "__main__":
  command_line.run(main, positional="input")
