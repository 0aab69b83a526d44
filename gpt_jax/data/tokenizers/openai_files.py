"""OpenAI's vocabulary files, pieces and merges, which the tokenizers of GPT and RoBERTa share."""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Sequence, Set
from typing import Any, ClassVar

from gpt_jax.data.tokenizers.base import DEFAULT_SPECIAL, MAX_FILE, METADATA, AddedToken
from gpt_jax.data.tokenizers.released import (
  ADDED,
  PiecesTokenizer,
  added_pieces,
  class_of,
  named_pieces,
  read_optional_json,
  read_settings,
  read_text,
)
from gpt_jax.errors import InputError
from gpt_jax.files import parse_json

END_OF_WORD = "</w>"  # GPT-1: ends the last piece of a word
LINE = "\n" + END_OF_WORD
UNKNOWN = "<unk>"
END_OF_TEXT = "<|endoftext|>"  # GPT-2: the only piece that no text encodes to
ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "mask": "<mask>"}
_BYTES = "ByteLevel"  # the pre-tokenizer that splits words as GPT-2's program does
BYTE_CLASSES = ("gpt2", "roberta")  # see class_of; of a tokenizer.json they take pieces and merges
_FILLER = re.compile("madeupword[0-9]{4}")  # RoBERTa: makes the size a multiple of eight

# The files of pieces and of merges, as OpenAI named them for GPT-1 and for GPT-2, and transformers.
FILES = (
  ("encoder_bpe_40000.json", "vocab_40000.bpe"),
  ("encoder.json", "vocab.bpe"),
  ("vocab.json", "merges.txt"),
)

Merges = tuple[tuple[str, str], ...]


def _byte_symbols() -> list[str]:
  """GPT-2's symbol for each byte: itself if printable, else the next character from U+0100 on."""
  # bytes_to_unicode of openai/gpt-2, src/encoder.py: among others the space becomes "Ġ", U+0120.
  printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)}
  printable |= {*range(ord("®"), ord("ÿ") + 1)}
  symbols, substitute = [], 256
  for value in range(256):
    if value in printable:
      symbols.append(chr(value))
    else:
      symbols.append(chr(substitute))
      substitute += 1
  return symbols


BYTES = _byte_symbols()


@dataclasses.dataclass(frozen=True)
class MergesTokenizer(PiecesTokenizer):
  """A byte-pair encoding in OpenAI's two files."""

  merges: Merges = dataclasses.field(repr=False)  # in order of priority
  special_names: tuple[str, ...] = dataclasses.field(default=DEFAULT_SPECIAL, kw_only=True)
  spelled: tuple[AddedToken, ...] = dataclasses.field(default=(), kw_only=True)

  file_names: ClassVar[tuple[str, str]]

  @property
  def hashed(self) -> list:
    return [self.kind, self.pieces, self.merges]

  @functools.cached_property
  def end_id(self) -> int | None:
    return self._id(END_OF_TEXT)

  @property
  def transformers_files(self) -> dict[str, bytes]:
    return dict(zip((*FILES[-1], ADDED), self.files.values(), strict=False))

  @property
  def files(self) -> dict[str, bytes]:
    ids = {piece: i for i, piece in enumerate(self.pieces)}
    if UNKNOWN in ids:
      ids[UNKNOWN] = ids.pop(UNKNOWN)  # OpenAI's file has it last
    # The "" ends the file with a line break: OpenAI's loader drops what follows the last one.
    lines = ["#version: 0.2", *map(" ".join, self.merges), ""]
    contents = json.dumps(ids).encode(), "\n".join(lines).encode()
    files = dict(zip(self.file_names, contents, strict=True))
    made = _without_merges(self.pieces) | set(map("".join, self.merges))
    if added := {piece: i for piece, i in ids.items() if piece not in made}:
      files[ADDED] = json.dumps(added).encode()
    return files


def has_prefix_space(folder: str, metadata: dict[str, Any] | None) -> bool:
  """Whether a text gets a space in front: by our metadata, or by what transformers saved."""
  if metadata is not None:
    return metadata.get("prefix_space") is True
  settings = read_settings(folder, {})
  content = read_optional_json(os.path.join(folder, METADATA), MAX_FILE)
  if class_of(folder) not in BYTE_CLASSES and isinstance(content, dict):
    settings = content.get("pre_tokenizer") or settings
  return settings.get("add_prefix_space") is True


def is_release(folder: str) -> bool:
  """Whether a folder has any of the FILES."""
  return _names_in(folder) is not None


def released_as(folder: str) -> str | None:
  """Whose pieces a folder has: "roberta" with <s>, </s> and bytes, "gpt1" with `<unk>` as id 0 and
  a line break, or "gpt2"; None without any of FILES, or if its tokenizer.json splits otherwise.
  """
  names = _names_in(folder)
  if names is None:
    return None
  path = os.path.join(folder, names[0])
  pieces = _read_pieces(path) if os.path.isfile(path) else ()
  if pieces and names == FILES[-1] and _splits_otherwise(folder, _has_gpt1_pieces(pieces)):
    return None
  if _has_roberta_pieces(pieces):
    return "roberta"
  return "gpt1" if _has_gpt1_pieces(pieces) else "gpt2"


