"""The vocabularies that OpenAI released with GPT-1 and GPT-2, exactly (the paper, 4.1: a BPE of
40,000 merges).
"""

import collections
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError

END = "</w>"  # GPT-1: ends the last piece of a word
LINE = "\n" + END
UNKNOWN = "<unk>"
END_OF_TEXT = "<|endoftext|>"  # GPT-2's only piece that no text becomes

# The pieces and the merges, as OpenAI named them for GPT-1 and GPT-2, and as transformers does for
# both.
FILES = (
  ("encoder_bpe_40000.json", "vocab_40000.bpe"),
  ("encoder.json", "vocab.bpe"),
  ("vocab.json", "merges.txt"),
)

SPACY, REGEX = (
  "spacy-en",
  "regex-1",
)  # the regex below: whoever changes what it splits gives it another number
MOST_WORDS = 1 << 16  # remembered with their ids, and by spaCy; about 60 MB


@dataclasses.dataclass(frozen=True)
class _Pairs(Tokenizer):
  """Pieces made by merging pairs.

  Attributes:
    pieces: piece i has the id i.
    merges: the first is made first.
  """

  pieces: tuple[str, ...] = dataclasses.field(repr=False)
  merges: tuple[tuple[str, str], ...] = dataclasses.field(repr=False)

  _names: ClassVar[tuple[str, str]]  # of the two files

  @property
  def vocab_size(self) -> int:
    return len(self.pieces)

  def piece(self, i: int) -> str:
    return self.pieces[i]

  @property
  def _decides(self) -> list:
    return [self.kind, self.pieces, self.merges]

  @functools.cached_property
  def hash(self) -> str:
    return hashlib.sha256(json.dumps(self._decides).encode()).hexdigest()

  @property
  def files(self) -> dict[str, bytes]:
    ids = {piece: i for i, piece in enumerate(self.pieces)}
    if UNKNOWN in ids:
      ids[UNKNOWN] = ids.pop(UNKNOWN)  # where OpenAI's file has it
    lines = ["#version: 0.2", *map(" ".join, self.merges), ""]
    return dict(
      zip(self._names, (json.dumps(ids).encode(), "\n".join(lines).encode()), strict=True)
    )


@dataclasses.dataclass(frozen=True)
class GPT1Tokenizer(_Pairs):
  """GPT-1's: a clean-up by ftfy, spaCy's English words in lower case, and each word cut into
  pieces.

  Attributes:
    splitter: what finds the words: SPACY, as OpenAI did, or REGEX, which finds 99.99 % of them in
      novels, 99.6 % or more in the texts of tasks.
    splitter_version: spaCy's, where this vocabulary was first used: another may find other words.
  """

  splitter: str = SPACY
  splitter_version: str = ""

  kind = "openai-gpt1"
  unknown_id = 0
  _names = FILES[0]

  @property
  def normalizer(self) -> str:
    return f"ftfy, OpenAI's text_standardize, words of {self.splitter}, lower case"

  @functools.cached_property
  def line_id(self) -> int:
    return self.pieces.index(LINE)

  @functools.cached_property
  def byte_fallback(self) -> np.ndarray:
    return np.arange(self.vocab_size) == self.unknown_id

  @property
  def record(self) -> dict[str, str]:
    return {"splitter": self.splitter, "splitter_version": self.splitter_version}

  @property
  def _decides(self) -> list:
    return [*super()._decides, self.splitter]

  def difference(self, hash: str) -> str:
    for splitter in (SPACY, REGEX):
      if splitter != self.splitter and dataclasses.replace(self, splitter=splitter).hash == hash:
        return f"the same but for the splitter of words, {splitter}, not {self.splitter}"
    return super().difference(hash)

  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    fix = _needed("ftfy").fix_text
    return [self._encode(standardize(_fixed(text, fix))) for text in texts]

  def decode(self, ids: Iterable[int]) -> str:
    """Words with a space after each: how the text was punctuated the ids do not say."""
    text = "".join(self.pieces[i] for i in np.asarray(ids).tolist()).replace(END, " ")
    return re.sub(" ?\n ?", "\n", text).removesuffix(" ")

  def _encode(self, text: str) -> np.ndarray:
    split, ids = self._words
    if len(ids) > MOST_WORDS:
      del self.__dict__["_words"]
      split, ids = self._words
    return np.array(
      list(itertools.chain.from_iterable(map(ids.__getitem__, split(text)))), np.int32
    )

  @functools.cached_property
  def _words(self) -> "tuple[Callable[[str], list[str]], _WordIds]":
    """The splitter, and the ids of the words it has found so far."""
    bpe = _needed("tokenizers").models.BPE(
      vocab={piece: i for i, piece in enumerate(self.pieces)},
      merges=list(self.merges),
      unk_token=UNKNOWN,
      end_of_word_suffix=END,
    )
    split = _spacy_words(self.splitter_version) if self.splitter == SPACY else _REGEX_WORDS.findall
    return split, _WordIds(bpe, self.line_id)


