"""The nearest valid names, for messages about a wrong one."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, valid: Iterable[str], prefix: str = "", most: int = 3) -> str:
  """For the end of a message about an unknown name: "; did you mean NAME or NAME?", of the nearest
  valid names in any case, or "" if none is near.

  Args:
    name: what was given.
    valid: what could have been.
    prefix: written before each name, such as "--".
    most: names in the answer.
  """
  by_folded: dict[str, str] = {}
  for word in valid:
    by_folded.setdefault(word.casefold(), word)
  near = difflib.get_close_matches(name.casefold(), by_folded, n=most)
  if not near:
    return ""
  return f"; did you mean {' or '.join(prefix + by_folded[word] for word in near)}?"
