"""Makes a GLUE submission from fine-tuned checkpoints, or checks an existing one.

Prints the distribution of predictions in each file.

python launch/glue.py --checkpoint=DIR --checkpoint=DIR … --data=DIR --out=FILE.zip
python launch/glue.py --check=FILE.zip
"""

from absl import flags

import command_line
from gpt_jax.errors import InputError

CHECKPOINT = flags.DEFINE_multi_string(
  "checkpoint", None, "fine-tuned models, one per task: WORKDIR, WORKDIR/best, …"
)
DATA = flags.DEFINE_string("data", None, "folder that contains glue/ with the official files")
OUT = flags.DEFINE_string("out", None, "zip file to create")
CHECK = flags.DEFINE_string("check", None, "submission to check; no other flag is needed")


def main():
  from gpt_jax.apps.paper import glue

  checkpoints, data_dir, out = CHECKPOINT.value, DATA.value, OUT.value
  making = {"--checkpoint": checkpoints, "--data": data_dir, "--out": out}
  missing = [name for name, value in making.items() if value is None]
  sources = {}
  if CHECK.value is not None:
    if len(missing) < len(making):
      raise InputError(f"--check cannot be combined with {', '.join(making)}")
    submission = CHECK.value
  elif checkpoints is None or data_dir is None or out is None:
    raise InputError(f"missing {', '.join(missing)}; or --check alone (--help describes the flags)")
  else:
    submission = out
    sources = glue.run(checkpoints, data_dir, out)
  for file, counts in glue.check(submission).items():
    total = counts.total()
    shares = ", ".join(f"{label} {count / total:.1%}" for label, count in sorted(counts.items()))
    print(f"{file:11} {total:7,}  {shares:55} {sources.get(file, '')}".rstrip())


if __name__ == "__main__":
  command_line.run(main)
