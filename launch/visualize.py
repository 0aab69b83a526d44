"""Writes an HTML page with token probabilities, attention, and label probabilities of a model.

python launch/visualize.py --checkpoint=DIR --text=TEXT [--text=TEXT …] [--out=page.html]
"""

import command_line

PROGRAM = command_line.program("visualize")

if __name__ == "__main__":
  command_line.run(PROGRAM.run)
