"""Bad input on the command line: a one-line message, exit code 2, and no file lost."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from refused import table
from tiny_runs import write_config

from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.run_folder import claim
from gpt_jax.config import to_json
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import prepare
from gpt_jax.programs.config_files import override_all
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.pretrain_text import data_identity
from gpt_jax.training.loop import TrainConfig

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[1]

CONFIG = PretrainConfig(
  trunk=TransformerConfig(context=64, layers=1, width=16, heads=2),
  data=WindowsConfig(batch_size=8, length=16),
  train=TrainConfig(steps=2),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory, finetuned, release):
  """A folder with every kind of bad input."""
  here = tmp_path_factory.mktemp("world")
  write_config(here / "tiny.py", CONFIG)
  line = "the cat sat on the mat and the dog ran to the old red barn\n"
  (here / "text.txt").write_text(20 * line)
  (here / "empty.txt").write_text("")
  (here / "latin.txt").write_bytes(b"the caf\xe9\xec\xf8\n")
  (here / "program").write_bytes(b"\x7fELF\xf8\0\0")
  shutil.copytree(release.folder, here / "release")
  (here / "hf").mkdir()
  sizes = {"vocab_size": 257, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
  (here / "hf" / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
  (here / "hf" / "model.safetensors").write_bytes(b"\xff" * 16)
  GPT2Tokenizer((*BYTES, "<|endoftext|>"), ()).save(str(here / "hf" / "tokenizer"))
  (here / "rows.tsv").write_text("text\tlabel\nthe cat\tmeows\n")
  prepare.run(prepare.PrepareConfig(str(here / "text.txt"), vocab_size=290), str(here / "prepared"))

  for task, line in (("labels", "the dog\tmoos\n"), ("columns", "the dog\n")):
    (here / task).mkdir()
    (here / task / "train.tsv").write_text("text\tlabel\nthe cat\tmeows\n" + line)
    (here / task / "dev.tsv").write_text("text\tlabel\nthe cat\tmeows\n")

  tokenizer = load_tokenizer(str(here / "prepared" / "tokenizer"))
  changes = [("trunk.vocab_size", str(tokenizer.vocab_size)), ("train.microbatches", "1")]
  config = override_all(CONFIG, changes)
  text, held_out = (TokenFile(str(here / "prepared"), split) for split in ("train", "valid"))
  claim(str(here / "run"), config, tokenizer, data_identity(text, held_out))

  paths = {
    "configs": f"{ROOT}/configs",
    "table": f"--config={ROOT}/configs/finetune.py:table --workdir=new --config.batch_size=8",
    "task": finetuned.data_dir,
    "pretrained": finetuned.pretrained,
    "finetuned": f"{finetuned.workdir}/seed_0",
    "long": "the," * 70,
  }
  return SimpleNamespace(folder=here, paths=paths)


def contents(folder):
  return {
    str(path): path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest()
    for path in Path(folder).rglob("*")
  }


# Programs with arguments that several cases share; below them, further arguments => the line.
CASES = """\
prepare --out=new
  --source=nothing.txt => nothing.txt: no such file
  --source=empty.txt => empty.txt: there is no text in it
  --source=program => program: not UTF-8 at byte 4; binary, not text: it has bytes that are 0
  --vocab_size 300 my novels => did you mean --source=my?
  --source=ftp://a/b => ftp://a/b: ftp:// is not supported
  --source=rows.tsv --text_column=body =>
    rows.tsv: no column 'body' (its columns: 'text', 'label'); name the one that holds the text
  --source=rows.tsv --text_column=text --text_column=body => rows.tsv: no column 'body'
prepare --source=text.txt --out=new
  --extend=prepared --add_tokens=1 => no tokenizer here
  --add_tokens=1 => --add_tokens=1: goes with --extend=DIR
  --vocab_size=-1 => --vocab_size=-1: must be an integer from 0 to
  --source= => 'text.txt,': an empty name of a source
prepare --source=text.txt
  --out=run => not empty, and not made by prepare
  --out=/proc/new => --out=/proc/new: cannot be made
  --out=text.txt/new => --out=
pretrain --config=tiny.py --workdir=new
  --data=text.txt => 'text.txt' must be a folder made by launch/prepare.py
  --data=prepared,nothing => --data=nothing: no such folder
  --data= => train.json: missing
