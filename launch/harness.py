"""Evaluates a language model on tasks of EleutherAI's lm-evaluation-harness.

Prints the harness's table. Its own tasks need the network for their data, once; --include_path
names a folder of task files of yours, which may read local JSON lines.

python launch/harness.py --checkpoint=DIR --tasks=lambada_openai,wikitext [--limit=100]
python launch/harness.py --checkpoint=DIR --tasks=my_task --include_path=my_tasks --out=results.json
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("harness")
CHECKPOINT = command_line.define_checkpoint()
TASKS = flags.DEFINE_list(
  "tasks", None, "tasks, groups or tags by name, or YAML files; comma-separated", required=True
)
INCLUDE_PATH = flags.DEFINE_string(
  "include_path", DEFAULTS["include_path"], "folder of further task files (YAML)"
)
NUM_FEWSHOT = flags.DEFINE_integer(
  "num_fewshot",
  DEFAULTS["num_fewshot"],
  "solved examples before each question; not given: as the task says",
  lower_bound=0,
)
LIMIT = flags.DEFINE_integer(
  "limit", DEFAULTS["limit"], "only the first documents of each task; 0: all", lower_bound=0
)
OUT = flags.DEFINE_string("out", DEFAULTS["out"], "JSON file for the results")
OVERWRITE = command_line.define_overwrite()


def main():
  from gpt_jax.apps.harness import harness

  harness.run(
    CHECKPOINT.value,
    TASKS.value,
    INCLUDE_PATH.value,
    num_fewshot=NUM_FEWSHOT.value,
    limit=LIMIT.value,
    out=OUT.value,
    overwrite=OVERWRITE.value,
  )


if __name__ == "__main__":
  command_line.run(main)
