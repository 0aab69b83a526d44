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

DEFAULTS = command_line.defaults("generate")
CHECKPOINT = command_line.define_checkpoint()
PROMPT = flags.DEFINE_multi_string("prompt", [], "text to continue")
INPUT = flags.DEFINE_string("input", None, "text file with one prompt per line; - for stdin")
FILL = flags.DEFINE_multi_string(
  "fill", [], "text with [MASK]: print the --top_k likeliest tokens (by default 5) at each mask"
)
MAX_TOKENS = flags.DEFINE_integer(
  "max_tokens", DEFAULTS["max_tokens"], "number of tokens to add to each prompt"
)
TEMPERATURE = flags.DEFINE_float(
  "temperature", DEFAULTS["temperature"], "sampling temperature; 0: always the most likely token"
)
TOP_K = flags.DEFINE_integer(
  "top_k", DEFAULTS["top_k"], "sample from the k most likely tokens; 0: from all"
)
TOP_P = flags.DEFINE_float(
  "top_p", DEFAULTS["top_p"], "sample from the fewest tokens with this total probability"
)
SEED = flags.DEFINE_integer(
  "seed", DEFAULTS["seed"], "random seed of the first text; text i uses seed + i"
)
IGNORE_EOS = flags.DEFINE_boolean(
  "ignore_eos", DEFAULTS["ignore_eos"], "go on behind the token that ends a text"
)
NUM_SAMPLES = flags.DEFINE_integer(
  "num_samples", DEFAULTS["num_samples"], "continuations of each prompt"
)
BEAMS = flags.DEFINE_integer(
  "beams", DEFAULTS["beams"], "above 1: beam search for a likely text, instead of sampling"
)
LENGTH_PENALTY = flags.DEFINE_float(
  "length_penalty", DEFAULTS["length_penalty"], "of beam search; above 0 favors long texts"
)
WEIGHTS = flags.DEFINE_string(
  "weights",
  DEFAULTS["weights"],
  "float32, bfloat16 or int8: type of the weights in products; fewer bits are faster, less exact",
)
STREAM = flags.DEFINE_boolean(
  "stream", None, "print words as they are written; default: on a terminal"
)


def main():
  prompts = PROMPT.value + (_read_lines(INPUT.value) if INPUT.value else [])
  from gpt_jax.programs import generate

  if FILL.value:
    if prompts:
      raise InputError("--fill: leave out --prompt and --input, whose texts are continued")
    of_prompts = (MAX_TOKENS, TEMPERATURE, TOP_P, SEED, IGNORE_EOS, NUM_SAMPLES, BEAMS)
    for flag in (*of_prompts, LENGTH_PENALTY, WEIGHTS, STREAM):
      if flag.present:
        raise InputError(f"--{flag.name}: is for prompts; leave it out with --fill")
    top_k = TOP_K.value if TOP_K.present else 5
    _print_filled(generate.fill(CHECKPOINT.value, FILL.value, top_k))
    return
  options: dict[str, Any] = {
    "max_tokens": MAX_TOKENS.value,
    "temperature": TEMPERATURE.value,
    "top_k": TOP_K.value,
    "top_p": TOP_P.value,
    "seed": SEED.value,
    "ignore_eos": IGNORE_EOS.value,
    "num_samples": NUM_SAMPLES.value,
    "weights": WEIGHTS.value,
  }
  pieces: Iterable[tuple[int, str]]
  if BEAMS.value != 1:
    options |= {"beams": BEAMS.value, "length_penalty": LENGTH_PENALTY.value}
    pieces = enumerate(generate.run(CHECKPOINT.value, prompts, **options))
  elif sys.stdout.isatty() if STREAM.value is None else STREAM.value:
    pieces = generate.stream(CHECKPOINT.value, prompts, **options)
  else:
    pieces = enumerate(generate.run(CHECKPOINT.value, prompts, **options))
  _print(pieces, len(prompts) * NUM_SAMPLES.value)


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


def _read_lines(path: str) -> list[str]:
  try:
    if path == "-":
      return sys.stdin.read().splitlines()
    with open(path, encoding="utf-8-sig") as file:
      return file.read().splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(f"--input={path}: cannot be read ({error})") from error


if __name__ == "__main__":
  command_line.run(main)
