"""Pre-training the models of a reproduction in so many minutes: their size, chosen by short runs,
and their length, by the pace of a step.
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.report.report import reported
from gpt_jax.apps.study import Study
from gpt_jax.apps.timing import paces
from gpt_jax.checkpoints.run_folder import resume_choices
from gpt_jax.data.token_file import TokenFile
from gpt_jax.files import is_file
from gpt_jax.parallel.processes import log
from gpt_jax.programs import prepare, pretrain
from gpt_jax.programs.config_files import load_config
from gpt_jax.programs.prepare import PrepareConfig
from gpt_jax.programs.pretrain import PretrainConfig, load_text, text_recipe
from gpt_jax.programs.pretrain_samples import with_samples

# A larger model is behind at first, so two short runs of each are extrapolated: the loss is a
# constant plus a share of tokens^-0.28 (Hoffmann et al. 2022, equation 10).
TRIALS = (0.04, 0.12)  # of the minutes
# Steps that each of them needs: a post-norm model of a shorter run, and warm-up, is still at the
# unigram entropy (4x128 after 445 steps).
_TRIAL_STEPS = 800
_EXPONENT = -0.28


@dataclasses.dataclass(frozen=True)
class Pretraining:
  """What a budget pre-trains by itself."""

  sizes: tuple[str, ...]  # of configs/gpt1.py, the smallest first; trials choose one of several
  minutes: float  # of each model
  vocab_size: int
  trunks: tuple[str, ...] = ("gpt1",)  # files of configs/ that have the chosen size

  def run(self, study: Study, text: str, minutes: float = 0.0) -> dict[str, str]:
    """Makes the runs that are missing; file of configs/ -> workdir.

    Args:
      text: see `reproduce.run`.
      minutes: 0: those of the budget.
    """
    minutes = minutes or self.minutes
    if not is_file(os.path.join(text, "train.json")):
      prepare.run(PrepareConfig(text, vocab_size=self.vocab_size), study.path("text"))
      text = study.path("text")
    names = [":".join(pair) for pair in itertools.product(self.trunks, self.sizes)]

    def measured() -> dict[str, Any]:
      auto = with_dtype(load_config(names[0]), "auto")
      dtype = resume_choices(auto).trunk.dtype  # once, so that all runs have the same
      configs = {name: with_steps(with_dtype(load_config(name), dtype), 1000) for name in names}
      recipes = {name: text_recipe(x, load_text(x, text)) for name, x in configs.items()}
      return {"dtype": dtype, "seconds": paces(recipes)}

    pace = study.part("pace", {"configs": names}, measured)
    configs = {name: with_dtype(load_config(name), pace["dtype"]) for name in names}
    runs = _Runs(study, text, configs, pace["seconds"])
    size = runs.choose(self.sizes, minutes)
    for trunk in self.trunks:
      runs.train(f"{trunk}:{size}", minutes, "pretrained", trunk)
    return {trunk: study.path("pretrained", trunk) for trunk in self.trunks}


@dataclasses.dataclass(frozen=True)
class _Runs:
  """Runs of some configs on a prepared text, whose length is given in minutes."""

  study: Study
  text: str
  configs: dict[str, PretrainConfig]
  seconds: dict[str, float]  # of a step of each

  def train(self, name: str, minutes: float, *place: str, evaluations: int = 10) -> float:
    """The last held-out loss of a run, which goes on where it was stopped."""
    seconds, workdir = self.seconds[name], self.study.path(*place)
    steps = max(1, round(60 * minutes / seconds))
    config = with_steps(self.configs[name], steps, seconds, evaluations)
    log(
      f"{name}: {minutes:.3g} minutes are {steps:,} steps of {seconds:.3g} s; "
      f"{config.optim.schedule} schedule, warm-up {config.optim.warmup_steps:,} steps"
    )
    options = reported(workdir)
    result = pretrain.run(config, self.text, workdir, make_recipe=with_samples(), **options)
    return result["valid_loss"]

  def choose(self, sizes: Sequence[str], minutes: float) -> str:
    """The size with the lowest loss after so many minutes, as two short runs of each predict it.

    Sizes are tried from the smallest on, as long as both runs have _TRIAL_STEPS steps and each size
    is better than the one before it. Where only one could be tried, it is the smallest, untried.
    """
    shortest = 60 * TRIALS[0] * minutes  # seconds
    candidates = [x for x in sizes if shortest / self.seconds[f"gpt1:{x}"] >= _TRIAL_STEPS]
    if len(candidates) < 2:
      log(f"gpt1:{sizes[0]}: taken, as {minutes:.3g} minutes are too few to compare sizes")
      return sizes[0]
    best, least = "", math.inf
    for size in candidates:
      losses = [self._trial(size, share, minutes) for share in TRIALS]
      of_tokens, constant = np.polyfit(np.power(TRIALS, _EXPONENT), losses, 1)
      expected = of_tokens + constant
      told = " and ".join(f"{loss:.3f}" for loss in losses)
      log(f"gpt1:{size}: held-out loss {told}; expected after all minutes {expected:.3f}")
      if expected >= least:
        break
      best, least = size, expected
    return best

  def _trial(self, size: str, share: float, minutes: float) -> float:
    name, place = f"gpt1:{size}", ("trials", f"{size}_{share:g}")
    digest = TokenFile(self.text, "train").digest
    settings = {"minutes": minutes, "seconds": self.seconds[name], "text": digest}

    def measure() -> dict[str, float]:
      return {"loss": self.train(name, share * minutes, *place, evaluations=1)}

    return self.study.part("_".join(place), settings, measure)["loss"]


def with_dtype(config: PretrainConfig, dtype: str) -> PretrainConfig:
  return dataclasses.replace(config, trunk=dataclasses.replace(config.trunk, dtype=dtype))


def with_steps(
  config: PretrainConfig, steps: int, seconds: float = 1.0, evaluations: int = 10
) -> PretrainConfig:
  """The config for so many steps of so many seconds, and so many evaluations: its warm-up is at
  most half of the steps; a checkpoint every five minutes, and some stay after a 64th, a 32nd, …
  """
  every = max(1, steps // evaluations)
  train = dataclasses.replace(
    config.train,
    steps=steps,
    epochs=0,
    evaluate_every=every,
    checkpoint_every=max(1, min(every, round(300 / seconds))),
    keep_checkpoints=1,
    milestone=max(1, steps // 64),
    log_every=max(1, steps // 100),
  )
  warmup = min(config.optim.warmup_steps, steps // 2)
  optim = dataclasses.replace(config.optim, warmup_steps=warmup)
  return dataclasses.replace(config, train=train, optim=optim)
