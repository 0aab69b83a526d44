"""SST-2: is a phrase from a film review positive or negative? (Socher et al. 2013)"""

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import glue_files
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import classification

LABELS = ("negative", "positive")  # 0 and 1 in the files

TASKS = (
  Task(
    name="sst2",
    labels=LABELS,
    columns=("sentence",),
    transform=classification,
    read=glue_files("SST-2", ("sentence",), label_names=LABELS),
    metrics={"accuracy": accuracy},
    tfds=("glue/sst2",),
    paper="91.3 accuracy on the test server (Radford et al. 2018, table 4)",
  ),
)
