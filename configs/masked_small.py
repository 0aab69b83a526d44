"""A small masked language model (BERT's objective) on the embedded story world.

python launch/prepare.py --source=embedded --out=data/world --vocab_size=1500
python launch/pretrain.py --config=configs/masked_small.py --data=data/world --workdir=runs/masked

0.8M parameters, 2,048 tokens per step. Hardware: 2 CPU cores, a quarter of an hour. Expect a loss
per masked token of 1.14 nats on held-out text, whose unigram entropy is 4.43. The loss stays near 4
for the first 1,500 steps: a masked language model learns from 15 % of the tokens and leaves the
plateau of word frequencies late. On 98 novels, with 8,000 ids and 12,000 steps, 4.41 nats, where
the unigram entropy is 6.53 (configs/RESULTS.md).
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked import Masked
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config() -> PretrainConfig:
  return PretrainConfig(
    trunk=TransformerConfig(context=64, layers=3, width=128, heads=4, norm="pre"),
    objective=Masked(),
    data=WindowsConfig(batch_size=32, length=64),
    optim=OptimConfig(learning_rate=1e-3, warmup_steps=300),
    train=TrainConfig(steps=4000, log_every=100, evaluate_every=500),
  )
