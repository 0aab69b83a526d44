"""The config of a fine-tuning run."""

import dataclasses
from typing import Any, ClassVar

from gpt_jax.config import from_json, option, register
from gpt_jax.errors import InputError
from gpt_jax.models.method import new_method
from gpt_jax.parallel.mesh import MeshConfig
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.recipe import RunConfig

# Methods that were fields before 0.4, with a field for each of their options.
_EARLIER = {
  "windows": {"over": "windows", "stride": "window_stride"},
  "word_vectors": {"file": "word_vectors"},
  "unlabeled": {"file": "unlabeled_file"},
  "unfreeze": {"epochs": "unfreeze_epochs"},
}


@register("finetune")
@dataclasses.dataclass(frozen=True)
class FinetuneConfig(RunConfig):
  """A fine-tuning run; the defaults are the paper's (section 4.1).

  So are learning rate, warm-up and epochs at GPT-1's size; for others see training/defaults.py.
  """

  task: Any = option(BuiltinTask(), "the task: BuiltinTask, or TableTask for files of your own")
  lm_weight: float = option(
    0.5, "lambda, the weight of the auxiliary language-modeling loss (eq. 5)", low=0.0
  )
  head_dropout: float = option(0.1, "dropout on the input of the head", low=0.0, high=0.99)
  pooling: str = option(
    "",
    "how token states become one vector: mean; concat (ULMFiT: one token, maximum, mean); empty: "
    "one token",
    choices=("", "mean", "concat"),
  )
  head_units: int = option(
    0, "ReLU units between two layer norms in a classifier's head, as ULMFiT (50); 0: none", low=0
  )
  methods: tuple[Any, ...] = option(
    (),
    "what the run does beside: windows=mean, unlabeled=true, unfreeze=true, word_vectors=FILE, "
    "adapter=true, distill=true set or add one; adversarial and mix come with a config",
    members=True,
  )
  transfer_layers: int | None = option(
    None,
    "parameters taken from the checkpoint: none = all, -1 nothing, 0 the embeddings, "
    "k also the first k blocks",
    low=-1,
  )
  train_layers: int | None = option(
    None,
    "parameters that train: none = all, 0 the head alone (a linear probe), "
    "k also the last k blocks",
    low=0,
  )
  layer_decay: float = option(
    1.0, "learning rate of a layer, relative to the layer above it", low=0.01, high=1.0
  )
  class_weights: tuple[str, ...] = option(
    (),
    "loss weight of the examples of a class: LABEL=WEIGHT,… (others 1), or balanced, in inverse "
    "proportion to the class's frequency",
  )
  label_smoothing: float = option(
    0.0, "share of each label that is spread over all classes in the loss", low=0.0, high=0.99
  )
  patience: int = option(
    0, "stop after so many evaluations without a better primary metric; 0: never", low=0
  )
  batch_size: int = option(32, "examples in a batch", low=1, high=10**6)
  train_examples: int = option(
    0, "train on only so many examples, of each class its share; 0: on all", low=0
  )
  dev_examples: int = option(
    0, "evaluate on only so many examples, of each class its share; 0: on all", low=0
  )
  trunk: Any = option(
    from_json({"type": "transformer"}),
    "the trunk for --checkpoint=none; a checkpoint brings its own, but for dtype and dropout",
  )
  optim: OptimConfig = option(
    OptimConfig(learning_rate=None, schedule="linear", warmup_steps=0, warmup_share=None),
    "optimizer and schedule",
  )
  mesh: MeshConfig = option(MeshConfig(), "how devices are used", resumable=True)
  train: TrainConfig = option(
    # One checkpoint beside the best: a sweep has many runs, and at GPT-1's size each checkpoint
    # takes 1.4 GB with its moments.
    TrainConfig(log_every=50, keep_checkpoints=1),
    "length of the run, logs and checkpoints; without steps and epochs: chosen by model size",
  )

  # Fields before 0.4 -> the method and its field; the command line takes them, too.
  RENAMED: ClassVar[dict[str, str]] = {
    "window_stride": "windows.stride",
    "unlabeled_file": "unlabeled.file",
    "unfreeze_epochs": "unfreeze.epochs",
  }

  def __post_init__(self) -> None:
    super().__post_init__()
    slots = [method.slot for method in self.methods]
    if len(set(slots)) < len(slots):
      raise InputError(f"methods: {', '.join(sorted(slots))}; a run has one of each name")
    in_order = tuple(sorted(self.methods, key=lambda method: method.slot))
    object.__setattr__(self, "methods", in_order)

  def method(self, slot: str) -> Any:
    """The method of a slot, such as "unlabeled"; None: the run has none."""
    return next((method for method in self.methods if method.slot == slot), None)

  def with_methods(self, *methods: Any) -> "FinetuneConfig":
    """The config with these methods, also in the place of its own of the same slots."""
    slots = [method.slot for method in methods]
    others = [method for method in self.methods if method.slot not in slots]
    return dataclasses.replace(self, methods=(*others, *methods))

  @staticmethod
  def earlier(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a config that was saved before `methods` was one field."""
    methods = [values.pop(slot, None) for slot in ("adapter", "adversarial", "distill", "mix")]
    for slot, fields in _EARLIER.items():
      is_set = bool(values.get(slot))
      options = {option: values.pop(field, None) for option, field in fields.items()}
      values.pop(slot, None)
      if is_set:
        given = {option: value for option, value in options.items() if value}
        methods.append(new_method(slot, **given))
    there = tuple(filter(None, methods))
    return {**values, "methods": there} if there else values

  @property
  def is_probe(self) -> bool:
    """Whether nothing but the head ever trains."""
    return self.train_layers == 0 and not any(method.trains_trunk for method in self.methods)

  @property
  def has_views(self) -> bool:
    """Whether the task's head has views, which learn from text without labels."""
    return any(method.takes_turns for method in self.methods)

  @property
  def has_streams(self) -> bool:
    """Whether batches with labels and batches without take turns."""
    return self.has_views and self.method("unlabeled") is not None


def check_type(config: Any) -> None:
  """Refuses the config of another program."""
  if not isinstance(config, FinetuneConfig):
    raise InputError(
      f"--config: a {type(config).__name__}; fine-tuning takes that of configs/finetune.py:TASK"
    )
