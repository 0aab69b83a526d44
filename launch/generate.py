r"""Continues prompts with a trained language model.

python launch/generate.py --checkpoint=DIR --prompt=TEXT [--prompt=TEXT …] [--temperature=0.8]

GPT-2 was prompted like this for a summary and for a translation from French (Radford et al. 2019,
sections 3.6 and 3.7):

python launch/generate.py --checkpoint=DIR --prompt="$(cat article.txt)"$'\nTL;DR:' --top_k=2
python launch/generate.py --checkpoint=DIR --prompt=$'bonjour = hello\nmerci =' --temperature=0

A masked language model fills in what is missing:

python launch/generate.py --checkpoint=DIR --fill="the cat [MASK] on the mat"
"""

import sys
from collections.abc import Iterable
from typing import Any

from absl import flags

import command_line
from gpt_jax.errors import InputError
from gpt_jax.tasks.readers import read_every_line

PROGRAM = command_line.program("generate", prompts=())
INPUT = flags.DEFINE_string("input", None, "text file with one prompt per line; - for stdin")
FILL = flags.DEFINE_multi_string(
  "fill", [], "text with [MASK]: print the --top_k likeliest tokens (by default 5) at each mask"
)
STREAM = flags.DEFINE_boolean(
  "stream", None, "print words as they are written; default: on a terminal"
)


def main():
  arguments = PROGRAM.arguments()
  if INPUT.value:
    arguments["prompts"] += [line for _, line in read_every_line(INPUT.value)]
  from gpt_jax.programs import generate

  if FILL.value:
    if arguments["prompts"]:
      raise InputError("--fill: leave out --prompt and --input, whose texts are continued")
    for name in ("stream", *arguments):
      if name not in ("checkpoint", "prompts", "top_k") and command_line.FLAGS[name].present:
        raise InputError(f"--{name}: is for prompts; leave it out with --fill")
    top_k = arguments["top_k"] if command_line.FLAGS["top_k"].present else 5
    _print_filled(generate.fill(arguments["checkpoint"], FILL.value, top_k))
    return
  count = len(arguments["prompts"]) * arguments["num_samples"]
  streams = sys.stdout.isatty() if STREAM.value is None else STREAM.value
  if streams and arguments["beams"] == 1:
    del arguments["beams"], arguments["length_penalty"]
    _print(generate.stream(**arguments), count)
  else:
    _print(enumerate(generate.run(**arguments)), count)


def _print(pieces: Iterable[tuple[int, str]], count: int) -> None:
  """Prints texts, whose pieces come one text after the other."""
  current = -1
  for number, piece in pieces:
    if number != current:
      if current >= 0:
        print()
      if count > 1:
        print(f"=== {number + 1} of {count} ===")
      current = number
    print(piece, end="", flush=True)
  print()


def _print_filled(filled: list[list[list[Any]]]) -> None:
  """Prints the tokens at each mask of each text, with their probabilities."""
  masks = [mask for text in filled for mask in text]
  for number, mask in enumerate(masks, start=1):
    if len(masks) > 1:
      print(f"=== {number} of {len(masks)} ===")
    for piece, probability in mask:
      print(f"{probability:.4f}  {piece}")


if __name__ == "__main__":
  command_line.run(main)
