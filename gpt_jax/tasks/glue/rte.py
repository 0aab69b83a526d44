"""RTE: does the second sentence follow from the first? (GLUE, Wang et al. 2018)"""

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import glue_files
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment

TASKS = (
  Task(
    name="rte",
    labels=("entailment", "not_entailment"),
    columns=("sentence1", "sentence2"),
    transform=entailment,
    read=glue_files("RTE", ("sentence1", "sentence2")),
    metrics={"accuracy": accuracy},
    tfds=("glue/rte",),
    paper="56.0 accuracy on the test server (Radford et al. 2018, table 2)",
  ),
)
