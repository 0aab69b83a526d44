"""Each core program once, by its command line: from a text to labels, and out and in again.

What programs do beyond this is tested on the functions below them, and in tests/programs.
"""

import csv
import re

import pytest
from in_process import launch
from tiny_runs import PRETRAIN, changed, write_config, write_table

CONFIG = changed(PRETRAIN, train={"steps": 24, "log_every": 12})
CLAUSE = "the cat sat on the mat and the dog ran to the old red barn by the sea. "


def done(program, *arguments):
  """Standard output of a program that succeeds."""
  code, out, err = launch(program, *arguments)
  assert code == 0, err
  return out


@pytest.fixture(scope="module")
def here(tmp_path_factory):
  folder = tmp_path_factory.mktemp("core")
  write_config(folder / "tiny.py", CONFIG)
  for number in range(20):
    (folder / f"book_{number}.txt").write_text(CLAUSE * 9)
  for split, count in (("train", 64), ("dev", 16), ("test", 4)):
    write_table(folder, [("the cat sat", "yes"), ("the dog sat", "no")] * (count // 2), [split])
  return folder


@pytest.fixture(scope="module")
def prepared(here):
  out = f"--out={here}/data"
  done("prepare", f"--source={here}/book_*.txt", "--vocab_size=290", "--valid_share=0.1", out)
  return f"{here}/data"


@pytest.fixture(scope="module")
def pretrained(here, prepared):
  done("pretrain", f"--config={here}/tiny.py", f"--data={prepared}", f"--workdir={here}/lm")
  return f"{here}/lm"


@pytest.fixture(scope="module")
def finetuned(here, pretrained):
  fields = "task.test=test.tsv batch_size=16 train.epochs=4 optim.learning_rate=0.02"
  changes = [f"--config.{field}" for field in (*fields.split(), "optim.warmup_share=0.1")]
  places = f"--data={here}", f"--checkpoint={pretrained}", f"--workdir={here}/labels"
  done("finetune", "--config=finetune:table", *places, *changes)
  return f"{here}/labels"


def test_prepare_makes_tokens_and_a_vocabulary(prepared):
  from gpt_jax.data.token_file import TokenFile

  train, valid = (TokenFile(prepared, split) for split in ("train", "valid"))
  assert (train.n_documents, valid.n_documents) == (18, 2)
  assert train.vocab_size == 290


def test_a_pretrained_model_knows_its_text(pretrained, prepared):
  """evaluate prints a perplexity far below that of the words' frequencies alone."""
  out = done("evaluate", f"--checkpoint={pretrained}", f"--data={prepared}")
  perplexity = float(re.search(r"perplexity +([\d.,]+)", out)[1])
  assert perplexity < 15


def test_it_generates(pretrained):
  arguments = ("--prompt=the cat", "--max_tokens=8", "--seed=1")
  texts = [done("generate", f"--checkpoint={pretrained}", *arguments) for _ in range(2)]
  assert texts[0] == texts[1] and texts[0].startswith("the cat")


def test_a_finetuned_model_labels(finetuned, here):
  """evaluate on the dev rows, and predict on rows whose labels it does not read."""
  checkpoint = f"--checkpoint={finetuned}/best"
  assert re.search(r"accuracy +1\.0", done("evaluate", checkpoint, f"--data={here}"))
  labels = here / "labels.tsv"
  done("predict", checkpoint, f"--data={here}", "--split=test", f"--out={labels}")
  rows = csv.DictReader(labels.read_text().splitlines(), delimiter="\t")
  assert [row["prediction"] for row in rows] == ["yes", "no", "yes", "no"]


def test_it_goes_out_and_in_again(pretrained, here):
  """export, import_weights and verify: all formats of one model are equal."""
  arrays, copy = f"{here}/arrays", f"{here}/copy"
  done("export", f"--checkpoint={pretrained}", "--format=npz", f"--out={arrays}")
  done("import_weights", "--format=npz", f"--checkpoint={arrays}", f"--out={copy}")
  compared = (f"--checkpoint={pretrained}", f"--checkpoint={copy}", "--text=the cat sat")
  assert "equal" in done("verify", *compared)


def test_the_tasks_are_listed():
  assert re.search(r"^rte +entailment", done("tasks"), re.MULTILINE)
