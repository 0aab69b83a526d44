"""A recipe: the model, data, loss, optimizer and measures of a run, as one value."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jax.sharding import Mesh

from gpt_jax.config import Config
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.models.loss import Loss, model_loss
from gpt_jax.models.model import Model, ModelConfig, smallest_batch
from gpt_jax.parallel.placement import check_batch
from gpt_jax.training.hooks import Hook, RunContext, StoppedEarly
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import Optimizer
from gpt_jax.training.run_log import Baselines
from gpt_jax.training.step import TrainState
from gpt_jax.training.trainer import Trainer


class RunConfig(Config):
  """Base of the configs of runs: frozen dataclasses, registered by name."""

  trunk: Any = None
  mesh: Any = None
  train: Any = None
  objective: Any = None
  data: Any = None
  task: Any = None
  optim: Any = None
  batch_size: int = 0
  transfer_layers: int | None = None

  def starts_anew(self, pretrained: Any) -> bool:
    """Whether a fine-tuning begins from random weights; pretrained: its checkpoint's identity."""
    return pretrained == "none" or self.transfer_layers == -1


class Batches(Protocol):
  """The batches of a run, as one process sees them."""

  @property
  def shape(self) -> tuple[int, int]:
    """Rows and tokens per row of the whole batch, as the reported tokens per second count them."""

  def at(self, step: int) -> Any:
    """This process's rows of the host batch of a step; a pure function."""

  def example(self) -> Any:
    """A whole host batch with the shapes of all others; its values do not matter."""


class Evaluation(NamedTuple):
  """How a run is measured, and which of its checkpoints is best."""

  measure: Callable[[Any], dict[str, float]]  # of parameters
  metric: str
  mode: str  # "max" or "min": which value of the metric is best
  due: Callable[[int], bool]  # after which steps, beside the last one


class Finished(NamedTuple):
  """A run that has come to its end."""

  seed: int
  params: Any  # the last ones; their buffers are gone if it was stopped early
  steps: int
  evaluation: dict[str, float]
  stopped: StoppedEarly | None  # None: it reached its last step


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A run as a value: model, batches, loss, optimizer and measures. A program builds it."""

  config: Any  # a RunConfig; config.json has all of it
  mesh: Mesh
  spec: ModelConfig
  batches: Callable[[TrainConfig], Batches]  # of a TrainConfig: its order, its microbatches
  batch_size: int  # rows of a step, which microbatches divide
  steps_per_epoch: int
  optimizer: Callable[[int], Optimizer]  # of the length of the run in steps
  loss: Callable[[Any], Loss] = model_loss  # of the model; minimized by a step
  adapted: Callable[[Model], Any] = lambda model: model  # -> what trains
  # The parameters that train -> those of `spec`, e.g. with an adapter merged.
  inference_params: Callable[[Any], Any] = lambda params: params
  # Shardings -> parameters beside them that no step changes and no checkpoint has; None:
  # inference_params needs none.
  base: Callable[[Any], Any] | None = None
  # FLOPs of the loss relative to the model's; above 1 where a step runs the model more than once.
  work: float = 1.0
  tokenizer: Tokenizer | None = None
  # JSON values by which a run that resumes knows its data and its start.
  identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # JSON values that checkpoints record beside the parameters and the config.
  meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # (initial state, trainer) -> the first state, e.g. with a checkpoint's parameters.
  start: Callable[[TrainState, Trainer], TrainState] = lambda state, _: state
  evaluation: Evaluation | None = None
  baselines: Baselines = Baselines()
  can_grow: bool = False  # whether a run may resume with another length
  summary: Sequence[str] = ()  # lines printed before it trains
  # New hooks for each run, which may end it by StoppedEarly: they see an interval's metrics before
  # they are reported.
  first_hooks: Callable[[], list[Hook]] = list
  # Likewise, after the hooks that report, evaluate and save.
  further_hooks: Callable[[RunContext], list[Hook]] = lambda _: []
  # Whether a run that resumes had been ended so before, without its result.
  has_ended: Callable[[RunContext], bool] = lambda _: False
  other_programs: int = 1  # compiled beside the step, for evaluations and samples
  # (the run, its folder) -> its result.
  finish: Callable[[Finished, str], Any] = lambda finished, _: finished.evaluation
  batch_field: str = "batch_size"  # the config's field, for messages
  smaller: str = "a smaller config.batch_size"  # what makes a step smaller, for messages

  def __post_init__(self):
    # Checked when the recipe is made, long before a step is compiled.
    parts = self.config.train.parts
    check_batch(self.batch_size, self.mesh.shape["data"], parts, self.batch_field)
    if not self.spec.needs_whole_batch:
      return
    why = "the loss compares the examples of a batch with one another"
    if parts > 1:
      raise InputError(f"train.microbatches={parts}: {why}, so it cannot be split; use 1")
    if self.config.mesh.backend == "pmap":
      alone = "and each device would see its own alone; use jit"
      raise InputError(f"mesh.backend=pmap: {why}, {alone}")
    if self.batch_size < 2:
      raise InputError(f"{self.batch_field}={self.batch_size}: {why}; use 2 or more")

  @property
  def total_steps(self) -> int:
    """Length of the run, in updates."""
    return self.config.train.total_steps(self.steps_per_epoch)

  def with_train(self, **changes: Any) -> "Recipe":
    """The recipe with other fields of its TrainConfig, such as seed or microbatches."""
    train = dataclasses.replace(self.config.train, **changes)
    return dataclasses.replace(self, config=dataclasses.replace(self.config, train=train))

  def flops_per_token(self) -> float:
    """Floating-point operations of a training step per token of its batch."""
    _, length = self.batches(self.config.train).shape
    return self.work * self.spec.trunk.flops_per_token(length)


_newest: list[Any] = [None, None]  # all that the newest trainer depends on, and it


def make_trainer(recipe: Recipe) -> Trainer:
  """The compiled step of a recipe. All seeds can share it; so does the next recipe where it differs
  only in its data, in what it starts from, or in what is measured.
  """
  config, train, spec = recipe.config, recipe.config.train, recipe.spec
  parts = spec, recipe.adapted, recipe.loss, recipe.optimizer, recipe.total_steps
  program = *parts, recipe.mesh, config.mesh, train.parts, train.remat
  if program == _newest[0]:
    return _newest[1]
  # Rematerialization changes memory and time but no values, so it is no part of the model config.
  model = recipe.adapted(spec.build(train.remat))
  trainer = Trainer.build(
    model,
    recipe.loss(model),
    smallest_batch(spec),  # parameters depend neither on its values nor on its shapes
    recipe.optimizer(recipe.total_steps),  # the schedule ends with the run
    recipe.mesh,
    rules=spec.trunk.TENSOR_PARALLEL,
    fsdp=config.mesh.fsdp,
    backend=config.mesh.backend,
    microbatches=train.parts,
    scales_loss=spec.trunk.dtype == "float16",  # bfloat16 has the range of float32
    products=config.mesh.cpu_products,
  )
  _newest[:] = program, trainer
  return trainer
