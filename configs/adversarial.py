"""Fine-tuning under attack: the loss also where small changes of the embeddings raise it most.

  python launch/finetune.py --config=configs/adversarial.py:fgm:cola --data=DIR \
    --checkpoint=runs/gpt1 --workdir=runs/cola-fgm --config.adversarial.radius=1
  python launch/evaluate.py --checkpoint=runs/cola-fgm/best --data=DIR --attack=fgm --radius=0.5,1,2

METHOD:TASK, where METHOD is fgm (Miyato et al. 2017), virtual_adversarial (the same paper's, needs
no labels) or freelb (Zhu et al. 2020), and TASK one of configs/finetune.py. All other fields are
those of configs/finetune.py.

Radii are L2 norms of what is added to the embeddings of a whole sequence. They have to be chosen
for a model: the second command shows at which ones accuracy falls. One that takes the label away
before the model has learned it leaves the model at the majority class.

Hardware: that of configs/finetune.py; fgm takes twice, virtual_adversarial three times as long,
freelb `steps` times and more. Expect: higher accuracy under attack, and no lower clean one. fgm on
story-ending with radius 0.05, over seeds 3 to 6: 88.3, 77.8 and 48.7 % at 0.025, 0.05 and 0.1
(71.6, 55.1 and 32.9 without), clean 95.4 (84.0); three seeds before did not show it
(configs/RESULTS.md).
"""

from gpt_jax.errors import InputError
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.adversarial import FGM, FreeLB, VirtualAdversarial

METHODS = {"fgm": FGM(), "virtual_adversarial": VirtualAdversarial(), "freelb": FreeLB()}


def get_config(method_and_task: str) -> FinetuneConfig:
  method, _, task = method_and_task.partition(":")
  if method not in METHODS or not task:
    raise InputError(
      f"{method_and_task!r}: must be METHOD:TASK, METHOD one of {', '.join(METHODS)}"
    )
  return FinetuneConfig(
    task=TableTask() if task == "table" else BuiltinTask(task), adversarial=METHODS[method]
  )
