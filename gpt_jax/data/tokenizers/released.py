"""Shared by the readers of released tokenizers: their files, settings, optional packages, and the
tokens that transformers' files add to a vocabulary, which a text may spell.
"""

import abc
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gpt_jax import errors
from gpt_jax.data.tokenizers.base import (
  MAX_FILE,
  METADATA,
  TRANSFORMERS_CONFIG,
  AddedToken,
  Tokenizer,
)
from gpt_jax.errors import InputError
from gpt_jax.files import MAX_JSON, read_bytes, read_json

ADDED = "added_tokens.json"
_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_SPLIT = {"split_special_tokens": (True, False)}


def read_file(path: str) -> bytes:
  """The content of a tokenizer's file."""
  try:
    return read_bytes(path, MAX_FILE)
  except (OSError, ValueError) as error:
    reason = getattr(error, "strerror", None) or error
    raise InputError(f"{path}: cannot be read ({reason}); copy the folder again") from error


def read_text(path: str) -> str:
  """The content of a tokenizer's file of UTF-8."""
  try:
    return read_file(path).decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise InputError(f"{path}: not UTF-8 ({error}); copy the folder again") from error


def read_settings(folder: str, allowed: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
  """The content of transformers' tokenizer_config.json; empty without one.

  `allowed`: the values that a setting may have, by its name; others are not looked at.
  """
  path = os.path.join(folder, TRANSFORMERS_CONFIG)
  settings = read_optional_json(path)
  if settings is None:
    return {}
  if not isinstance(settings, dict):
    raise InputError(f"{path}: holds no JSON object; copy it again")
  for name, values in allowed.items():
    # By identity, since 1 equals True.
    if name in settings and not any(settings[name] is value for value in values):
      wanted = " or ".join(map(json.dumps, values))
      raise InputError(f"{path}: {name} = {settings[name]!r}: should be {wanted}")
  return settings


def class_of(folder: str) -> str:
  """The kind of transformers' tokenizer of a folder, such as "bert" for a BertTokenizerFast: as its
  settings name it, or by the class of the model; "" if nothing does.
  """
  config = read_optional_json(os.path.join(folder, "config.json"))
  config = config if isinstance(config, dict) else {}
  name = read_settings(folder, {}).get("tokenizer_class") or config.get("tokenizer_class")
  name = name or str(config.get("model_type") or "").replace("-", "")
  return re.sub("tokenizer(fast)?$", "", str(name).lower())


def require(package: str) -> Any:
  """Imports an optional package of the extra `released`; raises InputError if it is missing."""
  return errors.require(package, "text for this tokenizer", package, "released")


class PackageTokenizer(Tokenizer):
  """Encodes by a Tokenizer of the package `tokenizers`, `_tokenizer`."""

  _tokenizer: Any

  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    return [np.array(self._encoding(text).ids, np.int32) for text in texts]

  def _offsets(self, word: str) -> list[tuple[int, int]]:
    return self._encoding(word).offsets

  def _encoding(self, text: str) -> Any:
    valid = text.encode(errors="replace").decode()  # a lone surrogate becomes "?"
    return self._tokenizer.encode(valid, add_special_tokens=False)


@dataclasses.dataclass(frozen=True)
class PiecesTokenizer(Tokenizer):
  """A vocabulary that is a list of pieces."""

  pieces: tuple[str, ...] = dataclasses.field(repr=False)  # piece i has the id i

  unknown: ClassVar[str] = ""  # the piece of what is in no other; "" if there is none

  @property
  @abc.abstractmethod
  def hashed(self) -> list:
    """The JSON values that `hash` covers."""

  @functools.cached_property
  def hash(self) -> str:
    return hashlib.sha256(json.dumps(self.hashed).encode()).hexdigest()

  @property
  def vocab_size(self) -> int:
    return len(self.pieces)

  def piece(self, i: int) -> str:
    return self.pieces[i]

  def _id(self, piece: str) -> int | None:
    return self.pieces.index(piece) if piece in self.pieces else None

  @functools.cached_property
  def unknown_id(self) -> int | None:
    return self._id(self.unknown)

  @functools.cached_property
  def byte_fallback(self) -> np.ndarray:
    return np.arange(self.vocab_size) == self.unknown_id

  @functools.cached_property
  def special_inside(self) -> dict[str, int]:
    special = self.special_pieces.items()
    return {name: self.pieces.index(piece) for name, piece in special if piece in self.pieces}


def has_no_letters(piece: str) -> bool:
  """Whether a piece is punctuation, which is a word of its own, as in ALBERT's code."""
  return bool(piece) and not any(character.isalnum() for character in piece)


def read_optional_json(path: str, limit: int = MAX_JSON) -> Any:
  """The value in a JSON file of a folder that may lack it: None."""
  try:
    return read_json(path, limit)
  except FileNotFoundError:
    return None
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error}); copy the folder again") from error


