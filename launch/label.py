"""Makes a classifier of one table of labeled texts, and says what it can be trusted with.

python launch/label.py my.csv --checkpoint=runs/small --workdir=runs/my [--precision=0.95]
python launch/label.py my.csv --text=subject --text=body --label=team --checkpoint=DIR --workdir=DIR
python launch/label.py my.csv --checkpoint=DIR --workdir=DIR --epochs=3 --minutes=30
python launch/label.py my.csv --checkpoint=DIR --workdir=DIR --pool=unlabeled.csv
python launch/label.py next_week.csv --from=runs/my --workdir=runs/my2 [--slices=language]
python launch/label.py no_labels.csv --labels=billing,refund --checkpoint=minilm --workdir=DIR
"""

from absl import flags

import command_line
from command_line.definitions import own_flags, split_list
from gpt_jax.errors import InputError

PROGRAM = command_line.program("label", checkpoint="")
LABELS = flags.DEFINE_multi_string(
  "labels",
  [],
  "names of the labels of a table that has none: guesses them, into WORKDIR/guesses.csv to correct",
)


def guess(arguments) -> None:
  """Guesses the labels of a table without them."""
  from gpt_jax.apps.label import names

  takes = {"labels", "input", "text", "checkpoint", "workdir"}
  other = [flag.name for flag in own_flags() if flag.present and flag.name not in takes]
  if other:
    raise InputError(f"--labels: is for a table without labels; leave --{other[0]} out")
  source, checkpoint = arguments["source"], arguments["checkpoint"]
  path, columns = names.guess_labels(
    source, checkpoint, arguments["workdir"], arguments["texts"], split_list(LABELS.value)
  )
  following = {"input": path, "text": ",".join(columns), "label": "label"}
  following |= {"checkpoint": checkpoint, "workdir": "DIR"}
  command_line.print_closing(f"correct the labels of {path}", ("label", following))


def main():
  if LABELS.value:
    guess(PROGRAM.arguments())
    return
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
