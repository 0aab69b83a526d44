"""Fine-tuning BERT, RoBERTa and ALBERT as their authors do, and encoders of MiniLM's size.

  python launch/finetune.py --config=configs/finetune_encoder.py:bert:rte --data=DIR \
    --checkpoint=DIR --workdir=runs/rte

FAMILY:TASK, where FAMILY is bert, roberta, albert or minilm, and TASK one of configs/finetune.py.
The checkpoint is a run of configs/FAMILY.py, or a model of that family as transformers saves it.

- bert (Devlin et al. 2018, appendix A.3; google-research/bert, run_classifier.py): Adam without
  bias correction, batches of 32, 3 epochs, warm-up over 10 %, peak rate 2e-5. The authors choose
  the best of 5e-5, 3e-5 and 2e-5, of batches of 16 and 32 and of 2 to 4 epochs on the dev set:
  --config.optim.learning_rate, --config.batch_size, --config.train.epochs.
- roberta (Liu et al. 2019; fairseq, examples/roberta): fairseq's Adam without clipping, weight
  decay 0.1, and for each task its rate, updates, warm-up and batch; other tasks have 10 epochs in
  batches of 32, warm-up over 6 %, rate 1e-5. The paper chooses among 1e-5, 2e-5 and 3e-5, and
  reports the median of five seeds: --seeds=5.
- albert (Lan et al. 2019; google-research/albert, run_glue.sh): BERT's Adam, and for each task its
  rate, updates, warm-up and batch; other tasks have BERT's.
- minilm, for encoders of BERT's kind with some 20M parameters: AdamW as in transformers, batches of
  32, 3 epochs, warm-up over 10 %, peak rate 1e-4.

There is no auxiliary loss. STS-B is learned as bins, as by configs/finetune.py; all three learn it
as a regression. These rates are for base and large: a small encoder stays at the majority class,
and configs/finetune.py with --config.lm_weight=0 has rates for its size.

Hardware: one GPU, minutes for RTE to hours for MNLI. Not run by us at these sizes. Expect, by the
paper on GLUE's test sets, of BERT-base CoLA 52.1, SST-2 93.5, QNLI 90.5, RTE 66.4; by fairseq's
README on dev sets, of RoBERTa-base CoLA 63.6, SST-2 94.8, QNLI 92.8, RTE 78.7. minilm was run on a
CPU core: from all-MiniLM-L6-v2 89.1 % of SST-2's dev set in 52 minutes, 83.0 with 2,000 of its rows
in 6, and 94.5 % of TREC (configs/RESULTS.md).
"""

import dataclasses

from gpt_jax.errors import InputError
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.named import task_named
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

BERT = OptimConfig("bert", 2e-5, "bert_linear", 0, 0.1, eps=1e-6)
ROBERTA = OptimConfig(
  "fairseq", 1e-5, "fairseq_linear", 0, 0.06, weight_decay=0.1, clip_norm=0.0, b2=0.98, eps=1e-6
)
MINILM = OptimConfig("adamw", 1e-4, "linear", 0, 0.1)
# Family -> optimizer, epochs, dropout on the head's input.
FAMILIES = {
  "bert": (BERT, 3, 0.1),
  "roberta": (ROBERTA, 10, 0.0),
  "albert": (BERT, 3, 0.1),
  "minilm": (MINILM, 3, 0.1),
}
# Family -> task -> peak rate, updates, those of the warm-up, batch.
TASKS = {
  "roberta": {
    "cola": (1e-5, 5_336, 320, 16),
    "sst2": (1e-5, 20_935, 1_256, 32),
    "mrpc": (1e-5, 2_296, 137, 16),
    "stsb": (2e-5, 3_598, 214, 16),
    "qqp": (1e-5, 113_272, 28_318, 32),
    "mnli": (1e-5, 123_873, 7_432, 32),
    "qnli": (1e-5, 33_112, 1_986, 32),
    "rte": (2e-5, 2_036, 122, 16),
  },
  "albert": {
    "cola": (1e-5, 5_336, 320, 16),
    "sst2": (1e-5, 20_935, 1_256, 32),
    "mrpc": (2e-5, 800, 200, 32),
    "stsb": (2e-5, 3_598, 214, 16),
    "qqp": (5e-5, 14_000, 1_000, 128),
    "mnli": (3e-5, 10_000, 1_000, 128),
    "qnli": (1e-5, 33_112, 1_986, 32),
    "rte": (3e-5, 800, 200, 32),
  },
}


def get_config(family_and_task: str) -> FinetuneConfig:
  family, _, task = family_and_task.partition(":")
  if family not in FAMILIES or not task:
    raise InputError(
      f"{family_and_task!r}: must be FAMILY:TASK, FAMILY one of {', '.join(FAMILIES)}"
    )
  optim, epochs, dropout = FAMILIES[family]
  batch, train = 32, TrainConfig(epochs=epochs, log_every=50, keep_checkpoints=1)
  if task in TASKS.get(family, {}):
    rate, steps, warmup, batch = TASKS[family][task]
    optim = dataclasses.replace(optim, learning_rate=rate, warmup_steps=warmup, warmup_share=0.0)
    train = dataclasses.replace(train, epochs=0, steps=steps)
  return FinetuneConfig(
    task=task_named(task),
    lm_weight=0.0,
    head_dropout=dropout,
    batch_size=batch,
    optim=optim,
    train=train,
  )
