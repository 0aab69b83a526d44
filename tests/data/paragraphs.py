"""Paragraphs of prose, and their wrapping."""

import textwrap

PARAGRAPHS = [
  "The lamplighter had gone his round an hour before, and the long street lay empty under a thin "
  "and bitter rain that nobody in the town could afterwards remember the beginning of.",
  '"You are late," said the widow, without turning from the window where she had been standing '
  "since the clock of the old church struck nine.",
  '"I walked."',
  "He laid his hat upon the table, looked at the fire, which wanted coal, and then at the four "
  "chairs, of which three were new; and it seemed to him that somebody had been expected, though "
  "hardly he, and that whoever it was had already come and gone.",
  "Neither of them spoke of it again.",
  "In the spring the house was sold. The new people cut down the walnut tree, painted the door "
  "green, and let the two upper rooms to a piano tuner from Leeds, who stayed eleven years.",
]


def wrap(paragraphs, width=64, between="\n\n", indent="") -> str:
  return between.join(
    textwrap.fill(text, width, initial_indent=indent, break_on_hyphens=False) for text in paragraphs
  )
