"""Any tokenizer.json of Hugging Face's `tokenizers` (BPE, WordPiece, Unigram, …), used as it is.

The file alone decides the ids. Its post-processor adds no special tokens such as [CLS]; of text
that spells one see Tokenizer.spelled. Those of BERT, RoBERTa, ALBERT and T5 are special tokens
inside the vocabulary. A tokenizer.json beside OpenAI's two files that splits a text as they do, or
beside a spiece.model, is ignored: gpt1.py, gpt2.py and spiece.py read those.
"""

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpt_jax.apps.interop.tokenizer_json import replace, sequence
from gpt_jax.data.tokenizers import released
from gpt_jax.data.tokenizers.base import (
  DEFAULT_SPECIAL,
  MAX_FILE,
  METADATA,
  TRANSFORMERS_CONFIG,
  AddedToken,
)
from gpt_jax.data.tokenizers.openai_files import BYTE_CLASSES, END_OF_TEXT, released_as
from gpt_jax.errors import InputError
from gpt_jax.files import read_json

KINDS = ("huggingface",)

SAVED = "huggingface.json"  # in our folders, where tokenizer.json is the metadata
# A line break in vocabularies of characters, of byte-level BPE and of byte fallback.
LINE_PIECES = ("\n", "Ċ", "<0x0A>")
# The spellings of a special token, if the file marks them as special.
SPECIAL = {
  "[CLS]": "cls",
  "<s>": "cls",
  "[SEP]": "sep",
  "</s>": "sep",
  "[MASK]": "mask",
  "<mask>": "mask",
  "[PAD]": "pad",
  "<pad>": "pad",
  **{f"<extra_id_{i}>": f"sentinel_{i}" for i in range(100)},
}
SPACES = ("▁", "Ġ")  # how a piece spells the space before it


@dataclasses.dataclass(frozen=True)
class HuggingFaceTokenizer(released.PackageTokenizer):
  """A tokenizer of the package `tokenizers`; content: of the tokenizer.json."""

  content: bytes = dataclasses.field(repr=False)
  special_names: tuple[str, ...] = DEFAULT_SPECIAL
  spelled: tuple[AddedToken, ...] = ()

  kind = KINDS[0]
  normalizer = "of tokenizer.json"

  @functools.cached_property
  def hash(self) -> str:
    return hashlib.sha256(self.content).hexdigest()

  @functools.cached_property
  def vocab_size(self) -> int:
    """The highest id plus one: ids may have gaps."""
    return max(self._tokenizer.get_vocab().values()) + 1

  @functools.cached_property
  def end_id(self) -> int | None:
    added = self._tokenizer.get_added_tokens_decoder()
    return next((i for i, token in added.items() if token.content == END_OF_TEXT), None)

  @functools.cached_property
  def line_id(self) -> int | None:
    ids = self.encode("a\na").tolist()
    # In the vocabulary is not enough: a normalizer may drop line breaks before they reach it.
    for piece in LINE_PIECES:
      line_id = self._tokenizer.token_to_id(piece)
      if line_id in ids:
        return line_id
    return None

  @functools.cached_property
  def byte_fallback(self) -> np.ndarray:
    texts = self._tokenizer.decode_batch(
      [[i] for i in range(self.vocab_size)], skip_special_tokens=False
    )
    mask = np.array(["\ufffd" in text for text in texts])
    if self._model.get("byte_fallback"):
      is_byte = [re.fullmatch("<0x[0-9A-F]{2}>", self.piece(i)) for i in range(self.vocab_size)]
      mask |= np.array(is_byte, bool)
    if self.unknown_id is not None:
      mask[self.unknown_id] = True
    if self.line_id is not None:
      mask[self.line_id] = False
    return mask

  @functools.cached_property
  def special_inside(self) -> dict[str, int]:
    ids: dict[str, int] = {}
    for token in json.loads(self.content).get("added_tokens") or ():
      if token.get("special") and token["content"] in SPECIAL:
        ids.setdefault(SPECIAL[token["content"]], token["id"])
    return ids

  @functools.cached_property
  def begins_word(self) -> np.ndarray:
    pieces = [self.piece(i) for i in range(self.vocab_size)]
    if self._model["type"] == "WordPiece":
      prefix = self._model.get("continuing_subword_prefix", "##")
      return np.array([not piece.startswith(prefix) for piece in pieces])
    begins = np.array([piece.startswith(SPACES) for piece in pieces])
    if not begins.any():
      return super().begins_word  # such as a vocabulary that marks where words end
    # In a byte-level vocabulary a letter may be a part of another character.
    marks = [piece.isascii() and released.has_no_letters(piece) for piece in pieces]
    return begins | np.array(marks)

  @property
  def files(self) -> dict[str, bytes]:
    return {SAVED: self.content}

  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    encoded = super().encode_many(texts)
    if self.unknown_id is None or not self._tokenizer.encode_special_tokens:
      return encoded
    # Unigram models may have the spelling of a special token as a piece.
    special, unknown = list(self.special_inside.values()), np.int32(self.unknown_id)
    return [np.where(np.isin(ids, special), unknown, ids) for ids in encoded]

  def decode(self, ids: Iterable[int]) -> str:
    return self._tokenizer.decode(np.asarray(ids, int).tolist(), skip_special_tokens=False)

  def piece(self, i: int) -> str:
    return self._tokenizer.id_to_token(i) or f"<{i}>"  # ids may have gaps

  @functools.cached_property
  def unknown_id(self) -> int | None:
    if self._model.get("unk_token") is not None:
      return self._tokenizer.token_to_id(self._model["unk_token"])
    return self._model.get("unk_id")  # Unigram has the id, the others have the piece

  @functools.cached_property
  def _model(self) -> dict[str, Any]:
    """The settings of the model, without its large parts."""
    model = json.loads(self.content)["model"]
    return {name: value for name, value in model.items() if name not in ("vocab", "merges")}

  @functools.cached_property
  def _tokenizer(self) -> Any:
    tokenizer = released.require("tokenizers").Tokenizer.from_str(self.content.decode())
    # A file may hold settings that cut texts, or pad them to one length.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # As ordinary text, unless a text may spell them.
    tokenizer.encode_special_tokens = not any(token.special for token in self.spelled)
    released.add_tokens(tokenizer, self.spelled)
    if self._model.get("dropout"):  # BPE: the ids of a text must not be random
      tokenizer.model.dropout = None
    return tokenizer


