"""Writes an HTML report of a run, or a comparison of several."""

import os
import urllib.parse
import warnings
from collections.abc import Sequence
from typing import Any

from gpt_jax.apps.report import visualize
from gpt_jax.apps.report.page import Sample, environment, render
from gpt_jax.apps.report.record import Record, find_runs
from gpt_jax.apps.study import open_page
from gpt_jax.checkpoints.load import load_model
from gpt_jax.errors import InputError
from gpt_jax.inference.generate import continuations
from gpt_jax.inference.stream import Sampling
from gpt_jax.parallel.processes import is_main_process, log
from gpt_jax.training.trackers import parse_trackers

NAME = "report.html"
_PROMPTS = ("The", "I", "One day")


def run(workdirs: Sequence[str], out: str = "", *, samples: bool = False) -> str:
  """Writes a self-contained HTML page and returns its path.

  Args:
    workdirs: folders of runs, or of runs of several seeds; several are compared.
    out: HTML page to write; by default report.html in the workdir, if it is only one. An existing
      page of this program is replaced, any other file is not.
    samples: also run the newest checkpoints: a language model continues a few prompts; for the
      worst errors of a fine-tuned model an inspection page, errors.html, is written to its workdir,
      and the report links to it.
  """
  folders = find_runs(workdirs)
  if not out:
    if len(workdirs) > 1:
      raise InputError("a comparison has no folder of its own: name the page with --out=FILE.html")
    out = os.path.join(workdirs[0], NAME)
  environment()  # fail before the expensive part
  with open_page(out, "report") as file:
    runs = list(map(Record, folders))
    texts, links = {}, {}
    for record in runs if samples else ():
      try:
        if not record.checkpoints:
          raise InputError("has no checkpoint to run")
        if record.task is None:
          texts[record.folder] = _samples(record.folder)
        elif page := _inspect_errors(record):
          path = os.path.relpath(page, os.path.dirname(os.path.abspath(out)))
          links[record.folder] = urllib.parse.quote(path)
      except InputError as error:  # such as of a model that does not generate
        warnings.warn(f"{record.folder}: {error}", stacklevel=2)
    file.write(render(runs, texts, links))
  return out


def write_report(workdir: str) -> None:
  """Writes report.html on process 0 when a run has ended; what goes wrong is logged, not raised."""
  if not is_main_process():
    return
  try:
    log(f"report: {run([workdir])}")
  except InputError as error:
    log(f"no report: {error}")
  except Exception as error:  # a report must not fail a run that has been trained
    log(f"no report: {type(error).__name__}: {' '.join(str(error).split())[:200]}")


def reported(workdir: str) -> dict[str, Any]:
  """Arguments of a training run, by which it is logged and reported as the commands do it."""
  return {"trackers": parse_trackers("auto", workdir), "on_end": [write_report]}


def _inspect_errors(run: Record) -> str:
  """Writes the page of a fine-tuned model's worst errors; its path, "" without errors."""
  assert run.task is not None
  # Rows of another number of columns are not of this task.
  texts = [row.text for row in run.wrong if row.text.count("\t") == len(run.task.columns) - 1]
  page = os.path.join(run.folder, "errors.html") if texts else ""
  if page:
    visualize.run(os.path.join(run.folder, "best"), page, texts)
  return page


def _samples(folder: str) -> list[Sample]:
  loaded = load_model(folder)
  samples = []
  for how, temperature in (("greedy", 0.0), ("temperature 0.8", 0.8)):
    texts = continuations(loaded, list(_PROMPTS), Sampling(60, temperature))
    samples += [Sample(f"step {loaded.step:,}, {how}", text) for text in texts]
  return samples
