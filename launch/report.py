"""Writes an offline HTML report of a run, or a comparison of several.

python launch/report.py --workdir=DIR [--out=FILE.html] [--samples]
python launch/report.py --workdir=DIR --workdir=DIR2 --out=FILE.html
"""

import command_line

PROGRAM = command_line.program("report")


def main():
  print(f"wrote {PROGRAM.run()}")


if __name__ == "__main__":
  command_line.run(main)
