"""Fine-tuning as in the paper: 3 epochs of batches of 32, 6.25e-5 falling linearly after a warm-up
of 0.2 %.

  python launch/finetune.py --config=configs/finetune.py:cola --data_dir=DIR --pretrained=runs/gpt1 --workdir=runs/cola

Tasks: cola, sst2, mrpc, qqp, stsb, mnli, mnli-mismatched, qnli, rte, snli, scitail, race,
race-middle, race-high, storycloze, storycloze-2018; wnli, which GLUE has and the paper has not; of
the embedded world story-ending, story-doing, story-company, story-next. With `:table`, files of
your own:

  python launch/finetune.py --config=configs/finetune.py:table --data_dir=DIR --pretrained=DIR --workdir=DIR \
    --config.task.columns=question,answer --config.task.label=verdict --config.task.transform=entailment

From scratch, with the checkpoint's vocabulary and sizes: --config.transfer_layers=-1.
Hardware: minutes a task on one GPU; a small model on a CPU, see README.md. Expect: the paper's
result is printed with each task; they are test-set numbers of the full model (CoLA 45.4, RTE 56.0,
MRPC 82.3, STS-B 82.0, RACE 59.0).

The warm-up is 0.2 % of the updates, which below 500 updates is the first update alone, with a learning rate of 0;
--config.optim.min_warmup_steps makes it longer.
"""

from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.task import BuiltinTask


def get_config(task: str) -> FinetuneConfig:
  return FinetuneConfig(task=TableTask() if task == "table" else BuiltinTask(task))
