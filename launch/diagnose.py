"""Measures the limits of language models on your text, and draws them on one page.

Gradient norms by layer and distance, a scaling law that predicts the next size, learning rates that
learn, get stuck or diverge, and how varied texts are at each temperature.

python launch/diagnose.py --data=data/story --checkpoint=runs/story --workdir=runs/limits
python launch/diagnose.py --data=data/story --workdir=runs/limits --parts=scaling,rates
"""

import command_line

PROGRAM = command_line.program("diagnose")

if __name__ == "__main__":
  command_line.run(PROGRAM.run)
