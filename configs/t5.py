"""T5 (Raffel et al. 2020): an encoder-decoder, in published sizes of versions 1.0 and 1.1.

  python launch/prepare.py --source='books/*.txt' --out=data/books --vocab_size=32000
  python launch/pretrain.py --config=configs/t5.py:small --data=data/books --workdir=runs/t5

The sizes are small, base, large, and 1.1-small, 1.1-base, 1.1-large: with the released table of
32,128 rows 60,506,624, 222,903,552, 737,668,096, and 76,961,152, 247,577,856, 783,150,080
parameters. 128 rows of 512 tokens a step and 2^19 steps, 34B tokens (section 3.1.2: the baseline):
568 tokens of text fill a row, 85 of them hidden in 28 spans, and its target has 114. Adafactor at
0.01 for 10,000 steps, then 1/sqrt(steps). 1e-4 (log Z)^2 is added to the training loss, as in T5's
code, whose mean is over padding too; here it is over the targets.
Version 1.1 pre-trains without dropout. Hardware, hours and results: not run by us at these sizes; a
model of 1.8M parameters is in configs/RESULTS.md, and one of 0.03M learns in 400 steps to reverse 4
random ids (tests/models/test_encoder_decoder.py).
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.programs.config_files import check_size
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

SIZES = {  # blocks of each stack, width, heads of 64, units
  "small": (6, 512, 8, 2048),
  "base": (12, 768, 12, 3072),
  "large": (24, 1024, 16, 4096),
  "1.1-small": (8, 512, 6, 1024),
  "1.1-base": (12, 768, 12, 2048),
  "1.1-large": (24, 1024, 16, 2816),
}


def get_config(size: str) -> PretrainConfig:
  check_size("t5", size, SIZES)
  layers, width, heads, units = SIZES[size]
  version = "1.1" if size.startswith("1.1") else "1.0"
  return PretrainConfig(
    trunk=T5Config(
      layers=layers,
      width=width,
      heads=heads,
      units=units,
      version=version,
      residual_dropout=0.0 if version == "1.1" else 0.1,
    ),
    objective=SpanCorruption(layout="encoder_decoder", z_loss=1e-4),
    # Rows are full: T5's code joins documents before it cuts them.
    data=WindowsConfig(batch_size=128, length=512, sampling="across_documents"),
    optim=OptimConfig("adafactor", 0.01, "inverse_sqrt", warmup_steps=10_000, clip_norm=0.0),
    train=TrainConfig(steps=2**19, evaluate_every=5_000, checkpoint_every=5_000, log_every=100),
    evaluation_batches=20,
  )