class _WordIds(dict):
  """Word -> its ids."""

  def __init__(self, bpe: Any, line_id: int):
    super().__init__(
      {"\n ": (line_id,)}
    )  # as spaCy gives it; OpenAI's code puts this id in its place
    self._bpe = bpe

  def __missing__(self, word: str) -> tuple[int, ...]:
    self[word] = ids = tuple(token.id for token in self._bpe.tokenize(word.lower()))
    return ids


@dataclasses.dataclass(frozen=True)
class GPT2Tokenizer(_Pairs):
  """GPT-2's: bytes merged within words that begin with their space; nothing is unknown, every
  text comes back.
  """

  kind = "openai-gpt2"
  normalizer = "none"
  _names = FILES[1]

  @functools.cached_property
  def line_id(self) -> int:
    return self.pieces.index(BYTES[ord("\n")])

  @property
  def record(self) -> dict[str, str]:
    return {}

  @functools.cached_property
  def _bytes(self) -> list[bytes]:
    values = {symbol: value for value, symbol in enumerate(BYTES)}
    return [
      piece.encode() if piece == END_OF_TEXT else bytes(map(values.get, piece))
      for piece in self.pieces
    ]

  @functools.cached_property
  def byte_fallback(self) -> np.ndarray:
    return np.array(["\ufffd" in piece.decode(errors="replace") for piece in self._bytes])

  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    """The ids of each text, int32 [n]; half of a surrogate pair, which no file can hold, becomes
    "?".
    """
    texts = [text.encode(errors="replace").decode() for text in texts]
    return [np.array(self._tokenizer.encode(text).ids, np.int32) for text in texts]

  def decode(self, ids: Iterable[int]) -> str:
    return b"".join(self._bytes[i] for i in np.asarray(ids).tolist()).decode(errors="replace")

  @functools.cached_property
  def _tokenizer(self) -> Any:
    tokenizers = _needed("tokenizers")
    ids = {piece: i for i, piece in enumerate(self.pieces)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=list(self.merges)))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


KINDS = (GPT1Tokenizer.kind, GPT2Tokenizer.kind)

_SHOWN = {
  *range(ord("!"), ord("~") + 1),
  *range(ord("¡"), ord("¬") + 1),
  *range(ord("®"), ord("ÿ") + 1),
}
_OTHERS = [value for value in range(256) if value not in _SHOWN]
# GPT-2's sign for each byte: its own where that is printable, else, in their order, those from
# U+0100 on.
BYTES = [chr(value if value in _SHOWN else 256 + _OTHERS.index(value)) for value in range(256)]


def is_release(folder: str) -> bool:
  """Whether files under the names of FILES are in a folder."""
  return any(os.path.isfile(os.path.join(folder, name)) for names in FILES for name in names)


