"""Adversarial fine-tuning: trains also on embeddings that are perturbed to raise the loss.

  python launch/finetune.py --config=configs/adversarial.py:fgm:cola --data=DIR \
    --checkpoint=runs/gpt1 --workdir=runs/cola-fgm --config.adversarial.radius=1
  python launch/evaluate.py --checkpoint=runs/cola-fgm/best --data=DIR --attack=fgm --radius=0.5,1,2

METHOD:TASK, where METHOD is fgm (Miyato et al. 2017), virtual_adversarial (the same paper; needs no
labels) or freelb (Zhu et al. 2020), and TASK one of configs/finetune.py. All other fields are those
of configs/finetune.py.

A radius is the L2 norm of the perturbation of a whole sequence's embeddings. The right one depends
on the model: the second command shows at which radii accuracy falls. With too large a radius a
model never learns the task and stays at the majority class.

Hardware: that of configs/finetune.py; fgm takes 2 times as long, virtual_adversarial 3 times,
freelb with its 3 steps 3.7 times. Hours: not run by us at GPT-1's size. Expect higher accuracy
under attack at no cost in clean accuracy. fgm on story-ending with radius 0.05, seeds 3 to 6: 88.3,
77.8 and 48.7 % under attacks of radius 0.025, 0.05 and 0.1 (71.6, 55.1 and 32.9 % without fgm),
95.4 % clean (84.0 %). Seeds 0 to 2 did not show it (configs/RESULTS.md).
"""

from gpt_jax.errors import InputError
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.named import task_named
from gpt_jax.training.adversarial import FGM, FreeLB, VirtualAdversarial

METHODS = {"fgm": FGM(), "virtual_adversarial": VirtualAdversarial(), "freelb": FreeLB()}


def get_config(method_and_task: str) -> FinetuneConfig:
  method, _, task = method_and_task.partition(":")
  if method not in METHODS or not task:
    raise InputError(
      f"{method_and_task!r}: must be METHOD:TASK, METHOD one of {', '.join(METHODS)}"
    )
  return FinetuneConfig(task=task_named(task), methods=(METHODS[method],))
