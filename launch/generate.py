r"""Continues prompts with a trained language model.

python launch/generate.py --checkpoint=DIR --prompt=TEXT [--prompt=TEXT …] [--max_tokens=100 --temperature=0.8 --seed=1]

GPT-2 was asked for a summary and for a translation from French like this (Radford et al. 2019, 3.6
and 3.7):

python launch/generate.py --checkpoint=DIR --prompt="$(cat article.txt)"$'\nTL;DR:' --top_k=2
python launch/generate.py --checkpoint=DIR --prompt=$'bonjour = good morning\nmerci bien =' --temperature=0
"""

import sys

from absl import flags

import command_line
from gpt_jax.errors import InputError

CHECKPOINT = command_line.define_checkpoint()
PROMPT = flags.DEFINE_multi_string(
  "prompt", [], "text to continue; give it several times for several texts"
)
FILE = flags.DEFINE_string(
  "prompts_file", None, "text file with a prompt on each line; - is standard input"
)
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 100, "tokens to add to each prompt")
TEMPERATURE = flags.DEFINE_float(
  "temperature", 1.0, "below 1: nearer to the most likely tokens; 0: only these"
)
TOP_K = flags.DEFINE_integer("top_k", 0, "sample among the k most likely tokens; 0: among all")
TOP_P = flags.DEFINE_float(
  "top_p", 1.0, "sample among the fewest tokens that have this share of the probability"
)
SEED = flags.DEFINE_integer("seed", 0, "of the first prompt; the next prompts have the next seeds")


def main():
  prompts = PROMPT.value + (read(FILE.value) if FILE.value else [])
  from gpt_jax.programs import generate

  settings = [flag.value for flag in (MAX_TOKENS, TEMPERATURE, TOP_K, TOP_P, SEED)]
  texts = generate.run(CHECKPOINT.value, prompts, *settings)
  for number, text in enumerate(texts, 1):
    if len(texts) > 1:
      print(f"=== {number} of {len(texts)} ===")
    print(text)


def read(path: str) -> list[str]:
  try:
    if path == "-":
      return sys.stdin.read().splitlines()
    with open(path, encoding="utf-8-sig") as file:
      return file.read().splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(f"--prompts_file={path}: cannot be read ({error})") from error


if __name__ == "__main__":
  command_line.run(main)
