"""The input transformations of figure 1: the text columns of a row to the sequences that the model reads."""

Sequences = tuple[tuple[str, ...], ...]


def classification(text: str) -> Sequences:
  """<start> text <extract>."""
  return ((text,),)


def entailment(premise: str, hypothesis: str) -> Sequences:
  """<start> premise <delimiter> hypothesis <extract>."""
  return ((premise, hypothesis),)


def similarity(a: str, b: str) -> Sequences:
  """Both orders, whose representations the model adds: neither text comes first by nature."""
  return ((a, b), (b, a))


def multiple_choice(context: str, *options: str) -> Sequences:
  """One sequence an option: <start> context <delimiter> option <extract>."""
  return tuple((context, option) for option in options)
