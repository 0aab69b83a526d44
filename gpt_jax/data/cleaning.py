"""Cleaning text: wrapped lines become paragraphs, spaces and mis-decoded letters are repaired."""

import functools
import itertools
from collections.abc import Callable, Iterator

SAMPLE = 1 << 18  # characters from which the wrap width is estimated


def clean(text: str) -> str:
  """The text, a paragraph per line and (with ftfy installed) its mis-decoded letters repaired."""
  text = plain_line_ends(text)
  return clean_piece(text, wrap_width(text))


def clean_piece(text: str, width: int | None) -> str:
  """`clean` for a part of a document, given the document's wrap_width."""
  fix_text = _ftfy()[1]
  cleaned = []
  for paragraph in _paragraphs(text.replace("\ufeff", ""), width):
    paragraph = " ".join(paragraph.split())
    # ftfy changes nothing else; of ASCII it takes control characters away.
    if not paragraph.isascii() or not paragraph.isprintable() or "&" in paragraph:
      paragraph = " ".join(fix_text(paragraph).split())
    if paragraph:
      cleaned.append(paragraph)
  return "\n".join(cleaned)


def cleaner() -> str:
  """The package that repairs mis-decoded letters, for the record: ftfy and version, or "none"."""
  return _ftfy()[0]


def plain_line_ends(text: str) -> str:
  return text.replace("\r\n", "\n").replace("\r", "\n")


def wrap_width(text: str) -> int | None:
  """The width at which the lines of a text are wrapped; None if each line is a paragraph.

  A line that begins in lower case mostly continues the previous one. If many lines do, and the
  length that broke them (that of the line plus the first word that did not fit) is nearly constant,
  the text is wrapped. The width is the 10th percentile of that length; for the regularly wrapped of
  98 novels it is within 4 of the median.
  """
  lines = [line.strip() for line in text[:SAMPLE].split("\n")]
  pairs = [(line, following) for line, following in itertools.pairwise(lines) if line and following]
  lengths = sorted(
    _broken_length(line, following) for line, following in pairs if following[0].islower()
  )
  not_blank = sum(1 for line in lines if line)
  # Too few lines that continue, too small a share of them, or nearly every line between blank ones.
  if len(lengths) < 4 or len(lengths) < 0.4 * len(pairs) or len(pairs) < 0.2 * not_blank:
    return None
  low, high = lengths[len(lengths) // 10], lengths[len(lengths) * 9 // 10]
  is_regular = low >= max(30, 0.6 * high) and high <= 200
  return low if is_regular else None


def continues(line: str, following: str, width: int) -> bool:
  """Whether in wrapped text a line continues in the following one.

  It does if the next word did not fit, or is not the first of a sentence. So a verse, a heading and
  the end of a paragraph stay on their own even if no blank line follows.
  """
  if not line.strip() or not following.strip():
    return False
  if following[0].isspace() and not line[0].isspace():  # an indented paragraph
    return False
  if following.lstrip()[0].islower():
    return True
  return _broken_length(line.strip(), following) >= width


def _broken_length(line: str, following: str) -> int:
  """The length of a line with the first word of the following one."""
  return len(line) + 1 + len(following.split(None, 1)[0])


def _paragraphs(text: str, width: int | None) -> Iterator[str]:
  lines = text.split("\n")
  if width is None:
    yield from lines
    return
  paragraph = lines[0].strip()
  for line, following in itertools.pairwise(lines):
    if continues(line, following, width):
      following = following.strip()
      # A word that is broken, or a compound that is joined, at its hyphen.
      is_joined = paragraph[-1] == "-" and paragraph[-2:-1].isalpha() and following[0].islower()
      paragraph += following if is_joined else f" {following}"
    else:
      yield paragraph
      paragraph = following
  yield paragraph


def _without_surrogates(text: str) -> str:
  """The text with its surrogate pairs joined, and U+FFFD for half of one, as ftfy has it."""
  return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@functools.cache
def _ftfy() -> tuple[str, Callable[[str], str]]:
  try:
    import ftfy
  except ImportError:
    return "none", _without_surrogates
  config = ftfy.TextFixerConfig(explain=False)
  return f"ftfy {ftfy.__version__}", lambda text: ftfy.fix_text(text, config)
