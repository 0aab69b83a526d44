"""RoBERTa (Liu et al. 2019): BERT without token types and sentence pairs, trained longer on larger
batches, in its two published sizes.

python launch/prepare.py --source='books/*.txt' --out=data/books --tokenizer=DIR --sentences=true
python launch/pretrain.py --config=configs/roberta.py:base --data=data/books --workdir=runs/roberta

DIR is the folder of a vocabulary. With the released one of 50,265 ids, base and large have
124,052,736 and 354,307,072 parameters, without the head. The released models have three rows more,
2,304 and 3,072 parameters: two positions for padding, which no token reads, and the single token
type. The paper's recipe: 8192 x 512 tokens a step for 500,000 steps, peak rate 6e-4 (large 4e-4)
after 24,000 (30,000) steps, then linear to 0, no clipping. Hardware and hours: not run by us at
these sizes. Expect, by the README of fairseq's examples/roberta for its releases, 87.6 and 90.2 %
on MNLI's dev set after fine-tuning.
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked_sentences import FullSentences
from gpt_jax.programs.config_files import check_size
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

SIZES = {  # layers, width, heads of 64, peak rate, warm-up
  "base": (12, 768, 12, 6e-4, 24_000),
  "large": (24, 1024, 16, 4e-4, 30_000),
}


def get_config(size: str) -> PretrainConfig:
  check_size("roberta", size, SIZES)
  layers, width, heads, rate, warmup = SIZES[size]
  return PretrainConfig(
    trunk=TransformerConfig(
      layers=layers,
      width=width,
      heads=heads,
      embedding_norm=True,
      embedding_dropout_on="sum",
      activation="gelu",
    ),
    objective=FullSentences(count="probabilistic", random_ids="text_and_mask", special_too=True),
    data=WindowsConfig(batch_size=8192, length=512, sampling="across_documents"),
    optim=OptimConfig(
      "fairseq", rate, "fairseq_linear", warmup_steps=warmup, clip_norm=0.0, b2=0.98, eps=1e-6
    ),
    train=TrainConfig(steps=500_000, evaluate_every=2_500, checkpoint_every=2_500, log_every=100),
    evaluation_batches=20,
  )