def read(folder: str, metadata: dict | None = None) -> GPT1Tokenizer | GPT2Tokenizer:
  """Reads the two files of GPT-1 or GPT-2, under any of the names in FILES, and checks that they
  are one vocabulary.

  Args:
    metadata: what tokenizer.json says, where there is one: a vocabulary keeps its splitter. Without
      it that is spaCy, or, with a warning where spaCy is not installed, the regex.

  Raises:
    InputError: with file and line, what is missing, damaged, or no vocabulary of OpenAI's.
  """
  found = [
    names for names in FILES if any(os.path.isfile(os.path.join(folder, name)) for name in names)
  ]
  paths = [os.path.join(folder, name) for name in (found or FILES)[0]]
  pieces, merges = _pieces(paths[0]), _merges(paths[1])
  of_gpt1 = pieces[0] == UNKNOWN and LINE in pieces
  if not of_gpt1 and not set(BYTES) <= set(pieces):
    raise InputError(
      f"{paths[0]}: neither GPT-1's vocabulary, where {UNKNOWN!r} has the id 0 and {LINE!r} is a piece, nor GPT-2's, "
      "with a piece for each byte"
    )
  _check(pieces, merges, *paths)
  return (
    GPT1Tokenizer(pieces, merges, *_splitter(folder, metadata))
    if of_gpt1
    else GPT2Tokenizer(pieces, merges)
  )


def _splitter(folder: str, metadata: dict | None) -> tuple[str, str]:
  """Which one, and its version."""
  if metadata:
    if metadata.get("splitter") not in (SPACY, REGEX):
      raise InputError(
        f"{folder}/tokenizer.json: splitter {metadata.get('splitter')!r} is not known; {SPACY} and {REGEX} are"
      )
    return metadata["splitter"], str(metadata.get("splitter_version", ""))
  if importlib.util.find_spec("spacy"):
    return SPACY, importlib.metadata.version("spacy")
  warnings.warn(
    f"spaCy is not installed: words are split by {REGEX}, one in some thousands otherwise than by OpenAI; for its "
    "very ids pip install 'gpt_jax[released]' and begin again",
    stacklevel=4,
  )
  return REGEX, ""


def _pieces(path: str) -> tuple[str, ...]:
  try:
    pairs = json.loads(_read(path), object_pairs_hook=tuple)
  except json.JSONDecodeError as error:
    raise InputError(
      f"{path}:{error.lineno}: not JSON ({error.msg}, column {error.colno}); copy it again"
    ) from error
  if not isinstance(pairs, tuple) or not pairs:
    raise InputError(f"{path}: should be one JSON object, of ids by piece")
  pieces: dict[int, str] = {}
  for piece, i in pairs:
    if type(i) is not int or not 0 <= i < len(pairs):
      raise InputError(
        f"{path}: piece {piece!r} has the id {i!r}; {len(pairs)} pieces have the ids from 0 on"
      )
    if i in pieces:
      raise InputError(f"{path}: {pieces[i]!r} and {piece!r} have the same id, {i}")
    pieces[i] = piece
  if len(set(pieces.values())) != len(pieces):
    piece = collections.Counter(pieces.values()).most_common(1)[0][0]
    raise InputError(f"{path}: {piece!r} is there twice")
  return tuple(pieces[i] for i in range(len(pieces)))


def _merges(path: str) -> tuple[tuple[str, str], ...]:
  first, *lines = _read(path).split("\n")
  if not first.startswith("#version"):
    raise InputError(
      f"{path}:1: {first[:40]!r}: should be '#version: 0.2', and a merge a line below"
    )
  merges = [tuple(line.split(" ")) for line in (lines[:-1] if lines[-1:] == [""] else lines)]
  for number, pair in enumerate(merges, 2):
    if len(pair) != 2:
      raise InputError(
        f"{path}:{number}: {' '.join(pair)[:40]!r}: should be two pieces with a space between"
      )
  return tuple(merges)


def _read(path: str) -> str:
  try:
    with open(path, encoding="utf-8", newline="") as file:
      return file.read()
  except FileNotFoundError as error:
    raise InputError(f"{path}: missing; both files of the vocabulary are needed") from error
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(f"{path}: cannot be read ({error})") from error


def _check(
  all_pieces: Sequence[str], merges: Sequence[tuple[str, str]], pieces_path: str, merges_path: str
) -> None:
  """Every merge is of pieces there are, and makes one that no other makes; every longer piece is
  made.
  """
  pieces = set(all_pieces)
  made = {
    piece
    for piece in pieces
    if piece in (UNKNOWN, END_OF_TEXT) or len(piece.removesuffix(END)) == 1
  }
  for number, pair in enumerate(merges, 2):
    for piece in pair:
      if piece not in made:
        fault = (
          "that no line above has made" if piece in pieces else f"that is not in {pieces_path}"
        )
        raise InputError(f"{merges_path}:{number}: merges {piece!r}, {fault}")
    piece = "".join(pair)
    if piece not in pieces or piece in made:
      fault = "which is there already" if piece in made else f"which is not in {pieces_path}"
      raise InputError(f"{merges_path}:{number}: makes {piece!r}, {fault}")
    made.add(piece)
  if len(made) < len(pieces):
    left = [piece for piece in all_pieces if piece not in made]
    raise InputError(
      f"{merges_path}:{len(merges) + 1}: ends before {left[0]!r} is made, one of {len(left)} such pieces of "
      f"{pieces_path}: truncated, or another vocabulary's"
    )


