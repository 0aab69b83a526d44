"""Pre-training end to end on a tiny prepared folder: learning, resumption, files, refusals."""

import dataclasses
import json
import math
import os
import shutil
import signal

import jax
import numpy as np
import pytest

from gpt_jax.checkpoints.run_folder import claim
from gpt_jax.checkpoints.store import restore_params
from gpt_jax.data.token_file import TokenFile, TokenWriter
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig, language_model
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.objectives.contrastive import DropoutViews
from gpt_jax.objectives.full_sentences import FullSentences
from gpt_jax.objectives.masked import Masked
from gpt_jax.parallel.mesh import MeshConfig
from gpt_jax.programs import evaluate, pretrain
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.json_lines import read_lines
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.reporter import Reporter

CONFIG = PretrainConfig(
  trunk=TransformerConfig(context=16, layers=1, width=16, heads=2),
  data=WindowsConfig(batch_size=16, length=16),
  optim=OptimConfig(learning_rate=5e-2, warmup_steps=10),
  train=TrainConfig(steps=24, log_every=5, evaluate_every=10, checkpoint_every=6),
)


def changed(config=CONFIG, **changes):
  """changed(train={"steps": 3}): the config with some fields of its groups replaced."""
  groups = {
    name: dataclasses.replace(getattr(config, name), **fields) for name, fields in changes.items()
  }
  return dataclasses.replace(config, **groups)


def entries(workdir):
  return [json.loads(line) for line in read_lines(os.path.join(workdir, "metrics.jsonl"))]


def assert_same_bits(a, b):
  """The newest parameters of two workdirs."""
  (a, _, step_a), (b, _, step_b) = (restore_params(str(workdir)) for workdir in (a, b))
  assert step_a == step_b
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(x.view(np.uint32), y.view(np.uint32)), a, b
  )


@pytest.fixture(scope="module")
def uninterrupted(prepared, tmp_path_factory):
  """(workdir, evaluation) of a run without interruption."""
  workdir = str(tmp_path_factory.mktemp("pretrain") / "uninterrupted")
  return workdir, pretrain.run(CONFIG, prepared, workdir)


def test_text_is_learned(uninterrupted, prepared):
  workdir, evaluation = uninterrupted
  logged = [entry["loss"] for entry in entries(workdir) if "loss" in entry]
  assert logged[-1] < logged[0] - 1
  assert evaluation["valid_loss"] < TokenFile(prepared, "valid").unigram_entropy


def test_files_of_a_run(uninterrupted, prepared):
  workdir, evaluation = uninterrupted
  assert {"config.json", "metrics.jsonl", "checkpoints", "tokenizer"} <= set(os.listdir(workdir))
  assert load_tokenizer(f"{workdir}/tokenizer").hash == load_tokenizer(f"{prepared}/tokenizer").hash
  trained = [entry for entry in entries(workdir) if "loss" in entry]
  evaluated = [entry for entry in entries(workdir) if "valid_loss" in entry]
  assert [entry["step"] for entry in trained] == [5, 10, 15, 20, 24]
  assert [entry["step"] for entry in evaluated] == [10, 20, 24]
  assert {"loss", "learning_rate", "gradient_norm", "tokens_per_second"} <= set(trained[0])
  assert {name: evaluated[-1][name] for name in evaluation} == evaluation
  # Saved at 6, 10, 12, 18, 20 and 24; the newest three are kept, and the last one is also the best.
  assert sorted(os.listdir(f"{workdir}/checkpoints")) == ["18", "20", "24"]
  assert restore_params(workdir)[1]["trained_special"] == []


