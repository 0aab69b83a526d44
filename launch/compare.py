"""Compares pre-training objectives and systems (ELMo, ULMFiT, CoVe, cross-view training): one text,
one budget; fine-tuning and linear probes.

Makes the missing runs, skips finished ones, and writes results.md, results.csv and curves.png.

python launch/compare.py --budget=smoke --workdir=runs/compared
python launch/compare.py --budget=full --corpus=data/novels_sentences --data=DIR \\
  --workdir=runs/compared

The text needs sentence ends: prepare --sentences.
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("compare")
BUDGET = flags.DEFINE_string(
  "budget",
  DEFAULTS["budget"],
  "smoke: the story world; novels, small, full: a text of yours and tasks of GLUE",
)
OBJECTIVES = flags.DEFINE_list(
  "objectives",
  DEFAULTS["objectives"],
  "of causal, both_directions, masked, full_sentences, masked_next, ngrams_order, spans, "
  "neighbors, adversarial, lstm, elmo, ulmfit, cove, twin, views, none; by default all",
)
DATA = flags.DEFINE_string("data", DEFAULTS["data"], "folder of the tasks' official files")
CORPUS = flags.DEFINE_string(
  "corpus", DEFAULTS["corpus"], "text to pre-train on: a folder that launch/prepare.py wrote"
)
WORKDIR = command_line.define_workdir()


def main():
  from gpt_jax.apps.compare import compare

  compare.run(
    WORKDIR.value,
    budget=BUDGET.value,
    objectives=OBJECTIVES.value,
    data=DATA.value,
    corpus=CORPUS.value,
  )


if __name__ == "__main__":
  command_line.run(main)
