"""Adapters: fine-tuning that leaves the trunk as it is and trains a small change of it.

  python launch/finetune.py --config=configs/adapter.py:lora:sst2 --data=DIR \
    --checkpoint=runs/gpt1 --workdir=runs/sst2-lora --config.adapter.rank=8

METHOD:TASK, where METHOD is lora (Hu et al. 2021) or bias (Ben Zaken et al. 2022), and TASK one of
configs/finetune.py. All other fields are theirs but for the learning rate, which has to be higher,
1e-3 here, and the warm-up, 0.2 % also of small models (--config.optim.warmup_share=0.1 for those).

Checkpoints hold adapter and head alone, and name their base: predict, evaluate, serve and export
read both and merge them. Hardware: that of configs/finetune.py. Hours: not run by us at GPT-1's
size.
"""

from gpt_jax.errors import InputError
from gpt_jax.models.adapter import Adapter
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.named import task_named
from gpt_jax.training.optimizer import OptimConfig

METHODS = {"lora": Adapter(), "bias": Adapter(rank=0, trained="/bias$")}


def get_config(method_and_task: str) -> FinetuneConfig:
  method, _, task = method_and_task.partition(":")
  if method not in METHODS or not task:
    raise InputError(
      f"{method_and_task!r}: must be METHOD:TASK, METHOD one of {', '.join(METHODS)}"
    )
  return FinetuneConfig(
    task=task_named(task),
    methods=(METHODS[method],),
    optim=OptimConfig(
      learning_rate=1e-3, schedule="linear", warmup_steps=0, warmup_share=0.002, clip_norm=1.0
    ),
  )
