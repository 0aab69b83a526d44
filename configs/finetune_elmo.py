"""ELMo in a task (Peters et al. 2018, sections 3.2 and 3.3): a mix of a frozen trunk's layers.

  python launch/finetune.py --config=configs/finetune_elmo.py:ewt-tags --data=DIR \
    --checkpoint=runs/elmo --workdir=runs/ewt

TASK as in configs/finetune.py. The head reads `gamma sum_j softmax(s)_j h_j` over the layers of the
checkpoint of configs/elmo.py, or of any other; nothing but the head, gamma and s trains.
--config.mix.layer=1 reads one layer alone. With --config.mix.units=64 --config.mix.embedding=64 the
task has embeddings and an LSTM of its own, which ELMo joins at its input, or with --config.mix.at
at its output or at both. A head on one representation of a text reads the mean of its tokens
(--config.pooling=mean), since each direction has read all of it at another end.

The dropout of the mix, 0.5, and lambda, 0.001, are the paper's; rate and epochs are ours. Hardware:
1 CPU core, 4 to 7 minutes. Expect, of configs/elmo.py:small and all sentences with tags, with
--config.mix.dropout=0.1 --config.trunk.dtype=bfloat16 and a frozen trunk of 3,600 steps, 87.8 % of
the tags from the mix alone (--config.train.epochs=4 --config.optim.learning_rate=1e-2), and 93.9 %
beside an LSTM of the task's own (--config.train.epochs=5); the 0.5 and 10 epochs of this file were
not measured (configs/RESULTS.md).
"""

from gpt_jax.models.heads.mix import MixedHead
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.named import task_named
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config(task: str) -> FinetuneConfig:
  return FinetuneConfig(
    task=task_named(task),
    lm_weight=0.0,
    head_dropout=0.0,
    methods=(MixedHead(),),
    train_layers=0,
    optim=OptimConfig(
      learning_rate=3e-3, schedule="linear", warmup_steps=0, warmup_share=0.05, weight_decay=0.0
    ),
    train=TrainConfig(epochs=10, log_every=50, keep_checkpoints=1),
  )
