"""Tokenizer and SpecialTokens, and loading a tokenizer of any kind from its folder."""

import abc
import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.extensions import modules
from gpt_jax.files import (
  atomic_file,
  check_path,
  local_copy,
  make_folders,
  read_json,
  verified,
  with_checksum,
)

MAX_FILE = 1 << 30  # bytes
METADATA = "tokenizer.json"
TRANSFORMERS_CONFIG = "tokenizer_config.json"
DEFAULT_SPECIAL = ("start", "delimiter", "extract")  # GPT-1's (the paper, 3.3)


# An AttributeError too, since SpecialTokens looks names up in __getattr__: hasattr and copy ask for
# names that are not there.
class UnknownSpecialToken(InputError, AttributeError):
  """A tokenizer lacks a special token that was asked for by name."""


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
  """Named ids for inputs only: no text encodes to them.

  `special.start` and `special["start"]` are the same id. Most are right above the vocabulary, and
  the trunk has further rows for them. A vocabulary may also have some of its own, as BERT's has
  [CLS]. Iteration and `items` follow the ids.
  """

  first: int  # the lowest id above the vocabulary, the tokenizer's vocab_size
  names: tuple[str, ...] = DEFAULT_SPECIAL  # identifiers, of the ids from `first` on
  inside: tuple[tuple[str, int], ...] = ()  # further (name, id), of ids inside the vocabulary

  def __post_init__(self):
    names = list(self)
    for name in names:
      # A name of an attribute could not be read as one, as in `special.start`.
      if not isinstance(name, str) or not name.isidentifier() or name in dir(self):
        raise InputError(f"special token {name!r}: should be an identifier such as 'mask'")
    if len(set(names)) < len(names):
      raise InputError(f"special tokens {', '.join(names)}: a name occurs twice")

  @property
  def count(self) -> int:
    """How many are above the vocabulary."""
    return len(self.names)

  def __len__(self) -> int:
    return len(self.inside) + len(self.names)

  def __iter__(self) -> Iterator[str]:
    for name, _ in sorted(self.inside, key=lambda pair: pair[1]):
      yield name
    yield from self.names

  def __getitem__(self, name: str) -> int:
    if name in self.names:
      return self.first + self.names.index(name)
    if name in dict(self.inside):
      return dict(self.inside)[name]
    raise UnknownSpecialToken(f"no special token {name!r}; the tokenizer has {', '.join(self)}")

  def __getattr__(self, name: str) -> int:
    return self[name]

  def items(self) -> list[tuple[str, int]]:
    return [(name, self[name]) for name in self]


class AddedToken(NamedTuple):
  """A token that a text may spell; the flags are those of the package `tokenizers`."""

  content: str
  special: bool = True
  lstrip: bool = False
  rstrip: bool = False
  single_word: bool = False
  normalized: bool = False


