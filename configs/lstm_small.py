"""The paper's recurrent baseline (section 5) at the size of configs/gpt1_small.py.

  python launch/pretrain.py --config=configs/lstm_small.py --data=data/novels \
    --workdir=runs/lstm_small

The same width, text, batches and steps; 6.6M parameters. Hardware: 2 CPU cores, 36 minutes (2,900
tokens/s). Expect on 98 English novels a perplexity of 227 on the first 40,960 held-out tokens,
where the Transformer has 147.
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config() -> PretrainConfig:
  return PretrainConfig(
    trunk=LSTMConfig(context=256, width=256, units=640),
    data=WindowsConfig(batch_size=8, length=256),
    optim=OptimConfig(learning_rate=1e-3, warmup_steps=400),
    train=TrainConfig(steps=3000, evaluate_every=250, checkpoint_every=250, milestone=125),
    evaluation_batches=20,
  )
