"""QNLI: does the sentence answer the question? (GLUE, from SQuAD; second version)"""

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import glue_files
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment

TASKS = (
  Task(
    name="qnli",
    labels=("entailment", "not_entailment"),
    columns=("question", "sentence"),
    transform=entailment,
    read=glue_files("QNLI", ("question", "sentence")),
    metrics={"accuracy": accuracy},
    tfds=("glue/qnli",),
    paper="88.1 accuracy on the test server, first version (Radford et al. 2018, table 2)",
  ),
)
