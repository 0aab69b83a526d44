"""Cross-view training (Clark et al. 2018): an LSTM in both directions learns a task from labels,
and from text without labels, on which heads that see a part of it learn what the whole head says.

  python launch/finetune.py --config=configs/cross_view.py:small:ewt-tags --data=DIR \
    --checkpoint=none --tokenizer=DIR --workdir=runs/views --config.train_examples=200

SIZE:TASK, the size paper or small, TASK as in configs/finetune.py, or several that read one text
each and are learned at once: small:ewt-tags,trec. The training examples that are not among the
train_examples, a draw, are read without their labels: a batch of those follows each batch with
labels. The supervised twin, with as many updates on labels, has
--config.unlabeled=false and half of --config.train.steps.

- paper: layer 1 has 1,024 units a direction, projected to 512, layer 2 512 (tensorflow/models,
  research/cvt_text): momentum 0.9, batches of 64, and a mean of the weights (decay 0.998) that is
  evaluated. Labels are smoothed by 0.1. Tokens are pieces of a vocabulary, read by their
  characters; theirs are words with GloVe vectors beside a convolution.
  Hardware and hours: not run by us at this size. Expect, by its README, an F1 of 96.6 on
  CoNLL-2000's chunks.
- small: 0.9M parameters with 4,000 pieces, Adam. Hardware: 2 CPU cores, 2 minutes.
  Expect 78.7 % of the tags of EWT from 200 sentences, 74.3 % of the twin; 90.3 and 88.4 from 2,000.
"""

from gpt_jax.errors import InputError
from gpt_jax.models.characters import CharacterConfig
from gpt_jax.models.heads.views import ViewsHead
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.named import task_named
from gpt_jax.tasks.several import SeveralTasks
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.unlabeled import Unlabeled

SIZES = ("paper", "small")


def get_config(size_and_task: str) -> FinetuneConfig:
  size, _, task = size_and_task.partition(":")
  if size not in SIZES or not task:
    raise InputError(
      f"{size_and_task!r}: must be SIZE:TASK or SIZE:TASK,TASK, SIZE one of {', '.join(SIZES)}"
    )
  paper, names = size == "paper", task.split(",")
  optim = OptimConfig(
    "adamw", 3e-3, "linear", 0, 0.05, weight_decay=0.0, clip_norm=1.0, average=0.98
  )
  if paper:
    optim = OptimConfig("momentum", 0.5, "cross_view", 5000, 0.0, clip_norm=1.0, average=0.998)
  return FinetuneConfig(
    task=task_named(task) if len(names) == 1 else SeveralTasks(tuple(map(task_named, names))),
    lm_weight=0.0,
    methods=(ViewsHead(units=512 if paper else 64), Unlabeled()),
    train_examples=200,
    label_smoothing=0.1 if paper else 0.0,
    batch_size=64 if paper else 16,
    trunk=_trunk(paper),
    optim=optim,
    train=TrainConfig(
      steps=400_000 if paper else 1200, evaluate_every=2000 if paper else 100, log_every=100
    ),
  )


def _trunk(paper: bool) -> LSTMStackConfig:
  return LSTMStackConfig(
    embedding_width=300 if paper else 96,
    units=(1024, 512) if paper else (96, 96),
    directions="joined",
    projection=512 if paper else 0,
    characters=CharacterConfig(50, (0, 100, 100, 100), highways=0) if paper else None,
    tied=not paper,  # a tagger reads no table of the output
    variational=False,
    embedding_dropout=0.0,
    input_dropout=0.5,
    hidden_dropout=0.5,
    output_dropout=0.0,
    recurrent_dropout=0.0,
  )
