"""The curve of a real run of a config, to draw behind the curves of comparable runs.

The curves are configs/reference/<config>.json. After a run of a config as it stands:

  from gpt_jax.apps.report.reference import write
  write("runs/story", "story", "the embedded story world", "2 CPU cores")
"""

import json
import os

from gpt_jax.apps.report.chart import Line
from gpt_jax.apps.report.record import Record
from gpt_jax.checkpoints.run_folder import read_config
from gpt_jax.config import from_json
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, read_json
from gpt_jax.programs.installed import shipped_folder

_FOLDER = "reference"  # of configs/
_SAME = ("trunk", "objective", "data")  # fields of the config; losses of others do not compare
_SAME_DATA = ("train_digest", "valid_digest")
_METRICS = {"loss": "training loss", "valid_loss": "held-out loss"}


def reference_lines(run: Record) -> list[Line]:
  """The curves of a run with the same model, windows and text, up to the length of this run."""
  folder = os.path.join(shipped_folder("configs"), _FOLDER)
  # An installation may be without configs.
  for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
    if not name.endswith(".json"):
      continue
    reference = read_json(os.path.join(folder, name))
    if any(run.data.get(key) != reference["data"][key] for key in _SAME_DATA):
      continue
    # The configs as objects: the JSON of another version may lack a new field.
    if any(getattr(run.config, key) != from_json(reference["config"][key]) for key in _SAME):
      continue
    lines = []
    end = max(run.total_steps or 0, run.steps_done)
    for color, (metric, title) in enumerate(_METRICS.items()):
      points = [point for point in reference["metrics"].get(metric, []) if point[0] <= end]
      label = f"{title} of configs/{reference['name']}.py, for reference ({reference['hardware']})"
      if points and run.points(metric):
        steps, values = zip(*points, strict=True)
        lines.append(Line(label, steps, values, color, "reference"))
    return lines
  return []


def write(workdir: str, name: str, text: str, hardware: str, folder: str = "") -> str:
  """Writes the reference curve of configs/<name>.py and returns its path.

  Args:
    workdir: of a run of this config.
    name: of the config.
    text: what it was trained on.
    hardware: what it was trained with.
    folder: where to; "": configs/reference.
  """
  run, saved = Record(workdir), read_config(workdir)
  metrics = {}
  for metric in _METRICS:
    metrics[metric] = [[step, round(value, 4)] for step, value in run.points(metric)]
  if not metrics["loss"]:
    raise InputError(f"--workdir={workdir}: has logged no loss")
  content = {
    "name": name,
    "command": f"python launch/pretrain.py --config=configs/{name}.py",
    "text": text,
    "hardware": hardware,
    "steps": [run.steps_done, run.total_steps],
    "config": {key: saved["config"][key] for key in _SAME},
    "data": {key: run.data.get(key) for key in (*_SAME_DATA, "train_tokens", "valid_tokens")},
    "metrics": metrics,
  }
  path = os.path.join(folder or os.path.join(shipped_folder("configs"), _FOLDER), f"{name}.json")
  os.makedirs(os.path.dirname(path), exist_ok=True)
  lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
  with atomic_file(path) as file:
    file.write("{\n" + ",\n".join(lines) + "\n}\n")
  return path
