"""Fine-tuning as in the paper (section 4.1): batches of 32, linear decay and, for a model of
GPT-1's size, 3 epochs, learning rate 6.25e-5 and a warm-up of 0.2 %.

Smaller models get a larger rate, a longer warm-up and more epochs (gpt_jax/training/defaults.py).
Each run prints those it uses; --config.optim.learning_rate, .optim.warmup_share and .train.epochs
set them.

  python launch/finetune.py --config=configs/finetune.py:cola --data=DIR \
    --checkpoint=runs/gpt1 --workdir=runs/cola

Tasks: cola, sst2, mrpc, qqp, stsb, mnli, mnli-mismatched, qnli, rte, snli, scitail, race,
race-middle, race-high, storycloze, storycloze-2018; wnli, squad, squad-2, trec (questions), imdb
(reviews) and ewt-tags (parts of speech), which are not in the paper; story-ending, story-doing,
story-company, story-next and story-tags (one tag per word) of the embedded story world. With
`:table`, files of your own; in one of two columns the label is found:

  python launch/finetune.py --config=configs/finetune.py:table --data=DIR \
    --checkpoint=DIR --workdir=DIR --config.task.train=tickets.csv --config.task.dev_share=0.1

  python launch/finetune.py --config=configs/finetune.py:table --data=DIR \
    --checkpoint=DIR --workdir=DIR --config.task.columns=question,answer \
    --config.task.label=verdict --config.task.transform=entailment

A table's labels are one of a fixed set; with --config.task.kind=regression they are numbers, with
--config.task.kind=multi_label several labels in a cell (--config.task.separator=,).

For a bidirectional model, such as one of configs/masked_small.py, add --config.lm_weight=0: it has
no auxiliary language-modeling loss. From scratch, with the checkpoint's vocabulary and sizes:
--config.transfer_layers=-1.

Hardware: one GPU, minutes per task; for a small model a CPU (README.md). Expect: the paper's test
results with the full model are CoLA 45.4, RTE 56.0, MRPC 82.3, STS-B 82.0, RACE 59.0; each run
prints its task's.

In a run of fewer than 500 updates a warm-up of 0.2 % is a single update, at learning rate 0;
--config.optim.min_warmup_steps makes it longer.
"""

from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.named import task_named


def get_config(task: str) -> FinetuneConfig:
  return FinetuneConfig(task=task_named(task))
