"""Compares pre-training objectives and systems (ELMo, ULMFiT, CoVe, cross-view training): one text,
one budget; fine-tuning and linear probes.

Makes the missing runs, skips finished ones, and writes results.md and curves.png.

python launch/compare.py --budget=smoke --workdir=runs/compared
python launch/compare.py --budget=full --corpus=data/novels_sentences --data=DIR \\
  --workdir=runs/compared

The text needs sentence ends: prepare --sentences.
"""

import command_line

PROGRAM = command_line.program("compare")

if __name__ == "__main__":
  command_line.run(PROGRAM.run)
