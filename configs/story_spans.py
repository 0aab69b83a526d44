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

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config() -> PretrainConfig:
  return PretrainConfig(
    trunk=TransformerConfig(context=64, layers=3, width=128, heads=4, norm="pre"),
    objective=SpanCorruption(),
    data=WindowsConfig(batch_size=16, length=64),
    optim=OptimConfig(learning_rate=2e-3, warmup_steps=150),
    train=TrainConfig(steps=3400, log_every=50, evaluate_every=850),
    evaluation_batches=10,
  )
