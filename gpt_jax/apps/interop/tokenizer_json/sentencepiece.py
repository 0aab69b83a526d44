"""Our SentencePiece vocabulary as a tokenizer.json, with equal ids for every text.

SentencePiece normalizes by a table of strings and their replacements, of which the longest match
counts. The `Precompiled` step of `tokenizers` reads the same table, but by grapheme cluster, and
takes the shortest match. So the normalizer here first puts a separator between the matches. Each
match is then replaced by its compatibility decomposition (NFKC), its single characters by the
table (case folding, spaces, controls), and the result is composed again (NFC); the few entries for
which this gives another string have a step of their own.
"""

import base64
import collections
import functools
import importlib
import struct
import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpt_jax.apps.interop.tokenizer_json import (
  TRAINED_IDS,
  byte_pairs,
  character_class,
  replace,
  replace_matches,
  sequence,
)
from gpt_jax.data.tokenizers import sentencepiece
from gpt_jax.data.tokenizers.sentencepiece import SPACE
from gpt_jax.errors import InputError

KINDS = sentencepiece.KINDS
IDS = TRAINED_IDS

# Control characters that SentencePiece drops; here they separate matches and the characters of a
# match, or stand for a character that NFKC must not change.
_BETWEEN, _WITHIN, _STAND_INS = "\x01", "\x02", "\x03\x04\x05\x06\x07\x08"
_AT_A_TIME = 1024  # nodes of the table
_NORMAL = 1  # SentencePiece's type of pieces that are no bytes and no control symbols


def describe(tokenizer: sentencepiece.SentencePieceTokenizer, of_parts: bool) -> dict[str, Any]:
  """See TokenizerJson. A line break is an added token, so that the text is cut at it before it is
  normalized, as `encode` does.
  """
  strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
  flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
  # Generated code of the sentencepiece package, without type hints.
  proto = importlib.import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
  proto.ParseFromString(tokenizer.model)
  pieces = [piece.piece for piece in proto.pieces]
  unknown = pieces[tokenizer.unknown_id]
  # An added token keeps its id only if the vocabulary has it, with the text that it matches.
  pieces[tokenizer.line_id] = "\n"
  return {
    "added_tokens": [{"id": tokenizer.line_id, "content": "\n", **flags}],
    "normalizer": sequence(_normalizers(proto.normalizer_spec.precompiled_charsmap)),
    # Only the first character of a piece can be a space, so no merge reaches across one.
    "pre_tokenizer": {
      "type": "Split",
      "pattern": {"String": SPACE},
      "behavior": "MergedWithNext",
      "invert": False,
    },
    "decoder": {
      "type": "Sequence",
      "decoders": [
        replace(SPACE, " "),
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        # Each line is encoded with a space in front, which the Prepend step adds.
        replace("\n ", "\n"),
        *([] if of_parts else [strip]),
      ],
    },
    "model": byte_pairs(pieces, _merges(proto.pieces), unknown, byte_fallback=True),
  }


def _merges(pieces: Iterable[Any]) -> list[list[str]]:
  """All pairs of pieces that make a piece, by its score, which is what SentencePiece merges by."""
  scores = {piece.piece: piece.score for piece in pieces if piece.type == _NORMAL}
  merges = []
  for whole in sorted(scores, key=lambda piece: -scores[piece]):
    for cut in range(1, len(whole)):
      left, right = whole[:cut], whole[cut:]
      if left in scores and right in scores:
        merges.append([left, right])
  return merges


# ------------------------------------------------------------------------------------- Normalizer


@functools.lru_cache(maxsize=1)  # of seconds
def _normalizers(charsmap: bytes) -> list[dict[str, Any]]:
  """`plain`, the table, then SentencePiece's rules for spaces."""
  rules = read_rules(charsmap)
  kept = [c for c, value in rules.items() if len(c) == 1 and _replaced(c, rules) != value]
  # A character without a rule stays, though NFKC may change it.
  for c in [*map(chr, range(0x80, 0xD800)), *map(chr, range(0xE000, 0x110000))]:
    if c not in rules and c != unicodedata.normalize("NFKC", c) and _replaced(c, rules) != c:
      kept.append(c)
  if len(kept) > len(_STAND_INS):
    raise InputError(
      f"format=hf: the normalization of this vocabulary differs from NFKC in {len(kept)} "
      "characters, which a tokenizer.json cannot express; npz can hold the model"
    )
  stand_ins = dict(zip(kept, _STAND_INS, strict=False))
  own = "".join((_BETWEEN, _WITHIN, *stand_ins.values()))
  sequences = {key: value for key, value in rules.items() if len(key) > 1}
  ascii, other = r"[\x{0}-\x{7f}]", r"[\x{80}-\x{10ffff}]"
  steps = [
    # data.tokenizers.sentencepiece.plain
    replace_matches("[‘’‚‛´]", "'"),
    replace_matches("[“”„‟«»]", '"'),
    replace("–", "-"),
    replace_matches("[—―]", "--"),
    replace_matches(" *-{2,} *", " - "),
    # Those of the text separate too, and are dropped in the end.
    replace_matches(character_class(own), _BETWEEN),
    *(replace(c, stand_in) for c, stand_in in stand_ins.items()),
    replace_matches(rf"(?:{_any_of(sequences)}|{other}|{ascii}(?={other}))\K", _BETWEEN),
  ]
  # Longest first: one may contain another.
  for key in sorted(sequences, key=lambda key: (-len(key), key)):
    # Unicode versions differ in the newest scripts, which are in the higher planes.
    if _replaced(key, rules) != sequences[key] or ord(sequences[key][0]) > 0xFFFF:
      steps.append(replace(key, sequences[key]))
  return [
    *steps,
    {"type": "NFKC"},
    replace_matches(rf"(?<={character_class(_BETWEEN, '^')})(?={other})", _WITHIN),
    {"type": "Precompiled", "precompiled_charsmap": _keeping(charsmap, own)},
    replace(_WITHIN, ""),
    {"type": "NFC"},
    replace(_BETWEEN, ""),
    *(replace(stand_in, rules.get(c, c)) for c, stand_in in stand_ins.items()),
    replace_matches(" {2,}", " "),
    replace_matches(r"\A +", ""),
    replace(" ", SPACE),
    replace_matches(rf"{SPACE}+\z", ""),
    {"type": "Prepend", "prepend": SPACE},
  ]


