"""Measures the limits of language models (Jozefowicz et al. 2016) with small ones."""

import contextlib
import functools
import os
import re
from collections.abc import Sequence
from typing import Any

from gpt_jax.apps.diagnose.gradients import measure_gradients
from gpt_jax.apps.diagnose.sampling import measure_sampling
from gpt_jax.apps.diagnose.scaling import measure_scaling
from gpt_jax.apps.diagnose.sections import render
from gpt_jax.apps.diagnose.short_runs import measure_rates
from gpt_jax.apps.diagnose.texts import BUDGETS, Budget, Texts, load_texts
from gpt_jax.apps.report.page import environment, run_names
from gpt_jax.apps.study import Study, choice
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.errors import InputError, about
from gpt_jax.files import read_json, verified, with_checksum, write_json
from gpt_jax.parallel.processes import log

PARTS = ("gradients", "scaling", "rates", "sampling")
# What is measured of a trained model, and the fields of a Budget that it depends on.
_OF_CHECKPOINTS = {
  "gradients": (measure_gradients, ("gradient_rows",)),
  "sampling": (measure_sampling, ("texts", "text_tokens", "temperatures")),
}
RESULT, PAGE = "diagnosis.json", "diagnosis.html"


def run(
  data: str,
  workdir: str,
  checkpoint: Sequence[str] = (),
  *,
  parts: Sequence[str] = ("gradients", "scaling", "rates", "sampling"),
  budget: str | Budget = "small",
) -> dict[str, Any]:
  """Measures; writes diagnosis.html and diagnosis.json, which has all numbers and is returned.

  Each small run and each measurement leaves its result in the workdir.

  Args:
    data: folder written by launch/prepare.py.
    workdir: folder for page and numbers; the same command resumes.
    checkpoint: see load_model; causal language models with the vocabulary of the text: gradients
      and sampling look at them, and the small runs have a trunk of the first one's kind.
    parts: what to measure; the others stay as an earlier command left them, for the same text.
    budget: small, or smoke: fewer and shorter runs, to see that everything runs.
  """
  if isinstance(budget, str):
    budget = choice("budget", budget, BUDGETS)
  for part in parts:
    choice("parts", part, dict.fromkeys(PARTS))
  if not parts:
    raise InputError(f"--parts: name some of {', '.join(PARTS)}")
  names = " and ".join(part for part in parts if part in _OF_CHECKPOINTS)
  if names and not checkpoint:
    advice = "give --checkpoint=DIR, or --parts=scaling,rates"
    raise InputError(f"{names} look at a trained model: {advice}")
  environment()  # only to fail before the expensive part, where jinja2 is missing
  texts = load_texts(data)
  models: dict[str, LoadedModel] = {}
  for path in dict.fromkeys(checkpoint):
    models[path] = load_model(path, check=LoadedModel.language_model)
    with about(f"--checkpoint={path}"):
      texts.held_out.check_vocabulary(models[path].tokenizer)
  study = Study(workdir, RESULT, ("measured",))
  study.folder("measured")
  # None: the small runs have the default kind of trunk.
  trunk = next((loaded.spec.trunk for loaded in models.values()), None)

  result: dict[str, Any] = dict(texts.identity)
  with contextlib.suppress(OSError, ValueError):
    saved = verified(read_json(study.path(RESULT)))
    if texts.identity.items() <= saved.items():  # what an earlier command measured on this text
      result = saved
  result["data"] = os.path.basename(os.path.abspath(data))
  for part in (part for part in PARTS if part in parts):
    if part == "scaling":
      result[part] = measure_scaling(trunk, texts, budget, study)
    elif part == "rates":
      result[part] = measure_rates(trunk, texts, budget, study)
    else:
      result[part] = _of_checkpoints(part, models, texts, budget, study)
    # After each part, so that a run that is stopped leaves a page of what it has.
    write_json(study.path(RESULT), with_checksum(result))
    study.write(PAGE, render(result, os.path.basename(os.path.abspath(study.workdir))))
  log(f"wrote {study.path(PAGE)}")
  return result


def _of_checkpoints(
  part: str, models: dict[str, LoadedModel], texts: Texts, budget: Budget, study: Study
) -> list[dict[str, Any]]:
  measure, fields = _OF_CHECKPOINTS[part]
  sizes = {name: vars(budget)[name] for name in fields}
  results = []
  for name, loaded in zip(run_names(list(models)), models.values(), strict=True):
    settings = {"checkpoint": loaded.identity, **sizes, **texts.identity}
    file = f"measured/{part}_{re.sub(r'[^0-9a-z]+', '_', loaded.identity)}"
    values = study.part(file, settings, functools.partial(measure, loaded, texts, budget))
    trunk = loaded.spec.trunk
    kind = type(trunk).__name__.removesuffix("Config")
    model = f"{kind}, {trunk.parameter_count():,} parameters, step {loaded.step:,}"
    results.append({"name": name, "about": model, **values})
    log(f"{part} of {loaded.path}: measured")
  return results
