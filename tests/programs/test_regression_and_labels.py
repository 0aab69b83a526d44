"""Tables of numbers and of several labels per row, from the files to predictions and exports."""

import csv
import dataclasses
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from refused import refused
from shared_trainers import one_device  # noqa: F401
from sklearn.metrics import f1_score

import gpt_jax
from gpt_jax.apps.report import report, visualize
from gpt_jax.apps.report.answers import answers
from gpt_jax.apps.report.record import Record
from gpt_jax.apps.serve.app import make_app
from gpt_jax.apps.serve.engine import Engine
from gpt_jax.checkpoints.load import load_model
from gpt_jax.files import with_checksum
from gpt_jax.inference.dev_report import PREDICTIONS, REPORT
from gpt_jax.inference.ensemble import Ensemble
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import evaluate, export, finetune, predict
from gpt_jax.programs.finetune_evaluations import warn_of_majority
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

pytestmark = pytest.mark.e2e
PRICES = {"the": 0, "sat": 10, "mat": 30, "cat": 70, "dog": 90}  # summed over a text's words
TOPICS = {"cat": "pets", "dog": "pets", "mat": "home", "barn": "farm"}
TEXTS = ["the cat sat", "mat", "the dog and the barn ran"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, make_run, tiny_tokenizer):
  """trained.prices and trained.topics, each with data_dir, config, pretrained, workdir, result."""
  folder, rng = tmp_path_factory.mktemp("tables"), random.Random(0)
  words = "the sat mat cat dog barn and ran".split()
  for split, count in (("train", 256), ("dev", 60)):
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 5))) for _ in range(count)]
    with open(folder / f"{split}.csv", "w", newline="") as file:
      writer = csv.writer(file)
      writer.writerow(["text", "price", "topics"])
      for text in texts:
        price = 1000 + sum(PRICES.get(word, 0) for word in text.split())
        topics = sorted({TOPICS[word] for word in text.split() if word in TOPICS})
        writer.writerow([text, f"{price:.2f}", "; ".join(topics)])
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=32, layers=1, width=32, heads=2)
  pretrained = make_run(folder / "pretrained", ModelConfig(trunk))
  prices = TableTask(
    train="train.csv", dev="dev.csv", columns=("text",), label="price", kind="regression"
  )
  topics = dataclasses.replace(prices, label="topics", kind="multi_label", separator=";")
  runs = {}
  for name, task in (("prices", prices), ("topics", topics)):
    config = finetune.FinetuneConfig(
      task=task,
      batch_size=16,
      lm_weight=0.0,
      optim=OptimConfig(learning_rate=0.01, schedule="linear", warmup_steps=4),
      train=TrainConfig(epochs=6, log_every=8, evaluate_every=48, keep_checkpoints=1),
    )
    workdir = str(folder / name)
    [result] = finetune.run(config, str(folder), pretrained, workdir)
    runs[name] = SimpleNamespace(
      data_dir=str(folder),
      config=config,
      pretrained=pretrained,
      workdir=workdir,
      best=f"{workdir}/best",
      result=result,
    )
  return SimpleNamespace(**runs)


def column(data_dir, name, split="dev"):
  with open(f"{data_dir}/{split}.csv", newline="") as file:
    return [row[name] for row in csv.DictReader(file)]