def _replaced(text: str, rules: dict[str, str]) -> str:
  """The steps' output for a match that has no replacement step of its own."""
  decomposed = unicodedata.normalize("NFKC", text)
  return unicodedata.normalize("NFC", "".join(rules.get(c, c) for c in decomposed))


def read_rules(charsmap: bytes) -> dict[str, str]:
  """The entries of a SentencePiece normalization table, string -> its replacement.

  The table is the size of a Darts double array, the array, and the replacements, each ending in a
  zero byte. A unit of the array has the byte that leads to it, an offset to its children, and a
  flag whether a child is a leaf with the position of a replacement.
  """
  units, replacements = _split(charsmap)
  steps = np.arange(1, 256)
  leaves = np.arange(len(units)) ^ _offset(units)  # of every node, if it has one
  rules = {}
  pending = [(0, b"")]
  while pending:
    nodes = np.array([node for node, _ in pending[-_AT_A_TIME:]])
    keys = [key for _, key in pending[-_AT_A_TIME:]]
    del pending[-_AT_A_TIME:]
    for i in np.flatnonzero(units[nodes] & (1 << 8)):
      start = int(units[leaves[nodes[i]]] & 0x7FFFFFFF)
      rules[keys[i].decode()] = replacements[start : replacements.index(b"\0", start)].decode()
    children = leaves[nodes][:, None] ^ steps
    # With bit 31, which marks a leaf: a leaf's low byte is no label. Children beyond the array are
    # clipped to its last unit here, and left out below.
    labels = units.take(children, mode="clip") & 0x800000FF
    for i, j in zip(*np.nonzero((labels == steps) & (children < len(units))), strict=True):
      pending.append((int(children[i, j]), keys[i] + bytes([steps[j]])))
  return rules


def _keeping(charsmap: bytes, characters: str) -> str:
  """The table in base64, changed so that these ASCII characters stay as they are."""
  units, replacements = _split(charsmap)
  # Entries share their leaves, so each of these gets a new one, in a new block of the array.
  array = np.pad(units, (0, -len(units) % 256 + 256))
  for i, character in enumerate(characters):
    # The root's child by this byte: an ASCII character is one byte.
    node = _offset(array[:1])[0] ^ ord(character)
    leaf = len(array) - 256 + i
    # A unit: offset to its leaf from bit 10 on, bit 8 for having one, the byte that leads to it.
    array[node] = ((node ^ leaf) << 10) | (1 << 8) | ord(character)
    array[leaf] = (1 << 31) | len(replacements)
    replacements += character.encode() + b"\0"
  size = struct.pack("<I", array.nbytes)
  return base64.b64encode(size + array.tobytes() + replacements).decode()


def _offset(units: np.ndarray) -> np.ndarray:
  """A node's offset: index XOR offset is its leaf, and that XOR a byte is the byte's child."""
  units = units.astype(np.int64)
  # Bit 9: the offset counts blocks of 256 units.
  return (units >> 10) << ((units & (1 << 9)) >> 6)


def _split(charsmap: bytes) -> tuple[np.ndarray, bytes]:
  size = struct.unpack_from("<I", charsmap)[0]
  return np.frombuffer(charsmap, "<u4", size // 4, offset=4), charsmap[4 + size :]


def _any_of(strings: Iterable[str]) -> str:
  """A regular expression for the longest of many strings, compact where they share ends."""
  tree: dict[str, Any] = {}
  for string in strings:
    node = tree
    for character in string:
      node = node.setdefault(character, {})
    node[""] = {}  # a string ends
  return _pattern(tree)


def _pattern(node: dict[str, Any]) -> str:
  first_characters = collections.defaultdict(list)
  for character, child in node.items():
    if character:
      # Characters with the same continuation share one class.
      first_characters[_pattern(child)].append(character)
  if not first_characters:
    return ""
  parts = [f"{character_class(cs)}{rest}" for rest, cs in first_characters.items()]
  optional = "?" if "" in node else ""
  return f"(?:{'|'.join(parts)}){optional}"
