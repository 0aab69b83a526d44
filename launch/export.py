"""Exports a checkpoint to a folder with float32 arrays, config and vocabulary.

The folder loads wherever a checkpoint does.

python launch/export.py --checkpoint=DIR --out=DIR [--format=NAME]
python launch/export.py --checkpoint=DIR --out=DIR --format=onnx_int8 --data=DIR [--keep=0.99]
"""

import command_line

PROGRAM = command_line.program("export")

if __name__ == "__main__":
  command_line.run(PROGRAM.run)
