"""Distillation: a student of fewer blocks learns a task from a fine-tuned classifier, the teacher.

  python launch/finetune.py --config=configs/distill.py:trec --data=DIR \
    --checkpoint=runs/trec --workdir=runs/trec-student --config.distill.layers=3

TASK is one of configs/finetune.py, the one that the checkpoint was fine-tuned on. With
--config.train_examples=1000 --config.unlabeled=true all other training rows are read without their
labels, and learn from the teacher alone; with --config.unlabeled.file=FILE so do the texts of a
file.

The student begins as every other block of the teacher (DistilBERT, Sanh et al. 2019, section 3),
with its embeddings and head, and learns from labels, from the teacher's probabilities at
temperature 2 (Hinton et al. 2015, section 2) and from its hidden states, all at once. AdamW,
batches of 32, 6 epochs, warm-up over 10 %, peak rate 2e-4. The checkpoint is that of any other
classifier.

Hardware: 1 CPU core, 4 minutes for 3 blocks of MiniLM's 6. Expect on TREC's dev set 94.7 %, of a
teacher with 96.0, with 5 blocks 95.5, and with 3 from 1,000 labels 91.4, of a teacher with 91.9
(configs/RESULTS.md).
"""

from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.named import task_named
from gpt_jax.training.distillation import Distillation
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config(task: str) -> FinetuneConfig:
  return FinetuneConfig(
    task=task_named(task),
    lm_weight=0.0,
    methods=(Distillation(),),
    optim=OptimConfig("adamw", 2e-4, "linear", 0, 0.1),
    train=TrainConfig(epochs=6, log_every=50, keep_checkpoints=1),
  )
