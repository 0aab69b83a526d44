"""Draws the curves of runs into a picture: loss, evaluations, learning rate.

python launch/plot.py --workdir=DIR [--workdir=DIR2 … --out=FILE.png]
"""

import command_line

PROGRAM = command_line.program("plot")


def main():
  print(f"wrote {PROGRAM.run()}")


if __name__ == "__main__":
  command_line.run(main)
