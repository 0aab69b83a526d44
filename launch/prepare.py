"""Turns text into a tokenizer and token files for launch/pretrain.py.

python launch/prepare.py --source=PATH|GLOB|FOLDER|hf://OWNER/SET|tfds:NAME|embedded [--source=…] \\
  --out=DIR [--vocab_size=16000 [--vocabulary=sentencepiece|wordpiece|bytes] | --tokenizer=DIR]
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from absl import flags

import command_line
from gpt_jax.apps.corpus import corpus

OUT = flags.DEFINE_string("out", None, "folder to make", required=True)
DEFINE: dict[Any, Callable[..., flags.FlagHolder]] = {
  str: flags.DEFINE_string,
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  bool: flags.DEFINE_boolean,
}
SOURCE, *FIELDS = dataclasses.fields(corpus.CorpusConfig)
SOURCES = flags.DEFINE_multi_string("source", None, SOURCE.metadata["help"], required=True)
OPTIONS = [
  DEFINE[field.type](field.name, field.default, field.metadata["help"]) for field in FIELDS
]


def main():
  source = ",".join(SOURCES.value)
  others = {option.name: option.value for option in OPTIONS}
  corpus.run(corpus.CorpusConfig(source, **others), out=OUT.value)
  config = "story" if source == "embedded" else "gpt1_small"
  command_line.print_closing(
    f"vocabulary and token files are in {OUT.value}",
    ("pretrain", {"config": config, "data": OUT.value, "workdir": "DIR"}),
  )


if __name__ == "__main__":
  command_line.run(main)
