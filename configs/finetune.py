"""Fine-tuning as in the paper (section 4.1): 3 epochs, batches of 32, learning rate 6.25e-5 with
linear decay after a warm-up of 0.2 %.

  python launch/finetune.py --config=configs/finetune.py:cola --data_dir=DIR \
    --pretrained=runs/gpt1 --workdir=runs/cola

Tasks: cola, sst2, mrpc, qqp, stsb, mnli, mnli-mismatched, qnli, rte, snli, scitail, race,
race-middle, race-high, storycloze, storycloze-2018; wnli, which is in GLUE but not in the paper;
story-ending, story-doing, story-company, story-next and story-tags (one tag per word) of the
embedded story world. With `:table`, files of your own:

  python launch/finetune.py --config=configs/finetune.py:table --data_dir=DIR \
    --pretrained=DIR --workdir=DIR --config.task.columns=question,answer \
    --config.task.label=verdict --config.task.transform=entailment

After configs/masked_small.py add --config.lm_weight=0: a bidirectional model has no next token.
From scratch, with the checkpoint's vocabulary and sizes: --config.transfer_layers=-1.

Hardware: one GPU, minutes per task; for a small model a CPU (README.md). Expect: the paper's test
results with the full model are CoLA 45.4, RTE 56.0, MRPC 82.3, STS-B 82.0, RACE 59.0; each run
prints its task's.

Below 500 updates the warm-up is the first update alone, with learning rate 0;
--config.optim.min_warmup_steps makes it longer.
"""

from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.task import BuiltinTask


def get_config(task: str) -> FinetuneConfig:
  return FinetuneConfig(task=TableTask() if task == "table" else BuiltinTask(task))