def test_evaluation_is_the_mean_over_all_held_out_tokens(uninterrupted, prepared):
  """A plain loop over documents and windows, softmax over the vocabulary alone, in float64."""
  workdir, evaluation = uninterrupted
  params, _, _ = restore_params(workdir)
  held_out = TokenFile(prepared, "valid")
  trunk = dataclasses.replace(CONFIG.trunk, vocab_size=held_out.vocab_size)
  apply = jax.jit(language_model(trunk).apply)
  nats = []
  for begin, end in zip(held_out.offsets[:-1], held_out.offsets[1:], strict=True):
    for at in range(begin, end - 1, 16):
      span = held_out.read(at, min(17, end - at))
      row = np.zeros((1, 17), np.int32)
      row[0, : len(span)] = span
      hidden, table, *_ = apply({"params": params}, causal_batch(row)).states
      scores = np.float64(hidden[0]) @ np.float64(table)[: held_out.vocab_size].T
      nats += [
        math.log(np.exp(s).sum()) - s[target] for s, target in zip(scores, span[1:], strict=False)
      ]
  assert len(nats) == held_out.n_tokens - held_out.n_documents
  assert evaluation["valid_loss"] == pytest.approx(np.mean(nats), rel=1e-5)
  assert evaluation["valid_perplexity"] == pytest.approx(np.exp(np.mean(nats)), rel=1e-4)
  bits = np.mean(nats) * held_out.n_tokens / held_out.n_bytes / np.log(2)
  assert evaluation["valid_bits_per_byte"] == pytest.approx(bits, rel=1e-5)


class Stop(Exception):
  pass


def stop_at(monkeypatch, step, act):
  """Calls act() when the progress of a step is reported."""
  progress = Reporter.progress

  def report(self, now, *args):
    progress(self, now, *args)
    if now == step:
      act()

  monkeypatch.setattr(Reporter, "progress", report)


def crash():
  raise Stop


def assert_resumes_exactly(uninterrupted, prepared, workdir, monkeypatch, capsys, resumed_at):
  monkeypatch.undo()
  capsys.readouterr()
  assert pretrain.run(CONFIG, prepared, workdir) == uninterrupted[1]
  assert (f"resumed at step {resumed_at}" in capsys.readouterr().err) == (resumed_at > 0)
  assert_same_bits(workdir, uninterrupted[0])
  timeless = ("time", "tokens_per_second", "input_wait")
  mine, theirs = (
    [{k: v for k, v in e.items() if k not in timeless} for e in entries(w)]
    for w in (workdir, uninterrupted[0])
  )
  return mine, theirs


