"""Writes synthetic training pairs for a translation from text of its target language.

A model that translates in the other direction reads the text, line by line. The pairs are for
--config.task.synthetic of configs/translate.py.

python launch/backtranslate.py --checkpoint=runs/de-en/best --input=text.de --out=synthetic.tsv
python launch/backtranslate.py --checkpoint=DIR --input=FILE --out=FILE [--temperature=1]
  [--beams=5] [--noise=0.1] [--tag=TEXT] [--longest=N] [--ratio=X]
python launch/backtranslate.py --checkpoint=runs/en-de/best --back=runs/de-en/best
  --input=train.tsv --column=sentence --out=paraphrases.tsv
"""

import command_line

PROGRAM = command_line.program("backtranslate")

if __name__ == "__main__":
  command_line.run(PROGRAM.run)
