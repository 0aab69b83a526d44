"""Fine-tuning that goes on from a classifier of other labels, such as last week's."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.config import register
from gpt_jax.errors import InputError
from gpt_jax.models.method import Method


@register("known_labels")
@dataclasses.dataclass(frozen=True)
class KnownLabels(Method):
  """The head starts with the checkpoint's weights of the labels that it has; those of new labels
  are random.
  """

  slot = "known_labels"
  reads_checkpoint = "a classifier of a table, with some of the labels"

  def check(self, config: Any, task: Any, start: Any) -> None:
    if not {*task.labels} & {*start.labels}:
      raise InputError(
        f"known_labels: the checkpoint has the labels {', '.join(start.labels) or 'of no table'}, "
        "and none of the task's; leave it out"
      )

  def recipe(self, recipe: Any, start: Any) -> Any:
    scope, labels = recipe.spec.head.scope, recipe.meta["task"]["labels"]
    # The numbers of each label that both have.
    old, new = np.nonzero(np.array(start.labels)[:, None] == np.array(labels))

    def take(fresh: Any, loaded: Any) -> Any:
      # W_y and its bias have a column for each label; other maps of the head have none.
      by_label = {n: fresh[n].at[..., new].set(loaded[n][..., old]) for n in ("kernel", "bias")}
      return {**jax.tree.map(jnp.asarray, loaded), **by_label}

    def begin(state: Any, trainer: Any) -> Any:
      state, shardings = recipe.start(state, trainer), trainer.shardings.params[scope]
      fresh, loaded = state.params[scope], start.params[scope]
      if not {"kernel", "bias"} <= fresh.keys():
        raise InputError("known_labels: is for a linear head; leave it out")
      inputs = [jax.tree.map(lambda x: x.shape[:-1], head) for head in (fresh, loaded)]
      if inputs[0] != inputs[1]:
        raise InputError("known_labels: the checkpoint's head reads other features; leave it out")
      copy = jax.jit(take, out_shardings=shardings)
      return state._replace(params={**state.params, scope: copy(fresh, loaded)})

    return dataclasses.replace(recipe, start=begin)
