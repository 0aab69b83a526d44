"""BERT's WordPiece (Devlin et al. 2018, section 3): read from its vocab.txt, or trained.

Ids are those of transformers' BertTokenizer. A folder that also holds a tokenizer.json is read from
that file, by apps/interop/tokenizers/tokenizer_json.py.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from gpt_jax.data.tokenizers.base import TRANSFORMERS_CONFIG, AddedToken
from gpt_jax.data.tokenizers.released import (
  PackageTokenizer,
  PiecesTokenizer,
  add_tokens,
  added_pieces,
  read_settings,
  read_text,
  require,
)
from gpt_jax.data.word_counts import counts_of, wrong_size
from gpt_jax.errors import InputError

KINDS = ("wordpiece",)

VOCABULARY = "vocab.txt"
UNKNOWN = "[UNK]"
SPECIAL = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
SETTINGS = {
  "do_lower_case": (True, False),
  "strip_accents": (True, False, None),
  "tokenize_chinese_chars": (True,),
}
MAX_WORD = 100  # characters; a longer one is unknown
_REPEATED = 1000  # times that the trainer gets a word in one text


@dataclasses.dataclass(frozen=True)
class WordPieceTokenizer(PackageTokenizer, PiecesTokenizer):
  """Words and punctuation marks, cut into the longest pieces from the left; "##" continues a word.

  Spaces and line breaks are lost, and a word with a character outside the vocabulary is unknown.
  """

  lower_case: bool = True  # whether text is lower-cased
  strip_accents: bool = True  # whether letters lose their accents
  special_names: tuple[str, ...] = ()
  spelled: tuple[AddedToken, ...] = ()

  kind = KINDS[0]
  special_pieces = SPECIAL
  line_id = None
  unknown = UNKNOWN
  training_words = staticmethod(str.split)  # of a text, which `train` counts

  @classmethod
  def train(cls, words: Mapping[str, int] | Iterable[str], vocab_size: int) -> "WordPieceTokenizer":
    """Trains on word counts, or on texts, whose words are then counted; lower case, no accents.

    Pieces are merged by frequency, as in BPE: Google has not published the program that made BERT's
    vocabulary.
    """
    counts = counts_of(words)
    tokenizers = require("tokenizers")
    # In the order of the vocabularies that Google released.
    special = [SPECIAL["pad"], UNKNOWN, SPECIAL["cls"], SPECIAL["sep"], SPECIAL["mask"]]
    tokenizer = cls(tuple(special))._tokenizer
    within_words = set()  # characters that follow another one in a word, normalized
    for word in map(tokenizer.normalizer.normalize_str, counts):
      for part, _ in tokenizer.pre_tokenizer.pre_tokenize_str(word):
        within_words.update(part[1:])
    # As special tokens, because the package numbers characters within words in random order.
    first = [*special, *(f"##{character}" for character in sorted(within_words))]
    trainer = tokenizers.trainers.WordPieceTrainer(
      vocab_size=vocab_size,
      special_tokens=first,
      limit_alphabet=1 << 30,  # every character of the text stays
      show_progress=False,
    )
    return cls(train_pieces(tokenizer, trainer, counts, vocab_size))

  @property
  def normalizer(self) -> str:
    case = "lower case" if self.lower_case else "case kept"
    return f"BERT's, {case}, {'no accents' if self.strip_accents else 'accents kept'}"

  @property
  def hashed(self) -> list:
    return [self.kind, self.pieces, self.lower_case, self.strip_accents]

  @functools.cached_property
  def begins_word(self) -> np.ndarray:
    # ## marks what continues a word.
    return np.array([not piece.startswith("##") for piece in self.pieces])

  @property
  def files(self) -> dict[str, bytes]:
    config = f"{json.dumps(self.transformers_settings)}\n"
    return {**self.transformers_files, TRANSFORMERS_CONFIG: config.encode()}

  @property
  def transformers_settings(self) -> dict[str, bool]:
    return {"do_lower_case": self.lower_case, "strip_accents": self.strip_accents}

  @property
  def transformers_files(self) -> dict[str, bytes]:
    return {VOCABULARY: "".join(f"{piece}\n" for piece in self.pieces).encode()}

  def decode(self, ids: Iterable[int]) -> str:
    """Words and punctuation marks; the ids do not tell what stood between them."""
    return self._tokenizer.decode(np.asarray(ids, int).tolist(), skip_special_tokens=False)

  @functools.cached_property
  def _tokenizer(self) -> Any:
    tokenizers = require("tokenizers")
    model = tokenizers.models.WordPiece(
      vocab={piece: i for i, piece in enumerate(self.pieces)},
      unk_token=UNKNOWN,
      max_input_chars_per_word=MAX_WORD,
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
      lowercase=self.lower_case, strip_accents=self.strip_accents
    )
    # It cuts at brackets, so that no text encodes to [MASK] but where `spelled` has it.
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    add_tokens(tokenizer, self.spelled)
    return tokenizer


def detect(folder: str) -> bool:
  return os.path.isfile(os.path.join(folder, VOCABULARY))


def load(folder: str, metadata: dict[str, Any] | None) -> WordPieceTokenizer:
  """Reads vocab.txt and, where it is there, the case from transformers' tokenizer_config.json.

  Without that file, as in Google's releases, text is lower-cased if no piece has an upper-case
  letter; a file that does not say lower-cases it, as transformers does.
  """
  path = os.path.join(folder, VOCABULARY)
  pieces = _read_pieces(path)
  config = read_settings(folder, SETTINGS)
  # [CLS] and the like are in upper case in every vocabulary.
  is_cased = any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
  if metadata is None:  # the tokens that transformers has added
    pieces += tuple(piece for piece in added_pieces(folder) if piece not in pieces)
  lower_case = config.get("do_lower_case", bool(config) or not is_cased)
  # null, as transformers writes by default, means: where text is lower-cased.
  strip_accents = config.get("strip_accents")
  return WordPieceTokenizer(
    pieces, lower_case, lower_case if strip_accents is None else strip_accents
  )


def train_pieces(
  tokenizer: Any,
  trainer: Any,
  counts: Mapping[str, int],
  vocab_size: int,
  space: str = "",
  last: tuple[str, ...] = (),
) -> tuple[str, ...]:
  """Trains a Tokenizer of the package `tokenizers` on word counts; returns the pieces by their ids.

  `space` is before the first word of a text; the pieces `last` follow the trained ones.
  """

  def texts() -> Iterator[str]:
    # Every word as often as it was counted: the package's trainers take no counts.
    for word in sorted(counts):  # the vocabulary does not depend on their order
      # In several texts, so that none of a frequent word has megabytes.
      for first in range(0, counts[word], _REPEATED):
        yield space + " ".join([word] * min(_REPEATED, counts[word] - first))

  tokenizer.train_from_iterator(texts(), trainer)
  ids = tokenizer.get_vocab()
  pieces = (*sorted(ids, key=lambda piece: ids[piece]), *last)
  if len(pieces) != vocab_size:
    raise wrong_size(vocab_size, len(pieces))
  return pieces


def _read_pieces(path: str) -> tuple[str, ...]:
  # Not splitlines(): other characters at which it breaks may be pieces.
  lines = read_text(path).replace("\r\n", "\n").split("\n")
  if not lines[-1]:  # after the last line end
    lines.pop()
  numbers: dict[str, int] = {}
  for number, piece in enumerate(lines, start=1):
    if piece in numbers:
      raise InputError(f"{path}:{number}: {piece!r}, which is also in line {numbers[piece]}")
    numbers[piece] = number
  if UNKNOWN not in numbers:
    raise InputError(
      f"{path}: no line {UNKNOWN}; should be a WordPiece vocabulary, one piece a line"
    )
  return tuple(lines)