def standardize(text: str) -> str:
  """OpenAI's text_standardize: plain dashes, spaces around runs of a mark, single spaces, " \\n "
  between lines.

  Not around backslashes: OpenAI's pattern names them too, but one escape is missing there, and it
    means "+".
  """
  text = _MARKS.sub(r" \g<0> ", text.translate(_PLAIN))
  return " \n ".join(words for line in text.split("\n") if (words := " ".join(line.split())))


_PLAIN = str.maketrans({"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"})
_MARKS = re.compile(r'([-~!";?+,)(/*[\]}{|_])\1*')


def _fixed(text: str, fix: Callable[..., str]) -> str:
  """ftfy.fix_text; the lines it would leave as they are do not go through it."""
  if _CLEAN.fullmatch(text):
    return text
  fixed, html = [], "auto"
  for line in re.findall(r"[^\n]*\n|[^\n]+", text):
    fixed.append(line if _CLEAN.fullmatch(line) else fix(line, unescape_html=html))
    html = (
      False if "<" in line else html
    )  # as fix_text itself, which goes by line, decides for what follows
  return "".join(fixed)


_CLEAN = re.compile(r"[\t\n -%'-~]*")  # printable ASCII but for "&"


def _spacy_words(version: str) -> Callable[[str], list[str]]:
  spacy = _needed("spacy")
  if version and version.split(".")[:2] != spacy.__version__.split(".")[:2]:
    warnings.warn(
      f"the words of this vocabulary were found by spaCy {version}, here it is {spacy.__version__}: it may find others",
      stacklevel=2,
    )
  tokenizer = spacy.blank("en").tokenizer
  return lambda text: [token.text for token in tokenizer(text)]


def _needed(package: str) -> Any:
  try:
    return importlib.import_module(package)
  except ImportError as error:
    raise InputError(
      f"text for OpenAI's vocabulary needs {package}: pip install 'gpt_jax[released]'"
    ) from error


# What spaCy does with standardized English, but for its rare exceptions.
_REGEX_WORDS = re.compile(
  r"\n ?"
  r"|\.\.+"
  r"|(?<![^\s'])(?:[a-z]|mrs?|ms|messrs|dr|st|mt|[js]r|prof|rev|gen|gov|sen|rep|co|corp|inc|ltd|bros|vs"
  r"|jan|feb|apr|aug|sept?|oct|nov|dec|ph\.d)\.(?![\w.])"
  r"|(?:[a-z]\.){2,}(?!\w)"
  r"|(?<!\w)(?:can(?=not(?!\w))|gon(?=na(?!\w))|got(?=ta(?!\w))"
  r"|(?:ai|ca|could|dare|did|do|does|had|has|have|is|are|may|might|must|need|ought|sha|should|was|were|wo|would)"
  r"(?=n'?t(?!\w))"
  r"|(?:i|you|he|she|it|we|they|that|there|this|who|what|where|when|why|how)(?='(?:d|ll|m|re|ve)(?!\w)))"
  r"|'(?:s|d|ll|m|re|ve)(?![\w'])"
  r"|'(?:em|bout|cause|cos|cuz|nuff)(?!\w)|(?:doin|goin|havin|nothin|lovin|somethin|ol)'(?!\w)"
  r"|[^\s'.:=<>&`“”‘’$£€%\",;!?()\[\]{}*_]+"
  r"(?:(?!'s(?![\w'])|(?-i:(?<=[a-z])\.[A-Z]))(?:['.]|:(?=\d))[^\s'.:=<>&`“”‘’$£€%]+)*"
  r"|\S",
  re.IGNORECASE,
)
