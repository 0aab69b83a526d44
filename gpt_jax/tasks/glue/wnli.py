"""WNLI: does a sentence with its pronoun replaced follow from the text? (Levesque et al. 2012)

GLUE's ninth task, and not one of the paper's twelve. Training and dev set share sentences, mostly
with opposite labels: a model that memorizes its training set is worse than chance on dev
(gluebenchmark.com/faq).
"""

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import glue_files
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment

LABELS = ("not_entailment", "entailment")  # 0 and 1 in the files

TASKS = (
  Task(
    name="wnli",
    labels=LABELS,
    columns=("sentence1", "sentence2"),
    transform=entailment,
    read=glue_files("WNLI", ("sentence1", "sentence2"), label_names=LABELS),
    metrics={"accuracy": accuracy},
    tfds=("glue/wnli",),
    paper="no result in Radford et al. 2018; 53.4 accuracy with their model (GLUE leaderboard)",
  ),
)
