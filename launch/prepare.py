"""Turns text into a tokenizer and token files for launch/pretrain.py.

python launch/prepare.py --source=PATH|GLOB|FOLDER|hf://OWNER/SET|tfds:NAME|embedded [--source=…] \\
  --out=DIR [--vocab_size=16000 [--vocabulary=sentencepiece|wordpiece|bytes] | --tokenizer=DIR |
  --extend=DIR --add_tokens=1000]
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from absl import flags

import command_line
from gpt_jax.apps.corpus import corpus
from gpt_jax.errors import InputError

OUT = flags.DEFINE_string("out", None, "folder to make", required=True)
DEFINE: dict[Any, Callable[..., flags.FlagHolder]] = {
  str: flags.DEFINE_string,
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  bool: flags.DEFINE_boolean,
}
SOURCE, *FIELDS = dataclasses.fields(corpus.CorpusConfig)
SOURCES = flags.DEFINE_multi_string("source", None, SOURCE.metadata["help"], required=True)
OPTIONS: list[flags.FlagHolder[Any]] = []
for field in FIELDS:
  define: Any = flags.DEFINE_multi_string if field.name == "text_column" else DEFINE[field.type]
  OPTIONS.append(define(field.name, field.default, field.metadata["help"]))
EXTEND = flags.DEFINE_string(
  "extend",
  "",
  "folder of a tokenizer, or a checkpoint, that gets tokens for frequent words of the text that it "
  "splits; the text is prepared with them, and the extended model is in OUT/model",
)
ADD_TOKENS = flags.DEFINE_integer("add_tokens", 0, "number of tokens to add to --extend")


def main():
  source = ",".join(SOURCES.value)
  others: dict[str, Any] = {option.name: option.value for option in OPTIONS}
  others["text_column"] = ",".join(others["text_column"])
  settings = corpus.CorpusConfig(source, **others)
  config = "story" if source == "embedded" else "gpt1:small"
  following = ("pretrain", {"config": config, "data": OUT.value, "workdir": "DIR"})
  if EXTEND.value:
    from gpt_jax.apps.corpus import extend  # it reads models, which takes JAX

    if model := extend.run(settings, OUT.value, EXTEND.value, ADD_TOKENS.value):
      further = {"config": "CONFIG", "checkpoint": model, "data": OUT.value, "workdir": "DIR"}
      following = ("pretrain", further)
  elif ADD_TOKENS.value:
    raise InputError(f"add_tokens={ADD_TOKENS.value}: goes with --extend=DIR, which gets them")
  else:
    corpus.run(settings, out=OUT.value)
  command_line.print_closing(f"vocabulary and token files are in {OUT.value}", following)


if __name__ == "__main__":
  command_line.run(main)
