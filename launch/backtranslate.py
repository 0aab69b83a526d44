"""Writes synthetic training pairs for a translation from text of its target language.

A model that translates in the other direction reads the text, line by line. The pairs are for
--config.task.synthetic of configs/translate.py.

python launch/backtranslate.py --checkpoint=runs/de-en/best --input=text.de --out=synthetic.tsv
python launch/backtranslate.py --checkpoint=DIR --input=FILE --out=FILE [--temperature=1]
  [--beams=5] [--noise=0.1] [--tag=TEXT] [--longest=N] [--ratio=X]
python launch/backtranslate.py --checkpoint=runs/en-de/best --back=runs/de-en/best
  --input=train.tsv --column=sentence --out=paraphrases.tsv
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("backtranslate")
CHECKPOINT = command_line.define_checkpoint()
INPUT = flags.DEFINE_string(
  "input", None, "text to translate, a sentence a line; with --back a table", required=True
)
OUT = flags.DEFINE_string("out", None, "TSV file to write: pairs, or rows of --back", required=True)
BACK = flags.DEFINE_string(
  "back", DEFAULTS["back"], "model of the way back: write paraphrases of a table's rows"
)
COLUMN = flags.DEFINE_string("column", DEFAULTS["column"], "with --back, the table's text")
ORIGINAL = flags.DEFINE_string(
  "original", DEFAULTS["original"], "with --back, a further column: the text as it was"
)
BEAMS = flags.DEFINE_integer("beams", DEFAULTS["beams"], "candidates of a search; 1: none")
TEMPERATURE = flags.DEFINE_float(
  "temperature", DEFAULTS["temperature"], "1 samples translations from the model, 0 is greedy"
)
TOP_K = flags.DEFINE_integer(
  "top_k", DEFAULTS["top_k"], "tokens to sample among; 0: all", lower_bound=0
)
NOISE = flags.DEFINE_float(
  "noise",
  DEFAULTS["noise"],
  "probability that a word of a translation is removed, or replaced by a filler; others move",
)
TAG = flags.DEFINE_string("tag", DEFAULTS["tag"], "word before each translation; empty: none")
LONGEST = flags.DEFINE_integer(
  "longest", DEFAULTS["longest"], "leave out pairs with more words on a side", lower_bound=1
)
RATIO = flags.DEFINE_float(
  "ratio",
  DEFAULTS["ratio"],
  "leave out pairs whose longer side has more than so many times the words of the shorter",
)
SEED = flags.DEFINE_integer("seed", DEFAULTS["seed"], "of samples and noise", lower_bound=0)
OVERWRITE = command_line.define_overwrite()


def main():
  from gpt_jax.apps.backtranslate import backtranslate

  backtranslate.run(
    CHECKPOINT.value,
    INPUT.value,
    OUT.value,
    back=BACK.value,
    column=COLUMN.value,
    original=ORIGINAL.value,
    beams=BEAMS.value,
    temperature=TEMPERATURE.value,
    top_k=TOP_K.value,
    noise=NOISE.value,
    tag=TAG.value,
    longest=LONGEST.value,
    ratio=RATIO.value,
    seed=SEED.value,
    overwrite=OVERWRITE.value,
  )


if __name__ == "__main__":
  command_line.run(main)