class Tokenizer(abc.ABC):
  """Text to ids and back; a subclass is a frozen dataclass."""

  kind: str  # the algorithm, one of the KINDS of its file
  special_names: tuple[str, ...]
  # Pieces that are one id wherever a text spells them, special tokens among them, as the folder of
  # a model that others trained asks for; (): no text encodes to a special token.
  spelled: tuple[AddedToken, ...] = ()
  __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

  @property
  @abc.abstractmethod
  def normalizer(self) -> str:
    """The changes to a text before it is cut into pieces."""

  @property
  @abc.abstractmethod
  def line_id(self) -> int | None:
    """The id of a line break; None if the vocabulary has no such token."""

  @property
  @abc.abstractmethod
  def vocab_size(self) -> int:
    """The number of ids, without special tokens."""

  @property
  @abc.abstractmethod
  def hash(self) -> str:
    """sha256 of everything that decides the ids of a text. Special tokens are no part of it."""

  @property
  @abc.abstractmethod
  def byte_fallback(self) -> np.ndarray:
    """bool [vocab_size], the ids of the unknown token and of bytes that are not a character."""

  @property
  @abc.abstractmethod
  def files(self) -> dict[str, bytes]:
    """The files that `save` writes beside tokenizer.json, by name."""

  @property
  def metadata(self) -> Mapping[str, Any]:
    """Further entries of tokenizer.json, which `load` gets back."""
    return {}

  @property
  def special_pieces(self) -> Mapping[str, str]:
    """The pieces of special tokens that vocabularies of this kind hold, by name."""
    return {}

  @property
  def special_inside(self) -> dict[str, int]:
    """The ids of those that this vocabulary holds, by name."""
    return {}

  @property
  def unknown_id(self) -> int | None:
    """The id of what is in no other piece; None if there is none."""
    return None

  @property
  def end_id(self) -> int | None:
    """The id of the piece between documents, to which no text encodes; None if there is none."""
    return None

  @property
  def filler_id(self) -> int | None:
    """The id to pad with where no special token is named "pad"; None if there is none."""
    return None

  @property
  def padding_id(self) -> int | None:
    """The id of a piece that no text ends with, to pad with; None if there is none."""
    return self.special["pad"] if "pad" in self.special else self.filler_id

  @property
  def transformers_settings(self) -> dict[str, Any]:
    """Further entries of transformers' tokenizer_config.json."""
    return {}

  @property
  def transformers_files(self) -> dict[str, bytes]:
    """The files that transformers' own class of this kind reads, by name."""
    return {}

  @property
  def begins_word(self) -> np.ndarray:
    """bool [vocab_size], the ids that begin a word; punctuation is a word of its own."""
    raise InputError(f"a vocabulary of kind {self.kind} does not tell which pieces begin a word")

  @abc.abstractmethod
  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    """The ids of each text, int32 [n]."""

  @abc.abstractmethod
  def decode(self, ids: Iterable[int]) -> str:
    """The (normalized) text of ids below vocab_size."""

  @abc.abstractmethod
  def piece(self, i: int) -> str:
    """The vocabulary's spelling of an id below vocab_size."""

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    """Whether each id begins a word, bool [..., n], of ids below vocab_size [..., n]; the first one
    does, wherever the text was cut, and so does what follows a line break.
    """
    starts = self.begins_word[ids]
    starts[..., :1] = True
    if self.line_id is not None:
      starts[..., 1:] |= ids[..., :-1] == self.line_id
    return starts

  def encode(self, text: str) -> np.ndarray:
    """The ids of a text, int32 [n]."""
    return self.encode_many([text])[0]

  def offsets(self, word: str) -> np.ndarray:
    """The characters of a word that each of its ids is of, from and to, int [n, 2]; none is empty.

    The word has no space or line break in it, but for one at its beginning.
    """
    spans, count = self._offsets(word), len(self.encode(word))
    if len(spans) != count:  # such as a word with the spelling of a special token in it
      spans = Tokenizer._offsets(self, word)
    return nonempty(spans, len(word))

  def _offsets(self, word: str) -> list[tuple[int, int]]:
    """As `offsets`, where some may be empty. Here ids share the word evenly, in their order."""
    count = len(self.encode(word))
    return [(n * len(word) // count, (n + 1) * len(word) // count) for n in range(count)]

  @functools.cached_property
  def special(self) -> SpecialTokens:
    # A name that a saved folder has above the vocabulary keeps the id that a model has trained.
    inside = {n: i for n, i in self.special_inside.items() if n not in self.special_names}
    return SpecialTokens(self.vocab_size, self.special_names, tuple(inside.items()))

  def with_special(self, *names: str) -> "Tokenizer":
    """The same tokenizer with further special tokens, unless it has them, at the next ids."""
    has = (*self.special_names, *self.special_inside)
    further = [name for name in dict.fromkeys(names) if name not in has]
    for name in further:
      if name in self.special_pieces:
        raise InputError(
          f"a {self.kind} vocabulary without {self.special_pieces[name]}, the special token "
          f"{name!r}; use one that has it"
        )
    special = SpecialTokens(0, (*self.special_names, *further))
    return dataclasses.replace(self, special_names=special.names)

  def spelling(self, i: int) -> str:
    """The piece of an id, or "<name>" of a special token."""
    if i < self.vocab_size:
      return self.piece(i)
    return f"<{self.special.names[i - self.vocab_size]}>"

  def difference(self, hash: str) -> str:
    """How the tokenizer of another hash differs from this one, as far as known."""
    return f"{hash[:12]}, not {self.hash[:12]}"

  def save(self, folder: str) -> None:
    """Writes `files`, then tokenizer.json, each atomically."""
    metadata = {
      "kind": self.kind,
      "normalizer": self.normalizer,
      "vocab_size": self.vocab_size,
      "hash": self.hash,
      "special": list(self.special_names),
      **({"spelled": self.spelled} if self.spelled else {}),
      **self.metadata,
    }
    text = json.dumps(with_checksum(metadata), indent=2) + "\n"
    make_folders(folder)
    # The metadata last: it has the hash of the other files.
    for name, content in (*self.files.items(), (METADATA, text.encode())):
      with atomic_file(os.path.join(folder, name), "wb") as file:
        file.write(content)


def nonempty(spans: Sequence[tuple[int, int]], length: int) -> np.ndarray:
  """Spans of characters, int [n, 2]; in place of an empty one that of the next which is not."""
  filled, following = [], (min((b for b, e in spans if e > b), default=0), length)
  for begin, end in reversed(spans):
    if end > begin:
      following = begin, end
    filled.append(following)
  return np.array(filled[::-1], int).reshape(-1, 2)


def sources(text: str, normalize: Callable[[str], str]) -> tuple[str, list[tuple[int, int]]]:
  """The normalized text, and for each of its characters those of `text` that it is from.

  Where characters are not normalized one by one, letters are spread evenly.
  """
  normalized = normalize(text)
  letters = [(n, letter) for n, c in enumerate(text) for letter in "".join(normalize(c).split())]
  count = len("".join(normalized.split()))
  origins = [(n, n + 1) for n, _ in letters]
  if "".join(letter for _, letter in letters) != "".join(normalized.split()):
    ends = [-(-n * len(text) // count) for n in range(count + 1)]
    origins = [(min(begin, end - 1), end) for begin, end in itertools.pairwise(ends)]
  origins.append((len(text) - 1, len(text)))
  where, seen = [], 0
  for c in normalized:
    where.append(origins[seen])
    seen += not c.isspace()
  return normalized, where


class TokenizerFile(Protocol):
  """The module interface by which `load_tokenizer` finds the files of this folder."""

  KINDS: tuple[str, ...]  # the values of `Tokenizer.kind` that `load` reads

  def detect(self, folder: str) -> bool:
    """Whether the folder holds a released tokenizer that `load` reads without metadata."""

  def load(self, folder: str, metadata: dict[str, Any] | None) -> Tokenizer:
    """Reads a tokenizer; `metadata`: the tokenizer.json that `save` wrote, None if released."""


def load_tokenizer(folder: str) -> Tokenizer:
  """Loads the tokenizer that `Tokenizer.save` wrote, or else a released one."""
  check_path(folder)
  try:
    with local_copy(folder) as copy:
      return _load(copy)
  except FileNotFoundError as error:
    raise InputError(f"{folder}: no such folder; a tokenizer's is needed") from error


def _load(folder: str) -> Tokenizer:
  metadata = _read_metadata(folder)
  if metadata is None:
    return load_released(folder)
  kinds: dict[str, TokenizerFile] = {}
  for module in modules(__package__, "KINDS"):
    kinds |= dict.fromkeys(module.KINDS, module)
  kind = metadata["kind"]
  if not isinstance(kind, str) or kind not in kinds:
    known = ", ".join(sorted(kinds))
    raise InputError(f"{folder}/{METADATA}: kind {kind!r} is not known; should be one of {known}")
  tokenizer = kinds[kind].load(folder, metadata)
  if tokenizer.hash != metadata.get("hash"):
    raise InputError(
      f"{folder}/{', '.join(tokenizer.files)}: damaged, the hash is not the one in {METADATA}; "
      "copy the folder again"
    )
  try:
    tokenizer.vocab_size  # noqa: B018  reads the files as the tokenizer's package does
  except RuntimeError as error:
    reason = " ".join(str(error).split())
    raise InputError(
      f"{folder}: its files make no {kind} tokenizer ({reason}); copy another folder"
    ) from error
  names = metadata.get("special", DEFAULT_SPECIAL)
  try:
    fields: dict[str, Any] = {"special_names": SpecialTokens(0, tuple(names)).names}
  except (InputError, TypeError) as error:
    raise InputError(f"{folder}/{METADATA}: special = {names!r}: {error}") from error
  if spelled := metadata.get("spelled"):
    fields["spelled"] = tuple(AddedToken(*token) for token in spelled)
  return dataclasses.replace(tokenizer, **fields)


def load_released(folder: str) -> Tokenizer:
  """Loads a tokenizer as its authors released it, whatever a tokenizer.json of ours says."""
  for module in modules(__package__, "KINDS"):
    if module.detect(folder):
      return module.load(folder, None)
  raise InputError(
    f"{folder}: no tokenizer here; give the tokenizer/ folder of prepared data or of a run, or the "
    "folder of a released tokenizer"
  )


def _read_metadata(folder: str) -> dict[str, Any] | None:
  """The content of tokenizer.json; None if there is none, or if it is not ours (without a kind)."""
  path = os.path.join(folder, METADATA)
  try:
    metadata = read_json(path, MAX_FILE)
    # Earlier versions wrote no checksum. The hash does not cover the special tokens.
    if isinstance(metadata, dict) and "checksum" in metadata:
      metadata = verified(metadata)
  except (FileNotFoundError, NotADirectoryError):
    return None
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({error.strerror})") from error
  except ValueError as error:
    raise InputError(f"{path}: not JSON, or damaged ({error}); copy the folder again") from error
  if not isinstance(metadata, dict):
    raise InputError(f"{path}: holds no JSON object; copy the folder again")
  return metadata if metadata.get("kind") is not None else None
