"""Zero-shot evaluation of one checkpoint, or of every checkpoint of a run (section 5)."""

import os
from collections.abc import Sequence

from gpt_jax.checkpoints.load import load_model
from gpt_jax.errors import InputError
from gpt_jax.files import write_json
from gpt_jax.paper.zero_shot import Result, checkpoints, make_scorer, measure, prepare
from gpt_jax.tasks.readers import check_data_dir


def run(
  checkpoint: str,
  data_dir: str,
  tasks: Sequence[str] = (),
  *,
  history: bool = False,
  examples: int = 0,
  out: str = "",
) -> list[Result]:
  """Evaluates one checkpoint, or every checkpoint of a run, and prints a table.

  Args:
    checkpoint: see load_model; of a fine-tuned model the trunk is used.
    data_dir: the folder with glue/, race/ and winograd/ in it.
    tasks: of TASKS; none: all whose data is there.
    history: every checkpoint of the run in this workdir (train.milestone keeps more of them),
      oldest first.
    examples: only so many of each task, evenly from all; 0: all.
    out: JSON file for the same numbers, written after every checkpoint.

  Raises:
    InputError: an unknown task, no such checkpoint or data, a text that the model's context does
      not hold.
  """
  if out and (os.path.isdir(out) or not os.path.isdir(os.path.dirname(os.path.abspath(out)))):
    raise InputError(
      f"--json={out}: {'a folder' if os.path.isdir(out) else 'no such folder'}; name a file"
    )
  check_data_dir(data_dir)
  paths = checkpoints(checkpoint) if history else [checkpoint]
  found = load_model(paths[0])
  model = found.language_model()  # fail before the expensive part
  prepared = prepare(found, data_dir, tasks, examples)
  score = make_scorer(model)
  results = []
  for path in paths:
    found = found if path == paths[0] else load_model(path)
    results += measure(found, prepared, score)
    if out:
      write_json(out, [result._asdict() for result in results])
  return results
