"""Fine-tuning as ULMFiT does (Howard and Ruder 2018, sections 3.2 and 3.3).

  python launch/finetune.py --config=configs/finetune_ulmfit.py:trec --data=DIR \
    --checkpoint=runs/lm --workdir=runs/trec

TASK as in configs/finetune.py, for one label per text. The checkpoint is a language model that was
trained further on the task's texts (gpt_jax/training/README.md), of any trunk. Adam with b1 = 0.7
at a slanted triangular rate: up to 0.01 for a tenth of the run, then down to 1/32 of it. A layer
has the rate of the layer above it / 2.6, and one layer more trains in each epoch. The head reads a
text's last state, the maximum and the mean of all. Each of these is off with

  --config.optim.schedule=constant, .layer_decay=1, .unfreeze=none, .pooling=mean, .head_units=0

The head has 50 ReLU units between two layer norms, where theirs has batch norm, which is no sum
over the examples. Their code trains the head for an epoch, with the last layer for a second, and
then all, with a new rise and fall of the rate each time (--config.unfreeze.epochs=2); Adam's
moments are not made anew here. `predict.py --checkpoint=A --checkpoint=B` averages the
probabilities of a forward and a backward model.

Hardware: 1 CPU core, 2 minutes for 500 phrases of SST-2. Expect, of ulmfit.py:small with 500
questions of TREC and 30 epochs, 73 % on our dev questions, of random weights 46 %, and of 500
phrases of SST-2 64 and 53 % (configs/RESULTS.md); by the paper, with its 25M parameters and forward
and backward models averaged, 96.4 % on TREC's test set.
"""

from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.named import task_named
from gpt_jax.training.layerwise import Unfreeze
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config(task: str) -> FinetuneConfig:
  return FinetuneConfig(
    task=task_named(task),
    lm_weight=0.0,
    head_dropout=0.4,
    head_units=50,
    pooling="concat",
    methods=(Unfreeze(),),
    layer_decay=1 / 2.6,
    batch_size=64,
    optim=OptimConfig(
      "adamw", 0.01, "slanted_triangle", 0, 0.1, weight_decay=1e-7, clip_norm=0.3, b1=0.7, b2=0.99
    ),
    train=TrainConfig(epochs=50, log_every=50, keep_checkpoints=1),
  )
