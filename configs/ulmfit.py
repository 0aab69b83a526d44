"""The language model of ULMFiT (Howard and Ruder 2018): AWD-LSTM (Merity et al. 2018).

  python launch/prepare.py --source=novels --out=data/novels --vocab_size=4000 --valid_share=0.03
  python launch/pretrain.py --config=configs/ulmfit.py:small --data=data/novels --workdir=runs/lm

- paper: 400, 1150, 1150, 400; with 30,000 pieces 32M parameters. WikiText-103, Adam at 0.004 with
  b1 = 0.7, here at a slanted triangular rate; texts are windows of 70 tokens, where theirs carries
  the state on. The 14 epochs are ours, the paper has no number. Hardware and hours: not run by us.
- small: 128, 384, 384, 128, 2.7M parameters with 4,000 pieces. Hardware: 2 CPU cores, 27 minutes
  beside other programs. Expect on 98 novels a perplexity of 170 per piece, held out.

Then the same on the texts of the task, with their vocabulary kept (section 3.2), from this one:

  python launch/prepare.py --source=questions.txt --tokenizer=data/novels/tokenizer \
    --out=data/questions
  python launch/pretrain.py --config=configs/ulmfit.py:target --data=data/questions \
    --checkpoint=runs/lm --workdir=runs/questions

- target: of any size, which the checkpoint has: 0.004 at a slanted triangular rate for 15 epochs.
  All layers have one rate; --config.layer_decay=0.385 is the paper's 1 / 2.6 for each layer below.
  Expect, of small and TREC's questions at one rate, a perplexity of 49 in place of 505, in 3
  minutes, and of SST-2's reviews 68 in place of 496, in 9.

small:backward and so on are the second model, which reads and predicts from right to left.
"""

import dataclasses

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.objectives.bidirectional_lm import BackwardLM
from gpt_jax.objectives.causal import Causal
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.pretrain_start import LayerwiseConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

# Rows and tokens a step, updates or epochs.
SIZES = {
  "paper": (64, 70, {"epochs": 14}),
  "small": (32, 64, {"steps": 1500, "evaluate_every": 250}),
  "target": (32, 64, {"epochs": 15}),
}


def get_config(argument: str) -> PretrainConfig:
  size, _, direction = argument.partition(":")
  if size not in SIZES or direction not in ("", "backward"):
    raise InputError(
      f"--config=configs/ulmfit.py:{argument}: the sizes are {', '.join(SIZES)}, each also with "
      ":backward"
    )
  rows, length, train = SIZES[size]
  # A quarter to a half of AWD-LSTM's dropout, as fastai's code for target texts (finetune_lm.py).
  trunk = LSTMStackConfig(
    directions=direction or "forward",
    embedding_dropout=0.02,
    input_dropout=0.25,
    hidden_dropout=0.15,
    output_dropout=0.1,
    recurrent_dropout=0.2,
  )
  if size == "small":
    trunk = dataclasses.replace(trunk, embedding_width=128, units=(384, 384, 128))
  return (LayerwiseConfig if size == "target" else PretrainConfig)(
    trunk=trunk,
    objective=(BackwardLM if direction else Causal)(ar=2.0, tar=1.0),
    data=WindowsConfig(batch_size=rows, length=length),
    optim=OptimConfig(
      "adamw", 0.004, "slanted_triangle", 0, 0.1, weight_decay=1e-7, clip_norm=0.3, b1=0.7, b2=0.99
    ),
    train=TrainConfig(**train),
    evaluation_batches=20,
  )
