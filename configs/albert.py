"""ALBERT (Lan et al. 2019): BERT with embeddings of 128 features and one block for all layers, in
its four published sizes.

python launch/prepare.py --source='books/*.txt' --out=data/books --vocab_size=30000 --sentences=true
python launch/pretrain.py --config=configs/albert.py:base --data=data/books --workdir=runs/albert

With a vocabulary of 30,000 ids, base, large, xlarge and xxlarge have 11,683,584, 17,683,968,
58,724,864 and 222,595,584 parameters, without heads; a step takes the operations of all layers.
base:attention and base:mlp share that sublayer alone, as table 4 of the paper: 63,647,232 and
37,686,528 parameters.
The paper's recipe: 4096 x 512 tokens a step, 10 % of the rows shorter, for 125,000 steps, peak rate
1.76e-3 of LAMB after 3,125 steps, then linear to 0. As in the paper 15 % of the tokens are
predicted; the command in the README of google-research/albert has max_predictions_per_seq=20, which
is 3.9 % of 512 (--config.objective.max_predictions=20). Hardware and hours: not run by us at these
sizes. Expect of base, by that README for its first release, an average of 80.1 on its five tasks.
"""

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.partly_shared import PartlySharedConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked_sentences import MaskedPairs
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

SIZES = {  # layers, width, heads, dropout
  "base": (12, 768, 12, 0.1),
  "large": (24, 1024, 16, 0.1),
  "xlarge": (24, 2048, 16, 0.1),
  "xxlarge": (12, 4096, 64, 0.0),
}


def get_config(size_and_shared: str) -> PretrainConfig:
  size, _, shared = size_and_shared.partition(":")
  if size not in SIZES or shared not in ("", "attention", "mlp"):
    raise InputError(
      f"--config=configs/albert.py:{size_and_shared}: the sizes are {', '.join(SIZES)}, each also "
      "with :attention or :mlp"
    )
  layers, width, heads, dropout = SIZES[size]
  return PretrainConfig(
    trunk=(PartlySharedConfig if shared else TransformerConfig)(
      layers=layers,
      width=width,
      heads=heads,
      residual_dropout=dropout,
      attention_dropout=dropout,
      embedding_dropout=dropout,
      token_types=2,
      embedding_norm=True,
      embedding_dropout_on="sum",
      embedding_width=128,
      **({"shared": shared} if shared else {"shared_layers": True}),
      pooler=True,
      norm_epsilon=1e-12,
      init="truncated",
    ),
    objective=MaskedPairs(second="swapped", unit="ngram", random_ids="all"),
    data=WindowsConfig(batch_size=4096, length=512),
    optim=OptimConfig("lamb", 1.76e-3, "bert_linear", warmup_steps=3_125, eps=1e-6),
    train=TrainConfig(steps=125_000, evaluate_every=1_000, checkpoint_every=1_000, log_every=100),
    evaluation_batches=20,
  )