def test_numbers_are_learned_in_the_units_of_the_file(trained):
  run = trained.prices
  measures = evaluate.run(run.best, run.data_dir)
  truth = np.array(column(run.data_dir, "price"), float)
  found = [row["prediction"] for row in predict.run(run.best, f"{run.data_dir}/dev.csv")]
  error = np.asarray(found) - truth
  mean = np.mean(np.array(column(run.data_dir, "price", "train"), float))
  assert measures["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-4)
  assert measures["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-4)
  assert measures["pearson"] == pytest.approx(np.corrcoef(truth, found)[0, 1], abs=1e-5)
  assert measures["r2"] == pytest.approx(1 - (error**2).mean() / truth.var(), abs=1e-4)
  assert measures["baseline_rmse"] == pytest.approx(np.sqrt(((truth - mean) ** 2).mean()))
  assert measures["baseline_mae"] == pytest.approx(np.abs(truth - mean).mean())
  assert measures["rmse"] < 0.3 * measures["baseline_rmse"]
  assert measures["loss"] == pytest.approx((measures["rmse"] / deviation(run)) ** 2, rel=1e-4)
  assert run.result["best"]["dev_r2"] == pytest.approx(measures["r2"], abs=1e-5)
  assert gpt_jax.load(run.best).classify(TEXTS[0]) == pytest.approx(1080, abs=30)


def deviation(run):
  return load_model(run.best).task.scale.deviation


def test_several_labels_are_learned(trained):
  run = trained.topics
  measures = evaluate.run(run.best, run.data_dir)
  names = ["farm", "home", "pets"]
  cells = column(run.data_dir, "topics")
  truth = np.array([[name in cell.split("; ") for name in names] for cell in cells])
  results = predict.run(run.best, f"{run.data_dir}/dev.csv")
  found = np.array([[name in row["prediction"] for name in names] for row in results])
  assert measures["micro_f1"] == pytest.approx(f1_score(truth, found, average="micro"))
  assert measures["macro_f1"] == pytest.approx(f1_score(truth, found, average="macro"))
  assert measures["exact_match"] == np.mean((truth == found).all(axis=1))
  assert measures["micro_f1"] > max(0.9, measures["baseline_micro_f1"])
  probabilities = np.array([list(row["probabilities"].values()) for row in results])
  np.testing.assert_array_equal(probabilities >= 0.5, found)
  likelihood = np.where(truth, probabilities, 1 - probabilities)
  assert measures["loss"] == pytest.approx(-np.log(likelihood).sum(axis=1).mean(), rel=1e-4)
  report = measures["labels"]["pets"]
  hits = (truth & found)[:, 2].sum()
  assert report["precision"] == pytest.approx(hits / found[:, 2].sum())
  assert report["recall"] == pytest.approx(hits / truth[:, 2].sum())
  assert report["support"] == truth[:, 2].sum()
  assert gpt_jax.load(run.best).classify("the and") == pytest.approx(
    dict.fromkeys(names, 0), abs=0.5
  )


def test_the_report_has_the_metrics_and_the_worst_errors_of_each_label(trained, tmp_path):
  pytest.importorskip("jinja2")
  run = trained.topics
  ignore = shutil.ignore_patterns("checkpoints", "tensorboard", "best")
  folder = shutil.copytree(run.workdir, tmp_path / "run", ignore=ignore)
  expected = evaluate.run(run.best, run.data_dir)["labels"]
  record = Record(str(folder))
  for label, values in record.multi.per_class.items():
    assert values == pytest.approx(expected[label], abs=1e-6)
  lines = [json.loads(line) for line in (folder / PREDICTIONS).read_text().splitlines()]
  wanted = [cell.split("; ") if cell else [] for cell in column(run.data_dir, "topics")]
  assert [line["labels"] for line in lines] == wanted
  for line in lines:  # an all but perfect model: pets is the second most doubtful in one line
    line["probabilities"] = [float(name in line["labels"]) for name in expected]
  lines[3] |= {"text": "a <b>cat</b>", "labels": ["pets"], "probabilities": [0.9, 0.0, 0.2]}
  lines[5] |= {"labels": ["farm"], "probabilities": [0.6, 0.0, 0.99]}
  lines[7] |= {"labels": ["pets"], "probabilities": [0.0, 0.0, 0.4]}
  (folder / PREDICTIONS).write_text("".join(json.dumps(line) + "\n" for line in lines))
  written = json.loads((folder / REPORT).read_text())
  del written["checksum"], written["predictions_crc32"]  # of the lines as they were
  (folder / REPORT).write_text(json.dumps(with_checksum(written)))
  errors = Record(str(folder)).multi.errors
  assert [(errors[name].missed, errors[name].given) for name in expected] == [
    (0, 1),
    (0, 0),
    (2, 1),
  ]
  assert [error.probability for error in errors["pets"].worst] == [0.99, 0.2, 0.4]
  wrong = answers(Record(str(folder)))[2]
  assert wrong.verdict == f"4 labels in {len(lines)} examples"
  assert "“pets” is missed most often (2 times)" in wrong.text
  page = Path(report.run([str(folder)])).read_text()
  assert (
    "given wrongly, 99%" in page and "missed, 20%" in page and "a &lt;b&gt;cat&lt;/b&gt;" in page
  )
  assert page.index("<h3>pets</h3>") and "<h3>home</h3>" not in page
  (folder / PREDICTIONS).write_text("{}\n")
  damaged = Record(str(folder))
  assert damaged.multi.errors == {} and "dev_predictions.jsonl" in damaged.notes[0]


def test_predictions_are_written_as_they_were_read(trained, tmp_path):
  run = trained.topics
  source = tmp_path / "rows.csv"
  source.write_text("text\nthe cat and barn\nand\n\nthe mat\n")
  with pytest.warns(UserWarning, match="1 of 4 rows has no prediction"):
    predict.run(run.best, str(source), str(tmp_path / "out.csv"))
  source.write_text("text\nthe cat and barn\nand\nthe mat\n")
  with open(tmp_path / "out.csv", newline="") as file:
    rows = list(csv.DictReader(file))
  assert [row["prediction"] for row in rows] == ["farm;pets", "", "", "home"]
  assert list(rows[0]) == ["prediction", "p(farm)", "p(home)", "p(pets)", "problem"]
  assert [bool(row["problem"]) for row in rows] == [False, False, True, False]
  predict.run(run.best, str(source), str(tmp_path / "out.jsonl"))
  lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
  assert [line["prediction"] for line in lines] == [["farm", "pets"], [], ["home"]]
  predict.run(trained.prices.best, str(source), str(tmp_path / "prices.tsv"))
  header, first, *_ = (tmp_path / "prices.tsv").read_text().splitlines()
  assert header == "prediction" and float(first) == pytest.approx(1070, abs=40)


def test_neighbors_in_a_row_change_nothing(trained):
  """Alone and packed with others, in rows of other lengths."""
  texts = column(trained.prices.data_dir, "text")
  for run in (trained.prices, trained.topics):
    model = gpt_jax.load(run.best)
    together = model.classify(texts)
    for number in (0, 7, 31):
      alone = model.classify([texts[number]])[0]
      assert alone == pytest.approx(together[number], rel=1e-5, abs=1e-5)


def test_members_with_scales_of_their_own_are_one_ensemble(trained):
  """As folds are: each has the mean and deviation of its own training rows."""
  first = load_model(trained.prices.best)
  meta = {**first.meta, "task": {**first.meta["task"], "mean": 0.5, "deviation": 10.0}}
  second = dataclasses.replace(first, meta=meta)
  ensemble = Ensemble((first, second), first.task)
  examples = first.task.examples(trained.prices.data_dir, "dev")
  predicted = ensemble.predict(ensemble.encode(examples), 32, lambda n: None)
  alone = Ensemble((first,), first.task)
  standardized = alone.predict(alone.encode(examples), 32, lambda n: None)
  expected = (first.task.value(standardized) + 0.5 + 10 * standardized[:, 0]) / 2
  np.testing.assert_allclose(first.task.value(predicted), expected, rtol=1e-5)
  source = f"{trained.prices.data_dir}/dev.csv"
  message = r"table \(multi-label; columns text; labels farm, home"
  refused(message, predict.run, [trained.prices.best, trained.topics.best], source)


@pytest.mark.parametrize("option", [{"class_weights": ("balanced",)}, {"label_smoothing": 0.1}])
def test_options_of_classes_are_refused(trained, option, tmp_path):
  for run in (trained.prices, trained.topics):
    config = dataclasses.replace(run.config, **option)
    message = f"{next(iter(option))}: for tasks that give each example one class"
    given = config, run.data_dir, run.pretrained, str(tmp_path / "run")
    refused(message, finetune.run, *given)


def test_what_needs_one_label_is_refused(trained, tmp_path):
  source = f"{trained.prices.data_dir}/dev.csv"
  for run, kind in ((trained.prices, "regression"), (trained.topics, "multi-label")):
    for option in ({"threshold": 0.5}, {"precision": 0.9}):
      message = rf"{next(iter(option))}=0.\d: table \({kind}\) has no"
      refused(message, predict.run, run.best, source, **option)
    model = gpt_jax.load(run.best)  # has no temperature
    assert model.classify("cat") == model.classify("cat", calibrated=False)
  given = trained.prices.best, str(tmp_path / "page.html"), ["cat"]
  refused("a regression model gives numbers", visualize.run, *given)
  page = visualize.run(trained.topics.best, str(tmp_path / "page.html"), ["the cat"])
  assert page["texts"][0]["classes"]["labels"] == ["farm", "home", "pets"]


def test_a_run_no_better_than_a_constant_says_so(trained, capsys):
  for run, words in (
    (trained.prices, "is not 2 % below that of always answering the mean of the training set"),
    (trained.topics, "is not above that of giving each row the same commonest labels"),
  ):
    loaded = load_model(run.best)
    task = loaded.task
    dev = task.encode(task.examples(run.data_dir, "dev"), loaded.tokenizer, 32)
    warn_of_majority(task, dev, run.result["best"], run.config, False)
    assert capsys.readouterr().err == ""
    mean = 0.0 if run is trained.prices else dev.labels.mean(0) > 0.5
    measures = task.measures(np.zeros_like(dev.labels) + mean, dev.truth)
    assert measures["degenerate"] == 1
    best = {f"dev_{name}": value for name, value in measures.items()}
    warn_of_majority(task, dev, best, run.config, False)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", ["prices", "topics"])
def test_exports_give_the_same_answers(trained, name, tmp_path):
  pytest.importorskip("safetensors")
  run = getattr(trained, name)
  ours = gpt_jax.load(run.best).classify(TEXTS)
  export.run(run.best, str(tmp_path / "out"), "hf")
  again = gpt_jax.load(str(tmp_path / "out")).classify(TEXTS)
  for found, expected in zip(again, ours, strict=True):
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["prices", "topics"])
def test_a_pipeline_gives_the_same_answers(trained, name, tmp_path):
  pytest.importorskip("safetensors")
  import transformers

  run = getattr(trained, name)
  export.run(run.best, str(tmp_path / "out"), "hf")
  classify = transformers.pipeline("text-classification", model=str(tmp_path / "out"), device="cpu")
  problem = {"prices": "regression", "topics": "multi_label_classification"}[name]
  assert classify.model.config.problem_type == problem
  ours = gpt_jax.load(run.best).classify(TEXTS)
  for entries, expected in zip(classify(TEXTS, top_k=None), ours, strict=True):
    if name == "prices":
      [entry] = entries
      assert entry["label"] == "value" and entry["score"] == pytest.approx(expected, rel=1e-5)
    else:
      found = {entry["label"]: entry["score"] for entry in entries}
      assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parity("onnx")
def test_onnx_gives_numbers_in_units(trained, tmp_path):
  import onnxruntime

  run = trained.prices
  export.run(run.best, str(tmp_path / "out"), "onnx")
  description = json.loads((tmp_path / "out" / "model.json").read_text())
  special, tokenizer = description["special_tokens"], load_model(run.best).tokenizer
  session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
  for text, expected in zip(TEXTS, gpt_jax.load(run.best).classify(TEXTS), strict=True):
    ids = [[special["start"], *tokenizer.encode(text), special["extract"]]]
    [[logits]] = session.run(["logits"], {"input_ids": np.array(ids, np.int32)})
    assert logits[0] == pytest.approx(expected, rel=1e-5)
  assert "The logit is the number" in description["use"]


def test_the_server_answers(trained):
  testclient = pytest.importorskip("starlette.testclient")
  for run in (trained.prices, trained.topics):
    model = gpt_jax.load(run.best)
    engine = Engine(model)
    engine.start()
    with testclient.TestClient(make_app(engine, "m")) as client:
      results = client.post("/classify", json={"texts": TEXTS}).json()["results"]
    engine.close()
    engine.join(5)
    for result, answer in zip(results, model.classify(TEXTS), strict=True):
      if run is trained.prices:
        assert result == {"value": pytest.approx(answer)}
      else:
        assert result["probabilities"] == pytest.approx(answer, abs=1e-6)
        assert result["labels"] == [name for name, p in answer.items() if p >= 0.5]


def test_the_report_of_numbers_compares_with_their_mean(trained):
  pytest.importorskip("jinja2")
  page = Path(report.run([trained.prices.workdir])).read_text()
  assert "always answering the mean of the training set" in page
