"""import_weights: other formats become a run folder, or nothing is written."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from shared_predictors import shared_predictors  # noqa: F401

from gpt_jax.checkpoints.formats import list_formats, npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.heads.masked import MaskedHead
from gpt_jax.models.heads.sentence_pair import SentencePairHead
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.masked_sentences import MaskedPairs
from gpt_jax.programs import evaluate, export, finetune, generate, import_weights, prepare, pretrain
from gpt_jax.programs.pretrain_config import config_of
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("spacy_there")]


def contents(folder):
  return {
    str(path.relative_to(folder)): path.is_file() and path.read_bytes()
    for path in Path(folder).rglob("*")
  }


def test_openais_release_survives_import_and_export(release, tmp_path):
  out = tmp_path / "run"
  import_weights.run("openai", str(release.folder), str(out))
  assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
  assert {"config.json", "tokenizer", "checkpoints"} <= {path.name for path in out.iterdir()}
  direct, imported = load_model(str(release.folder)), load_model(str(out))
  jax.tree.map(np.testing.assert_array_equal, imported.params, direct.params)
  assert (imported.spec, imported.tokenizer, imported.step) == (direct.spec, direct.tokenizer, 0)
  for checkpoint in (out, release.folder):
    export.run(str(checkpoint), str(tmp_path / f"again_{checkpoint.name}"), "openai")
    assert contents(tmp_path / f"again_{checkpoint.name}") == contents(release.folder)


@pytest.mark.parametrize(
  "format", sorted({*list_formats()} - {"onnx", "onnx_int8", "peft", "stablehlo"})
)
def test_every_format_survives_export_and_import(release, tmp_path, format):
  if format in ("hf", "safetensors"):
    pytest.importorskip("safetensors")
  export.run(str(release.folder), str(tmp_path / "there"), format)
  import_weights.run(format, str(tmp_path / "there"), str(tmp_path / "run"))
  before, after = load_model(str(release.folder)), load_model(str(tmp_path / "run"))
  jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
  assert (before.spec, before.tokenizer, before.step) == (after.spec, after.tokenizer, after.step)


@pytest.mark.parametrize("format", ["npz", "hf"])
def test_a_fine_tuned_model_keeps_its_head(finetuned, tmp_path, format):
  if format == "hf":
    pytest.importorskip("safetensors")
  source = f"{finetuned.workdir}/seed_0"
  export.run(source, str(tmp_path / "there"), format)
  import_weights.run(format, str(tmp_path / "there"), str(tmp_path / "run"))
  before = evaluate.run(source, finetuned.data_dir)
  assert evaluate.run(str(tmp_path / "run"), finetuned.data_dir) == before
  assert evaluate.run(str(tmp_path / "there"), finetuned.data_dir) == before


@pytest.fixture
def encoder(tmp_path, make_run, tiny_tokenizer):
  """encoder(*heads): the folder of an encoder that no run of ours trained."""

  def make(*heads):
    tokenizer = tiny_tokenizer.with_special("cls", "sep", "mask")
    sizes = {"context": 16, "layers": 1, "width": 16, "heads": 2, "pooler": True}
    trunk = TransformerConfig(**sizes).with_vocabulary(tokenizer)
    spec = ModelConfig(trunk, heads, "bidirectional")
    meta = {"model": to_json(spec), "tokenizer_hash": tokenizer.hash}
    npz.save(str(tmp_path / "there"), make_run.params_of(spec, 7), meta, 7, tokenizer)
    return str(tmp_path / "there")

  return make


def test_a_foreign_masked_model_is_measured_on_masked_tokens(encoder, prepared, tmp_path):
  folder = encoder(MaskedHead())
  assert config_of(load_model(folder)).objective == Masked()
  import_weights.run("npz", folder, str(tmp_path / "run"))
  results = evaluate.run(str(tmp_path / "run"), prepared)
  assert evaluate.run(folder, prepared) == results
  assert np.isfinite(results["loss"]) and "bits_per_byte" not in results


def test_a_foreign_encoder_has_the_objective_of_its_heads(encoder):
  folder = encoder(MaskedHead(), SentencePairHead())
  assert config_of(load_model(folder)).objective == MaskedPairs(second="random_document")


def test_a_foreign_encoder_without_a_head_has_no_loss(encoder, prepared):
  folder = encoder()
  with pytest.raises(InputError, match="there: its heads are not those of .* fine-tune it"):
    evaluate.run(folder, prepared)


def test_an_lstm_through_npz(tmp_path, make_run, tiny_tokenizer):
  spec = ModelConfig(LSTMConfig(tiny_tokenizer.vocab_size, context=16, width=8, units=8))
  source = make_run(tmp_path / "source", spec)
  export.run(source, str(tmp_path / "there"), "npz")
  import_weights.run("npz", str(tmp_path / "there"), str(tmp_path / "run"))
  assert load_model(str(tmp_path / "run")).identity == load_model(source).identity


@pytest.mark.parity("released")
def test_an_imported_model_works_like_any_run(release, tmp_path):
  """It is sampled from, evaluated and fine-tuned; pre-training does not resume it."""
  run = str(tmp_path / "run")
  import_weights.run("openai", str(release.folder), run)
  text = generate.run(run, ["the sea"], max_tokens=5)
  assert text[0].startswith("the")
  (tmp_path / "text.txt").write_text(
    "the sea and the barn.\n\nthe cat sat there, the dog ran.\n\n" * 40
  )
  prepared = prepare.PrepareConfig(
    source=str(tmp_path / "text.txt"), tokenizer=f"{run}/tokenizer", valid_share=0.5
  )
  prepare.run(prepared, str(tmp_path / "prepared"))
  metrics = [evaluate.run(path, str(tmp_path / "prepared")) for path in (run, str(release.folder))]
  assert metrics[0] == metrics[1] and metrics[0]["perplexity"] > 1
  for split in ("train", "dev"):
    rows = [
      f"the {animal} sat\t{sound}" for animal, sound in (("cat", "meows"), ("dog", "barks"))
    ] * 8
    (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]))
  config = finetune.FinetuneConfig(
    task=TableTask(),
    batch_size=8,
    optim=OptimConfig(learning_rate=0.01),
    train=TrainConfig(epochs=1),
  )
  results = finetune.run(config, str(tmp_path), run, str(tmp_path / "tuned"))
  assert 0 <= results[0]["dev"]["dev_accuracy"] <= 1
  with pytest.raises(InputError, match="holds a run with another config"):
    config = pretrain.PretrainConfig(
      load_model(run).spec.trunk, data=WindowsConfig(batch_size=8, length=16)
    )
    pretrain.run(config, str(tmp_path / "prepared"), run)


def test_an_existing_folder_is_kept(release, tmp_path):
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "thesis.txt").write_text("mine")
  before = contents(tmp_path)
  with pytest.raises(InputError, match="is there already; choose another place"):
    import_weights.run("openai", str(release.folder), str(tmp_path / "run"))
  assert contents(tmp_path) == before


def test_a_failure_leaves_nothing(release, tmp_path, monkeypatch):
  monkeypatch.setattr(import_weights, "Checkpoints", None)
  with pytest.raises(TypeError):
    import_weights.run("openai", str(release.folder), str(tmp_path / "run"))
  assert not any(tmp_path.iterdir())


def test_the_config_names_the_source(release, tmp_path):
  import_weights.run("openai", str(release.folder), str(tmp_path / "run"))
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  assert config["data"]["imported"] == "model"
  assert config["config"]["trunk"]["context"] == config["config"]["data"]["length"] == 16
