"""export and import_weights: every format survives, and gives the probabilities of predict."""

import json
from pathlib import Path

import numpy as np
import pytest
from refused import refused
from tiny_runs import assert_equal, write_table

import gpt_jax
from gpt_jax.apps.report import visualize
from gpt_jax.checkpoints.formats import list_formats, npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.files import atomic_file
from gpt_jax.models.heads.masked import MaskedHead, SentencePairHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.masked_sentences import MaskedPairs
from gpt_jax.programs import (
  evaluate,
  export,
  finetune,
  generate,
  import_weights,
  predict,
  prepare,
  pretrain,
  verify,
)
from gpt_jax.programs.pretrain_config import config_of
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("spacy_there")]


def contents(folder):
  return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_openais_release_survives_import_and_export(release, tmp_path):
  out = tmp_path / "run"
  import_weights.run("openai", str(release.folder), str(out))
  assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
  assert {"config.json", "tokenizer", "checkpoints"} <= {path.name for path in out.iterdir()}
  config = json.loads((out / "config.json").read_text())
  assert config["data"]["imported"] == "model"  # the source
  assert config["config"]["trunk"]["context"] == config["config"]["data"]["length"] == 16
  direct, imported = load_model(str(release.folder)), load_model(str(out))
  assert_equal(imported.params, direct.params)
  assert (imported.spec, imported.tokenizer, imported.step) == (direct.spec, direct.tokenizer, 0)
  export.run(str(out), str(tmp_path / "npz"), "npz")
  for checkpoint in (out, release.folder, tmp_path / "npz"):
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
  assert_equal(before.params, after.params)
  assert (before.spec, before.tokenizer, before.step) == (after.spec, after.tokenizer, after.step)


def test_an_encoder_of_elsewhere_is_measured_by_its_heads(
  prepared, tmp_path, make_run, tiny_tokenizer
):
  tokenizer = tiny_tokenizer.with_special("cls", "sep", "mask")
  sizes = {"context": 16, "layers": 1, "width": 16, "heads": 2, "pooler": True}
  trunk = TransformerConfig(**sizes).with_vocabulary(tokenizer)

  def write(name, *heads):
    spec = ModelConfig(trunk, heads, "bidirectional")
    meta = {"model": to_json(spec), "tokenizer_hash": tokenizer.hash}
    npz.save(str(tmp_path / name), make_run.params_of(spec, 7), meta, 7, tokenizer)
    return str(tmp_path / name)

  masked = write("masked", MaskedHead())
  assert config_of(load_model(masked)).objective == Masked()
  import_weights.run("npz", masked, str(tmp_path / "run"))
  results = evaluate.run(str(tmp_path / "run"), prepared)
  assert evaluate.run(masked, prepared) == results
  assert np.isfinite(results["loss"]) and "bits_per_byte" not in results
  pairs = write("pairs", MaskedHead(), SentencePairHead())
  assert config_of(load_model(pairs)).objective == MaskedPairs(second="random_document")
  none = write("none")
  refused("none: its heads are not those of .* fine-tune it", evaluate.run, none, prepared)


@pytest.mark.parity("released")
def test_an_imported_model_works_like_any_run(release, tmp_path):
  """It is sampled from, evaluated and fine-tuned; pre-training does not resume it."""
  run = str(tmp_path / "run")
  import_weights.run("openai", str(release.folder), run)
  text = generate.run(run, ["the sea"], max_tokens=5)
  assert text[0].startswith("the")
  source, data = tmp_path / "text.txt", str(tmp_path / "prepared")
  source.write_text("the sea and the barn.\n\nthe cat sat there, the dog ran.\n\n" * 40)
  prepare.run(
    prepare.PrepareConfig(str(source), tokenizer=f"{run}/tokenizer", valid_share=0.5), data
  )
  metrics = [evaluate.run(path, data) for path in (run, str(release.folder))]
  assert metrics[0] == metrics[1] and metrics[0]["perplexity"] > 1
  table = write_table(tmp_path, [("the cat sat", "meows"), ("the dog sat", "barks")] * 8)
  config = finetune.FinetuneConfig(
    TableTask(),
    batch_size=8,
    optim=OptimConfig(learning_rate=0.01),
    train=TrainConfig(epochs=1),
  )
  results = finetune.run(config, table, run, str(tmp_path / "tuned"))
  assert 0 <= results[0]["dev"]["dev_accuracy"] <= 1
  windows = WindowsConfig(batch_size=8, length=16)
  config = pretrain.PretrainConfig(load_model(run).spec.trunk, data=windows)
  refused("holds a run with another config", pretrain.run, config, data, run)


