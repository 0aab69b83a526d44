"""Contrastive learning with in-batch negatives, from a pre-trained checkpoint: :neighbors,
:sentences, :views or :pairs.

  python launch/pretrain.py --config=configs/contrastive.py:neighbors --checkpoint=runs/small \
    --data=data/novels --workdir=runs/neighbors
  python launch/evaluate.py --checkpoint=runs/neighbors --data=DIR --task=stsb

neighbors: the two ends of a window of 32 tokens, which overlap by 16 (QuickThoughts' consecutive
ones: --config.objective.span=0). sentences: a sentence and the next one, of text prepared by
--sentences. views: the same text twice with other dropout (SimCSE, with its
batch, rate and length). pairs: both lines of a document, such as a text and its back-translation
(gpt_jax/apps/backtranslate/README.md), prepared from a table by --text_column=A,B. Sizes and
vocabulary are the checkpoint's; a bidirectional one needs
--config.objective.attention=bidirectional. DIR holds GLUE's STS-B.

Hardware: 2 shared CPU cores, 2 minutes, with a causal checkpoint of 0.9M parameters that was
trained for 400 steps of 2,048 tokens of 22 novels (perplexity 229). Expect, as Spearman correlation
x 100 on STS-B's dev set: 44.2 before; of :neighbors 49.9 after 100 of its 250 steps and 51.0 after
221, the last that we measured; of :views 42.5 after 60 steps. Random weights gain as much
(configs/RESULTS.md). Of :pairs of 3,230 captions, on random weights with another
vocabulary, 65.6, and 63.4 before; of :sentences, from configs/elmo.py:small, 44.0, and 45.9 before.
"""

from gpt_jax.apps.backtranslate.line_pairs import LinePairs
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.objectives.contrastive import DropoutViews, NeighborSentences, NeighborSpans
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config(positives: str = "neighbors") -> PretrainConfig:
  settings = {  # objective, batch size, tokens in a row, learning rate
    "neighbors": (NeighborSpans(span=24), 128, 32, 3e-4),
    "sentences": (NeighborSentences(), 128, 64, 3e-4),
    "views": (DropoutViews(), 64, 32, 3e-5),
    "pairs": (LinePairs(), 64, 32, 3e-5),
  }
  if positives not in settings:
    known = ", ".join(settings)
    raise InputError(f"--config=configs/contrastive.py:{positives}: the positives are {known}")
  objective, batch_size, length, learning_rate = settings[positives]
  return PretrainConfig(
    objective=objective,
    data=WindowsConfig(batch_size=batch_size, length=length),
    optim=OptimConfig(learning_rate=learning_rate, warmup_steps=10),
    train=TrainConfig(steps=250, log_every=10, checkpoint_every=50),
    evaluation_batches=20,
  )
