"""Makes a GLUE submission of fine-tuned checkpoints, or checks one that is there; prints what each
file predicts.

python launch/glue.py --checkpoints=DIR,DIR --data_dir=DIR --out=FILE.zip
python launch/glue.py --check=FILE.zip
"""

from absl import flags

import command_line
from gpt_jax.errors import InputError

CHECKPOINTS = flags.DEFINE_list(
  "checkpoints",
  None,
  "one for each task, separated by commas: WORKDIR, WORKDIR/best, …, as --checkpoint elsewhere",
)
DATA_DIR = flags.DEFINE_string(
  "data_dir", None, "folder of GLUE's official files (with glue/ in it)"
)
OUT = flags.DEFINE_string("out", None, "zip to make")
CHECK = flags.DEFINE_string("check", None, "a submission to check, instead of making one")


def main():
  from gpt_jax.paper.glue import check
  from gpt_jax.programs import glue

  making = {"--checkpoints": CHECKPOINTS.value, "--data_dir": DATA_DIR.value, "--out": OUT.value}
  missing = [name for name, value in making.items() if value is None]
  if CHECK.value is not None and len(missing) < len(making):
    raise InputError(f"--check goes without {', '.join(making)}")
  if CHECK.value is None and missing:
    raise InputError(f"needed: {', '.join(missing)}; or --check alone (--help says what each is)")
  sources = {} if CHECK.value is not None else glue.run(*making.values())
  for file, counts in check(OUT.value if CHECK.value is None else CHECK.value).items():
    shares = ", ".join(
      f"{outcome} {count / counts.total():.1%}" for outcome, count in sorted(counts.items())
    )
    print(f"{file:11} {counts.total():7,}  {shares:55} {sources.get(file, '')}".rstrip())


if __name__ == "__main__":
  command_line.run(main)
