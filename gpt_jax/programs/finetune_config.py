"""The config of a fine-tuning run."""

import dataclasses
from typing import Any

from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.recipe import RunConfig


@register("finetune")
@dataclasses.dataclass(frozen=True)
class FinetuneConfig(RunConfig):
  """A fine-tuning run; the defaults are the paper's (section 4.1).

  Learning rate, warm-up and epochs are too where the model has GPT-1's size; for others see
  training/defaults.py.
  """

  task: Any = option(BuiltinTask(), "the task: BuiltinTask, or TableTask for files of your own")
  lm_weight: float = option(
    0.5, "lambda, the weight of the auxiliary language-modeling loss (eq. 5)", low=0.0
  )
  head_dropout: float = option(0.1, "dropout on the input of the head", low=0.0, high=0.99)
  pooling: str = option(
    "",
    "what a head on one representation of a text reads: the mean of its tokens; concat: one token, "
    "the maximum and the mean (ULMFiT); empty: one token",
    choices=("", "mean", "concat"),
  )
  head_units: int = option(
    0, "ReLU units between two layer norms in a classifier's head, as ULMFiT (50); 0: none", low=0
  )
  windows: str = option(
    "",
    "of a text longer than the context, in windows: the mean of what a head reads of each, the "
    "max, or attention, a mean with trained weights; empty: a text is cut to the context",
    choices=("", "mean", "max", "attention"),
  )
  window_stride: int = option(
    0, "tokens from one window's beginning to the next one's; 0: windows do not overlap", low=0
  )
  mix: Any | None = option(
    None,
    "what a head reads in place of the last layer: MixedHead in configs/finetune_elmo.py, "
    "ViewsHead in configs/cross_view.py, BiattentiveHead in configs/cove.py",
  )
  word_vectors: str = option(
    "",
    "GloVe's text file, or one like it: its vectors stand in the trunk's table of embeddings, and "
    "stay as they are; for --checkpoint=none",
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
  unfreeze: bool = option(
    False, "begin with train_layers, by default 0, and train one layer more in each epoch"
  )
  unfreeze_epochs: int = option(
    0,
    "with unfreeze, epochs after which all layers train, each of them and the rest with a cycle of "
    "the learning rate of its own, as ULMFiT's code; 0: one layer more in each, to the last",
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
  adversarial: Any | None = option(
    None, "adversarial training: the method that configs/adversarial.py:METHOD:TASK names"
  )
  adapter: Any | None = option(
    None, "train a small change of the trunk alone, as configs/adapter.py:METHOD:TASK; none: all"
  )
  distill: Any | None = option(
    None,
    "train a student of fewer blocks, as configs/distill.py:TASK; the checkpoint is the teacher",
  )
  patience: int = option(
    0, "stop after so many evaluations without a better primary metric; 0: never", low=0
  )
  batch_size: int = option(32, "examples in a batch", low=1, high=10**6)
  train_examples: int = option(
    0, "train on only so many examples, of each class its share; 0: on all", low=0
  )
  unlabeled: bool = option(
    False,
    "with train_examples: the other training examples too, without their labels, for virtual "
    "adversarial training, cross-view training or distillation",
  )
  unlabeled_file: str = option(
    "", "with unlabeled: a table of further texts, in the task's columns, without labels"
  )
  dev_examples: int = option(
    0, "evaluate on only so many examples, of each class its share; 0: on all", low=0
  )
  trunk: Any = option(
    TransformerConfig(),
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


def check_type(config: Any) -> None:
  """Raises InputError if it is the config of another program."""
  if not isinstance(config, FinetuneConfig):
    raise InputError(
      f"--config: a {type(config).__name__}; fine-tuning takes that of configs/finetune.py:TASK"
    )


def is_probe(config: FinetuneConfig) -> bool:
  """Whether nothing but the head ever trains."""
  return config.train_layers == 0 and not config.unfreeze


def has_views(config: FinetuneConfig) -> bool:
  """Whether the task's head has views, which learn from text without labels."""
  return config.mix is not None and config.mix.learns_unlabeled


def has_streams(config: FinetuneConfig) -> bool:
  """Whether batches with labels and batches without take turns."""
  return config.unlabeled and has_views(config)
