"""From a vocabulary of BERT's or RoBERTa's kind to predictions, in the checkpoint's format."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from refused import refused

import gpt_jax
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.gpt2 import ByteBPETokenizer
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked import Masked
from gpt_jax.programs import evaluate, export, finetune, predict, prepare, pretrain
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.prepare import PrepareConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.start import Start, load_start, transform_of
from gpt_jax.tasks.formats import BERTFormat, GPTFormat, RoBERTaFormat
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

pytestmark = [pytest.mark.e2e, pytest.mark.parity("released")]

TRUNK = TransformerConfig(context=64, layers=1, width=16, heads=2)
MASKED = PretrainConfig(
  TRUNK,
  Masked(),
  WindowsConfig(batch_size=8, length=32),
  OptimConfig(learning_rate=1e-2, warmup_steps=1),
  train=TrainConfig(steps=2),
)
TASK = FinetuneConfig(
  task=BuiltinTask("story-company"),
  lm_weight=0.0,
  batch_size=8,
  train_examples=16,
  dev_examples=8,
  optim=OptimConfig(learning_rate=1e-2, schedule="linear", warmup_steps=1),
  train=TrainConfig(steps=2),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
  """A file of sentences, as many documents."""
  folder = tmp_path_factory.mktemp("text")
  with open(folder / "text.jsonl", "w") as file:
    for n in range(40):
      row = {"text": f"The cat sat on mat {n}. The dog ran to the old red barn by the sea! " * 3}
      file.write(json.dumps(row) + "\n")
  return str(folder / "text.jsonl")


@pytest.fixture(scope="module")
def wordpiece(text, tmp_path_factory):
  """The data, the pre-trained and the fine-tuned folder of a WordPiece vocabulary."""
  pytest.importorskip("tokenizers")
  folder = tmp_path_factory.mktemp("wordpiece")
  names = {name: str(folder / name) for name in ("data", "pretrained", "finetuned")}
  config = PrepareConfig(text, vocab_size=80, vocabulary="wordpiece", valid_share=0.1)
  prepare.run(config, names["data"])
  pretrain.run(MASKED, names["data"], names["pretrained"])
  finetune.run(TASK, "", names["pretrained"], names["finetuned"])
  return SimpleNamespace(**names)


def test_prepare_trains_the_kind_and_knows_it_again(text, wordpiece, tmp_path, capsys):
  tokenizer = load_tokenizer(f"{wordpiece.data}/tokenizer")
  assert isinstance(tokenizer, WordPieceTokenizer) and tokenizer.vocab_size == 80
  config = PrepareConfig(text, vocab_size=80, vocabulary="wordpiece", valid_share=0.1)
  prepare.run(config, wordpiece.data)
  assert "already prepared" in capsys.readouterr().out
  other = dataclasses.replace(config, vocabulary="bytes", vocab_size=300)
  refused("vocab", prepare.run, other, wordpiece.data)
  prepare.run(other, str(tmp_path / "bytes"))
  assert isinstance(load_tokenizer(tmp_path / "bytes" / "tokenizer"), ByteBPETokenizer)
  with pytest.raises(InputError, match="--vocabulary=bytes is for a vocabulary to train"):
    prepare.run(dataclasses.replace(other, tokenizer=f"{wordpiece.data}/tokenizer"), "out")


def test_folders_of_before_are_of_the_only_kind(text, tmp_path, capsys):
  config = PrepareConfig(text, vocab_size=300, valid_share=0.1)
  prepare.run(config, str(tmp_path / "out"))
  settings = json.loads((tmp_path / "out" / "prepare.json").read_text())
  del settings["vocabulary"]
  (tmp_path / "out" / "prepare.json").write_text(json.dumps(settings))
  prepare.run(config, str(tmp_path / "out"))
  assert "already prepared" in capsys.readouterr().out


def test_all_rows_are_the_vocabularys(wordpiece):
  pretrained, finetuned = load_model(wordpiece.pretrained), load_model(wordpiece.finetuned)
  assert pretrained.meta["sequence_format"] == {"type": "roberta_format"}
  for loaded in (pretrained, finetuned):
    assert loaded.spec.trunk.special_tokens == 0 and loaded.format == RoBERTaFormat()
    assert loaded.tokenizer.special.items() == [("pad", 0), ("cls", 2), ("sep", 3), ("mask", 4)]
  start = load_start(TASK, wordpiece.pretrained, "")
  np.testing.assert_array_equal(
    start.params["trunk"]["tokens"], pretrained.params["trunk"]["tokens"]
  )


def test_every_program_reads_the_checkpoints_format(wordpiece, tmp_path):
  best = f"{wordpiece.finetuned}/best"
  loaded = load_model(best)
  task = loaded.task
  examples = task.examples("", "dev")[:8]
  encoded = loaded.encode(task, examples)
  assert encoded.fields.shape == (8, 1, 2)  # similarity in one order
  ids = encoded.sequence(0, 0).tolist()
  assert ids[0] == 2 and ids[-1] == 3 and ids.count(3) == 3
  probabilities = loaded.predictor()(encoded, 8)
  rows = [example.sequences[0] for example in examples]
  classified = gpt_jax.load(best).classify(rows, calibrated=False)
  assert list(classified[0]) == list(task.labels)
  np.testing.assert_allclose([list(row.values()) for row in classified], probabilities, atol=1e-5)
  lines = ["\t".join(task.columns), *("\t".join(row) for row in rows)]
  (tmp_path / "rows.tsv").write_text("\n".join(lines) + "\n")
  results = predict.run(best, source=str(tmp_path / "rows.tsv"), output=str(tmp_path / "out.tsv"))
  predicted = [list(result["probabilities"].values()) for result in results]
  np.testing.assert_allclose(predicted, probabilities, atol=1e-5)
  measured = evaluate.run(best, "", "dev")
  whole = loaded.encode(task, task.examples("", "dev"))
  expected = task.score(loaded.predictor()(whole, 32), whole.truth)
  assert measured["accuracy"] == pytest.approx(expected["accuracy"])
  export.run(best, str(tmp_path / "npz"), "npz")
  assert load_model(str(tmp_path / "npz")).format == RoBERTaFormat()


@pytest.fixture
def full_table(make_run, tiny_tokenizer, tmp_path):
  """A bidirectional model whose token table has a row for every id and no row more."""
  named = [f"sentinel_{i}" for i in range(384 - tiny_tokenizer.vocab_size - 4)]
  tokenizer = tiny_tokenizer.with_special("mask", *named)
  trunk = dataclasses.replace(
    TRUNK, vocab_size=tokenizer.vocab_size, special_tokens=tokenizer.special.count
  )
  assert trunk.rows == 384 == tokenizer.vocab_size + tokenizer.special.count
  spec = ModelConfig(trunk, (), "bidirectional")
  meta = {"trained_special": ["mask"], "sequence_format": {"type": "bert_format"}}
  return make_run(tmp_path / "full", spec, tokenizer=tokenizer, **meta)


def test_special_tokens_of_the_format_get_rows(full_table, tmp_path):
  before = load_model(full_table)
  start = load_start(TASK, full_table, "")
  assert (
    start.format == BERTFormat() and start.trunk.rows == len(start.params["trunk"]["tokens"]) == 512
  )
  special = start.tokenizer.special
  assert (special["cls"], special["sep"]) == (384, 385)
  finetune.run(TASK, "", full_table, str(tmp_path / "run"))
  after = load_model(str(tmp_path / "run"))
  assert after.meta["sequence_format"] == {"type": "bert_format"}
  assert {"cls", "sep", "mask"} <= set(after.meta["trained_special"])
  table = after.params["trunk"]["tokens"]
  mask = before.tokenizer.special["mask"]
  np.testing.assert_allclose(table[mask], before.params["trunk"]["tokens"][mask], atol=0.05)
  assert 0.005 < table[384:386].std() < 0.1  # initialized for this run, and trained


def test_a_checkpoint_without_a_format_has_gpts(make_run, tmp_path, tiny_tokenizer):
  trunk = dataclasses.replace(TRUNK, vocab_size=tiny_tokenizer.vocab_size)
  folder = make_run(tmp_path / "old", ModelConfig(trunk, attention="bidirectional"))
  start = load_start(TASK, folder, "")
  assert load_model(folder).format == start.format == GPTFormat()
  assert start.trunk.special_tokens == 3 and start.tokenizer.special.count == 3


def test_what_stands_before_the_head():
  trunk = SimpleNamespace(gives={"pooler"})
  start = Start(trunk, "bidirectional", None, format=BERTFormat())
  assert transform_of(start) == "pooler"
  assert transform_of(dataclasses.replace(start, trunk=TRUNK)) == "none"
  assert transform_of(dataclasses.replace(start, trunk=TRUNK, format=RoBERTaFormat())) == "dense"


# User errors --------------------------------------------------------------------------------------


def test_a_vocabulary_without_mask_is_refused(text, wordpiece, tmp_path):
  pieces = [p for p in load_tokenizer(f"{wordpiece.data}/tokenizer").pieces if p != "[MASK]"]
  (tmp_path / "vocabulary").mkdir()
  (tmp_path / "vocabulary" / "vocab.txt").write_text("\n".join(pieces) + "\n")
  config = PrepareConfig(text, tokenizer=str(tmp_path / "vocabulary"), valid_share=0.1)
  prepare.run(config, str(tmp_path / "data"))
  fault = rf"^{tmp_path}/data/tokenizer: a wordpiece vocabulary without \[MASK\]"
  refused(fault, pretrain.run, MASKED, str(tmp_path / "data"), str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


def test_an_unknown_format_is_one_line(make_run, tmp_path, tiny_tokenizer):
  trunk = dataclasses.replace(TRUNK, vocab_size=tiny_tokenizer.vocab_size)
  spec = ModelConfig(trunk, (), "bidirectional")
  folder = make_run(tmp_path / "x", spec, sequence_format={"type": "bart_format"})
  with pytest.raises(InputError, match=f"^{folder}: .*bart_format.*bert_format"):
    finetune.run(TASK, "", folder, str(tmp_path / "run"))
