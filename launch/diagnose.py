"""Measures the limits of language models on your text, and draws them on one page.

Gradient norms by layer and distance, a scaling law that predicts the next size, learning rates that
learn, get stuck or diverge, and how varied texts are at each temperature.

python launch/diagnose.py --data=data/story --checkpoint=runs/story --workdir=runs/limits
python launch/diagnose.py --data=data/story --workdir=runs/limits --parts=scaling,rates
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("diagnose")
DATA = flags.DEFINE_string("data", None, "folder written by launch/prepare.py", required=True)
CHECKPOINT = flags.DEFINE_multi_string(
  "checkpoint",
  list(DEFAULTS["checkpoint"]),
  "workdir of a language model, or another form of one; gradients and sampling look at it, and "
  "small runs have a trunk of its kind; repeat it to compare models",
)
PARTS = flags.DEFINE_list(
  "parts",
  list(DEFAULTS["parts"]),
  "what to measure; the others stay as an earlier command left them",
)
BUDGET = flags.DEFINE_string(
  "budget",
  DEFAULTS["budget"],
  "small, or smoke: fewer and shorter runs, to see that everything runs",
)
WORKDIR = flags.DEFINE_string(
  "workdir", None, "folder for page and numbers; repeating the command resumes", required=True
)


def main():
  from gpt_jax.apps.diagnose import diagnose

  diagnose.run(DATA.value, WORKDIR.value, CHECKPOINT.value, parts=PARTS.value, budget=BUDGET.value)


if __name__ == "__main__":
  command_line.run(main)
