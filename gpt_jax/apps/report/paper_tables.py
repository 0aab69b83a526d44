"""The paper's tables 2 to 5 and figure 2 as numbers (Radford et al. 2018).

The tables report test sets; None is an empty cell. Results that only GLUE's leaderboard has are in
the tasks.
"""

from typing import NamedTuple

OURS = "Finetuned Transformer LM"  # the paper's own model


class Column(NamedTuple):
  """A column, and the tasks whose primary metrics it averages."""

  title: str
  tasks: tuple[str, ...]


class Table(NamedTuple):
  """A table with rows of percentages, in the order of the columns."""

  title: str
  columns: tuple[Column, ...]
  rows: dict[str, tuple[float | None, ...]]


def _columns(text: str) -> tuple[Column, ...]:
  columns = []
  for entry in text.split():
    title, tasks = entry.split("=")
    columns.append(Column(title, tuple(tasks.split("+"))))
  return tuple(columns)


# GLUE's score as in glue.average. It includes WNLI, for which the paper prints no result.
GLUE = Column("GLUE", tuple("cola sst2 mrpc stsb qqp mnli mnli-mismatched qnli rte wnli".split()))

TABLES = {
  2: Table(
    "natural language inference (accuracy)",
    _columns("MNLI-m=mnli MNLI-mm=mnli-mismatched SNLI=snli SciTail=scitail QNLI=qnli RTE=rte"),
    {
      "ESIM + ELMo (5x)": (None, None, 89.3, None, None, None),
      "CAFE (5x)": (80.2, 79.0, 89.3, None, None, None),
      "Stochastic Answer Network (3x)": (80.6, 80.1, None, None, None, None),
      "CAFE": (78.7, 77.9, 88.5, 83.3, None, None),
      "GenSen": (71.4, 71.3, None, None, 82.3, 59.2),
      "Multi-task BiLSTM + Attn": (72.2, 72.1, None, None, 82.1, 61.7),
      OURS: (82.1, 81.4, 89.9, 88.3, 88.1, 56.0),
    },
  ),
  3: Table(
    "question answering and commonsense reasoning (accuracy)",
    _columns("Story-Cloze=storycloze RACE-m=race-middle RACE-h=race-high RACE=race"),
    {
      "val-LS-skip": (76.5, None, None, None),
      "Hidden Coherence Model": (77.6, None, None, None),
      "Dynamic Fusion Net (9x)": (None, 55.6, 49.4, 51.2),
      "BiAttention MRU (9x)": (None, 60.2, 50.3, 53.3),
      OURS: (86.5, 62.9, 57.4, 59.0),
    },
  ),
  4: Table(
    "semantic similarity and classification "
    "(CoLA Matthews, MRPC and QQP F1, STS-B Pearson, SST2 accuracy)",
    (*_columns("CoLA=cola SST2=sst2 MRPC=mrpc STSB=stsb QQP=qqp"), GLUE),
    {
      "Sparse byte mLSTM": (None, 93.2, None, None, None, None),
      "TF-KLD": (None, None, 86.0, None, None, None),
      "ECNU (mixed ensemble)": (None, None, None, 81.0, None, None),
      "Single-task BiLSTM + ELMo + Attn": (35.0, 90.2, 80.2, 55.5, 66.1, 64.8),
      "Multi-task BiLSTM + ELMo + Attn": (18.9, 91.6, 83.5, 72.8, 63.3, 68.9),
      OURS: (45.4, 91.3, 82.3, 82.0, 70.3, 72.8),
    },
  ),
  5: Table(
    "ablations (metrics as in tables 2 and 4)",
    _columns(
      "CoLA=cola SST2=sst2 MRPC=mrpc STSB=stsb QQP=qqp MNLI=mnli+mnli-mismatched QNLI=qnli RTE=rte"
    ),
    {
      "Transformer w/ aux LM (full)": (45.4, 91.3, 82.3, 82.0, 70.3, 81.8, 88.1, 56.0),
      "Transformer w/o pre-training": (18.9, 84.0, 79.4, 30.9, 65.5, 75.7, 71.2, 53.8),
      "Transformer w/o aux LM": (47.9, 92.0, 84.9, 83.2, 69.8, 81.1, 86.9, 54.4),
      "LSTM w/ aux LM": (30.3, 90.5, 83.2, 71.8, 68.1, 73.7, 81.1, 54.6),
    },
  ),
}
PRINTED_AVERAGES = {  # table 5's first column; the last row's mean is 69.16
  "Transformer w/ aux LM (full)": 74.7,
  "Transformer w/o pre-training": 59.9,
  "Transformer w/o aux LM": 75.0,
  "LSTM w/ aux LM": 69.1,
}


class Anchor(NamedTuple):
  """A task of figure 2 (right), scaled from chance (0) to the best single supervised model (1)."""

  chance: float  # the ends of the scale, in percent
  best: float
  reached: float | None  # the end of the paper's Transformer curve, scaled, read by eye


# The paper does not print the ends. We take the best other system in its tables, for RACE an
# ensemble of nine models. The tables have no pronoun resolution, so its end is 100 %.
ANCHORS = {
  "sst2": Anchor(50.0, 93.2, 0.68),  # sentiment analysis: table 4, sparse byte mLSTM
  "dprd": Anchor(50.0, 100.0, 0.55),  # Winograd schema resolution
  "cola": Anchor(0.0, 35.0, 0.43),  # table 4, single-task BiLSTM + ELMo + Attn
  "race": Anchor(25.0, 53.3, 0.25),  # question answering: table 3, BiAttention MRU
  "race-middle": Anchor(25.0, 60.2, None),
}

# Figure 2 (left), read by eye: dev accuracy in percent with none and with all twelve layers.
TRANSFER = {"race": (40.0, 60.0), "mnli": (72.0, 82.0)}
