"""Evaluates a language model on tasks without fine-tuning (section 5).

The tasks: CoLA, SST-2, RACE, definite pronouns (DPRD) and Winograd schemas (WSC273).

python launch/zero_shot.py --checkpoint=DIR --data=DIR [--tasks=cola,dprd] [--history]
"""

import command_line

PROGRAM = command_line.program("zero_shot")

if __name__ == "__main__":
  command_line.run(PROGRAM.run)
