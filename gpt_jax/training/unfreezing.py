"""The layers of a trunk that train, when, and at what rate (Howard & Ruder 2018, 3.2 and 3.3)."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

from gpt_jax.config import option, register
from gpt_jax.errors import InputError, counted
from gpt_jax.models.method import Method
from gpt_jax.models.model import parameter_shapes
from gpt_jax.models.trunk import TrunkConfig
from gpt_jax.training.layerwise import Layerwise


@register("unfreeze")
@dataclasses.dataclass(frozen=True)
class Unfreeze(Method):
  """Training begins with train_layers, by default 0, and with one layer more in each epoch."""

  epochs: int = option(
    0,
    "after which all layers train, each of them and the rest with a cycle of the learning rate of "
    "its own, as ULMFiT's code; 0: one layer more in each, to the last",
    low=0,
  )

  slot = "unfreeze"
  trains_trunk = True

  def change_layerwise(self, layerwise: Any, spec: Any, config: Any, steps_per_epoch: int) -> Any:
    return trained_layers(
      parameter_shapes(spec),
      spec.trunk,
      config.train_layers,
      config.layer_decay,
      steps_per_epoch,
      self.epochs * steps_per_epoch,
    )


def below_head(paths: Iterable[str], trunk: TrunkConfig) -> Callable[[str], int]:
  """The function from a parameter's path to how far it is below the heads: 0 a head, 1 the last
  block, 2 the one before it, and so on to the embeddings.
  """
  inside = "trunk/"
  # ALBERT has one block for all layers, so `last` is 1 there.
  last = max(trunk.depth(path.removeprefix(inside)) for path in paths if path.startswith(inside))

  def distance(path: str) -> int:
    return last + 1 - trunk.depth(path.removeprefix(inside)) if path.startswith(inside) else 0

  return distance


def trained_layers(
  paths: Iterable[str],
  trunk: TrunkConfig,
  train_layers: int | None,
  decay: float = 1.0,
  steps_per_layer: int | None = None,
  steps_to_all: int = 0,
) -> Layerwise:
  """The parameters that train later, more slowly or not at all.

  Args:
    paths: of all parameters of the model.
    trunk: its config.
    train_layers: layers of the trunk that train from the beginning, from the top; None: all.
    decay: learning rate of a layer as a share of that of the layer above it.
    steps_per_layer: updates after which the next layer begins to train, from the top; None: it
      stays frozen.
    steps_to_all: updates after which all layers train, also those whose turn has not come; each
      phase has a cycle of the rate (fastai's train_clas.py). 0: each waits for its turn.
  """
  paths = list(paths)
  below = below_head(paths, trunk)
  blocks = max(map(below, paths)) - 1
  if train_layers is not None and train_layers > blocks:
    raise InputError(
      f"train_layers={train_layers}: the model has {counted(blocks, 'block')}; none trains "
      "all, with the embeddings"
    )
  # Discriminative rates (section 3.2): a layer has the rate of the layer above it times decay; the
  # paper divides by 2.6.
  # A head, 0 below, keeps the full rate.
  scale = (lambda path: decay ** below(path)) if decay < 1 else None
  if steps_per_layer is not None:
    # Gradual unfreezing (section 3.3): from the last layer down, one more every steps_per_layer.
    first = train_layers or 0
    last = steps_to_all or steps_per_layer * (blocks + 1)  # the embeddings are the last

    def start(path: str) -> int:
      return min(last, steps_per_layer * max(0, below(path) - first))

    cycles = range(steps_per_layer, steps_to_all + 1, steps_per_layer)
    return Layerwise(scale, start, cycles=tuple(cycles))
  if train_layers is None:
    return Layerwise(scale)
  frozen = [path for path in paths if below(path) > train_layers]
  if len(frozen) == len(paths):  # of a model that writes text, whose head is in the trunk
    raise InputError("train_layers=0: nothing trains, since the model has no head; use 1 or more")
  # Whole paths: a pattern that is part of another path would freeze that one as well.
  return Layerwise(scale, frozen=tuple(f"^{re.escape(path)}$" for path in frozen))
