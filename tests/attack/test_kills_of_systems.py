"""Killed runs of the systems around GPT-1 go on as if nothing had been: a mixture of texts, both
directions of an LSTM, labeled and unlabeled batches in turns, pairs of texts.
"""

import dataclasses
import json
import shutil

import pytest
from test_kills import kill, start, trained  # noqa: F401  # fixtures

from gpt_jax.config import to_json
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.heads.views import ViewsHead
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.bidirectional_lm import BidirectionalLM
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig

pytestmark = pytest.mark.attack
TRAIN = TrainConfig(steps=24, log_every=1, evaluate_every=12, checkpoint_every=3)
STACK = LSTMStackConfig(
  context=96, embedding_width=16, units=(16, 16), tied=False, recurrent_dropout=0.0
)
WORDS = "cat mat dog barn sea old"
PAIRS = [(f"the {a} on the {b}", f"{b} and {a}") for a in WORDS.split() for b in WORDS.split()]


def mixture():
  trunk = TransformerConfig(context=16, layers=1, width=16, heads=2)
  return PretrainConfig(trunk, data=WindowsConfig(8, 16, weights=(0.75, 0.25)), train=TRAIN)


def both_directions():
  trunk = dataclasses.replace(STACK, directions="separate", variational=False)
  return PretrainConfig(trunk, objective=BidirectionalLM(), data=WindowsConfig(8, 16), train=TRAIN)


def cross_view():
  return FinetuneConfig(
    task=BuiltinTask("story-tags"),
    lm_weight=0.0,
    mix=ViewsHead(units=16, dropout=0.2),
    train_examples=24,
    unlabeled=True,
    dev_examples=32,
    batch_size=8,
    trunk=dataclasses.replace(STACK, directions="joined"),
    train=TRAIN,
  )


def translation():
  trunk = LSTMEncoderDecoderConfig(context=32, embedding_width=16, units=16)
  return FinetuneConfig(
    task=PairsTask(source="en", target="de"), trunk=trunk, batch_size=8, train=TRAIN
  )


SYSTEMS = {
  "pretrain on a mixture": mixture,
  "pretrain both directions": both_directions,
  "finetune with views": cross_view,
  "finetune to translate": translation,
}


@pytest.mark.parametrize("what", SYSTEMS)
def test_a_system(kill, start, prepared, tmp_path, attempts, what):  # noqa: F811
  count = attempts(0.3)
  config = SYSTEMS[what]()
  (tmp_path / "config.json").write_text(json.dumps(to_json(config)))
  (tmp_path / "config.py").write_text(
    "import json\nfrom gpt_jax.config import from_json\n\ndef get_config():\n"
    f"  return from_json(json.load(open({str(tmp_path / 'config.json')!r})))\n"
  )
  program = what.split()[0]
  flags = [f"--config={tmp_path / 'config.py'}"]
  if program == "pretrain":
    shutil.copytree(prepared, tmp_path / "second")
    folders = f"{prepared},{tmp_path / 'second'}" if "mixture" in what else prepared
    flags.append(f"--data={folders}")
  else:
    for split in ("train", "val"):
      for side, language in enumerate(("en", "de")):
        lines = "".join(f"{pair[side]}\n" for pair in PAIRS)
        (tmp_path / f"{split}.{language}").write_text(lines)
    flags += [f"--data={tmp_path}", "--checkpoint=none", f"--tokenizer={prepared}/tokenizer"]
  make = lambda folder: [start(program, *flags, f"--workdir={folder}")]
  kill(what, make, trained, count)
