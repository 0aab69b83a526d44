"""GPT-1's tokenizer, exactly as released (the paper, 4.1: a BPE of 40,000 merges)."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import itertools
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpt_jax.data.tokenizers.base import sources
from gpt_jax.data.tokenizers.openai_files import (
  END_OF_WORD,
  FILES,
  LINE,
  UNKNOWN,
  MergesTokenizer,
  read_files,
  released_as,
)
from gpt_jax.data.tokenizers.released import encode_around, require
from gpt_jax.errors import InputError

KINDS = ("openai-gpt1",)

SPACY = "spacy-en"
REGEX = "regex-1"  # _REGEX_WORDS; a change of what it splits needs a new number
MAX_CACHED_WORDS = 1 << 16  # about 60 MB, with spaCy's own cache


@dataclasses.dataclass(frozen=True)
class GPT1Tokenizer(MergesTokenizer):
  """Text repaired by ftfy, standardized, split into words by spaCy, lower-cased, merged by word."""

  # SPACY finds the words as OpenAI did; REGEX agrees on 99.99 % of the words of novels and on at
  # least 99.6 % of those of the tasks.
  splitter: str = SPACY
  splitter_version: str = ""  # of the spaCy of the first use; another may find other words

  kind = KINDS[0]
  unknown = UNKNOWN
  filler_id = 0
  file_names = FILES[0]

  @property
  def normalizer(self) -> str:
    return f"ftfy, OpenAI's text_standardize, words of {self.splitter}, lower case"

  @functools.cached_property
  def line_id(self) -> int:
    return self.pieces.index(LINE)

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    """See Tokenizer: this vocabulary marks where words end."""
    starts = np.ones(ids.shape, bool)
    starts[..., 1:] = self._ends_word[ids[..., :-1]]
    return starts

  @functools.cached_property
  def _ends_word(self) -> np.ndarray:
    return np.array([piece.endswith(END_OF_WORD) or piece == UNKNOWN for piece in self.pieces])

  @property
  def metadata(self) -> dict[str, str]:
    return {"splitter": self.splitter, "splitter_version": self.splitter_version}

  @property
  def hashed(self) -> list:
    return [*super().hashed, self.splitter]

  def difference(self, hash: str) -> str:
    for splitter in (SPACY, REGEX):
      if splitter != self.splitter and dataclasses.replace(self, splitter=splitter).hash == hash:
        return f"the same but with the word splitter {splitter}, not {self.splitter}"
    return super().difference(hash)

  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    ids = {token.content: self.pieces.index(token.content) for token in self.spelled}
    return [encode_around(text, ids, self._encode) for text in texts]

  def _offsets(self, word: str) -> list[tuple[int, int]]:
    normalized, origins = sources(word, standardized)
    split, word_ids = self._words
    spans, begin = [], 0
    for part in split(normalized):
      begin = max(begin, normalized.find(part, begin))
      for first, last in word_ids.offsets(part):
        last = min(begin + last, len(normalized))
        spans.append((origins[min(begin + first, last - 1)][0], origins[last - 1][1]))
      begin += len(part)
    return spans

  def decode(self, ids: Iterable[int]) -> str:
    """Words, each followed by a space: the ids do not tell how the text was punctuated."""
    text = "".join(self.pieces[i] for i in np.asarray(ids).tolist()).replace(END_OF_WORD, " ")
    return re.sub(" ?\n ?", "\n", text).removesuffix(" ")

  def _encode(self, text: str) -> np.ndarray:
    split, word_ids = self._words
    if len(word_ids) > MAX_CACHED_WORDS:
      # The cached property is computed anew, and spaCy's own cache of words goes with the old one.
      del self.__dict__["_words"]
      split, word_ids = self._words
    ids = itertools.chain.from_iterable(word_ids[word] for word in split(standardized(text)))
    return np.array(list(ids), np.int32)

  @functools.cached_property
  def _words(self) -> "tuple[Callable[[str], list[str]], _WordIds]":
    """The word splitter and the cache of words it found."""
    bpe = require("tokenizers").models.BPE(
      vocab={piece: i for i, piece in enumerate(self.pieces)},
      merges=list(self.merges),
      unk_token=UNKNOWN,
      end_of_word_suffix=END_OF_WORD,
    )
    is_spacy = self.splitter == SPACY
    split = _spacy_words(self.splitter_version) if is_spacy else _REGEX_WORDS.findall
    return split, _WordIds(bpe, self.line_id)


class _WordIds(dict[str, tuple[int, ...]]):
  """Word -> ids, computed when first asked for."""

  def __init__(self, bpe: Any, line_id: int):
    # spaCy's word for a line break, which OpenAI's code replaces by this piece.
    super().__init__({"\n ": (line_id,)})
    self._bpe = bpe

  def __missing__(self, word: str) -> tuple[int, ...]:
    # Lower case only after the split: spaCy's rules look at capitals.
    self[word] = ids = tuple(token.id for token in self._bpe.tokenize(word.lower()))
    return ids

  def offsets(self, word: str) -> list[tuple[int, int]]:
    """The characters of a word that each of its ids is of; the package counts bytes."""
    lower = word.lower()
    characters = [n for n, c in enumerate(lower) for _ in c.encode()]
    spans = (token.offsets for token in self._bpe.tokenize(lower))
    return [(characters[begin], characters[end - 1] + 1) for begin, end in spans]


def detect(folder: str) -> bool:
  return released_as(folder) == "gpt1"


def load(folder: str, metadata: dict[str, Any] | None) -> GPT1Tokenizer:
  """Without metadata the splitter is spaCy, or, with a warning, the regex if spaCy is missing."""
  pieces, merges = read_files(folder)
  splitter: Any = SPACY
  version = ""
  if metadata is not None:
    splitter, version = metadata.get("splitter"), str(metadata.get("splitter_version", ""))
    if splitter not in (SPACY, REGEX):
      raise InputError(
        f"{folder}/tokenizer.json: splitter {splitter!r} is not known; should be {SPACY} or {REGEX}"
      )
  elif importlib.util.find_spec("spacy"):
    version = importlib.metadata.version("spacy")
  else:
    splitter = REGEX
    warnings.warn(
      f"spaCy is not installed: {REGEX} splits the words, and one in some thousands differently "
      "from OpenAI; for OpenAI's exact ids pip install 'gpt_jax[released]' and start again",
      stacklevel=3,
    )
  return GPT1Tokenizer(pieces, merges, splitter, version)


def standardized(text: str) -> str:
  """The text repaired by ftfy, then by OpenAI's standardize."""
  return standardize(_fix_lines(text, require("ftfy").fix_text))


