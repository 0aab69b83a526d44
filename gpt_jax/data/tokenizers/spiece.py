"""The SentencePiece models that ALBERT and T5 were released with, spiece.model.

Ids are SentencePiece's, as in Google's code; transformers has its own search, which differs where
two ways to cut a word are equally likely. A tokenizer.json beside the model is ignored.
"""

import dataclasses
import functools
import hashlib
import json
import os
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import sentencepiece

from gpt_jax.data.tokenizers.base import MAX_FILE, Tokenizer, has_no_letters, read_file
from gpt_jax.errors import InputError
from gpt_jax.files import read_json

KINDS = ("spiece",)

MODEL = "spiece.model"
CONFIG = "tokenizer_config.json"  # as transformers has it
ALBERT = {"pad": "<pad>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
T5 = {"pad": "<pad>", "sep": "</s>"}
SENTINELS = 100  # of T5, above the vocabulary: the highest id is <extra_id_0>


@dataclasses.dataclass(frozen=True)
class ReleasedSentencePiece(Tokenizer):
  """A model as its authors trained it, with special tokens among its pieces.

  Attributes:
    model: the serialized SentencePiece model.
    lower_case: whether text is lower-cased before.
    strip_accents: whether letters lose their accents before.
  """

  model: bytes = dataclasses.field(repr=False)
  lower_case: bool = False
  strip_accents: bool = False
  special_names: tuple[str, ...] = ()

  kind = KINDS[0]
  line_id = None

  @functools.cached_property
  def processor(self) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=self.model)

  @property
  def is_albert(self) -> bool:
    return self._has(ALBERT["cls"])

  @property
  def special_pieces(self) -> Mapping[str, str]:
    return ALBERT if self.is_albert else T5

  @functools.cached_property
  def special_inside(self) -> dict[str, int]:
    pieces = {name: piece for name, piece in self.special_pieces.items() if self._has(piece)}
    return {name: self.processor.piece_to_id(piece) for name, piece in pieces.items()}

  @property
  def normalizer(self) -> str:
    case = "lower case" if self.lower_case else "case kept"
    return f"{case}, {'no accents' if self.strip_accents else 'accents kept'}, the model's"

  @functools.cached_property
  def vocab_size(self) -> int:
    return self.processor.vocab_size()

  @functools.cached_property
  def hash(self) -> str:
    """sha256 of kind, normalization and model."""
    return hashlib.sha256(f"{self.kind}\n{self.normalizer}\n".encode() + self.model).hexdigest()

  @functools.cached_property
  def unknown_id(self) -> int:
    return self.processor.unk_id()

  @functools.cached_property
  def byte_fallback(self) -> np.ndarray:
    ids = range(self.vocab_size)
    return np.array([self.processor.is_byte(i) or self.processor.is_unknown(i) for i in ids])

  @functools.cached_property
  def begins_word(self) -> np.ndarray:
    pieces = map(self.piece, range(self.vocab_size))
    return np.array([piece[0] == "▁" or has_no_letters(piece) for piece in pieces])

  @property
  def files(self) -> dict[str, bytes]:
    config = {"do_lower_case": self.lower_case, "keep_accents": not self.strip_accents}
    return {MODEL: self.model, CONFIG: f"{json.dumps(config)}\n".encode()}

  @property
  def metadata(self) -> dict[str, str]:
    return {"sentencepiece": sentencepiece.__version__}

  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    """The ids of each text, int32 [n]; a lone surrogate, which UTF-8 cannot encode, becomes "?"."""
    encoded = self.processor.encode([self._normalize(text) for text in texts], out_type=int)
    results = []
    for ids in encoded:
      values = np.array(ids, np.int32)
      # Pieces that the model's authors let a text spell.
      spelled = np.isin(values, list(self.special_inside.values()))
      results.append(np.where(spelled, np.int32(self.unknown_id), values))
    return results

  def decode(self, ids: Iterable[int]) -> str:
    return self.processor.decode(np.asarray(ids, int).tolist())

  def piece(self, i: int) -> str:
    """The piece; a space is "▁"."""
    return self.processor.id_to_piece(i)

  def _has(self, piece: str) -> bool:
    return self.processor.id_to_piece(self.processor.piece_to_id(piece)) == piece

  def _normalize(self, text: str) -> str:
    text = text.encode(errors="replace").decode()
    if self.is_albert:
      text = text.replace("``", '"').replace("''", '"')
    if self.strip_accents:
      decomposed = unicodedata.normalize("NFKD", text)
      text = "".join(c for c in decomposed if not unicodedata.category(c).startswith("M"))
    return text.lower() if self.lower_case else text


def detect(folder: str) -> bool:
  return os.path.isfile(os.path.join(folder, MODEL))


def load(folder: str, metadata: dict[str, Any] | None) -> ReleasedSentencePiece:
  """Reads the model; ALBERT's is lower-cased unless a tokenizer_config.json says otherwise."""
  path = os.path.join(folder, MODEL)
  tokenizer = ReleasedSentencePiece(read_file(path))
  try:
    albert = tokenizer.is_albert
  except RuntimeError as error:
    reason = " ".join(str(error).split())
    raise InputError(f"{path}: no SentencePiece model ({reason}); copy it again") from error
  if albert:
    config = _read_config(os.path.join(folder, CONFIG))
    return dataclasses.replace(
      tokenizer,
      lower_case=config.get("do_lower_case", True),
      strip_accents=not config.get("keep_accents", False),
    )
  if metadata is None and tokenizer.special_inside.keys() >= T5.keys():
    names = tuple(f"sentinel_{i}" for i in reversed(range(SENTINELS)))
    return dataclasses.replace(tokenizer, special_names=names)
  return tokenizer


def _read_config(path: str) -> dict[str, Any]:
  """The content of tokenizer_config.json; empty without one."""
  try:
    config = read_json(path, MAX_FILE)
  except FileNotFoundError:
    return {}
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error}); copy it again") from error
  if not isinstance(config, dict):
    raise InputError(f"{path}: holds no JSON object; copy it again")
  for name in ("do_lower_case", "keep_accents"):
    if not isinstance(config.get(name, True), bool):
      raise InputError(f"{path}: {name} = {config[name]!r}: should be true or false")
  return config
