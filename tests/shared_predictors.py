"""A fixture for files that load the same few models again and again.

Every loaded model has a predictor of its own, which compiles anew; with the fixture, models of one
config share theirs. Parameters are its arguments, so that each model still has its own.
"""

import functools

import pytest

from gpt_jax.checkpoints import load
from gpt_jax.models.predictor import make_predictor


@pytest.fixture(scope="module", autouse=True)
def shared_predictors():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(load, "make_predictor", functools.cache(make_predictor))
    yield