@pytest.mark.parametrize("place, step, resumed_at", [("", 5, 0), ("", 20, 18), ("gs", 20, 18)])
def test_a_crashed_run_resumes_exactly(
  uninterrupted, prepared, tmp_path, request, monkeypatch, capsys, place, step, resumed_at
):
  workdir = request.getfixturevalue(place) if place else str(tmp_path / "run")
  stop_at(monkeypatch, step, crash)
  with pytest.raises(Stop):
    pretrain.run(CONFIG, prepared, workdir)
  mine, theirs = assert_resumes_exactly(
    uninterrupted, prepared, workdir, monkeypatch, capsys, resumed_at
  )
  assert [e["step"] for e in mine] == [e["step"] for e in theirs]
  assert mine[-1] == theirs[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_run_resumes_exactly(
  uninterrupted, prepared, tmp_path, monkeypatch, capsys, number
):
  workdir = str(tmp_path / "run")
  stop_at(monkeypatch, 10, lambda: os.kill(os.getpid(), number))
  with pytest.raises((SystemExit, KeyboardInterrupt)) as stopped:
    pretrain.run(CONFIG, prepared, workdir)
  if number == signal.SIGINT:
    assert stopped.type is KeyboardInterrupt
  else:
    assert stopped.value.code == 143
  assert "stopped at step 11 of 24 and saved" in capsys.readouterr().err
  assert_resumes_exactly(uninterrupted, prepared, workdir, monkeypatch, capsys, 11)


@pytest.mark.parametrize("step", [10, 24])
def test_terminated_at_an_evaluation_it_is_made(
  uninterrupted, prepared, tmp_path, monkeypatch, capsys, step
):
  workdir = str(tmp_path / "run")
  stop_at(monkeypatch, step - 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
  with pytest.raises(SystemExit):
    pretrain.run(changed(train={"log_every": 1}), prepared, workdir)
  mine, theirs = assert_resumes_exactly(uninterrupted, prepared, workdir, monkeypatch, capsys, step)
  assert [e for e in mine if "valid_loss" in e] == [e for e in theirs if "valid_loss" in e]


def test_a_finished_run_only_evaluates(uninterrupted, prepared, monkeypatch):
  before = entries(uninterrupted[0])
  monkeypatch.setattr(
    "gpt_jax.data.windows.Windows.__call__", lambda *_: pytest.fail("trained again")
  )
  assert pretrain.run(CONFIG, prepared, uninterrupted[0]) == uninterrupted[1]
  assert entries(uninterrupted[0]) == before


def test_a_run_resumes_on_another_mesh(uninterrupted, prepared, tmp_path):
  """To float tolerance: sums in another order round differently."""
  workdir = str(tmp_path / "run")
  shutil.copytree(uninterrupted[0], workdir)
  for step in ("18", "24"):
    shutil.rmtree(f"{workdir}/checkpoints/{step}")
  evaluation = pretrain.run(
    dataclasses.replace(CONFIG, mesh=MeshConfig(data=4, model=2, fsdp=True)), prepared, workdir
  )
  assert evaluation["valid_loss"] == pytest.approx(uninterrupted[1]["valid_loss"], abs=1e-4)


def test_lstm_with_microbatches_on_a_part_of_the_evaluation(prepared, tmp_path):
  config = changed(
    train={"steps": 3, "microbatches": 2, "evaluate_every": 0, "checkpoint_every": 0}
  )
  trunk = LSTMConfig(context=16, width=16, units=8)
  config = dataclasses.replace(
    config, trunk=trunk, mesh=MeshConfig(data=4, model=2), evaluation_batches=1
  )
  evaluation = pretrain.run(config, prepared, str(tmp_path / "run"))
  assert np.isfinite(evaluation["valid_loss"])


def test_milestones_stay(prepared, tmp_path):
  config = changed(train={"steps": 9, "evaluate_every": 0, "checkpoint_every": 1, "milestone": 2})
  pretrain.run(config, prepared, str(tmp_path))
  assert sorted(os.listdir(tmp_path / "checkpoints"), key=int) == ["2", "4", "7", "8", "9"]


def test_keep_checkpoints_is_a_setting(prepared, tmp_path):
  train = {"steps": 5, "evaluate_every": 0, "checkpoint_every": 1, "keep_checkpoints": 2}
  pretrain.run(changed(train=train), prepared, str(tmp_path))
  assert sorted(os.listdir(tmp_path / "checkpoints")) == ["4", "5"]


def test_a_run_that_is_stuck_warns_once(prepared, tmp_path):
  config = changed(
    optim={"learning_rate": 0.0, "warmup_steps": 1}, train={"steps": 8, "log_every": 2}
  )
  with pytest.warns(UserWarning, match="not below the unigram entropy") as warned:
    pretrain.run(config, prepared, str(tmp_path / "run"))
  assert len([w for w in warned if "unigram" in str(w.message)]) == 1


# Refusals, before any training time is spent.


def refused(config, data, workdir, match):
  with pytest.raises(InputError, match=match) as error:
    pretrain.run(config, str(data), str(workdir))
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  "config, match",
  [
    (changed(data={"batch_size": 12}), r"data.batch_size=12: must be a multiple of 8 .*; use 8"),
    (changed(train={"microbatches": 4}), r"data.batch_size=16: must be a multiple of 32"),
    (changed(mesh={"data": 3}), "mesh.data=3 and mesh.model=1 need 3 devices; there are 8 .cpu"),
    (changed(mesh={"model": 4}), r"mesh.model=4: does not divide the axis of size 2"),
    (
      changed(trunk={"vocab_size": 1000}),
      "trunk.vocab_size=1000: the tokenizer has 290; leave the field at 0",
    ),
    (changed(train={"epochs": 1}), "train.steps=24 and train.epochs=1: exactly one of them"),
  ],
)
def test_configs_that_do_not_fit(prepared, tmp_path, config, match):
  refused(config, prepared, tmp_path / "run", match)


def test_windows_longer_than_the_context():
  with pytest.raises(InputError, match="data.length=32: must not exceed trunk.context=16"):
    changed(data={"length": 32})


@pytest.fixture
def copied(prepared, tmp_path):
  """The prepared folder, to be damaged."""
  return shutil.copytree(prepared, tmp_path / "data")


def write_split(folder, split, tokenizer, text, hash=None):
  writer = TokenWriter(str(folder), split, tokenizer.vocab_size)
  writer.add(tokenizer.encode(text), len(text), len(text.split()))
  writer.close(tokenizer_hash=hash or tokenizer.hash)


def test_a_corpus_shorter_than_a_window(copied, tmp_path, tiny_tokenizer):
  write_split(copied, "train", tiny_tokenizer, "the cat")
  config = changed(data={"sampling": "across_documents"})
  refused(config, copied, tmp_path / "run", "are less than one window of length")


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_token_file_of_another_vocabulary(copied, tmp_path, tiny_tokenizer, split):
  write_split(
    copied,
    split,
    tiny_tokenizer,
    "the cat sat on the mat and the dog ran to the sea",
    hash="0" * 64,
  )
  refused(
    CONFIG,
    copied,
    tmp_path / "run",
    rf"{split}.bin: a token file of another vocabulary, 000000000000, not ",
  )


def test_missing_and_truncated_data(copied, tmp_path):
  refused(
    CONFIG,
    tmp_path / "nowhere",
    tmp_path / "run",
    r"nowhere/train.json: missing; .* made by launch/prepare.py",
  )
  with open(copied / "valid.bin", "r+b") as file:
    file.truncate(10)
  refused(CONFIG, copied, tmp_path / "run", "valid.bin: truncated, 10 bytes instead of")
  (copied / "train.json").unlink()
  refused(CONFIG, copied, tmp_path / "run", "train.json: missing")
  assert not (tmp_path / "run").exists()


def test_a_workdir_of_another_config(uninterrupted, prepared):
  config = changed(train={"seed": 1}, trunk={"width": 32})
  refused(
    config,
    prepared,
    uninterrupted[0],
    r"another config \(.*trunk.width: 16 != 32.*train.seed: 0 != 1\)",
  )


def test_a_workdir_of_other_data(uninterrupted, copied, tiny_tokenizer):
  text = TokenFile(copied, "train")
  ids = text.read(0, text.n_tokens)
  writer = TokenWriter(copied, "train", text.vocab_size)
  for document in np.split(ids[::-1], text.offsets[1:-1]):  # as many tokens and documents
    writer.add(document, 1, 1)
  writer.close(tokenizer_hash=tiny_tokenizer.hash)
  refused(CONFIG, copied, uninterrupted[0], r"config \(data train_digest: \w+ != \w+\)")
  write_split(copied, "train", tiny_tokenizer, "the cat sat on the mat " * 20)
  refused(CONFIG, copied, uninterrupted[0], r"data train_tokens: \d+ != \d+")


def test_damaged_text_is_noticed_in_training_and_evaluation(copied, uninterrupted, tmp_path):
  for split in ("train", "valid"):
    path = copied / f"{split}.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
  refused(CONFIG, copied, tmp_path / "run", r"train\.bin: wrong checksum of the bytes from 0 on")
  with pytest.raises(InputError, match=r"valid\.bin: wrong checksum of the bytes from 0"):
    evaluate.run(uninterrupted[0], str(copied))


def test_settings_that_may_change_on_resuming(uninterrupted, prepared, tmp_path):
  workdir = str(tmp_path / "run")
  shutil.copytree(uninterrupted[0], workdir)
  train = {"log_every": 1, "checkpoint_every": 7, "keep_checkpoints": 9}
  again = changed(train=train, mesh={"data": 8})
  assert pretrain.run(again, prepared, workdir)["valid_loss"] == pytest.approx(
    uninterrupted[1]["valid_loss"], abs=1e-5
  )


def test_a_checkpoint_of_another_size(uninterrupted, prepared, tmp_path):
  """The checkpoints of another run, copied into this one's folder."""
  workdir = tmp_path / "run"
  pretrain_config = changed(trunk={"width": 32}, train={"microbatches": 1})
  claim(
    str(workdir),
    dataclasses.replace(
      pretrain_config, trunk=dataclasses.replace(pretrain_config.trunk, vocab_size=290)
    ),
    load_tokenizer(f"{prepared}/tokenizer"),
    pretrain.data_identity(TokenFile(prepared, "train"), TokenFile(prepared, "valid")),
  )
  shutil.copytree(f"{uninterrupted[0]}/checkpoints", workdir / "checkpoints")
  refused(
    pretrain_config, prepared, workdir, r"checkpoints/24 is of another model: .* there and .* here"
  )


# Longer runs, and runs that start from a checkpoint.


def test_a_finished_run_goes_on_when_its_steps_are_raised(
  uninterrupted, prepared, tmp_path, monkeypatch, capsys
):
  """The remaining steps follow the new schedule, and an interruption changes nothing."""
  longer, workdirs = changed(train={"steps": 40}), []
  for name in ("straight", "interrupted"):
    workdirs.append(str(tmp_path / name))
    shutil.copytree(uninterrupted[0], workdirs[-1])
  pretrain.run(longer, prepared, workdirs[0])
  shown = capsys.readouterr().err
  assert "from step 24 on 40 steps instead of 24, and the learning rate follows their" in shown
  rates = {e["step"]: e["learning_rate"] for e in entries(workdirs[0]) if "learning_rate" in e}
  schedule = longer.optim.learning_rate * 0.5 * (1 + math.cos(math.pi * 29 / 40))
  assert rates[30] == pytest.approx(schedule, rel=0.3) and rates[24] < rates[25] / 3
  assert [e for e in entries(workdirs[0]) if e["step"] <= 24] == entries(uninterrupted[0])

  stop_at(monkeypatch, 35, crash)
  with pytest.raises(Stop):
    pretrain.run(longer, prepared, workdirs[1])
  monkeypatch.undo()
  capsys.readouterr()
  pretrain.run(longer, prepared, workdirs[1])
  assert "instead of" not in capsys.readouterr().err
  assert_same_bits(*workdirs)
  with open(f"{workdirs[1]}/config.json", encoding="utf-8") as file:
    content = json.load(file)
  assert content["config"]["train"]["steps"] == 40
  assert content["changes"] == [{"at_step": 24, "total_steps": [24, 40]}]


def test_a_run_is_not_made_shorter_than_it_is(uninterrupted, prepared):
  with open(f"{uninterrupted[0]}/config.json", encoding="utf-8") as file:
    before = file.read()
  refused(
    changed(train={"steps": 23}),
    prepared,
    uninterrupted[0],
    "train.steps=23: the run in .* has made 24 updates already",
  )
  with open(f"{uninterrupted[0]}/config.json", encoding="utf-8") as file:
    assert file.read() == before


def test_a_constant_rate_does_not_depend_on_the_length(prepared, tmp_path, capsys):
  """Raising the steps of such a run gives the parameters of a run that had them at once."""
  short = changed(optim={"schedule": "constant"}, train={"steps": 4, "evaluate_every": 0})
  longer = changed(short, train={"steps": 9})
  pretrain.run(short, prepared, str(tmp_path / "extended"))
  capsys.readouterr()
  pretrain.run(longer, prepared, str(tmp_path / "extended"))
  assert "9 steps instead of 4, which does not change the learning" in capsys.readouterr().err
  pretrain.run(longer, prepared, str(tmp_path / "at_once"))
  assert_same_bits(tmp_path / "extended", tmp_path / "at_once")


FIRST_STEP = {"steps": 1, "evaluate_every": 0, "checkpoint_every": 0}


def test_a_run_starts_from_a_checkpoint(uninterrupted, prepared, tmp_path, monkeypatch, capsys):
  """The first update has learning rate 0 and no decay: its parameters are the checkpoint's."""
  sizes = dataclasses.replace(CONFIG, trunk=TransformerConfig())  # the checkpoint brings its own
  config = changed(sizes, train=FIRST_STEP, optim={"weight_decay": 0.0})
  workdir, pretrained = str(tmp_path / "run"), uninterrupted[0]
  evaluation = pretrain.run(config, prepared, workdir, pretrained=pretrained)
  assert f"start   {pretrained}, step 24: sizes, vocabulary" in capsys.readouterr().err
  assert evaluation["valid_loss"] == pytest.approx(uninterrupted[1]["valid_loss"], abs=1e-6)
  mine, theirs = (restore_params(folder)[0]["trunk"] for folder in (workdir, pretrained))
  vocab_size = load_tokenizer(f"{prepared}/tokenizer").vocab_size
  for trunk in (mine, theirs):  # untrained special tokens are drawn anew
    trunk["tokens"] = trunk["tokens"][:vocab_size]
  jax.tree.map(np.testing.assert_array_equal, mine, theirs)

  # The start belongs to the run.
  without = dataclasses.replace(config, trunk=CONFIG.trunk)
  refused(without, prepared, workdir, "another config .data pretrained: step 24, .* != None")
  shutil.rmtree(f"{workdir}/checkpoints")
  config = changed(config, train={"steps": 8, "log_every": 1, "checkpoint_every": 3})
  pretrain.run(config, prepared, workdir, pretrained=pretrained)
  stop_at(monkeypatch, 5, crash)
  with pytest.raises(Stop):
    pretrain.run(config, prepared, str(tmp_path / "resumed"), pretrained=pretrained)
  monkeypatch.undo()
  pretrain.run(config, prepared, str(tmp_path / "resumed"), pretrained=pretrained)
  assert "resumed at step 3" in capsys.readouterr().err
  assert_same_bits(workdir, tmp_path / "resumed")


def test_a_masked_model_keeps_its_head(prepared, tmp_path):
  config = dataclasses.replace(CONFIG, objective=Masked())
  config = changed(config, train={"steps": 6}, optim={"learning_rate": 1e-2, "weight_decay": 0.0})
  pretrain.run(config, prepared, str(tmp_path / "first"))
  config = changed(config, train=FIRST_STEP)
  pretrain.run(config, prepared, str(tmp_path / "second"), pretrained=str(tmp_path / "first"))
  first, second = (restore_params(str(tmp_path / name)) for name in ("first", "second"))
  jax.tree.map(np.testing.assert_array_equal, first[0]["masked"], second[0]["masked"])
  assert second[1]["trained_special"] == ["mask"]
  mask = load_tokenizer(f"{tmp_path}/second/tokenizer").special.mask
  tables = (params["trunk"]["tokens"][mask] for params, *_ in (first, second))
  np.testing.assert_array_equal(*tables)


def test_plain_text_goes_on_in_the_checkpoints_format(make_run, prepared, tmp_path, tiny_tokenizer):
  """As a released BERT does on a user's own text."""
  tokenizer = tiny_tokenizer.with_special("cls", "sep", "mask")
  trunk = TransformerConfig(
    tokenizer.vocab_size, 32, 1, 16, 2, special_tokens=3, token_types=2, pooler=True
  )
  spec = ModelConfig(trunk, (), "bidirectional")
  bert = {"type": "bert_format"}
  start = make_run(tmp_path / "bert", spec, tokenizer=tokenizer, sequence_format=bert)
  config = changed(train=FIRST_STEP, optim={"weight_decay": 0.0})
  for name, objective in {
    "masked": Masked(),
    "views": DropoutViews("bidirectional", "cls"),
  }.items():
    config = dataclasses.replace(config, trunk=TransformerConfig(), objective=objective)
    pretrain.run(config, prepared, str(tmp_path / name), pretrained=start)
    params, meta, *_ = restore_params(str(tmp_path / name))
    assert meta["sequence_format"] == bert
    for part in ("pooler", "types"):  # kept for fine-tuning; the first update has rate 0
      theirs = make_run.params_of(spec, 7)["trunk"][part]
      jax.tree.map(np.testing.assert_array_equal, params["trunk"][part], theirs)
  config = dataclasses.replace(config, objective=FullSentences())
  with pytest.raises(InputError, match="are of bert_format, those of .* roberta_format; use"):
    pretrain.run(config, prepared, str(tmp_path / "full"), pretrained=start)
  assert not (tmp_path / "full").exists()


def test_a_start_that_does_not_fit(uninterrupted, prepared, copied, tmp_path, tiny_tokenizer):
  def refused_start(config, data, match):
    with pytest.raises(InputError, match=match) as error:
      pretrain.run(config, str(data), str(tmp_path / "run"), pretrained=uninterrupted[0])
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()

  refused_start(
    changed(trunk={"layers": 2}),
    prepared,
    "brings its own sizes: trunk.layers=2, the checkpoint's is 1; leave them out",
  )
  lstm = dataclasses.replace(CONFIG, trunk=LSTMConfig(context=16, width=16, units=8))
  refused_start(lstm, prepared, "trunk is a LSTMConfig, the checkpoint a TransformerConfig")
  masked = dataclasses.replace(CONFIG, objective=Masked())
  refused_start(masked, prepared, "has causal attention, the config's objective bidirectional")
  default = dataclasses.replace(CONFIG, trunk=TransformerConfig(), data=WindowsConfig(length=32))
  refused_start(default, prepared, "data.length=32: must not exceed trunk.context=16")
  other = SentencePieceTokenizer.train(["a cat and a dog and a car"] * 3, 276)
  other.save(str(copied / "tokenizer"))
  for split in ("train", "valid"):
    write_split(copied, split, other, "a cat and a dog and a car " * 9)
  refused_start(CONFIG, copied, "its vocabulary is not that of the prepared text, .*--tokenizer=")
