"""Renders what launch/diagnose.py measured as one HTML page that needs no network: diagnosis.html.

As in page.py, autoescape is on and nothing is marked as safe.
"""

import os
from typing import Any

from gpt_jax.apps.diagnose.sections.gradients import decays, distances, gradient_view, vanishes
from gpt_jax.apps.diagnose.sections.rates import rates_view, safe_rates
from gpt_jax.apps.diagnose.sections.sampling import like_the_text, sampling_view
from gpt_jax.apps.diagnose.sections.scaling import next_size, scaling_view
from gpt_jax.apps.report.page import environment


def render(result: dict[str, Any], name: str) -> str:
  """The page.

  Args:
    result: the content of diagnosis.json; see diagnose.py.
    name: the title.

  Raises:
    InputError: jinja2 is not installed.
  """
  gradients, scaling = result.get("gradients"), result.get("scaling")
  rates, sampling = result.get("rates"), result.get("sampling")
  answers = [
    *([vanishes(gradients)] if gradients else []),
    *([next_size(scaling)] if scaling and "next" in scaling else []),
    *([safe_rates(rates)] if rates else []),
    *([like_the_text(sampling)] if sampling else []),
  ]
  text = (
    environment(os.path.dirname(__file__))
    .get_template("page.html")
    .render(
      name=name,
      data=result["data"],
      answers=answers,
      gradients=gradients and list(map(gradient_view, gradients)),
      distances=gradients and distances(gradients),
      decays=gradients and decays(gradients),
      scaling=scaling and scaling_view(scaling),
      rates=rates and rates_view(rates),
      sampling=sampling and list(map(sampling_view, sampling)),
    )
  )
  # A text may hold halves of surrogate pairs, which UTF-8 has no bytes for.
  return text.encode("utf-8", "replace").decode("utf-8")
