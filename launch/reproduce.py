"""Reproduces the paper's tables 2 to 5 and figure 2 with a pre-trained checkpoint, or from a text.

Makes the missing runs, skips finished ones, and compares the results with the paper's.

python launch/reproduce.py --table=5 --figure=2 --checkpoint=DIR --data=DIR --workdir=DIR
python launch/reproduce.py --budget=books --text=SOURCES --data=DIR --workdir=DIR [--minutes=40]
"""

import command_line

PROGRAM = command_line.program("reproduce")

if __name__ == "__main__":
  command_line.run(PROGRAM.run)
