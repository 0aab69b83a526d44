"""Texts and vocabularies for the tests of OpenAI's tokenizers."""

import collections
import itertools
import json
import random

TEXT = """the old man walked slowly to the sea and the sea was calm . she asked why he walked there
, and nothing was said about the calm old sea nor about the walking man . " i do n't know , "
she said . " it 's the sea ! " """

EXAMPLES = {
  "nothing": "",
  "spaces": " \t \n\n  ",
  "one letter": "a",
  "one line break": "one\ntwo",
  "line breaks": "\n\none\n\n\n two \n\t\n three\n",
  "carriage returns": "one\r\ntwo\rthree\x85four\u2028five\u2029six",
  "tabs and other spaces": "one\ttwo\xa0three\u3000four\x0bfive\x0csix\x1cseven\u200beight",
  "dialogue": "“Well,” said he—“what's that?” 'Nothing--nothing at all…' she cried. \"No?!\"",
  "contractions": "I'm gonna say they'd've, we'll, can't cannot won't dont 'tis "
  "John's the boys' o'clock rock 'n' roll",
  "curly contractions": "I’m sure you’re right, it’s what we’ve been told; he didn’t.",
  "numbers": "3.5% of $1,000.50, +7 -8 1/2 10:30 p.m. on 12-04-1999 3km 20°C. "
  "No. 5 1st 2nd 1e-9 £5 €6",
  "abbreviations": "Mr. and Mrs. Smith of the U.S.A. met Dr. Jones, Ph.D., e.g. on St. "
  "James's St. Vol. 3 a.m.",
  "addresses": "See https://example.com/a_b?c=d&e=f#g or mail someone@example.co.uk, "
  "C:\\new\\tables \\\\ ~/home",
  "emoji": "🙂🙃 👨‍👩‍👧 :-) ;) :D xD <3 ¯\\_(ツ)_/¯ 8) =3 :o ಠ_ಠ",
  "mojibake": "schÃ¶n â€œquotedâ€\x9d itâ€™s doesnâ€™t ï¬\x81nd sÃ³lo",
  "html": "fish &amp; chips &lt;b&gt; <i>a &amp; b</i>\n&amp; after &eacute;",
  "entities before a tag": "&amp; one\n<p> &amp; two\n&amp; three",
  "other letters": "naïve café ﬁnd ＦＵＬＬ ΟΔΟΣ İstanbul straße 日本語 العربية हिन्दी Ⅷ ½ ǆ",
  "control characters": "a\x00b\x07c\x1b[31md\x7fe\ufefff\ufffd",
  "half a pair": "one \ud83d two \udcff",
  "marks": 'a--b!!!c???d;;e,,f((g))h[[i]]j{{k}}l||m__n**o//p++q~~r""s...t....u·v§w¶x_y',
  "signs of the vocabulary": "</w> <unk> a</w>b <|endoftext|> \n</w> Ġthe",
  "quotes that span words": "' ''St. ’ ’’Why’re '' `` ` ' \" ''",
  "a long word": "ab" * 3000,
  "a long line": "the old man walked slowly to the sea, and " * 3000,
}
LETTERS = (
  "aabcdeeeehilmnorsttuwzABEIST    \n\n\t\r''’\"“”.,;:!?-—…()[]{}<>|_*/\\&%$#+=~^@0123456789"
)
RARE = "éßİΣσς日ツ🙂\u200d\u200b\xa0\x85\u2028\x00\x1b\ufeff\ufffdÃâ€™½Ⅷ°²́\ud800"
FRAGMENTS = "n't 's 'll don't gonna Mr. a.m. :// &amp; <b> '' :) 8)".split() + ["\r\n", "..."]


def mixed(rng: random.Random) -> str:
  alphabet = [*LETTERS, *rng.sample([*RARE, *FRAGMENTS], 6)]
  return "".join(rng.choices(alphabet, k=rng.randint(1, 60)))


def merged(parts: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
  """Merges the pair of the lowest rank everywhere, from left to right; then the next."""
  while len(parts) > 1:
    pair = min(itertools.pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
    if pair not in ranks:
      break
    joined = []
    while parts:
      taken = 2 if tuple(parts[:2]) == pair else 1
      joined.append("".join(parts[:taken]))
      parts = parts[taken:]
    parts = joined
  return parts


def trained(words: list[list[str]], count: int) -> list[tuple[str, str]]:
  """Merges of the most frequent pairs; enough to tell a right procedure from a wrong one."""
  merges = []
  while len(merges) < count:
    made = {"".join(pair) for pair in merges}
    pairs = collections.Counter(
      pair for word in words for pair in itertools.pairwise(word) if "".join(pair) not in made
    )
    merges.append(max(pairs, key=lambda pair: (pairs[pair], pair)))
    words = [merged(word, {merges[-1]: 0}) for word in words]
  return merges


def write(folder, names, pieces, merges):
  folder.mkdir(exist_ok=True)
  ids = {piece: i for i, piece in enumerate(pieces)}
  if "<unk>" in ids:  # last, as OpenAI's
    ids["<unk>"] = ids.pop("<unk>")
  (folder / names[0]).write_text(json.dumps(ids))
  lines = ["#version: 0.2", *map(" ".join, merges), ""]
  (folder / names[1]).write_text("\n".join(lines), encoding="utf-8")
  return str(folder)
