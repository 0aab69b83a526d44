"""GPT-2 (Radford et al. 2019): the same decoder with pre-norm and contexts of 1,024 tokens, in its
four published sizes.

  python launch/prepare.py --source='books/*.txt' --out=data/books --tokenizer=DIR
  python launch/pretrain.py --config=configs/gpt2.py:small --data=data/books --workdir=runs/gpt2

DIR is the folder of a vocabulary. With the released one of 50,257 ids, small, medium, large and xl
have 124,439,808, 354,823,168, 774,030,080 and 1,557,611,200 parameters. 512 x 1,024 tokens a step
(section 2.3); the paper gives neither schedule nor length: here they are GPT-1's schedule and 10
passes. Hardware, hours and results: not run by us at these sizes.
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.config_files import check_size
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig

SIZES = {  # layers, width, heads of 64
  "small": (12, 768, 12),
  "medium": (24, 1024, 16),
  "large": (36, 1280, 20),
  "xl": (48, 1600, 25),
}


def get_config(size: str) -> PretrainConfig:
  check_size("gpt2", size, SIZES)
  layers, width, heads = SIZES[size]
  return PretrainConfig(
    trunk=TransformerConfig(context=1024, layers=layers, width=width, heads=heads, norm="pre"),
    data=WindowsConfig(batch_size=512, length=1024),
    train=TrainConfig(epochs=10, evaluate_every=1_000, checkpoint_every=1_000, log_every=10),
    evaluation_batches=20,
  )