def standardize(text: str) -> str:
  """OpenAI's text_standardize: plain dashes, spaces around runs of a punctuation mark, single
  spaces, " \\n " between lines.

  A backslash gets no spaces: OpenAI's pattern lists it too, but lacks an escape, so that it means
  "+" (openai/text_utils.py).
  """
  text = _MARKS.sub(r" \g<0> ", text.translate(_PLAIN))
  lines = (" ".join(line.split()) for line in text.split("\n"))
  return " \n ".join(line for line in lines if line)


_PLAIN = str.maketrans({"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"})
_MARKS = re.compile(r'([-~!";?+,)(/*[\]}{|_])\1*')
_UNCHANGED_BY_FTFY = re.compile(r"[\t\n -%'-~]*")  # printable ASCII except "&"


def _fix_lines(text: str, fix_text: Callable[..., str]) -> str:
  """ftfy.fix_text, called only for lines that it can change."""
  if _UNCHANGED_BY_FTFY.fullmatch(text):
    return text
  fixed = []
  unescape_html: bool | str = "auto"
  for line in re.findall(r"[^\n]*\n|[^\n]+", text):
    is_plain = _UNCHANGED_BY_FTFY.fullmatch(line)
    fixed.append(line if is_plain else fix_text(line, unescape_html=unescape_html))
    if "<" in line:  # from here on ftfy takes the text for HTML, and leaves its entities alone
      unescape_html = False
  return "".join(fixed)


def _spacy_words(version: str) -> Callable[[str], list[str]]:
  spacy = require("spacy")
  if version and version.split(".")[:2] != spacy.__version__.split(".")[:2]:
    warnings.warn(
      f"this vocabulary was used with spaCy {version}, and {spacy.__version__} is installed: it "
      "may find other words",
      stacklevel=2,
    )
  tokenizer = spacy.blank("en").tokenizer
  return lambda text: [token.text for token in tokenizer(text)]


# spaCy's words in standardized English, except for its rare special cases.
WORDS_PATTERN = (
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
  r"|\S"
)
_REGEX_WORDS = re.compile(WORDS_PATTERN, re.IGNORECASE)
