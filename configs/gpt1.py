"""GPT-1 as the paper pre-trained it (section 4.1): 12 blocks of width 768, contexts of 512 tokens,
100 passes over BooksCorpus; and gpt1.py:small, one for a CPU.

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

small, 4 blocks of width 256, otherwise the paper's recipe:

  python launch/prepare.py --source=novels --out=data/novels --vocab_size=16000 --valid_share=0.03
  python launch/pretrain.py --config=configs/gpt1.py:small --data=data/novels \
    --workdir=runs/gpt1_small

7.3M parameters with that vocabulary. Hardware: 2 CPU cores, 36 minutes (2,900 tokens/s). Expect on
98 English novels a perplexity of 139 per token (1.70 bits per byte) on the five held-out ones.

4x128, 4x256, 6x320, 8x384, blocks and widths for an hour or more of a CPU on a text that is hardly
read twice, and so without dropout; `launch/reproduce.py --budget=books` chooses among them. With
8,000 tokens 1.8M, 5.3M, 10.0M and 17.4M parameters, of which the table has 1.0M, 2.0M, 2.6M and
3.1M. 2x64 is for rehearsals.
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.config_files import check_size
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

# Blocks x width, peak learning rate.
CPU_RATES = {"2x64": 2e-3, "4x128": 1.5e-3, "4x256": 1e-3, "6x320": 1e-3, "8x384": 7e-4}
SIZES = ("paper", "small", *CPU_RATES)


def get_config(size: str = "paper") -> PretrainConfig:
  check_size("gpt1", size, SIZES)
  if size == "small":
    return PretrainConfig(
      trunk=TransformerConfig(context=256, layers=4, width=256, heads=4),
      # 2,048 tokens a step. After 3M tokens, steps of 512 tokens at half the learning rate reached
      # a perplexity of only 195, these 182.
      data=WindowsConfig(batch_size=8, length=256),
      # Post-norm: with only 50 warm-up steps, 1e-3 stays at the unigram entropy at this width.
      optim=OptimConfig(learning_rate=1e-3, warmup_steps=400),
      train=TrainConfig(steps=3000, evaluate_every=250, checkpoint_every=250, milestone=125),
      evaluation_batches=20,
    )
  if size in CPU_RATES:
    layers, width = map(int, size.split("x"))
    dropout = dict.fromkeys(("embedding_dropout", "residual_dropout", "attention_dropout"), 0.0)
    return PretrainConfig(
      trunk=TransformerConfig(
        context=256, layers=layers, width=width, heads=width // 64, **dropout
      ),
      data=WindowsConfig(batch_size=8, length=256),
      optim=OptimConfig(learning_rate=CPU_RATES[size], warmup_steps=400),
      train=TrainConfig(steps=30_000, evaluate_every=3_000, milestone=500),
      evaluation_batches=100,
    )
  # Everything else is a default: the paper's or, where it is silent (clip_norm, b1, b2, eps), that
  # of OpenAI's fine-tuning code.
  return PretrainConfig(
    train=TrainConfig(
      epochs=100, evaluate_every=10_000, checkpoint_every=2_000, milestone=1_000, log_every=100
    ),
    evaluation_batches=100,
  )
