"""GPT-1 as the paper pre-trained it (section 4.1): 12 blocks of width 768, contexts of 512 tokens,
100 passes over BooksCorpus.

  python launch/prepare.py --source='books/*.txt' --out=data/books --vocab_size=40000
  python launch/pretrain.py --config=configs/gpt1.py --data=data/books --workdir=runs/gpt1

Arithmetic: 64 x 512 = 32,768 tokens a step; one pass over BooksCorpus (985M words, 1.1 to 1.3
tokens a word) is about 36,000 steps; 100 passes are 3.6M steps, 119B tokens, 8.3e19 FLOP.
Hardware: 30 days on the authors' 8 P600; 76 hours on one H200, at the 437,000 tokens/s of a run of
1,578 steps; by arithmetic, at 40 % MFU, 117 hours on a TPU v3-8. Set
--config.trunk.dtype=bfloat16 on both.
Expect: a perplexity of 18.4 per token on BooksCorpus (the paper, which does not name the split).

The paper says 100 epochs; a table in BERT's paper says 1M steps, 3.6 times less:
--config.train.steps=1000000 --config.train.epochs=0.
"""

from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig


def get_config() -> PretrainConfig:
  # Everything else is a default: the paper's or, where it is silent (clip_norm, b1, b2, eps), that
  # of OpenAI's fine-tuning code.
  return PretrainConfig(
    train=TrainConfig(
      epochs=100, evaluate_every=10_000, checkpoint_every=2_000, milestone=1_000, log_every=100
    ),
    evaluation_batches=100,
  )
