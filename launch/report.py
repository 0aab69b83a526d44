"""Writes an offline HTML report of a run, or a comparison of several.

python launch/report.py --workdir=DIR [--out=FILE.html] [--samples]
python launch/report.py --workdir=DIR --workdir=DIR2 --out=FILE.html
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("report")
WORKDIR = flags.DEFINE_multi_string(
  "workdir",
  None,
  "folder of a run, or of runs of several seeds; repeat it to compare",
  required=True,
)
OUT = flags.DEFINE_string(
  "out", DEFAULTS["out"], "HTML page to write (default: report.html in the workdir)"
)
SAMPLES = flags.DEFINE_boolean(
  "samples",
  DEFAULTS["samples"],
  "also run the checkpoint: sample texts, or an inspection page of the worst errors",
)


def main():
  from gpt_jax.apps.report import report

  print(f"wrote {report.run(WORKDIR.value, OUT.value, samples=SAMPLES.value)}")


if __name__ == "__main__":
  command_line.run(main)
