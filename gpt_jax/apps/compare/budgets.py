"""How much of the comparison is run: sizes, steps, learning rates, tasks, seeds."""

import dataclasses

from gpt_jax.apps.compare.rows import Row
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

_NEVER = 10**9  # steps; the last step is evaluated and saved anyway


@dataclasses.dataclass(frozen=True)
class Budget:
  """The same for every row.

  Attributes:
    name: its own.
    trunk: without vocabulary, and without a pooler.
    batch_size, length: of pre-training: rows, and positions in a row.
    steps: updates of pre-training.
    warmup_steps: of these.
    rates: peak learning rates; each has a whole run, and the one with the lowest held-out loss
      counts. Shorter trials would choose blindly: a masked model leaves the unigram entropy late.
    evaluations: how often a run is evaluated, and how many of its checkpoints are kept.
    evaluation_batches: of held-out text.
    tasks: what the averages are over.
    shown: tasks that are shown beside them, of which a second average is taken.
    examples: at most so many of a task's training set, and of its dev set; 0: all.
    finetuning: batch size, epochs, peak learning rate of fine-tuning.
    seeds: of fine-tuning; pre-training has one.
    vocab_size: of the story world's vocabulary, which the program prepares; 0: the text is given.
  """

  name: str
  trunk: TransformerConfig
  batch_size: int
  length: int
  steps: int
  warmup_steps: int
  rates: tuple[float, ...]
  evaluations: int
  evaluation_batches: int
  tasks: tuple[str, ...]
  shown: tuple[str, ...] = ()
  examples: int = 0
  finetuning: tuple[int, int, float] = (16, 3, 5e-4)
  seeds: int = 1
  vocab_size: int = 0

  @property
  def evaluate_every(self) -> int:
    """Steps between the evaluations of a whole run."""
    return max(1, self.steps // self.evaluations)


_SMALL_GPT = TransformerConfig(context=256, layers=4, width=256, heads=4)  # configs/gpt1_small.py
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
    finetuning=(16, 5, 1e-3),
    seeds=3,
    vocab_size=1500,
  ),
  # One rate, one seed and parts of the training sets of `full`.
  "small": dataclasses.replace(_FULL, name="small", rates=(1e-3,), examples=2000, seeds=1),
  "full": _FULL,
}


def pretrain_config(budget: Budget, row: Row, rate: float) -> PretrainConfig:
  """A pre-training run of a row."""
  return PretrainConfig(
    trunk=dataclasses.replace(budget.trunk, pooler=row.needs_pooler),
    objective=row.objective,
    data=WindowsConfig(batch_size=budget.batch_size, length=budget.length),
    optim=OptimConfig(learning_rate=rate, warmup_steps=budget.warmup_steps),
    train=TrainConfig(
      steps=budget.steps,
      log_every=max(1, budget.steps // 40),
      evaluate_every=budget.evaluate_every,
      checkpoint_every=0,
      keep_checkpoints=budget.evaluations,
    ),
    evaluation_batches=budget.evaluation_batches,
  )


def finetune_config(budget: Budget, task: str, *, from_scratch: bool) -> FinetuneConfig:
  """Fine-tuning on a task, without the auxiliary loss, which only causal models could have."""
  batch_size, epochs, rate = budget.finetuning
  trunk = budget.trunk if from_scratch else FinetuneConfig.trunk  # a checkpoint brings its own
  return FinetuneConfig(
    task=BuiltinTask(task),
    lm_weight=0.0,
    batch_size=batch_size,
    train_examples=budget.examples,
    dev_examples=budget.examples,
    trunk=trunk,
    optim=OptimConfig(learning_rate=rate, schedule="linear", warmup_steps=0, warmup_share=0.1),
    train=TrainConfig(epochs=epochs, log_every=50, evaluate_every=_NEVER, keep_checkpoints=1),
  )
