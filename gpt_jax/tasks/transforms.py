"""The input transformations of figure 1: the text columns of a row -> the model's input sequences.

It takes the columns and returns C sequences of F text fields; encoding adds the special tokens.
"""

from collections.abc import Callable

Sequences = tuple[tuple[str, ...], ...]
Transform = Callable[..., Sequences]


def classification(text: str) -> Sequences:
  """<start> text <extract>."""
  return ((text,),)


def entailment(premise: str, hypothesis: str) -> Sequences:
  """<start> premise <delimiter> hypothesis <extract>."""
  return ((premise, hypothesis),)


def similarity(a: str, b: str) -> Sequences:
  """Both orders, since neither text comes first by nature; the head adds their representations."""
  return ((a, b), (b, a))


def multiple_choice(context: str, *options: str) -> Sequences:
  """One sequence per option: <start> context <delimiter> option <extract>."""
  return tuple((context, option) for option in options)