def detect(folder: str) -> bool:
  if released_as(folder) is not None:
    return False
  try:
    content = read_json(os.path.join(folder, METADATA), MAX_FILE)
  except (OSError, ValueError):
    return False
  return isinstance(content, dict) and {"model", "version"} <= content.keys()


def check_pieces(path: str, vocab_size: int) -> None:
  """Raises InputError if a tokenizer.json has more pieces than a model; building it takes longer.

  Other files are left to those that read them.
  """
  try:
    content = read_json(path, MAX_FILE)
    pieces = max(len(content["model"]["vocab"]), len(content.get("added_tokens") or ()))
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return
  if pieces > vocab_size:
    raise InputError(f"{path}: has {pieces:,} pieces, and the model's vocab_size is {vocab_size:,}")


def _parts_of(kind: str, settings: dict[str, Any], of_file: Any) -> dict[str, Any]:
  """The parts of a tokenizer.json that a class of transformers makes by its settings, whatever the
  file has; of_file: its normalizer.
  """
  get = settings.get
  if kind in ("bert", "distilbert", "electra"):
    normalizer = {
      "type": "BertNormalizer",
      "clean_text": True,
      "handle_chinese_chars": get("tokenize_chinese_chars", True),
      "strip_accents": get("strip_accents"),
      "lowercase": get("do_lower_case", True),
    }
    unknown = get("unk_token", "[UNK]")
    model = {
      "type": "WordPiece",
      "unk_token": unknown["content"] if isinstance(unknown, dict) else unknown,
      "continuing_subword_prefix": "##",
      "max_input_chars_per_word": 100,
    }
    splitter: dict[str, Any] = {"type": "BertPreTokenizer"}
  elif kind in BYTE_CLASSES:
    normalizer = None
    model = {"type": "BPE", "byte_fallback": False, "ignore_merges": False}
    splitter = {
      "type": "ByteLevel",
      "add_prefix_space": get("add_prefix_space", False),
      "trim_offsets": True,
      "use_regex": True,
    }
  elif kind == "albert":
    steps = [replace("``", '"'), replace("''", '"')]
    if not get("keep_accents", False):
      steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if get("do_lower_case", True):
      steps.append({"type": "Lowercase"})
    of_file = of_file or {}
    found = of_file.get("normalizers", [of_file])
    steps += [step for step in found if step.get("type") == "Precompiled"][:1]
    normalizer = sequence(steps)
    model = {"type": "Unigram", "unk_id": 1, "byte_fallback": False}
    scheme = "always" if get("add_prefix_space", True) else "never"
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    splitter = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]}
  else:
    return {}
  return {"normalizer": normalizer, "pre_tokenizer": splitter, "model": model}


def _as_its_class(folder: str, content: bytes) -> bytes:
  """A tokenizer.json with the parts of the folder's class in place of its own."""
  kind, tree, changed = released.class_of(folder), json.loads(content), False
  parts = _parts_of(kind, released.read_settings(folder, {}), tree.get("normalizer"))
  for name, part in parts.items():
    own = tree.get(name)
    if name == "model" and own.get("type", part["type"]) != part["type"]:
      raise InputError(
        f"{folder}/{METADATA}: model.type is {own['type']!r}: only {part['type']!r} fits the class "
        f"of the tokenizer, {kind!r}; if that is wrong, correct tokenizer_class in "
        f"{TRANSFORMERS_CONFIG}"
      )
    if part is None or own is None:
      same = own is part
    else:  # older files lack names that came later, with these values
      same = all(own.get(key, value) == value for key, value in part.items())
    if not same:
      tree[name] = {**own, **part} if name == "model" else part
      changed = True
  return json.dumps(tree, ensure_ascii=False).encode() if changed else content


def load(folder: str, metadata: dict[str, Any] | None) -> HuggingFaceTokenizer:
  path = os.path.join(folder, METADATA if metadata is None else SAVED)
  content = released.read_file(path)
  try:
    content = _as_its_class(folder, content) if metadata is None else content
    tokenizer = HuggingFaceTokenizer(content)
    tokenizer.encode("")
    tokenizer.vocab_size  # noqa: B018  fails for an empty vocabulary
  except InputError:  # of its class, or the package is missing
    raise
  except Exception as error:  # the package raises no narrower class
    reason = " ".join(str(error).split())
    raise InputError(f"{path}: no tokenizer.json that `tokenizers` reads ({reason})") from error
  inside = tokenizer.special_inside
  if "sep" in inside and ("cls" in inside or "pad" in inside):  # BERT's kind, or T5's
    return dataclasses.replace(tokenizer, special_names=())  # it has no need of GPT's
  return tokenizer
