"""Zero-shot evaluation of one checkpoint, or of every checkpoint of a run (section 5)."""

from collections.abc import Sequence

from gpt_jax.apps.paper.zero_shot_tasks import Result, checkpoints, make_answers, measure, prepare
from gpt_jax.checkpoints.load import load_model
from gpt_jax.files import write_json
from gpt_jax.programs.outputs import check_out
from gpt_jax.tasks.readers import check_data_dir


def run(
  checkpoint: str,
  data_dir: str,
  tasks: Sequence[str] = (),
  *,
  history: bool = False,
  examples: int = 0,
  out: str = "",
  overwrite: bool = False,
) -> list[Result]:
  """Evaluates one checkpoint, or every checkpoint of a run, and prints a line per result.

  Questions longer than the model's context are left out with a warning.

  Args:
    checkpoint: see load_model; of a fine-tuned model the trunk is used, of a masked language model
      the pseudo-log-likelihood.
    data_dir: the folder that contains glue/, race/ and winograd/.
    tasks: names from paper.zero_shot.TASKS; none: all tasks with data in the folder.
    history: evaluate every checkpoint of the workdir, oldest first (train.milestone keeps more).
    examples: at most this many per task and split, of each class its share; 0: all.
    out: a JSON file for the results, written after every checkpoint.
    overwrite: whether an existing `out` may be replaced.
  """
  if out:
    check_out(out, overwrite)
  check_data_dir(data_dir)
  paths = checkpoints(checkpoint) if history else [checkpoint]
  loaded = load_model(paths[0])
  answers = make_answers(loaded)  # fail before the expensive part
  prepared = prepare(loaded, data_dir, tasks, examples)
  results = []
  for path in paths:
    loaded = loaded if path == paths[0] else load_model(path)
    results += measure(loaded, prepared, answers)
    if out:
      write_json(out, [result._asdict() for result in results])
  return results
