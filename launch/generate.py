r"""Continues prompts with a trained language model.

python launch/generate.py --checkpoint=DIR --prompt=TEXT [--prompt=TEXT …] [--temperature=0.8]

GPT-2 was prompted like this for a summary and for a translation from French (Radford et al. 2019,
sections 3.6 and 3.7):

python launch/generate.py --checkpoint=DIR --prompt="$(cat article.txt)"$'\nTL;DR:' --top_k=2
python launch/generate.py --checkpoint=DIR --prompt=$'bonjour = hello\nmerci =' --temperature=0
"""

import sys

from absl import flags

import command_line
from gpt_jax.errors import InputError

DEFAULTS = command_line.defaults("generate")
CHECKPOINT = command_line.define_checkpoint()
PROMPT = flags.DEFINE_multi_string("prompt", [], "text to continue")
INPUT = flags.DEFINE_string("input", None, "text file with one prompt per line; - for stdin")
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
  "seed", DEFAULTS["seed"], "random seed of the first prompt; prompt i uses seed + i"
)


def main():
  prompts = PROMPT.value + (_read_lines(INPUT.value) if INPUT.value else [])
  from gpt_jax.programs import generate

  texts = generate.run(
    CHECKPOINT.value,
    prompts,
    max_tokens=MAX_TOKENS.value,
    temperature=TEMPERATURE.value,
    top_k=TOP_K.value,
    top_p=TOP_P.value,
    seed=SEED.value,
  )
  for number, text in enumerate(texts, 1):
    if len(texts) > 1:
      print(f"=== {number} of {len(texts)} ===")
    print(text)


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
