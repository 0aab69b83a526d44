"""Killed runs of the systems around GPT-1 go on as if nothing had been: a mixture of texts, both
directions of an LSTM, ULMFiT's three stages, a frozen mix of layers, CoVe's frozen encoder, word
vectors, labeled and unlabeled batches in turns, a student, pairs of texts. Back-translation starts
again.
"""

import dataclasses
import shutil

import pytest
from small_runs import trained
from test_kills import files_of, kill, start  # noqa: F401  # fixtures
from tiny_runs import write_config

from gpt_jax.config import to_json
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.characters import CharacterConfig
from gpt_jax.models.heads.biattentive import BiattentiveHead
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.mix import MixedHead
from gpt_jax.models.heads.views import ViewsHead
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.bidirectional_lm import BidirectionalLM
from gpt_jax.objectives.causal import Causal
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.pretrain_start import LayerwiseConfig
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.distillation import Distillation
from gpt_jax.training.layerwise import Unfreeze
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.unlabeled import Unlabeled

pytestmark = pytest.mark.attack
TRAIN = TrainConfig(steps=24, log_every=1, evaluate_every=12, checkpoint_every=3)
STACK = LSTMStackConfig(
  context=96, embedding_width=16, units=(16, 16), tied=False, recurrent_dropout=0.0
)
# AWD-LSTM: dropout of each kind, on the recurrent kernels too, the output tied.
AWD = LSTMStackConfig(context=96, embedding_width=16, units=(24, 16))
TRANSLATOR = LSTMEncoderDecoderConfig(context=32, embedding_width=16, units=16)
SLANTED = OptimConfig("adamw", 0.01, "slanted_triangle", 0, 0.1, average=0.9)
WORDS = "cat mat dog barn sea old"
PAIRS = [(f"the {a} on the {b}", f"{b} and {a}") for a in WORDS.split() for b in WORDS.split()]


STORIES = FinetuneConfig(
  task=BuiltinTask("story-ending"),
  lm_weight=0.0,
  train_examples=32,
  dev_examples=32,
  batch_size=8,
  train=TRAIN,
)
SYSTEMS = {
  "pretrain on a mixture": PretrainConfig(
    TransformerConfig(context=16, layers=1, width=16, heads=2),
    data=WindowsConfig(8, 16, weights=(0.75, 0.25)),
    train=TRAIN,
  ),
  "pretrain both directions": PretrainConfig(
    dataclasses.replace(STACK, directions="separate", variational=False),
    BidirectionalLM(),
    WindowsConfig(8, 16),
    train=TRAIN,
  ),
  # ULMFiT's first stage.
  "pretrain with DropConnect": PretrainConfig(
    dataclasses.replace(AWD, context=16),
    Causal(ar=2.0, tar=1.0),
    WindowsConfig(8, 16),
    train=TRAIN,
  ),
  # Its second, with AR and TAR; its trunk is the checkpoint's.
  "pretrain on, by layers": LayerwiseConfig(
    LSTMStackConfig(),
    Causal(ar=2.0, tar=1.0),
    WindowsConfig(8, 16),
    SLANTED,
    train=TRAIN,
    layer_decay=0.4,
  ),
  # Its third: 8 updates an epoch, and all layers train from the third one on.
  "finetune by layers, in epochs": dataclasses.replace(
    STORIES,
    pooling="concat",
    head_units=8,
    methods=(Unfreeze(2),),
    layer_decay=0.4,
    train_examples=64,
    optim=SLANTED,
  ),
  "finetune on a frozen mix": dataclasses.replace(
    STORIES,
    methods=(MixedHead(embedding=16, units=16, at="both"),),
    train_layers=0,
    optim=SLANTED,
    trunk=dataclasses.replace(
      STACK,
      directions="separate",
      characters=CharacterConfig(width=4, filters=(4, 4), places=8, highways=1),
    ),
  ),
  "finetune with word vectors": dataclasses.replace(
    STORIES,
    methods=(BiattentiveHead(units=8),),
    trunk=dataclasses.replace(TRANSLATOR, context=96, decoder=False),
  ),
  # CoVe: the checkpoint's encoder does not train.
  "finetune on a translator's encoder": dataclasses.replace(
    STORIES, methods=(BiattentiveHead(units=8),), train_layers=0
  ),
  "finetune a student": dataclasses.replace(STORIES, methods=(Distillation(layers=1), Unlabeled())),
  "finetune with views": dataclasses.replace(
    STORIES,
    task=BuiltinTask("story-tags"),
    methods=(ViewsHead(units=16, dropout=0.2), Unlabeled()),
    train_examples=24,
    trunk=dataclasses.replace(STACK, directions="joined"),
  ),
  "finetune to translate": FinetuneConfig(
    task=PairsTask(source="en", target="de", synthetic="synthetic.tsv", upsample=2),
    trunk=TRANSLATOR,
    batch_size=8,
    optim=OptimConfig("momentum", 0.1, "constant", 0, 0.0, average=0.9),
    train=TRAIN,
  ),
}
# What begins from a checkpoint: its trunk and heads.
STARTS = {
  "pretrain on, by layers": (AWD,),
  "finetune by layers, in epochs": (AWD,),
  "finetune on a translator's encoder": (dataclasses.replace(TRANSLATOR, context=96),),
  "finetune a student": (
    TransformerConfig(context=96, layers=2, width=16, heads=2),
    ClassifyHead(2, pooling="per_choice"),
  ),
}


