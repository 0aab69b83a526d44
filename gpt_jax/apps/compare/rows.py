"""The rows of the comparison: pre-training objectives, each with what it is called."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from gpt_jax.errors import InputError
from gpt_jax.objectives.both_directions import BothDirections
from gpt_jax.objectives.causal import Causal
from gpt_jax.objectives.contrastive import NeighborSpans
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.masked_pairs import MaskedPairs
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.suggestions import did_you_mean

SENTINELS = 16  # 256 positions have 12 spans


@dataclasses.dataclass(frozen=True)
class Row:
  """One objective.

  Attributes:
    title: in the tables.
    objective: None: no pre-training.
    needs_pooler: whether a head of pre-training reads the trunk's pooler.
    needs_sentences: whether the text needs sentence ends.
  """

  title: str
  objective: Any
  needs_pooler: bool = False
  needs_sentences: bool = False


ROWS = {
  "causal": Row("causal", Causal()),
  "both_directions": Row("both directions", BothDirections()),
  "masked": Row("masked", Masked()),
  "masked_next": Row("masked + next sentence", MaskedPairs(), True, True),
  "ngrams_order": Row(
    "n-grams masked + sentence order", MaskedPairs(unit="ngram", second="swapped"), True, True
  ),
  "spans": Row("span corruption, prefix", SpanCorruption("prefix", sentinels=SENTINELS)),
  # There is nothing to predict from the left alone, so it reads both ways like other encoders.
  "neighbors": Row("contrastive, neighbors", NeighborSpans(attention="bidirectional")),
  "none": Row("no pre-training", None),
}
# Of all rows, so that every trunk has the same table.
SPECIAL = tuple(
  dict.fromkeys(name for row in ROWS.values() if row.objective for name in row.objective.special)
) + ("delimiter", "extract")


def find_rows(names: Sequence[str]) -> dict[str, Row]:
  """The rows of these names in the tables' order; all if there are none.

  Raises:
    InputError: an unknown name.
  """
  for name in names:
    if name not in ROWS:
      raise InputError(
        f"--objectives={name}: must be among {', '.join(ROWS)}{did_you_mean(name, ROWS)}"
      )
  return {name: row for name, row in ROWS.items() if not names or name in names}
