"""Tokens that transformers' files add to a vocabulary, and that a text may spell."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gpt_jax.data.tokenizers.base import MAX_FILE, METADATA, AddedToken, Tokenizer
from gpt_jax.data.tokenizers.released import read_optional_json, read_settings, require
from gpt_jax.errors import InputError

ADDED = "added_tokens.json"
_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_SPLIT = {"split_special_tokens": (True, False)}


def added_pieces(folder: str) -> tuple[str, ...]:
  """The spellings of the tokens that have an id, by their ids. Raises InputError."""
  return tuple(_read(folder)[0])


def named_pieces(folder: str) -> set[str]:
  """The spellings that the settings name, such as the padding token. Raises InputError."""
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
  return tuple(
    token
    for content, token in tokens.items()
    if content in pieces and not (splits and token.special)
  )


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
