"""GPT-1's vocabulary as a tokenizer.json, with what regular expressions can say of its rules, which
are a Python program (ftfy, spaCy).
"""

import unicodedata
from typing import Any

from gpt_jax.apps.interop.tokenizer_json import byte_pairs, replace, replace_matches, sequence
from gpt_jax.data.tokenizers import gpt1
from gpt_jax.data.tokenizers.openai_files import END_OF_WORD, UNKNOWN

KINDS = gpt1.KINDS
IDS = (
  "the ids of OpenAI's code for English prose, but for about one in 15,000: it finds words by a "
  "regular expression in place of spaCy, and decodes neither HTML entities nor mis-decoded letters"
)


def describe(tokenizer: gpt1.GPT1Tokenizer, of_parts: bool) -> dict[str, Any]:
  return {
    "added_tokens": [],
    "normalizer": sequence(_normalizers()),
    "pre_tokenizer": {
      "type": "Split",
      "pattern": {"String": " "},
      "behavior": "Removed",
      "invert": False,
    },
    "decoder": {
      "type": "Sequence",
      "decoders": [
        replace(END_OF_WORD, " "),
        {"type": "Fuse"},
        *([replace_matches(r"\A(?=\S)", " ")] if of_parts else []),
        replace_matches(r" ?\n ?", "\n"),
        {"type": "Strip", "content": " ", "start": 0, "stop": 1},
      ],
    },
    "model": byte_pairs(tokenizer.pieces, tokenizer.merges, UNKNOWN, END_OF_WORD),
  }


def _normalizers() -> list[dict[str, Any]]:
  """ftfy as far as it goes, gpt1.standardize, a space after each word, lower case."""
  marks = r'[-~!";?+,)(/*\[\]}{|_]'
  # Python's \w; Oniguruma's has combining marks too.
  words = gpt1.WORDS_PATTERN.replace(r"\w", r"[\p{L}\p{N}_]")
  return [
    # ftfy.fix_text
    replace_matches(r"\x{1b}\[[\d;]*[a-zA-Z]", ""),
    *(replace(character, meant) for character, meant in _characters().items()),
    replace_matches(r"[\x{2bc}\x{2018}-\x{201b}]", "'"),
    replace_matches(r"[\x{201c}-\x{201f}]", '"'),
    replace_matches(r"\r\n|[\r\x{2028}\x{2029}]", "\n"),
    replace_matches(
      r"[\x{0}-\x{8}\x{b}\x{e}-\x{1f}\x{7f}\x{206a}-\x{206f}\x{feff}\x{fff9}-\x{fffc}]", ""
    ),
    {"type": "NFC"},
    # gpt1.standardize
    replace_matches("[—–―]", "-"),
    replace("…", "..."),
    replace("´", "'"),
    # After a run of one mark, and between another character and a mark.
    replace_matches(rf"(?:({marks})(?!\1)|[^-~!\";?+,)(/*\[\]}}{{|_](?={marks}))\K", " "),
    replace_matches(r"\s*\n\s*", " \n "),
    replace_matches(r"[^\S\n]+", " "),
    replace_matches(r"\A\s+|\s+\z", ""),
    replace_matches(rf"(?i)(?:{words})\K", " "),
    replace_matches(r"(?<=\p{L})Σ(?!\p{L})", "ς"),  # as Python's lower()
    {"type": "Lowercase"},
  ]


def _characters() -> dict[str, str]:
  """Windows-1252 in the place of the control characters U+0080 to U+009F, and ligatures apart."""
  parts = {}
  for code in range(0x80, 0xA0):
    if meant := bytes([code]).decode("cp1252", errors="ignore"):
      parts[chr(code)] = meant
  for ligature in "ĲĳŉǱǲǳǄǅǆǇǈǉǊǋǌﬀﬁﬂﬃﬄﬅﬆ":
    _, *codes = unicodedata.decomposition(ligature).split()
    parts[ligature] = "".join(chr(int(code, 16)) for code in codes)
  return parts
