"""Translation of text pairs: T5's encoder-decoder, GPT's trunk that reads the source as a prefix
(T5, Raffel et al. 2020, section 3.2.1), or CoVe's LSTMs with attention (McCann et al. 2017).

  python launch/prepare.py --source='DIR/train.*' --vocabulary=bytes --vocab_size=6000 \
    --out=data/pairs
  python launch/finetune.py --config=configs/translate.py:t5 --data=DIR --checkpoint=none \
    --tokenizer=data/pairs/tokenizer --workdir=runs/en-de
  python launch/evaluate.py --checkpoint=runs/en-de/best --data=DIR --beams=5
  python launch/predict.py --checkpoint=runs/en-de/best --input=FILE --out=translations.tsv

DIR has train.en and train.de, line n of one the translation of line n of the other, and val.en and
val.de; --config=configs/translate.py:t5:de-en is the other direction, other names are set by
--config.task.train, .dev and .test. A table with a column for each language is named with its
suffix (.tsv, .csv, .jsonl, .parquet). One vocabulary serves both languages. A pre-trained GPT or T5
goes on with configs/translate.py:pretrained and --checkpoint=DIR, without --tokenizer, T5 with its
own --config.task.prompt. Pairs from text of one language: gpt_jax/apps/backtranslate/README.md.

Hardware: one CPU core, 15 to 25 minutes of training with --config.trunk.dtype=bfloat16. Expect on
Multi30k (29,000 pairs; BLEU, cased, with 5 beams; configs/RESULTS.md) 35.0 of t5 and 31.1 of gpt
after 8 epochs, 36.1 of lstm after 10 in batches of 32. t5 of 2 layers of width 96 has 17.2 from
5,000 pairs (greedy), and 20.3 with pairs by back-translation of 24,000 German sentences, in 6 to 10
minutes for each of the three runs on 2 cores. lstm has less than half of CoVe's width and is
trained by Adam; CoVe's own recipe is SGD at 1, halved once the validation perplexity rises, at 300
units in each direction.

views is cross-view training (Clark et al. 2018, section 3.4): after each batch of pairs comes one
of DIR/taught.tsv, texts with a teacher's translations, from which two decoders that see less learn:

  python launch/finetune.py --config=configs/translate.py:lstm --data=DIR --checkpoint=none \
    --tokenizer=data/pairs/tokenizer --workdir=runs/teacher
  python launch/backtranslate.py --checkpoint=runs/teacher/best --input=text.en \
    --out=DIR/taught.tsv --beams=5 --tag=
  python launch/finetune.py --config=configs/translate.py:views --data=DIR --checkpoint=none \
    --tokenizer=data/pairs/tokenizer --workdir=runs/views

Hardware: one CPU core, 4 minutes for 1,248 updates at 96 units in batches of 32. Expect, of 5,000
pairs and 1,200 texts by a teacher of BLEU 3.8, 2.5, which shows nothing of its worth
(configs/RESULTS.md).
"""

from gpt_jax.errors import InputError
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.views import TranslationViews
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.unlabeled import Unlabeled

TRUNKS = {
  "pretrained": FinetuneConfig.trunk,  # not set: the checkpoint's
  "t5": T5Config(
    context=128, layers=3, width=128, heads=4, head_width=32, units=512, residual_dropout=0.1
  ),
  "gpt": TransformerConfig(context=128, layers=6, width=128, heads=4, norm="pre"),
  "lstm": LSTMEncoderDecoderConfig(context=128, embedding_width=128, units=128),
}
TRUNKS["views"] = TRUNKS["lstm"]
OPTIMIZERS = {
  "pretrained": FinetuneConfig.optim,
  # Its table has a deviation of 1, which Adam's steps of one size for all hardly move.
  "t5": OptimConfig("adafactor", 0.02, "linear", 0, warmup_share=0.05, clip_norm=0.0),
  "gpt": OptimConfig("openai", 2e-3, "linear", 0, warmup_share=0.05, weight_decay=0.0),
  "lstm": OptimConfig("openai", 2e-3, "linear", 0, warmup_share=0.05, weight_decay=0.0),
}
OPTIMIZERS["views"] = OPTIMIZERS["lstm"]


def get_config(system_and_languages: str) -> FinetuneConfig:
  system, _, languages = system_and_languages.partition(":")
  source, _, target = (languages or "en-de").partition("-")
  if system not in TRUNKS or not target:
    raise InputError(
      f"--config=configs/translate.py:{system_and_languages}: must be SYSTEM or "
      f"SYSTEM:SOURCE-TARGET, such as t5:de-en; SYSTEM is one of {', '.join(TRUNKS)}"
    )
  views = system == "views"
  return FinetuneConfig(
    task=PairsTask(
      source=source, target=target, longest=40, unlabeled="taught.tsv" if views else ""
    ),
    methods=(TranslationViews(), Unlabeled()) if views else (),
    batch_size=64,
    trunk=TRUNKS[system],
    optim=OPTIMIZERS[system],
    train=TrainConfig(epochs=12, log_every=50, keep_checkpoints=1),
  )
