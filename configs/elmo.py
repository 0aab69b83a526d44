"""ELMo (Peters et al. 2018): LSTMs in both directions that read tokens by their characters.

  python launch/prepare.py --source=novels --out=data/cased --vocabulary=bytes --vocab_size=8000 \
    --valid_share=0.03
  python launch/pretrain.py --config=configs/elmo.py:small --data=data/cased --workdir=runs/elmo

- paper: 93,600,848 parameters and a softmax; two LSTMs of 4096 units, projected to 512, in each
  direction (allenai/bilm-tf, bin/train_elmo.py): Adagrad at 0.2 from a first sum of squares of 1,
  norm clipped to 10, 7,680 tokens a step, 10 epochs. Its gradient is that of 20 times the loss:
  here the sum begins at 1/400 and the norm is clipped to 0.5, which is the same update. The softmax
  is over 8,192 sampled tokens in training. Texts are 128 tokens, where bilm-tf carries the state on
  from 20 to the next 20; tokens are pieces of a vocabulary, not words. Hardware and hours: not run
  by us at this size. Expect, by the paper, a perplexity of 39.7 per word, the mean of both
  directions.
- small: 3.6M parameters with 8,000 pieces, the softmax among them; 2,112 positions a step, Adam.
  Hardware: 1 busy CPU core, 49 minutes for 3,600 steps in place of its 2,000, in bfloat16. Expect,
  on 98 novels, perplexities of 150 and 142 per piece; with 581 books more and 6,000 steps 91, 87.
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.characters import CharacterConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.objectives.bidirectional_lm import BidirectionalLM
from gpt_jax.programs.config_files import check_size
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

SIZES = ("paper", "small")


def get_config(size: str) -> PretrainConfig:
  check_size("elmo", size, SIZES)
  if size == "paper":
    return PretrainConfig(
      trunk=_trunk(4096, 512, CharacterConfig()),
      objective=BidirectionalLM(samples=8192),
      data=WindowsConfig(batch_size=60, length=130),
      optim=OptimConfig("adagrad", 0.2, "constant", 0, eps=1 / 400, clip_norm=0.5),
      train=TrainConfig(epochs=10, evaluate_every=10_000, checkpoint_every=2_000, log_every=100),
      evaluation_batches=100,
    )
  return PretrainConfig(
    trunk=_trunk(512, 128, CharacterConfig(filters=(16, 16, 32, 64, 128), places=16, highways=1)),
    objective=BidirectionalLM(),
    data=WindowsConfig(batch_size=32, length=66),
    optim=OptimConfig(learning_rate=2e-3, warmup_steps=200),
    train=TrainConfig(steps=2000, evaluate_every=250, checkpoint_every=250),
    evaluation_batches=20,
  )


def _trunk(units: int, projection: int, characters: CharacterConfig) -> LSTMStackConfig:
  return LSTMStackConfig(
    embedding_width=projection,
    units=(units, units),
    directions="separate",
    projection=projection,
    cell_clip=3.0,
    projection_clip=3.0,
    residual=True,
    characters=characters,
    tied=False,
    variational=False,
    embedding_dropout=0.0,
    input_dropout=0.1,
    hidden_dropout=0.1,
    output_dropout=0.1,
    recurrent_dropout=0.0,
  )