pretrain --config=tiny.py --workdir=new --data=prepared
  --config.optim.optimizer=adam =>
    bert, fairseq, adafactor, adagrad, adamw, lamb, momentum (the Adam of OpenAI, optax (
  --config.mesh.model=3 => mesh.model=3 needs a multiple of 3 devices; there are 8
  --pretrained=run => --pretrained is now --checkpoint
  --lr=1e-3 => did you mean --config.optim.learning_rate?
pretrain --config=tiny.py --data=prepared
  --workdir= => --workdir= is empty; give a name
  --workdir=text.txt => --workdir=text.txt is a file
  --workdir=text.txt/new => --workdir=text.txt/new is a file
  --workdir=/proc/new => --workdir=/proc/new: cannot be written
  --workdir=run --config.train.seed=3 => another config (train.seed: 0 != 3)
finetune {table} --data=labels
  --checkpoint=runn/best => --checkpoint=runn/best: no such folder
finetune {table} --data=labels --checkpoint={pretrained}
  --tokenizer=prepared/tokenizer => --tokenizer is for --checkpoint=none
  --config.task.labels=barks,meows =>
    labels/train.tsv:3: label 'moos': should be one of barks, meows
finetune {table} --checkpoint={pretrained}
  --data=columns => columns/train.tsv:3: 1 column
  --data={task} --config.transfer_layers=2 => transfer_layers=2: the checkpoint has 1 block
finetune --config={configs}/finetune.py:table --config.batch_size=8
  --workdir=run --data={task} --checkpoint={pretrained} => holds a run of a PretrainConfig
finetune
  --config={configs}/finetune.py --data=labels --checkpoint=run --workdir=new => finetune.py:TASK
finetune --data=labels --checkpoint={pretrained} --workdir=new
  --config=tiny.py => --config: a PretrainConfig; fine-tuning takes that of configs/finetune.py:TASK
label --checkpoint={pretrained} --workdir=new
  rows.tsv --input=rows.tsv => unexpected argument 'rows.tsv'
  a.csv b.csv => unexpected argument 'a.csv'
label rows.tsv --workdir=new
   --checkpoint=runs/story => --checkpoint=runs/story: no such folder
   --from=nowhere => --from=nowhere: no such folder
predict --checkpoint={finetuned}
  --input=latin.txt --out=new.tsv => latin.txt:1: not UTF-8 (byte
  --input=empty.txt => empty.txt: empty
  => give either --input, a file of rows, or --data
  --input=rows.tsv --data=labels => give either --input
  --input=rows.tsv --split=dev => --split=dev needs --data
  --data=labels --split=train => labels/train.tsv:3: label 'moos'
  --input=/dev/null => /dev/null: cannot be read (not a regul
  --input=rows.tsv --out=text.txt => already exists; name
glue
  => missing --checkpoint, --data, --out; or --check alone
  --checkpoint={finetuned} --data=tfds:labels --out=new.zip => TFDS shuffles the rows
  --check=text.txt --out=new.zip => --check cannot be combined with --checkpoint
  --check=text.txt => text.txt: not an intact zip file
  --check=prepared => prepared: Is a directory
glue --data=labels --out=new.zip
  => missing --checkpoint; or --check alone
  --checkpoint= => --checkpoint is empty; give one or more
glue --data=labels --checkpoint={finetuned}
  --out= => --out=: name the zip file to create
evaluate
  --checkpoint={finetuned} --data=labels/train.tsv =>
    labels/train.tsv:3: label 'moos': should be one of barks, meows
evaluate --checkpoint={pretrained}
  --data=labels --precision=0.9 => is a language model without a head; it is for the labels of a
  --data=prepared => another vocabulary
  --data=prepared --split=test => prepared: has no split 'test', only train and valid
diagnose --data=prepared --workdir=new
  --parts=rate =>
    --parts=rate: must be one of gradients, scaling, rates, sampling; did you mean rates
reproduce
  --checkpoint={pretrained} --data=labels --workdir=run --table=5 =>
    holds 'config.json' but no results
  --checkpoint={finetuned} --data=labels --workdir=new --table=5 =>
    is fine-tuned; give a pre-trained
compare
  --workdir=run => holds 'config.json' but no results.json
zero_shot --checkpoint={pretrained} --data=labels
  --tasks=cola --tasks=rte => --tasks=rte: must be one of cola, sst2
  --out=text.txt => already exists; name
  --out=nothing/a.json => nothing/a.json: no such folder
zero_shot
  --checkpoint=prepared --data=labels --history => no checkpoints/ here; give the workdir of a run
generate
  --checkpoint={pretrained} => prompt
  --checkpoint={pretrained} hello => did you mean --prompt=hello?
benchmark
  --config={configs}/finetune.py:cola => a FinetuneConfig goes with --only=bytes alone
  --config={configs}/finetune.py:cola --only=bytes => a FinetuneConfig needs --tokenizer=DIR
  --config=tiny.py --data=labels => go with a FinetuneConfig; leave them out
  --config=tiny.py --topology=h100:1 => only bytes need no device; give --only=bytes
  --config=tiny.py --out=nothing/here.json => --out=nothing/here.json: no such folder
plan
  --config={configs}/finetune.py:cola => a FinetuneConfig; a plan takes a PretrainConfig
report
  --workdir=nothing => --workdir=nothing: no such folder; name the folder of a run
visualize --checkpoint={pretrained} --out=new.html
  => no text: give one with --text=TEXT
  --input=latin.txt => latin.txt:1: not UTF-8
  --input=empty.txt => --input=empty.txt: the file has no texts
  --text=cat --text={long} => text 2: 209 tokens, and the model's context is 64; give a part of it
  --text= => text 1: empty; give at least one word
  --text=\udcff => text 1: not UTF-8
visualize --checkpoint={pretrained}
  --text=the --out=prepared => --out=prepared is a folder
  --text=the --out=nothing/new.html => --out=nothing/new.html: No such file
export --checkpoint={pretrained}
  --out=run => run exists and is not an earlier export, with a weights.npz of ours
  --out=new --format=onnx_int8 --data=labels => a language model without a head; fine-tune it first
export --checkpoint={finetuned} --out=new
  --format=onnx_int8 =>
    --format=onnx_int8: is compared with float32; name labeled rows by --data=DIR
  --data=labels => --data=labels: only onnx_int8 compares; leave it out
  --format=onnx_int8 --data=labels --keep=99 => --keep=99.0: must be a share, from 0 to 1
import_weights --checkpoint=release --out=new
  --format=hf => release: no model.safetensors or pytorch_model.bin here
  --format=npz => release: not a complete exported model (
import_weights --out=new
  --format=hf --checkpoint=hf => hf/model.safetensors: not a safetensors file (
import_weights --format=openai --checkpoint=release
  --out=run => run is there already; choose another place
  --out=/proc/new => cannot write /proc/new:
serve --checkpoint={pretrained}
  --port=99999 => --port=99999: must be from 0 to 65,535
  --port=http => --port=http:
  --host=1.2.3.4 --port=0 => --host=1.2.3.4 --port=0: Cannot
  --host=a..b => --host=a..b: not an address of this machine
verify --checkpoint={pretrained}
  --checkpoint={pretrained} => no text: give one with --text=TEXT
verify --checkpoint={pretrained} --text=the
  --checkpoint={pretrained} --tolerance=-1 => --tolerance=-1.0: must be at least 0
  => two models are compared: --checkpoint=A --ch
  --replay=5 => --replay=5 needs one --checkpoint
  --checkpoint={pretrained} --data=labels => --data is for --replay=STEP
backtranslate --checkpoint={pretrained} --input=text.txt
  --out=new.csv => --out=new.csv: should
harness
  --checkpoint={pretrained} --tasks=cola --limit=-1 => --limit=-1:
"""


@pytest.mark.parametrize("command, message", table(CASES))
def test_bad_input_is_one_line_and_loses_nothing(
  world, launch, spacy_there, monkeypatch, command, message
):
  if command.startswith("serve"):
    pytest.importorskip("starlette")
  if "=hf" in command:
    pytest.importorskip("safetensors")
  monkeypatch.chdir(world.folder)
  before, kept = contents(world.folder), contents(world.paths["finetuned"])
  code, out, err = launch(*command.format(**world.paths).split())
  lines = [line for line in err.splitlines() if line.startswith("error: ")]
  assert (code, out) == (2, "")
  assert len(lines) == 1 and err.endswith(f"{lines[0]}\n"), err
  assert message in lines[0]
  assert "Traceback" not in err
  assert contents(world.folder) == before
  assert contents(world.paths["finetuned"]) == kept


def test_verify_ends_with_1_where_models_differ(world, launch, tmp_path):
  given = world.paths["pretrained"]
  loaded = load_model(given)
  loaded.params["trunk"]["positions"][0] += 1
  other = str(tmp_path / "other")
  npz.save(other, loaded.params, loaded.meta, loaded.step, loaded.tokenizer)
  models = f"--checkpoint={given}", f"--checkpoint={other}"
  code, out, err = launch("verify", *models, "--text=the cat")
  assert (code, err) == (1, "") and out.endswith("not equal within 0.0001\n")


@pytest.mark.parity("released")
def test_the_prompts_for_gpt2_reach_it_as_they_are_written(make_run, launch, monkeypatch, tmp_path):
  """The commands in generate's docstring, parsed by bash; the output repeats the prompt."""
  tokenizer = GPT2Tokenizer((*BYTES, "<|endoftext|>"), ())
  spec = ModelConfig(
    TransformerConfig(tokenizer.vocab_size, context=64, layers=1, width=16, heads=2, norm="pre")
  )
  meta = {"model": to_json(spec), "tokenizer_hash": tokenizer.hash}
  npz.save(str(tmp_path / "DIR"), make_run.params_of(spec, 1), meta, 1, tokenizer)
  (tmp_path / "article.txt").write_text("The café is open.\n\nIt serves tea.\n")
  monkeypatch.chdir(tmp_path)
  outputs = []
  for line in (ROOT / "launch" / "generate.py").read_text().splitlines():
    if line.startswith("python ") and "$" in line:
      command = r"printf '%s\0' " + line.partition("generate.py")[2]
      words = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True
      ).stdout.split("\0")
      code, out, err = launch("generate", "--max_tokens=3", *words[:-1])
      assert (code, err) == (0, "")
      outputs.append(out)
  assert outputs[0].startswith("The café is open.\n\nIt serves tea.\nTL;DR:")
  assert outputs[1].startswith("bonjour = hello\nmerci =")


def test_programs_end_with_commands_that_work(world, launch, monkeypatch, tmp_path):
  """From text to labels by typing what each program says is next, with its blanks filled in."""
  monkeypatch.chdir(tmp_path)
  here, task = world.folder, world.paths["task"]

  said = []

  def follow(program, *arguments):
    """Runs a program; returns its closing line, and the commands after it by program."""
    code, _, err = launch(program, *arguments)
    assert code == 0, err
    said.append(err)
    closing, _, commands = err[err.rindex("done in ") :].partition("\nnext:\n")
    words = [shlex.split(line) for line in commands.splitlines()]
    assert all(python == "python" for python, *_ in words)
    return closing, {Path(script).stem: rest for _, script, *rest in words}

  def filled(arguments, **values):
    named = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    return [f"--{name}={value}" for name, value in (named | values).items()]

  closing, commands = follow(
    "prepare", f"--source={here}/text.txt", "--out=my data", "--vocab_size=290"
  )
  assert re.fullmatch(r"done in \d:\d\d:\d\d: vocabulary and token files are in my data", closing)
  closing, commands = follow(
    "pretrain", *filled(commands["pretrain"], config=f"{here}/tiny.py", workdir="run")
  )
  assert "newest checkpoint is run, that with the lowest valid_loss run/best" in closing
  assert (
    "warning: the warm-up of 2,000 updates does not end within the run of 2, so the learning rate "
    "never reaches 0.00025; a tenth of the run is --config.optim.warmup_steps=1\n" in said[-1]
  )
  assert launch("evaluate", *commands["evaluate"])[0] == 0
  assert launch("generate", *filled(commands["generate"], prompt="the", max_tokens="2"))[0] == 0
  task = filled(commands["finetune"], data=task, workdir="labels", config="table.py")
  Path("table.py").write_text(
    (ROOT / "configs/finetune.py").read_text().replace("task: str", "task='table'")
  )
  closing, commands = follow("finetune", *task, "--config.batch_size=16", "--config.train.epochs=1")
  assert closing.endswith("the best checkpoint is labels/best")
  assert launch("evaluate", *commands["evaluate"])[0] == 0
  rows = {"input": f"{here}/rows.tsv", "out": "labels.tsv"}
  assert launch("predict", *filled(commands["predict"], **rows))[0] == 0
  assert launch("visualize", *filled(commands["visualize"], text="the cat"))[0] == 0
  assert {"labels.tsv", "page.html"} <= set(os.listdir())