def added_pieces(folder: str) -> tuple[str, ...]:
  """The spellings of the tokens that have an id, by their ids."""
  return tuple(_read(folder)[0])


def named_pieces(folder: str) -> set[str]:
  """The spellings that the settings name, such as the padding token."""
  return {token.content for token in _read(folder)[1].values()}


def spelled_tokens(folder: str, tokenizer: Tokenizer) -> tuple[AddedToken, ...]:
  """The pieces that the folder's tokenizer reads as one id wherever a text spells them."""
  numbered, named = _read(folder)
  for name, i in tokenizer.special_inside.items():
    expected = tokenizer.piece(i)
    if (found := named.get(f"{name}_token", AddedToken(expected)).content) != expected:
      raise InputError(f"{folder}: {name}_token is {found!r}: only {expected!r} is supported")
  own = [tokenizer.piece(i) for i in (tokenizer.unknown_id, tokenizer.end_id) if i is not None]
  tokens = {piece: AddedToken(piece) for piece in (*tokenizer.special_pieces.values(), *own)}
  special = {token.content: token._replace(special=True) for token in named.values()}
  tokens |= special | numbered
  for content in special:
    tokens[content] = tokens[content]._replace(special=True)
  pieces = {tokenizer.piece(i) for i in range(tokenizer.vocab_size)}
  splits = read_settings(folder, _SPLIT).get("split_special_tokens")
  tokens = {x: token for x, token in tokens.items() if not (splits and token.special)}
  # Not by `pieces` alone: a tokenizer.json may have normalized the spelling of one.
  lacks = {token.content for name, token in named.items() if name.startswith(_LISTS)}
  lacks -= numbered.keys()
  by_id = read_settings(folder, {}).get("added_tokens_decoder", {}).items()
  lacks |= {_token(token).content for i, token in by_id if int(i) >= tokenizer.vocab_size}
  lacks -= pieces
  # T5 has ids for its own, above the pieces.
  missing = [x for x in tokens if x in lacks and not x.startswith("<extra_id_")]
  if missing:
    raise InputError(
      f"{folder}/{TRANSFORMERS_CONFIG}: names the token {missing[0]!r}, which the vocabulary "
      "lacks: transformers' AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes it into "
      f"{METADATA}; or remove its name"
    )
  return tuple(token for content, token in tokens.items() if content in pieces)


def add_tokens(tokenizer: Any, tokens: Iterable[AddedToken]) -> None:
  """Makes a Tokenizer of the package `tokenizers` find them in a text."""
  package = require("tokenizers")
  tokenizer.add_tokens([package.AddedToken(**token._asdict()) for token in tokens])


def encode_around(
  text: str, ids: Mapping[str, int], encode: Callable[[str], np.ndarray]
) -> np.ndarray:
  """The ids of a text in which some pieces are one id, int32 [n]; encode: of what is between."""
  if not ids:
    return encode(text)
  pattern = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
  parts = re.split(f"({pattern})", text)  # texts and pieces take turns
  return np.concatenate(
    [np.array([ids[part]], np.int32) if n % 2 else encode(part) for n, part in enumerate(parts)]
  )


def _read(folder: str) -> tuple[dict[str, AddedToken], dict[str, AddedToken]]:
  """The tokens in the order of their ids, and the special ones by their names."""
  settings = read_settings(folder, _SPLIT)
  listed, ids, names = (
    read_optional_json(os.path.join(folder, name), MAX_FILE) or {}
    for name in (METADATA, ADDED, "special_tokens_map.json")
  )
  tokens: dict[int, AddedToken] = {}
  try:
    flags = {int(i): token for i, token in settings.get("added_tokens_decoder", {}).items()}
    if not flags:  # as older versions write, and 5 with a tokenizer.json
      settings = settings | names
      flags = {token["id"]: token for token in listed.get("added_tokens") or ()}
    named = {name: _token(settings[name]) for name in _NAMED if settings.get(name)}
    for setting in _LISTS:
      further = settings.get(setting) or ()
      for token in further.values() if isinstance(further, dict) else further:
        named[f"{setting} {len(named)}"] = _token(token)
    special = {token.content for token in named.values()}
    for content, i in ids.items():
      is_special = content in special
      tokens[int(i)] = AddedToken(content, is_special, normalized=not is_special)
    tokens |= {i: _token(token) for i, token in flags.items()}
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise InputError(
      f"{folder}: the added tokens in its tokenizer_config.json, {METADATA} or {ADDED} cannot be "
      f"read ({error}); copy the folder again"
    ) from error
  return {tokens[i].content: tokens[i] for i in sorted(tokens) if tokens[i].content}, named


def _token(token: Any) -> AddedToken:
  """A token of which a file has the spelling, or the flags, too."""
  if isinstance(token, str):
    return AddedToken(token)
  flags = {name: bool(token.get(name)) for name in AddedToken._fields[1:]}
  return AddedToken(str(token["content"]), **flags)