@pytest.mark.parametrize("what", SYSTEMS)
def test_a_system(kill, start, prepared, make_run, tiny_tokenizer, tmp_path, attempts, what):  # noqa: F811
  count = attempts(0.3)
  program = what.split()[0]
  flags = [write_config(tmp_path / "config.py", SYSTEMS[what])]
  if program == "pretrain":
    shutil.copytree(prepared, tmp_path / "second")
    folders = f"{prepared},{tmp_path / 'second'}" if "mixture" in what else prepared
    flags.append(f"--data={folders}")
  else:
    write_pairs(tmp_path)
    flags.append(f"--data={tmp_path}")
  if what in STARTS:
    trunk, *heads = STARTS[what]
    spec = ModelConfig(trunk.with_vocabulary(tiny_tokenizer), tuple(heads))
    meta = {"trained_special": list(tiny_tokenizer.special.names), "task": to_json(STORIES.task)}
    meta |= {"sequence_format": {"type": "gpt_format"}}
    flags.append(f"--checkpoint={make_run(tmp_path / 'checkpoint', spec, **meta)}")
  elif program == "finetune":
    flags += ["--checkpoint=none", f"--tokenizer={prepared}/tokenizer"]
  if "word vectors" in what:
    rows = (f"{word} {' '.join(str(n + i) for i in range(16))}\n" for n, word in enumerate("abc"))
    (tmp_path / "glove.txt").write_text("".join(rows))
    flags.append(f"--config.word_vectors={tmp_path / 'glove.txt'}")
  make = lambda folder: [start(program, *flags, f"--workdir={folder}")]
  kill(what, make, trained, count)


def write_pairs(folder):
  for split in ("train", "val"):
    for side, language in enumerate(("en", "de")):
      lines = "".join(f"{pair[side]}\n" for pair in PAIRS)
      (folder / f"{split}.{language}").write_text(lines)
  rows = "".join(f"<BT> {a}\t{b}\n" for b, a in PAIRS)
  (folder / "synthetic.tsv").write_text(f"en\tde\n{rows}")


def test_backtranslate(kill, start, make_run, tiny_tokenizer, tmp_path, attempts):  # noqa: F811
  """Samples of a model with random weights, some of which end; a file is whole or absent."""
  count = attempts(0.3)
  tokenizer = tiny_tokenizer.with_special("pad", "sep")
  spec = ModelConfig(TRANSLATOR.with_vocabulary(tokenizer))
  meta = {"trained_special": ["pad", "sep"], "sequence_format": {"type": "text_to_text"}}
  task = to_json(PairsTask(source="de", target="en"))
  checkpoint = make_run(tmp_path / "model", spec, tokenizer=tokenizer, task=task, **meta)
  write_pairs(tmp_path)
  (tmp_path / "text.de").write_text((tmp_path / "train.en").read_text() * 20)
  flags = f"--checkpoint={checkpoint}", f"--input={tmp_path}/text.de", "--temperature=1"

  def make(folder):
    folder.mkdir(exist_ok=True)
    out = f"--out={folder}/pairs.tsv"
    return [start("backtranslate", *flags, "--noise=0.1", "--ratio=50", out)]

  kill("backtranslate", make, files_of, count, codes=(0, 2))  # 2: it is there already
