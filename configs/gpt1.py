"""GPT-1 as the paper pre-trained it: 12 blocks of width 768, contexts of 512, 100 passes over long
text.

  python launch/prepare.py --source='books/*.txt' --out=data/books --vocab_size=40000
  python launch/pretrain.py --config=configs/gpt1.py --data=data/books --workdir=runs/gpt1

Arithmetic: 64 x 512 = 32,768 tokens a step; a passage over BooksCorpus (985M words, 1.1 to 1.3
tokens a word) is about 36,000 steps, 100 of them 3.6M steps, 119B tokens, 8.3e19 floating-point
operations.
Hardware: 30 days on the authors' 8 P600; by arithmetic alone, not run by us, 58 hours on one H200 at 40 % of its bf16
peak, 137 hours on a TPU v3-8. Set --config.trunk.dtype=bfloat16 on either; on a CPU it gains nothing.
Expect: a perplexity of 18.4 per token on BooksCorpus (the paper; the split is not named).

The paper gives 100 epochs; a table in BERT's paper says 1M steps, which is 3.6 times less: --config.train.steps=1000000
--config.train.epochs=0 trains that.
"""

from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig


def get_config() -> PretrainConfig:
  # Everything else is the default, and every default is the paper's.
  return PretrainConfig(
    train=TrainConfig(
      epochs=100, evaluate_every=10_000, checkpoint_every=2_000, milestone=1_000, log_every=100
    ),
    evaluation_batches=100,
  )
