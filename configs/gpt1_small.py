"""A GPT-1 for a CPU: 4 blocks of width 256, otherwise the paper's recipe.

  python launch/prepare.py --source=novels --out=data/novels --vocab_size=16000 --valid_share=0.03
  python launch/pretrain.py --config=configs/gpt1_small.py --data=data/novels \
    --workdir=runs/gpt1_small

7.3M parameters with that vocabulary. Hardware: 2 CPU cores, 36 minutes (2,900 tokens/s). Expect on
98 English novels a perplexity of 139 per token (1.70 bits per byte) on the five held-out ones.
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config() -> PretrainConfig:
  return PretrainConfig(
    trunk=TransformerConfig(context=256, layers=4, width=256, heads=4),
    # 2,048 tokens a step. After 3M tokens, steps of 512 tokens at half the learning rate reached a
    # perplexity of only 195, these 182.
    data=WindowsConfig(batch_size=8, length=256),
    # Post-norm: with only 50 warm-up steps, 1e-3 stays at the unigram entropy at this width.
    optim=OptimConfig(learning_rate=1e-3, warmup_steps=400),
    train=TrainConfig(steps=3000, evaluate_every=250, checkpoint_every=250, milestone=125),
    evaluation_batches=20,
  )
