"""CoVe in a task (McCann et al. 2017, sections 4 and 5): a translator's frozen encoder, read by a
biattentive classification network.

  python launch/finetune.py --config=configs/cove.py:trec --data=DIR \
    --checkpoint=runs/en-de/best --workdir=runs/trec

TASK as in configs/finetune.py; the checkpoint is that of configs/translate.py:lstm, or any other,
whose first and last layers are then read. The head reads [embedding; CoVe] of each token; nothing
but the head trains. Each text of a pair attends to the other one. --config.transfer_layers=-1 reads
an encoder with random weights, 0 one with the checkpoint's embeddings.

Adam at 0.001 and the dropout are the paper's, the width is less than a fourth of its 300 units;
layer norm stands where it has batch norm. Hardware: 1 CPU core, 2 to 3 minutes. Expect, of a
translator of 5 epochs, 76 % of TREC's held-out questions after 15 epochs, and 73 % of random
weights; on SST-2 no difference (configs/RESULTS.md).
"""

from gpt_jax.models.heads.biattentive import BiattentiveHead
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.named import task_named
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config(task: str) -> FinetuneConfig:
  return FinetuneConfig(
    task=task_named(task),
    lm_weight=0.0,
    methods=(BiattentiveHead(units=64),),
    train_layers=0,
    optim=OptimConfig(
      learning_rate=1e-3, schedule="constant", warmup_steps=0, warmup_share=0.0, weight_decay=0.0
    ),
    train=TrainConfig(epochs=10, log_every=50, keep_checkpoints=1),
  )
