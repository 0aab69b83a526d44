"""Masked language modeling on your own text, from a checkpoint: BERT, RoBERTa or ALBERT of
transformers' folders, or a run of this package. It is then fine-tuned as before.

  python launch/prepare.py --source='letters/*.txt' --tokenizer=BERT --out=data/letters
  python launch/pretrain.py --config=configs/masked.py --checkpoint=BERT --data=data/letters \
    --workdir=runs/letters

BERT is the checkpoint's folder; sizes, vocabulary, masked head and the format of fine-tuning are
its own. A folder without a masked head (BertModel, a sentence encoder) gets a new one, as the run
says at its start. Rows are windows of the text without [CLS] and [SEP]; a pooler stays as it is.
Hardware: a GPU for a model of BERT's size, for which the rate is meant; for a small one a CPU.
Expect a held-out loss below that of the checkpoint on the same text, which the first evaluation is
close to; with a new head the first losses are above the text's unigram entropy. all-MiniLM-L6-v2 on
55,000 tokens of questions: 4.7 nats after five epochs (configs/RESULTS.md, A released encoder).
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.objectives.masked import Masked
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config() -> PretrainConfig:
  return PretrainConfig(
    objective=Masked(),
    data=WindowsConfig(batch_size=32, length=128),
    optim=OptimConfig(learning_rate=5e-5, schedule="linear", warmup_steps=0, warmup_share=0.06),
    train=TrainConfig(epochs=3, log_every=50, evaluate_every=250, checkpoint_every=250),
    evaluation_batches=20,
  )
