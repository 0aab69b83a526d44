"""The quickstart's sizes, with GPT-1's dropout: 3 blocks of width 128 for the embedded story world.

  python launch/prepare.py --source=embedded --vocab_size=1500 --out=data/story
  python launch/pretrain.py --config=configs/story.py --data=data/story --workdir=runs/story

0.8M parameters, 1.7M tokens. Hardware: 2 CPU cores, about a minute. Expect a perplexity of 2.1 per
token (0.25 bits per byte) on the held-out documents.
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config() -> PretrainConfig:
  return PretrainConfig(
    trunk=TransformerConfig(context=64, layers=3, width=128, heads=4),
    data=WindowsConfig(batch_size=16, length=64),
    optim=OptimConfig(learning_rate=1e-3, warmup_steps=150),
    train=TrainConfig(steps=1700, log_every=50, evaluate_every=425),
    evaluation_batches=10,
  )
