"""Draws the curves of runs into a picture: loss, evaluations, learning rate."""

import itertools
import os
from collections.abc import Sequence

from gpt_jax.apps.report.curves import SUFFIXES, draw_curves
from gpt_jax.apps.report.figures import pyplot
from gpt_jax.apps.report.page import group_runs, run_names
from gpt_jax.apps.report.record import find_runs, read_run
from gpt_jax.errors import InputError
from gpt_jax.files import check_path
from gpt_jax.programs.outputs import check_writable, refuse_existing

NAME = "curves.png"


def run(workdirs: Sequence[str], out: str = "", *, overwrite: bool = False) -> str:
  """Draws the picture and returns its path; runs that differ in nothing but their seed are one
  curve with a band.

  Args:
    workdirs: folders of runs, or of runs of several seeds.
    out: the picture, FILE.png, .svg or .pdf; "": curves.png in the workdir, if it is only one,
      where it is replaced.
    overwrite: whether to replace an existing file.

  Raises:
    InputError: a folder without a run or without any report yet, no name for the picture of
      several, an unknown suffix, a file that is there already, or matplotlib is not installed.
  """
  if not workdirs:
    raise InputError("no run: name its folder with --workdir=DIR")
  if not out:
    if len(workdirs) > 1:
      raise InputError("several runs have no folder of their own: name the picture, --out=FILE.png")
    out, overwrite = os.path.join(workdirs[0], NAME), True
  check_path(out)
  if not out.lower().endswith(SUFFIXES):
    raise InputError(f"--out={out}: the name of a picture ends in {', '.join(SUFFIXES)}")
  refuse_existing(out, overwrite)
  pyplot()  # fail before reading
  folders = list(dict.fromkeys(itertools.chain.from_iterable(map(find_runs, workdirs))))
  check_writable(os.path.dirname(out), out)
  runs = list(map(read_run, folders))
  if not any(record.values("loss") or record.values(record.metric) for record in runs):
    names = ", ".join(folders)
    raise InputError(f"{names}: nothing to draw; metrics.jsonl has no finite loss or evaluation")
  groups = group_runs(runs, run_names([record.folder for record in runs]))
  try:
    draw_curves(groups, out)
  except OSError as error:
    raise InputError(f"--out={out}: {error.strerror or error}") from error
  return out
