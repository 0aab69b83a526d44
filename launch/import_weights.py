"""Imports released weights, or those of other software, as a run folder.

The folder can be fine-tuned, evaluated and sampled from like any other run.

python launch/import_weights.py --format=NAME --checkpoint=FOLDER --out=WORKDIR
"""

import command_line

PROGRAM = command_line.program("import_weights")

if __name__ == "__main__":
  command_line.run(PROGRAM.run)
