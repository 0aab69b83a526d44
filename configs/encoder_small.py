"""Small encoders for the embedded story world: the objectives of BERT (:next), ALBERT (:order) and
RoBERTa (:full).

  python launch/prepare.py --source=embedded --vocab_size=1500 --sentences=true \
    --valid_share=0.05 --out=data/sentences
  python launch/pretrain.py --config=configs/encoder_small.py:next --data=data/sentences \
    --workdir=runs/next
  python launch/finetune.py --config=configs/finetune.py:story-ending --data= \
    --checkpoint=runs/next --workdir=runs/ending --config.lm_weight=0 --config.batch_size=16 \
    --config.train.epochs=5 --config.optim.learning_rate=1e-3 --config.optim.warmup_share=0.1

next: masked tokens, and whether the second text follows the first; order: masked tokens, and
whether the two texts are in order; full: packed sentences. They differ from configs/bert.py,
albert.py and roberta.py in more than size: pre-norm blocks, GPT-1's embeddings, activation, Adam
and schedule, and new masks for each batch; order has ALBERT's sentence order alone, but neither
shared layers nor n-grams; full masks whole sentences, 20 % of the tokens.

order:all, order:attention and order:mlp (next and full too) share their blocks, or a sublayer of
them, as ALBERT does.

0.8M parameters, 2,048 tokens per step. Hardware: 2 CPU cores, half an hour, for full a quarter.
Expect on held-out text, whose unigram entropy is 4.44 nats: next 0.27 nats per masked token and
68 % accuracy on pairs, order 0.34 and 74 %, full 1.27; on a GPU, order 0.34 and 75, order:mlp 0.35
and 73, order:attention 0.28 and 59, order:all 0.30 and 57. story-ending, by the last command: 50 to
65 % from next, so it is not learned, and 93 to 98 % with --config.trunk.width=256
--config.trunk.heads=8; 93, 90 and 95 % from full in three seeds, 97, 95 and 93 % in 20 epochs at
5e-4 (configs/RESULTS.md).
"""

import dataclasses
import functools

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.partly_shared import PartlySharedConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked_sentences import FullSentences, MaskedPairs
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

OBJECTIVES = {
  "next": MaskedPairs(),
  "order": MaskedPairs(second="swapped"),
  "full": FullSentences(unit="sentence", share=0.2),
}

SHARED = {
  "": TransformerConfig,
  "all": functools.partial(TransformerConfig, shared_layers=True),
  "attention": functools.partial(PartlySharedConfig, shared="attention"),
  "mlp": functools.partial(PartlySharedConfig, shared="mlp"),
}


def get_config(kind_and_shared: str) -> PretrainConfig:
  kind, _, shared = kind_and_shared.partition(":")
  if kind not in OBJECTIVES or shared not in SHARED:
    known = ", ".join(OBJECTIVES)
    raise InputError(
      f"--config=configs/encoder_small.py:{kind_and_shared}: the objectives are {known}, each also "
      "with :all, :attention or :mlp"
    )
  trunk = SHARED[shared](context=64, layers=3, width=128, heads=4, norm="pre")
  data, steps = WindowsConfig(batch_size=32, length=64), 12_000
  if kind == "full":
    data, steps = dataclasses.replace(data, sampling="across_documents"), 6000
  else:
    trunk = dataclasses.replace(trunk, token_types=2, pooler=True)
  return PretrainConfig(
    trunk=trunk,
    objective=OBJECTIVES[kind],
    data=data,
    optim=OptimConfig(learning_rate=5e-4, warmup_steps=300),
    train=TrainConfig(steps=steps, log_every=100, evaluate_every=500),
  )
