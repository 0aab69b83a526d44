"""A recipe: the model, data, loss, optimizer and measures of a run, as one value."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jax.sharding import Mesh

from gpt_jax.batch import Batch
from gpt_jax.config import Config
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.models.loss import Loss, model_loss
from gpt_jax.models.model import Model, ModelConfig
from gpt_jax.parallel.placement import check_batch, check_whole_batch
from gpt_jax.training.hooks import Hook, RunContext, StoppedEarly
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import Optimizer
from gpt_jax.training.run_log import Baselines
from gpt_jax.training.step import TrainState
from gpt_jax.training.trainer import Trainer


class RunConfig(Config):
  """Base of the configs of runs: frozen dataclasses, registered by name.

  Pre-training has `objective` and `data`, a WindowsConfig with its batch size; fine-tuning has
  `task` and `batch_size`, in examples.
  """

  trunk: Any = None
  mesh: Any = None
  train: Any = None
  objective: Any = None
  data: Any = None
  task: Any = None
  batch_size: int = 0


class Batches(Protocol):
  """The batches of a run, as one process sees them."""

  @property
  def shape(self) -> tuple[int, int]:
    """Rows and tokens per row of the whole batch, as the reported tokens per second count them."""
    ...

  def at(self, step: int) -> Any:
    """This process's rows of the host batch of a step; a pure function."""
    ...

  def example(self) -> Any:
    """A whole host batch with the shapes of all others; its values do not matter."""
    ...

  def init_batch(self) -> Batch:
    """A batch to initialize the model with, in the form that the model reads."""
    ...


class Evaluation(NamedTuple):
  """How a run is measured, and which of its checkpoints is best.

  Attributes:
    measure: parameters -> named numbers.
    mode: "max" or "min": which value of the metric is best.
    due: step -> whether to measure after it; the last step always is.
  """

  measure: Callable[[Any], dict[str, float]]
  metric: str
  mode: str
  due: Callable[[int], bool]


class Finished(NamedTuple):
  """A run that has come to its end.

  Attributes:
    params: the last parameters; their buffers are gone if it was stopped early.
    stopped: the early stop that ended it; None: it reached its last step.
  """

  seed: int
  params: Any
  steps: int
  evaluation: dict[str, float]
  stopped: StoppedEarly | None


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A run as a value: model, batches, loss, optimizer and measures. A program builds it.

  Attributes:
    config: complete config of the run, with fields `train` and `mesh`; config.json has it.
    batches: the batches of a TrainConfig, which decides their order and microbatches.
    batch_size: the batch size that microbatches divide.
    optimizer: length of the run in steps -> optimizer.
    loss: model -> the loss that a step minimizes.
    adapted: model -> the model that trains in its place, such as an AdaptedModel.
    inference_params: the parameters that train -> those of `spec`, e.g. with an adapter merged.
    base: shardings -> parameters beside them that no step changes and no checkpoint has; None:
      inference_params needs none.
    work: FLOPs of the loss relative to the model's; adversarial training, for one, runs the model
      several times per step.
    identity: JSON values by which a run that resumes knows its data and its start.
    meta: JSON values that checkpoints record beside the parameters and the config.
    start: (initial state, trainer) -> the first state, e.g. with a checkpoint's parameters.
    can_grow: whether a run may resume with another length.
    summary: lines printed before it trains.
    first_hooks: new hooks for each run that see an interval's metrics before they are reported.
    further_hooks: hooks called after those that report, evaluate and save; they may end the run by
      StoppedEarly.
    has_ended: whether a run that resumes had been ended so before, without its result.
    other_programs: programs compiled beside the step, for evaluations and samples.
    finish: called at the end; its value is the run's result.
    batch_field: the config's field that is batch_size, for messages.
    smaller: fields that make a step smaller, for messages.
  """

  config: Any  # a RunConfig
  mesh: Mesh
  spec: ModelConfig
  batches: Callable[[TrainConfig], Batches]
  batch_size: int
  steps_per_epoch: int
  optimizer: Callable[[int], Optimizer]
  loss: Callable[[Any], Loss] = model_loss
  adapted: Callable[[Model], Any] = lambda model: model
  inference_params: Callable[[Any], Any] = lambda params: params
  base: Callable[[Any], Any] | None = None
  work: float = 1.0
  tokenizer: Tokenizer | None = None
  identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  start: Callable[[TrainState, Trainer], TrainState] = lambda state, _: state
  evaluation: Evaluation | None = None
  baselines: Baselines = Baselines()
  can_grow: bool = False
  summary: Sequence[str] = ()
  first_hooks: Callable[[], list[Hook]] = list
  further_hooks: Callable[[RunContext], list[Hook]] = lambda _: []
  has_ended: Callable[[RunContext], bool] = lambda _: False
  other_programs: int = 1
  finish: Callable[[Finished, str], Any] = lambda finished, _: finished.evaluation
  batch_field: str = "batch_size"
  smaller: str = "a smaller config.batch_size"

  def __post_init__(self):
    # Checked when the recipe is made, long before a step is compiled.
    parts = self.config.train.parts
    check_batch(self.batch_size, self.mesh, parts, self.batch_field)
    if self.spec.needs_whole_batch:
      check_whole_batch(self.batch_size, parts, self.config.mesh.backend, self.batch_field)

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


def make_trainer(recipe: Recipe) -> Trainer:
  """The compiled step of a recipe. All seeds can share it."""
  train, mesh_config, spec = recipe.config.train, recipe.config.mesh, recipe.spec
  # Rematerialization changes memory and time but no values, so it is no part of the model config.
  model = recipe.adapted(spec.build(train.remat))
  return Trainer.build(
    model,
    recipe.loss(model),
    recipe.batches(train).init_batch(),  # shapes alone: parameters depend on no value
    recipe.optimizer(recipe.total_steps),  # the schedule ends with the run
    recipe.mesh,
    rules=spec.trunk.TENSOR_PARALLEL,
    fsdp=mesh_config.fsdp,
    backend=mesh_config.backend,
    microbatches=train.parts,
    scales_loss=spec.trunk.dtype == "float16",  # bfloat16 has the range of float32
    products=mesh_config.cpu_products,
  )