def _splits_otherwise(folder: str, gpt1: bool) -> bool:
  """Whether a tokenizer.json has other rules than OpenAI's programs."""
  content = read_optional_json(os.path.join(folder, METADATA), MAX_FILE)
  if not isinstance(content, dict) or "model" not in content:
    return False
  # null: none; a file that leaves it out has vocabulary and merges alone.
  splitter = content.get("pre_tokenizer", {"type": _BYTES}) or {}
  if gpt1:
    # transformers' class splits words as BERT's does. OpenAI's weights were not trained so: their
    # published folder has such a file, too, but names no class.
    settings = read_settings(folder, {})
    return splitter.get("type") == "BertPreTokenizer" and "tokenizer_class" in settings
  if class_of(folder) in BYTE_CLASSES:
    return False
  is_plain = splitter.get("type") == _BYTES and splitter.get("use_regex", True)
  model = content["model"]
  merges_otherwise = model.get("ignore_merges") or model.get("byte_fallback")
  return not is_plain or merges_otherwise or content.get("normalizer") is not None


def read_files(folder: str) -> tuple[tuple[str, ...], Merges]:
  """Reads pieces and merges under any of the names in FILES and checks that they belong together.

  Tokens that transformers has added to the pieces follow them.
  """
  pieces_path, merges_path = (os.path.join(folder, name) for name in _names_in(folder) or FILES[0])
  pieces, merges = _read_pieces(pieces_path), _read_merges(merges_path)
  if not _has_gpt1_pieces(pieces) and not set(BYTES) <= set(pieces):
    raise InputError(
      f"{pieces_path}: neither GPT-1's vocabulary, where {UNKNOWN!r} has the id 0 and {LINE!r} is "
      "a piece, nor GPT-2's, with a piece for each byte"
    )
  added = added_pieces(folder)
  pieces += tuple(piece for piece in added if piece not in pieces)
  special = {*added, *named_pieces(folder)} - set(map("".join, merges))
  _check(pieces, merges, pieces_path, merges_path, special)
  return pieces, merges


def _names_in(folder: str) -> tuple[str, str] | None:
  """The first of FILES that is there, at least in part."""
  for names in FILES:
    if any(os.path.isfile(os.path.join(folder, name)) for name in names):
      return names
  return None


def _has_gpt1_pieces(pieces: tuple[str, ...]) -> bool:
  return pieces[:1] == (UNKNOWN,) and LINE in pieces


def _has_roberta_pieces(pieces: Sequence[str]) -> bool:
  return {ROBERTA["cls"], ROBERTA["sep"], *BYTES} <= set(pieces)


def _read_pieces(path: str) -> tuple[str, ...]:
  content = read_text(path)
  try:
    ids = parse_json(content)
  except ValueError as error:
    raise InputError(f"{path}: not JSON, or damaged ({error}); copy it again") from error
  if not isinstance(ids, dict) or not ids:
    raise InputError(f"{path}: should be one JSON object that maps pieces to ids")
  pieces: dict[int, str] = {}
  for piece, i in ids.items():
    # Not isinstance: JSON's true would count as the id 1.
    if type(i) is not int or not 0 <= i < len(ids):
      raise InputError(
        f"{path}: piece {piece!r} has the id {i!r}; the ids of {len(ids)} pieces should be 0 to "
        f"{len(ids) - 1}"
      )
    if i in pieces:
      raise InputError(f"{path}: {pieces[i]!r} and {piece!r} have the same id, {i}")
    pieces[i] = piece
  return tuple(pieces[i] for i in range(len(pieces)))


def _read_merges(path: str) -> Merges:
  version, *lines = read_text(path).split("\n")
  if not version.startswith("#version"):
    raise InputError(
      f"{path}:1: {version[:40]!r}: should be '#version: 0.2', followed by one merge per line"
    )
  if lines and not lines[-1]:
    lines.pop()
  merges = []
  for number, line in enumerate(lines, start=2):
    pair = tuple(line.split(" "))
    if len(pair) != 2:
      raise InputError(f"{path}:{number}: {line[:40]!r}: should be two pieces separated by a space")
    merges.append(pair)
  return tuple(merges)


def _without_merges(all_pieces: Sequence[str]) -> set[str]:
  """Pieces that no merge makes: single symbols, in GPT-1 also with </w>, and special pieces."""
  pieces = set(all_pieces)
  made = {piece for piece in pieces if len(piece.removesuffix(END_OF_WORD)) == 1}
  made |= pieces & {UNKNOWN, END_OF_TEXT}
  if _has_roberta_pieces(all_pieces):
    made |= pieces & set(ROBERTA.values()) | set(filter(_FILLER.fullmatch, pieces))
  return made


def _check(
  all_pieces: Sequence[str], merges: Merges, pieces_path: str, merges_path: str, added: Set[str]
) -> None:
  """Every merge joins two known pieces into a new one, and makes every piece of several symbols but
  those added to the vocabulary.
  """
  pieces = set(all_pieces)
  made = _without_merges(all_pieces) | added
  for number, pair in enumerate(merges, start=2):
    piece, faults = "".join(pair), []
    for part in pair:
      if part not in pieces:
        faults.append(f"merges {part!r}, which is not in {pieces_path}")
      elif part not in made:
        faults.append(f"merges {part!r}, which no line above makes")
    if piece in made:
      faults.append(f"makes {piece!r}, which exists already")
    elif piece not in pieces:
      faults.append(f"makes {piece!r}, which is not in {pieces_path}")
    if faults:
      raise InputError(f"{merges_path}:{number}: {faults[0]}")
    made.add(piece)
  missing = [piece for piece in all_pieces if piece not in made]
  if missing:
    raise InputError(
      f"{merges_path}:{len(merges) + 1}: ends before {missing[0]!r} is made, one of {len(missing)} "
      f"such pieces of {pieces_path}: truncated, or of another vocabulary"
    )
