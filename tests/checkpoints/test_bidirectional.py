"""A bidirectional checkpoint is never read left to right: it has seen what it would predict."""

import dataclasses

import pytest
from bert_trunk import bert_trunk
from refused import refused

import gpt_jax
from gpt_jax.apps.interop.formats import hf
from gpt_jax.apps.interop.formats.hf import read as hf_read
from gpt_jax.apps.report import visualize
from gpt_jax.checkpoints import restore
from gpt_jax.checkpoints.formats import folder as export_folder
from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import finetune, generate
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.task import BuiltinTask

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run, tiny_tokenizer):
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2)
  return make_run(
    tmp_path_factory.mktemp("bidirectional") / "run", ModelConfig(trunk, attention="bidirectional")
  )


@pytest.mark.parametrize(
  "read",
  [
    lambda run, folder: generate.run(run, [TEXT], max_tokens=2),
    lambda run, folder: gpt_jax.load(run).generate(TEXT, max_tokens=2),
    lambda run, folder: gpt_jax.load(run).log_probs(TEXT),
    lambda run, folder: visualize.run(run, str(folder / "page.html"), [TEXT]),
  ],
  ids=["generate", "load.generate", "load.log_probs", "visualize"],
)
def test_reading_from_left_to_right_is_refused(run, tmp_path, read):
  refused(f"^{run}: a model with bidirectional attention", read, run, tmp_path)
  assert not list(tmp_path.iterdir())


LEFT_TO_RIGHT, NO_MASKS = "a model with bidirectional attention", "has no masked-LM head"
USES = {
  "generate --prompt=the": LEFT_TO_RIGHT,
  "generate --prompt=the --stream": LEFT_TO_RIGHT,
  "generate --fill=[MASK]": NO_MASKS,
  "visualize --text=the": LEFT_TO_RIGHT,
  "zero_shot --data=.": NO_MASKS,
  "reproduce --data=. --workdir=new --table=5": LEFT_TO_RIGHT,
  "predict --input=rows.csv": "an encoder without a head; fine-tune it first",
  "glue --data=. --out=new.zip": "an encoder without a head; fine-tune it first",
  "backtranslate --input=rows.csv --out=new.tsv": "an encoder without a head; it should be fine-",
  "finetune --config=translate:pretrained --data=. --workdir=new": "has bidirectional",
}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory, make_run, tiny_tokenizer):
  """An encoder as a run, an export, and a folder of transformers."""
  pytest.importorskip("safetensors")
  tokenizer = tiny_tokenizer.with_special("cls", "sep", "mask", "pad")
  sizes = {"vocab_size": tokenizer.vocab_size, "special_tokens": tokenizer.special.count}
  trunk = dataclasses.replace(bert_trunk(context=16, layers=1, width=16, heads=2), **sizes)
  folder = tmp_path_factory.mktemp("encoders")
  make_run(folder / "run", ModelConfig(trunk, (), "bidirectional"), tokenizer=tokenizer)
  loaded = load_model(str(folder / "run"))
  for format in (npz, hf):
    name = format.__name__.rpartition(".")[2]
    format.save(str(folder / name), loaded.params, loaded.meta, 7, tokenizer)
  return folder


@pytest.mark.parametrize(
  "kind, command",
  [
    *(("run", use) for use in USES),
    ("npz", "generate --prompt=the"),
    ("hf", "generate --prompt=the"),
  ],
)
def test_what_it_is_of_no_use_for_is_refused_before_its_weights_are_read(
  encoders, tmp_path, monkeypatch, launch, kind, command
):
  def fail(*_, **__):
    raise AssertionError("weights were read")

  monkeypatch.setattr(restore, "_read_arrays", fail)
  monkeypatch.setattr(export_folder, "_check_shapes", fail)
  monkeypatch.setattr(hf_read, "to_ours", fail)
  monkeypatch.chdir(tmp_path)
  (tmp_path / "rows.csv").write_text("text\nthe cat\n")
  program, *flags = command.split()
  code, out, err = launch(program, f"--checkpoint={encoders / kind}", *flags)
  assert (code, out) == (2, "") and USES[command] in err, err
  assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_finetuning_it_with_a_language_model_is_refused(run, tmp_path):
  config = FinetuneConfig(task=BuiltinTask("story-ending"), lm_weight=0.5)
  refused(
    "lm_weight=0.5: .* config=finetune_encoder:FAMILY:story-ending, such",
    finetune.run,
    config,
    "",
    run,
    str(tmp_path / "run"),
  )
  assert not (tmp_path / "run").exists()
