"""Samples written during a run, one list per prompt; see programs.pretrain_samples."""

from typing import Any

import numpy as np

from gpt_jax.apps.report.record import Record

_MOST = 10  # of a prompt; the first and the last are among them
_LONGEST = 400  # characters


def samples_view(run: Record) -> list[dict[str, Any]]:
  """For each prompt: {"prompt", "rows", "total"}; a row is {"step", "loss", "text"}."""
  losses = dict(run.points("loss")) | dict(run.points("valid_loss"))
  by_prompt: dict[str, list[dict[str, Any]]] = {}
  for sample in run.samples:
    loss = losses.get(sample.step)
    row = {
      "step": f"{sample.step:,}",
      "loss": f"{loss:.2f}" if loss is not None else "",
      "text": sample.text.rstrip()[:_LONGEST],
    }
    by_prompt.setdefault(sample.prompt, []).append(row)
  views = []
  for prompt, rows in by_prompt.items():
    chosen = np.unique(np.linspace(0, len(rows) - 1, _MOST).round().astype(int))
    shown = [rows[number] for number in chosen]
    views.append({"prompt": prompt, "rows": shown, "total": len(rows)})
  return views
