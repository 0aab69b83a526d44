"""A causal language model of several sources, shared out by their sizes to the power of 1/5.

  python launch/prepare.py --source='novels/*.txt,wiki.txt' --out=data/both --vocab_size=4000
  python launch/prepare.py --source='novels/*.txt' --tokenizer=data/both/tokenizer --out=data/novels
  python launch/prepare.py --source=wiki.txt --tokenizer=data/both/tokenizer --out=data/wiki \
    --valid_share=0.04
  python launch/pretrain.py --config=configs/mixture.py --data=data/novels,data/wiki \
    --workdir=runs/mixture

2 blocks of width 128. Hardware: 2 CPU cores, 2 minutes. Expect of 20 novels (4.9M tokens) and
WikiText-2's validation text (0.34M), 63 and 37 % of the rows, perplexities of 239 and 144; with
--config.data.temperature=1, 94 and 6 %, of 281 and 275. With temperature 1
--config.data.weights=7,3 gives the shares.
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config() -> PretrainConfig:
  return PretrainConfig(
    trunk=TransformerConfig(context=256, layers=2, width=128, heads=4),
    data=WindowsConfig(batch_size=16, length=128, temperature=5.0),
    optim=OptimConfig(learning_rate=1e-3, warmup_steps=50),
    train=TrainConfig(steps=600, evaluate_every=250, checkpoint_every=250, milestone=125),
    evaluation_batches=20,
  )
