"""How much of the comparison is run: sizes, steps, learning rates, tasks, seeds."""

import dataclasses
from typing import Any

from gpt_jax.apps.compare.rows import DEV_PAIRS, PAIR_LENGTH, Row, resized
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.config_files import load_config
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

_NEVER = 10**9  # steps; the last step is evaluated and saved anyway


@dataclasses.dataclass(frozen=True)
class Budget:
  """The same for every row."""

  name: str
  trunk: TransformerConfig  # without vocabulary, and without a pooler
  batch_size: int  # rows of `length` positions in a pre-training step
  length: int
  steps: int  # updates of pre-training
  warmup_steps: int  # of the updates of pre-training
  # Each peak has a whole run, and the one with the lowest held-out loss counts. Shorter trials
  # would choose blindly: a masked model leaves the unigram entropy late.
  rates: tuple[float, ...]
  evaluations: int  # in a run; each keeps a checkpoint
  evaluation_batches: int  # of held-out text, at each evaluation
  tasks: tuple[str, ...]  # the tasks of the averages
  shown: tuple[str, ...] = ()  # tasks shown beside them, which a second average has too
  # At most so many of a task's training set have labels, 0: all; cross-view training reads the
  # others without.
  examples: int = 0
  dev_examples: int = 0  # at most, 0: all
  finetuning: tuple[int, int, float] = (16, 3, 5e-4)  # batch size, epochs, peak learning rate
  seeds: int = 1  # of fine-tuning; pre-training has one
  vocab_size: int = 0  # of the story world, which the program prepares; 0: the text is given

  @property
  def evaluate_every(self) -> int:
    """Steps between the evaluations of a whole run."""
    return max(1, self.steps // self.evaluations)

  @property
  def all_tasks(self) -> tuple[str, ...]:
    return (*self.tasks, *self.shown)


_SMALL_GPT = TransformerConfig(context=256, layers=4, width=256, heads=4)  # configs/gpt1.py:small
_GLUE = ("sst2", "cola", "stsb", "qnli")

_FULL = Budget(
  "full",
  _SMALL_GPT,
  batch_size=8,
  length=256,
  steps=3000,
  warmup_steps=400,
  rates=(5e-4, 1e-3, 2e-3),
  evaluations=12,
  evaluation_batches=20,
  tasks=_GLUE,
  shown=("mrpc", "rte"),
  examples=10_000,
  dev_examples=10_000,
  seeds=3,
)

BUDGETS = {
  # Pre-norm: post-norm masked models do not leave the unigram entropy in so few steps.
  "smoke": Budget(
    "smoke",
    TransformerConfig(context=64, layers=3, width=128, heads=4, norm="pre"),
    batch_size=32,
    length=64,
    steps=1600,
    warmup_steps=150,
    rates=(1e-3,),
    evaluations=8,
    evaluation_batches=10,
    tasks=("story-ending", "story-company", "story-next"),
    shown=("story-tags",),
    examples=160,  # of 320: the others are for cross-view training
    finetuning=(16, 5, 1e-3),
    seeds=3,
    vocab_size=1500,
  ),
  # A third of the steps of `full`, one rate and one seed; in the type that is faster on CPUs with
  # AMX.
  "novels": dataclasses.replace(
    _FULL,
    name="novels",
    trunk=dataclasses.replace(_SMALL_GPT, dtype="bfloat16"),
    steps=1000,
    warmup_steps=150,
    rates=(1e-3,),
    evaluations=4,
    tasks=(*_GLUE, "trec"),
    shown=("ewt-tags",),
    examples=1000,
    dev_examples=1000,
    seeds=1,
  ),
  # Ten times the text of `novels`: an hour of two cores for each row, in parts by --objectives.
  # Pre-norm, as for `smoke`.
  "books": dataclasses.replace(
    _FULL,
    name="books",
    trunk=dataclasses.replace(_SMALL_GPT, norm="pre", dtype="bfloat16"),
    steps=10_000,
    warmup_steps=1000,
    rates=(1e-3,),
    evaluations=5,
    tasks=(*_GLUE, "trec", "imdb"),
    shown=("ewt-tags",),
    examples=2000,
    dev_examples=2000,
    seeds=2,
  ),
  # One rate, one seed and parts of the training sets of `full`.
  "small": dataclasses.replace(
    _FULL, name="small", rates=(1e-3,), examples=2000, dev_examples=2000, seeds=1
  ),
  "full": _FULL,
}


def pretrain_config(budget: Budget, row: Row, rate: float) -> PretrainConfig:
  """A pre-training run of a row on the text."""
  trunk: Any = dataclasses.replace(budget.trunk, pooler=row.needs_pooler)
  objective = row.objective
  if row.config:
    of_system = load_config(row.config)
    trunk, objective = resized(of_system.trunk, budget.trunk), of_system.objective
  return PretrainConfig(
    trunk=trunk,
    objective=objective,
    data=WindowsConfig(batch_size=budget.batch_size, length=budget.length),
    optim=OptimConfig(learning_rate=rate, warmup_steps=budget.warmup_steps),
    train=pretrain_length(budget),
    evaluation_batches=budget.evaluation_batches,
  )


def pretrain_length(budget: Budget) -> TrainConfig:
  """Steps of a pre-training run, its evaluations and checkpoints."""
  return TrainConfig(
    steps=budget.steps,
    log_every=max(1, budget.steps // 40),
    evaluate_every=budget.evaluate_every,
    checkpoint_every=0,
    keep_checkpoints=budget.steps,  # all; a run that was stopped has more than those evaluated
  )


def target_config(budget: Budget, row: Row) -> PretrainConfig:
  """Further training on the texts of a task, of a tenth as many steps (ULMFiT)."""
  steps = max(1, budget.steps // 10)
  return dataclasses.replace(
    pretrain_config(budget, row, budget.rates[0]),
    optim=load_config(f"{row.config.partition(':')[0]}:target").optim,
    train=TrainConfig(steps=steps, log_every=max(1, steps // 4), evaluate_every=steps),
  )


def translation_config(budget: Budget, row: Row, rate: float) -> FinetuneConfig:
  """Training a row to translate: about as many positions a step, of both languages, as text."""
  of_system = load_config(row.config)
  return dataclasses.replace(
    of_system,
    task=PairsTask(source="text", target="back"),
    dev_examples=DEV_PAIRS,
    batch_size=budget.batch_size * max(1, budget.length // (2 * PAIR_LENGTH)),
    trunk=resized(of_system.trunk, budget.trunk),
    optim=OptimConfig(learning_rate=rate, warmup_steps=budget.warmup_steps),
    train=pretrain_length(budget),
  )


def finetune_config(budget: Budget, row: Row, task: str, *, from_scratch: bool) -> FinetuneConfig:
  """Fine-tuning on a task, without the auxiliary loss, which only causal models could have."""
  batch_size, epochs, rate = budget.finetuning
  optim = OptimConfig(learning_rate=rate, schedule="linear", warmup_steps=0, warmup_share=0.1)
  trunk = budget.trunk if from_scratch else FinetuneConfig.trunk  # a checkpoint brings its own
  config = FinetuneConfig(task=BuiltinTask(task), trunk=trunk, optim=optim)
  if row.tuning:
    config = load_config(f"{row.tuning}:{task}")
    if not row.starts_from:  # a system's schedule is a part of it
      optim = dataclasses.replace(config.optim, learning_rate=rate)
      if from_scratch:
        trunk = resized(config.trunk, budget.trunk)
  return dataclasses.replace(
    config,
    lm_weight=0.0,
    batch_size=batch_size,
    train_examples=budget.examples,
    dev_examples=budget.dev_examples,
    methods=tuple(
      method for method in config.methods if not (row.supervised and method.slot == "unlabeled")
    ),
    trunk=trunk,
    optim=optim,
    train=TrainConfig(epochs=epochs, log_every=50, evaluate_every=_NEVER, keep_checkpoints=1),
  )
