"""The quickstart's model: 3 blocks of width 128 for the embedded story world.

  python launch/prepare.py --source=embedded --vocab_size=1500 --out=data/story
  python launch/pretrain.py --config=configs/story.py --data=data/story --workdir=runs/story

0.8M parameters, 1.7M tokens. Hardware: 2 CPU cores, about a minute. Expect a perplexity of 2.1 per
token (0.25 bits per byte) on the held-out documents.
"""

from gpt_jax.apps.paper.quickstart import STEPS, pretrain_config
from gpt_jax.programs.pretrain import PretrainConfig


def get_config() -> PretrainConfig:
  return pretrain_config(STEPS)
