"""The paper's recurrent baseline (section 5, table 5): one LSTM layer of 2048 units instead of the
Transformer; and lstm.py:small, at the size of configs/gpt1.py:small.

  python launch/pretrain.py --config=configs/lstm.py --data=data/books --workdir=runs/lstm

Hardware and hours: not measured at full size. Expect: worse than GPT-1 on every task but MRPC, by
5.6 points of average score after fine-tuning (the paper, which gives no perplexity).

  python launch/pretrain.py --config=configs/lstm.py:small --data=data/novels \
    --workdir=runs/lstm_small

The same width, text, batches and steps as gpt1.py:small; 6.6M parameters. Hardware: 2 CPU cores,
36 minutes (2,900 tokens/s). Expect on 98 English novels a perplexity of 227 on the first 40,960
held-out tokens, where the Transformer has 147.

4x128, 4x256, 6x320, 8x384: as configs/gpt1.py has them; one layer with as many parameters as the
blocks.
"""

import dataclasses
import math

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.programs.config_files import check_size, load_config
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

SIZES = ("paper", "small", "2x64", "4x128", "4x256", "6x320", "8x384")


def get_config(size: str = "paper") -> PretrainConfig:
  check_size("lstm", size, SIZES)
  if "x" in size:
    like = load_config(f"gpt1:{size}")
    layers, width = map(int, size.split("x"))
    # 4 U (D + U) + U D parameters, where the blocks have 12 L D^2.
    units = 8 * round((math.sqrt(25 + 192 * layers) - 5) / 8 * width / 8)
    dropout = dict.fromkeys(("embedding_dropout", "residual_dropout"), 0.0)
    trunk = LSTMConfig(context=256, width=width, units=units, **dropout)
    return dataclasses.replace(like, trunk=trunk)
  if size == "small":
    return PretrainConfig(
      trunk=LSTMConfig(context=256, width=256, units=640),
      data=WindowsConfig(batch_size=8, length=256),
      optim=OptimConfig(learning_rate=1e-3, warmup_steps=400),
      train=TrainConfig(steps=3000, evaluate_every=250, checkpoint_every=250, milestone=125),
      evaluation_batches=20,
    )
  return PretrainConfig(
    trunk=LSTMConfig(),
    train=TrainConfig(
      epochs=100, evaluate_every=10_000, checkpoint_every=2_000, milestone=1_000, log_every=100
    ),
    evaluation_batches=100,
  )