def test_a_failure_leaves_nothing(release, tmp_path, monkeypatch):
  monkeypatch.setattr(import_weights, "Checkpoints", None)
  with pytest.raises(TypeError):
    import_weights.run("openai", str(release.folder), str(tmp_path / "run"))
  assert not any(tmp_path.iterdir())


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run, tiny_tokenizer):
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2)
  return make_run(tmp_path_factory.mktemp("export") / "run", ModelConfig(trunk))


@pytest.mark.parametrize("format", ["npz", "hf"])
def test_an_export_on_a_store_loads(run, store, tmp_path, format):
  for folder in (str(tmp_path / "out"), f"{store}/out"):
    export.run(run, folder, format)
  local, after = load_model(str(tmp_path / "out")), load_model(f"{store}/out")
  assert_equal(local.params, after.params)
  assert after.path == after.folder == f"{store}/out"
  weights = "weights.npz" if format == "npz" else "model.safetensors"
  with atomic_file(f"{store}/out/{weights}") as file:
    file.write("damaged")
  refused(rf"{store}/out.*damaged", load_model, f"{store}/out")


def test_an_unknown_format(run, tmp_path):
  refused("format=tflite: must be one of hf, npz", export.run, run, str(tmp_path / "out"), "tflite")


TEXTS = ["the cat sat on the old mat", "dog", "ran to the barn", "the sea and the sea"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  path = tmp_path_factory.mktemp("source") / "texts.tsv"
  path.write_text("\n".join(["text", *TEXTS]) + "\n")
  return str(path)


@pytest.fixture(scope="module")
def predicted(tempered, source, tmp_path_factory):
  results = predict.run(tempered, source, str(tmp_path_factory.mktemp("out") / "out.tsv"))
  return [result["probabilities"] for result in results]


def check(found, expected, tolerance=1e-5):
  for row, row_expected in zip(found, expected, strict=True):
    assert row == pytest.approx(row_expected, abs=tolerance)


def test_the_inspection_page_ends_with_the_same(tempered, predicted, tmp_path):
  (entry,) = visualize.run(tempered, str(tmp_path / "page.html"), TEXTS[:1])["texts"]
  last = dict(zip(entry["classes"]["labels"], entry["classes"]["probabilities"][-1], strict=True))
  check([last], predicted[:1], 2e-5)


@pytest.mark.parametrize("format", ["npz", "safetensors", "hf"])
def test_an_export_reads_back_to_the_same(tempered, predicted, source, format, tmp_path, capsys):
  if format != "npz":
    pytest.importorskip("safetensors")
  folder = str(tmp_path / "out")
  export.run(tempered, folder, format)
  check(gpt_jax.load(folder).classify(TEXTS), predicted)
  results = predict.run(folder, source, str(tmp_path / "labels.tsv"))
  assert "scaled by the temperature 1.700" in capsys.readouterr().err
  check([result["probabilities"] for result in results], predicted)
  # The parameters too are those of the run, though hf holds the head divided by the temperature.
  compared = verify.run(tempered, folder, TEXTS)
  assert compared["equal"] and compared["differing"] == 0
  import_weights.run(format, folder, str(tmp_path / "imported"))
  check(gpt_jax.load(str(tmp_path / "imported")).classify(TEXTS), predicted)
