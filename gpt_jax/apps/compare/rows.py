"""The rows of the comparison: objectives and systems, and what the systems train and read."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt_jax.apps.study import choice
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.files import atomic_folder, is_folder
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.bidirectional_lm import BothDirections
from gpt_jax.objectives.causal import Causal
from gpt_jax.objectives.contrastive import NeighborSpans
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.masked_sentences import FullSentences, MaskedPairs
from gpt_jax.objectives.span_corruption import SpanCorruption

SENTINELS = 16  # 256 positions have 12 spans


@dataclasses.dataclass(frozen=True)
class Row:
  """One objective or system. Configs are files of configs/ with their argument."""

  title: str  # in the tables
  objective: Any = None  # of pre-training; None: that of `config`, or none
  needs_pooler: bool = False  # for a head of pre-training
  needs_sentences: bool = False  # of the text
  config: str = ""  # for a trunk, whose sizes become the budget's, and an objective of its own
  tuning: str = ""  # for fine-tuning of its own, without the name of the task; "": as all
  starts_from: str = ""  # the row whose checkpoint it is fine-tuned from; "": its own
  translates: bool = False  # it is pre-trained on pairs of texts
  tunes_on_texts: bool = False  # a checkpoint is trained further on the texts of a task first
  supervised: bool = False  # it learns from labels alone, where its tuning has other text too
  pooling: tuple[str, ...] = ()  # of the tasks that it can learn, see Task; (): all

  @property
  def reads_text(self) -> bool:
    """Whether it is pre-trained on the text alone."""
    return bool(self.objective or self.config) and not self.translates

  @property
  def is_pretrained(self) -> bool:
    return self.reads_text or self.translates


_ONE_LABEL = ("sum",)
ROWS = {
  "causal": Row("causal", Causal()),
  "both_directions": Row("both directions", BothDirections()),
  "masked": Row("masked", Masked()),
  "full_sentences": Row("masked, full sentences", FullSentences(), needs_sentences=True),
  "masked_next": Row("masked + next sentence", MaskedPairs(), True, True),
  "ngrams_order": Row(
    "n-grams masked + sentence order", MaskedPairs(unit="ngram", second="swapped"), True, True
  ),
  "spans": Row(  # answers in words, and so tags no tokens
    "span corruption, prefix",
    SpanCorruption("prefix", sentinels=SENTINELS),
    pooling=("sum", "per_choice"),
  ),
  # There is nothing to predict from the left alone, so it reads both ways like other encoders.
  "neighbors": Row("contrastive, neighbors", NeighborSpans(attention="bidirectional")),
  "adversarial": Row(
    "causal, adversarial fine-tuning", tuning="adversarial:fgm", starts_from="causal"
  ),
  "lstm": Row("LSTM, causal", config="lstm:small"),
  "elmo": Row("ELMo, frozen", config="elmo:small", tuning="finetune_elmo"),
  "ulmfit": Row(
    "ULMFiT",
    config="ulmfit:small",
    tuning="finetune_ulmfit",
    tunes_on_texts=True,
    pooling=_ONE_LABEL,
  ),
  "cove": Row(
    "CoVe, frozen", config="translate:lstm", tuning="cove", translates=True, pooling=_ONE_LABEL
  ),
  "twin": Row("supervised twin", tuning="cross_view:small", supervised=True, pooling=("sum", "")),
  "views": Row("cross-view training", tuning="cross_view:small", pooling=("sum", "")),
  "none": Row("no pre-training"),
}
# Of all rows, so that every trunk has the same table.
SPECIAL = tuple(
  dict.fromkeys(name for row in ROWS.values() if row.objective for name in row.objective.special)
) + ("delimiter", "extract")


def find_rows(names: Sequence[str]) -> dict[str, Row]:
  """The rows of these names, and those whose checkpoints they start from, in the tables' order; all
  if there are none.
  """
  wanted = {*names, *(choice("objectives", name, ROWS).starts_from for name in names)}
  return {name: row for name, row in ROWS.items() if not names or name in wanted}


PAIR_LENGTH = 16  # tokens of a text to translate
DEV_PAIRS = 64
_UNITS = range(8, 4096, 8)


def resized(trunk: Any, like: TransformerConfig) -> Any:
  """An LSTM's config at the context, width and type of a Transformer, with the units by which its
  layers have about as many parameters; without the tables of a vocabulary, which has none yet.
  """
  wanted = dataclasses.replace(like, pooler=False).parameter_count()
  fields = {field.name for field in dataclasses.fields(trunk)}

  def with_units(units: int) -> Any:
    runtime: dict[str, Any] = {"context": like.context, "dtype": like.dtype}
    if isinstance(trunk, LSTMStackConfig):
      return dataclasses.replace(trunk.resized(units, like.width), **runtime)
    sizes: dict[str, Any] = {n: like.width for n in ("width", "embedding_width") if n in fields}
    return dataclasses.replace(trunk, units=units, **sizes, **runtime)

  # A few hundred configs, which costs less than to solve for the units of each kind of trunk.
  sizes = ((abs(with_units(units).parameter_count() - wanted), units) for units in _UNITS)
  return with_units(min(sizes)[1])


def write_pairs(folder: str, text: str, count: int) -> None:
  """Writes at most `count` training pairs of a prepared text and the same with its words reversed,
  which stand for translations where there is one language only. A folder that exists stays.
  """
  if is_folder(folder):
    return
  tokenizer = load_tokenizer(os.path.join(text, "tokenizer"))
  with atomic_folder(folder) as partial:
    for split, name, most in (("train", "train", count), ("valid", "val", DEV_PAIRS)):
      tokens = TokenFile(text, split)
      sides: dict[str, list[str]] = {"text": [], "back": []}
      for first in range(0, tokens.n_tokens - PAIR_LENGTH, PAIR_LENGTH)[:most]:
        words = tokenizer.decode(tokens.read(first, PAIR_LENGTH).tolist()).split()
        if words:
          sides["text"].append(f"{' '.join(words)}\n")
          sides["back"].append(f"{' '.join(reversed(words))}\n")
      for side, lines in sides.items():
        Path(partial, f"{name}.{side}").write_text("".join(lines), encoding="utf-8")
