"""BERT (Devlin et al. 2018): a bidirectional Transformer, pre-trained on masked tokens and
next-sentence prediction, in its two published sizes and two of the small ones that
google-research/bert released later.

python launch/prepare.py --source='books/*.txt' --out=data/books --tokenizer=DIR --sentences=true
python launch/pretrain.py --config=configs/bert.py:base --data=data/books --workdir=runs/bert

DIR is the folder of a vocabulary. With the released one of 30,522 ids, base and large have
109,482,240 and 335,141,888 parameters, without heads. Recipe (section 3.1, appendix A.2): 256 x 512
tokens a step for 1M steps, learning rate 1e-4 after 10,000 steps of warm-up, then linear to 0. The
paper runs 90 % of the steps at 128 tokens; here all have 512. Hardware and hours: not run by us at
these sizes. Expect on GLUE's test sets, by the README of google-research/bert for its releases of
tiny and mini: SST-2 83.2 and 85.9, MRPC 81.1 and 81.1 (F1), RTE 57.2 and 57.9, STS-B 74.3 and 75.4,
CoLA 0 and 0.
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked_sentences import MaskedPairs
from gpt_jax.programs.config_files import check_size
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

SIZES = {  # layers, width, heads
  "tiny": (2, 128, 2),
  "mini": (4, 256, 4),
  "base": (12, 768, 12),
  "large": (24, 1024, 16),
}


def get_config(size: str) -> PretrainConfig:
  check_size("bert", size, SIZES)
  layers, width, heads = SIZES[size]
  return PretrainConfig(
    trunk=TransformerConfig(
      layers=layers,
      width=width,
      heads=heads,
      token_types=2,
      embedding_norm=True,
      embedding_dropout_on="sum",
      pooler=True,
      activation="gelu",
      norm_epsilon=1e-12,
      init="truncated",
    ),
    # Ten maskings of each text, and at most 77 of 512 tokens, as create_pretraining_data.py.
    objective=MaskedPairs(max_predictions=77, random_ids="all", copies=10),
    data=WindowsConfig(batch_size=256, length=512),
    optim=OptimConfig("bert", 1e-4, "bert_linear", warmup_steps=10_000, eps=1e-6),
    train=TrainConfig(steps=1_000_000, evaluate_every=5_000, checkpoint_every=5_000, log_every=100),
    evaluation_batches=20,
  )
