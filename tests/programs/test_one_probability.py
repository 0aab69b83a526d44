"""predict, classify, the server and every export give one probability."""

import json
import queue

import numpy as np
import pytest
from shared_predictors import shared_predictors  # noqa: F401

import gpt_jax
from gpt_jax.apps.report import visualize
from gpt_jax.apps.serve.engine import Engine, Job
from gpt_jax.checkpoints.load import load_model
from gpt_jax.inference.calibration import scale
from gpt_jax.programs import export, import_weights, predict, verify

pytestmark = pytest.mark.e2e
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


def test_classify_and_the_server_give_what_predict_gives(tempered, predicted):
  model = gpt_jax.load(tempered)
  check(model.classify(TEXTS), predicted)
  raw = [list(row.values()) for row in model.classify(TEXTS, calibrated=False)]
  np.testing.assert_allclose(
    scale(np.array(raw), 1.7), [list(row.values()) for row in predicted], atol=1e-6
  )
  answers, engine = queue.Queue(), Engine(model)
  engine.start()
  try:
    engine.submit([Job("classify", answers.put, TEXTS)])
    check(answers.get(timeout=60), predicted)
  finally:
    engine.close()
    engine.join(10)


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


@pytest.mark.parity
def test_transformers_gives_the_same(tempered, predicted, tmp_path):
  pytest.importorskip("safetensors")
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  folder = str(tmp_path / "out")
  export.run(tempered, folder, "hf")
  answers = transformers.pipeline("text-classification", model=folder, device="cpu")(
    TEXTS, top_k=None
  )
  check([{entry["label"]: entry["score"] for entry in row} for row in answers], predicted)


@pytest.mark.parametrize(
  "format", ["stablehlo", pytest.param("onnx", marks=pytest.mark.parity("onnx"))]
)
def test_a_program_gives_the_same(tempered, predicted, format, tmp_path):
  folder = tmp_path / "out"
  export.run(tempered, str(folder), format)
  description = json.loads((folder / "model.json").read_text())
  assert description["temperature"] == 1.7
  special, tokenizer = description["special_tokens"], load_model(tempered).tokenizer
  batch = np.zeros((len(TEXTS), 40), np.int32)
  for row, ids in zip(batch, tokenizer.encode_many(TEXTS), strict=True):
    row[: len(ids) + 2] = [special["start"], *ids, special["extract"]]
  if format == "onnx":
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    logits = session.run(["logits"], {"input_ids": batch})[0]
  else:
    from jax import export as jax_export

    logits = np.asarray(
      jax_export.deserialize((folder / "model.stablehlo").read_bytes()).call(batch)
    )
  probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
  found = [dict(zip(description["labels"], row.tolist(), strict=True)) for row in probabilities]
  check(found, predicted, 1e-4)
