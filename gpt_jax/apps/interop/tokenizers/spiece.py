"""The SentencePiece models that ALBERT and T5 were released with, spiece.model.

Ids are SentencePiece's, as in Google's code; transformers has its own search, which differs where
two ways to cut a word are equally likely. A tokenizer.json beside the model is ignored.
"""

import dataclasses
import functools
import json
import os
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gpt_jax.data.tokenizers.base import TRANSFORMERS_CONFIG, AddedToken
from gpt_jax.data.tokenizers.released import added_pieces, encode_around, read_file, read_settings
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceModel
from gpt_jax.errors import InputError

KINDS = ("spiece",)

MODEL = "spiece.model"
ALBERT = {"pad": "<pad>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
T5 = {"pad": "<pad>", "sep": "</s>"}
SETTINGS = {"do_lower_case": (True, False), "keep_accents": (True, False)}
SENTINELS = 100  # of T5, above the vocabulary: the highest id is <extra_id_0>


@dataclasses.dataclass(frozen=True)
class ReleasedSentencePiece(SentencePieceModel):
  """A model as its authors trained it, with special tokens among its pieces."""

  lower_case: bool = False
  strip_accents: bool = False
  special_names: tuple[str, ...] = ()
  spelled: tuple[AddedToken, ...] = ()

  kind = KINDS[0]
  line_id = None

  @property
  def is_albert(self) -> bool:
    return self.has(ALBERT["cls"])

  @property
  def special_pieces(self) -> Mapping[str, str]:
    return ALBERT if self.is_albert else T5

  @functools.cached_property
  def special_inside(self) -> dict[str, int]:
    pieces = {name: piece for name, piece in self.special_pieces.items() if self.has(piece)}
    return {name: self.processor.piece_to_id(piece) for name, piece in pieces.items()}

  @property
  def normalizer(self) -> str:
    case = "lower case" if self.lower_case else "case kept"
    return f"{case}, {'no accents' if self.strip_accents else 'accents kept'}, the model's"

  @functools.cached_property
  def unknown_id(self) -> int:
    return self.processor.unk_id()

  @property
  def files(self) -> dict[str, bytes]:
    config = {"do_lower_case": self.lower_case, "keep_accents": not self.strip_accents}
    return {MODEL: self.model, TRANSFORMERS_CONFIG: f"{json.dumps(config)}\n".encode()}

  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    """The ids of each text, int32 [n]; a lone surrogate, which UTF-8 cannot encode, becomes "?"."""
    if self.spelled:
      plain = dataclasses.replace(self, spelled=())
      spelled_ids = {t.content: self.processor.piece_to_id(t.content) for t in self.spelled}
      return [encode_around(text, spelled_ids, plain.encode) for text in texts]
    encoded = self.processor.encode([self._normalize(text) for text in texts], out_type=int)
    # Pieces that the model's authors let a text spell.
    special, unknown = list(self.special_inside.values()), np.int32(self.unknown_id)
    arrays = [np.array(ids, np.int32) for ids in encoded]
    return [np.where(np.isin(ids, special), unknown, ids) for ids in arrays]

  def decode(self, ids: Iterable[int]) -> str:
    return self.processor.decode(np.asarray(ids, int).tolist())

  def has(self, piece: str) -> bool:
    return self.processor.id_to_piece(self.processor.piece_to_id(piece)) == piece

  def _normalize(self, text: str) -> str:
    text = text.encode(errors="replace").decode()
    if self.is_albert:
      # As preprocess_text of google-research/albert, tokenization.py.
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
  for piece in () if metadata else added_pieces(folder):
    if not tokenizer.has(piece) and not piece.startswith("<extra_id_"):
      raise InputError(
        f"{path}: the token {piece!r} is added to it; save the model with transformers' tokenizer "
        f"into a folder of its own, without {MODEL}"
      )
  if albert:
    config = read_settings(folder, SETTINGS)
    return dataclasses.replace(
      tokenizer,
      lower_case=config.get("do_lower_case", True),
      strip_accents=not config.get("keep_accents", False),
    )
  if metadata is None and tokenizer.special_inside.keys() >= T5.keys():
    # Downwards: 32,000 is <extra_id_99>, and 32,099, the highest id, <extra_id_0>.
    count = read_settings(folder, {"extra_ids": (0, SENTINELS)}).get("extra_ids", SENTINELS)
    names = tuple(f"sentinel_{i}" for i in reversed(range(count)))
    return dataclasses.replace(tokenizer, special_names=names)
  return tokenizer
