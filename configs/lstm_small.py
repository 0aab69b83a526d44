"""The paper's recurrent baseline (section 5) at the size of configs/gpt1_small.py: as wide, with an LSTM in its place.

  python launch/pretrain.py --config=configs/lstm_small.py --data=data/novels --workdir=runs/lstm_small

The same text, batches and steps. Hardware: 2 CPU cores, 2,500 to 3,000 tokens/s, about 40 minutes. Expect: not run to
its end by us yet.
"""

from gpt_jax.data.tokens import WindowsConfig
from gpt_jax.optim import OptimConfig
from gpt_jax.pretrain import PretrainConfig
from gpt_jax.train import TrainConfig
from gpt_jax.trunks.lstm import LSTMConfig


def get_config() -> PretrainConfig:
  return PretrainConfig(
    trunk=LSTMConfig(context=256, width=256, units=640),
    data=WindowsConfig(batch_size=8, length=256),
    optim=OptimConfig(learning_rate=1e-3, warmup_steps=400),
    train=TrainConfig(steps=3000, evaluate_every=250, checkpoint_every=250, milestone=125),
    evaluation_batches=20,
  )
