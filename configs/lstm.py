"""The paper's recurrent baseline (section 5, table 5): one LSTM layer of 2048 units instead of the
Transformer.

  python launch/pretrain.py --config=configs/lstm.py --data=data/books --workdir=runs/lstm

Hardware and hours: not measured at full size. Expect: worse than GPT-1 on every task but MRPC, by
5.6 points of average score after fine-tuning (the paper, which gives no perplexity).
"""

from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig


def get_config() -> PretrainConfig:
  return PretrainConfig(
    trunk=LSTMConfig(),
    train=TrainConfig(
      epochs=100, evaluate_every=10_000, checkpoint_every=2_000, milestone=1_000, log_every=100
    ),
    evaluation_batches=100,
  )
