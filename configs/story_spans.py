"""Span corruption (T5's objective) with GPT's trunk on the embedded story world.

  python launch/prepare.py --source=embedded --vocab_size=1500 --out=data/story
  python launch/pretrain.py --config=configs/story_spans.py --data=data/story --workdir=runs/spans

0.8M parameters. Input and target are one row: 57 tokens of text, 9 of them hidden, fill its 64.
Hardware: 2 CPU cores, about 5 minutes where nothing else runs. Expect a loss per target token of
1.38 nats on held-out text, sentinels and ends among them; words alone have 1.73, and a unigram
entropy of 4.44. Of 64 positions 13 are predicted, so a step teaches less than one of
configs/story.py: it has not learned yet which events please, and story-ending stays at chance, as
text and with a classification head (configs/RESULTS.md).
"""

import dataclasses

from gpt_jax.apps.paper.quickstart import pretrain_config
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config() -> PretrainConfig:
  config = pretrain_config(3400)
  return dataclasses.replace(
    config,
    trunk=dataclasses.replace(config.trunk, norm="pre"),
    objective=SpanCorruption(),
    optim=OptimConfig(learning_rate=2e-3, warmup_steps=150),
  )
