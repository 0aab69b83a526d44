"""Predictions: all input and output formats, in order, equal to those of the evaluation."""

import csv
import io
import json
import os
import random
import re
import shutil
import threading
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.files import read_json, with_checksum, write_json
from gpt_jax.inference.calibration import choose_threshold, fit_temperature, scale
from gpt_jax.inference.drift import RELABEL
from gpt_jax.models.predictor import make_predictor
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs import evaluate, predict
from gpt_jax.tasks import readers
from gpt_jax.tasks.task import Task

pytestmark = pytest.mark.e2e
BOM = b"\xef\xbb\xbf"
TEXTS = ["the cat sat", "a dog ran", "old dog on the mat", "cat"]


@pytest.fixture(scope="module")
def checkpoint(finetuned):
  return f"{finetuned.workdir}/seed_0"


@pytest.fixture(scope="module")
def expected(checkpoint):
  """Prediction and probabilities of TEXTS, by the model itself, one text at a time."""
  loaded = load_model(checkpoint)
  predictor = make_predictor(loaded.model, make_mesh(MeshConfig()))
  probabilities = []
  for text in TEXTS:
    example = loaded.task.example(readers.Row((text,), None, ""))
    probabilities.append(predictor(loaded.params, loaded.encode(loaded.task, [example]), 1))
  return np.concatenate(probabilities)


def write(folder, name, content):
  path = folder / name
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return str(path)


@pytest.fixture
def labels(checkpoint, tmp_path):
  """labels(content, name="in.txt", out="out.tsv", **options): the results for a file of that."""

  def run(content, name="in.txt", out="out.tsv", **options):
    return predict.run(checkpoint, write(tmp_path, name, content), str(tmp_path / out), **options)

  return run


def probabilities_of(results):
  return np.array([list(result["probabilities"].values()) for result in results])


def cells(path):
  """The rows of a table that predict wrote."""
  with open(path, encoding="utf-8", newline="") as file:
    return list(csv.reader(file, delimiter="," if str(path).endswith(".csv") else "\t"))


FORMS = {
  "header.tsv": "id\ttext\tlabel\n"
  + "".join(f"{n}\t{text}\tmeows\n" for n, text in enumerate(TEXTS)),
  "lines.txt": "".join(text + "\r\n" for text in TEXTS),
  # Columns that are not read may have any name.
  "quoted.csv": "label,text,,\n" + "".join(f'x,"{text}",,\n' for text in TEXTS),
  "objects.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in TEXTS),
}


@pytest.mark.parametrize("name", [*FORMS, "-"])
def test_every_input_format(checkpoint, expected, tmp_path, monkeypatch, name):
  if name == "-":
    standard_input = io.TextIOWrapper(io.BytesIO(FORMS["lines.txt"].encode()))
    monkeypatch.setattr("sys.stdin", standard_input)
    readers._read_pipe.cache_clear()
  source = name if name == "-" else write(tmp_path, name, FORMS[name])
  results = predict.run(checkpoint, source, str(tmp_path / "out.tsv"))
  readers._read_pipe.cache_clear()
  assert [list(result["probabilities"]) for result in results] == [["barks", "meows"]] * 4
  np.testing.assert_allclose(probabilities_of(results), expected, atol=1e-5)
  assert [result["prediction"] for result in results] == ["meows", "barks", "barks", "meows"]


def test_weights_of_8_bits_give_nearly_the_same(labels, checkpoint, expected, capsys):
  found = probabilities_of(labels(FORMS["lines.txt"], weights="int8"))
  assert 0 < np.abs(found - expected).max() < 0.02
  loaded = load_model(checkpoint)
  kept = jax.tree.leaves(loaded.with_weights("int8").params)
  # The matrices of the block, 12 D^2, and the table of tokens; not that of positions, nor W_y.
  table = loaded.params["trunk"]["tokens"].size
  assert sum(x.size for x in kept if x.dtype == "int8") == 12 * 32**2 + table
  before, after = (sum(x.nbytes for x in jax.tree.leaves(tree)) for tree in (loaded.params, kept))
  printed = f"int8 weights: {after / 1e6:.1f} MB, {after / before:.1%} of {before / 1e6:.1f} in flo"
  assert printed in capsys.readouterr().err and after < 0.4 * before
  refused("weights=int4: must be one of float32, bfloat16, int8", loaded.with_weights, "int4")


def test_output_as_tsv_csv_and_jsonl(labels, checkpoint, tmp_path, capsys):
  results = labels(FORMS["lines.txt"], out="out.jsonl", batch_size=2)
  assert [json.loads(line) for line in open(tmp_path / "out.jsonl", encoding="utf-8")] == results
  np.testing.assert_allclose(probabilities_of(results).sum(axis=1), 1, atol=1e-6)
  source = str(tmp_path / "in.txt")
  predict.run(checkpoint, source)
  header, *lines = csv.reader(io.StringIO(capsys.readouterr().out), delimiter="\t")
  assert header == ["prediction", "p(barks)", "p(meows)"]
  assert [line[0] for line in lines] == [result["prediction"] for result in results]
  printed = np.array([line[1:] for line in lines], float)
  np.testing.assert_allclose(printed, probabilities_of(results), atol=2e-6)
  assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.jsonl"]
  predict.run(checkpoint, source, str(tmp_path / "out.csv"))
  assert cells(tmp_path / "out.csv") == [header, *lines]


@pytest.mark.filterwarnings("ignore:.* is read as")
@pytest.mark.parametrize(
  "encoding, delimiter, mark",
  [("utf-8", ";", b""), ("utf-8-sig", ",", BOM), ("cp1252", ";", BOM), ("utf-16", "\t", BOM)],
)
def test_a_csv_is_written_as_the_one_that_was_read(labels, tmp_path, encoding, delimiter, mark):
  table = f"text{delimiter}id\nthe café{delimiter}1\na dog{delimiter}2\n"
  labels(table.encode(encoding), "in.csv", "out.csv", keep=["text"])
  header = delimiter.join(["text", "prediction", "p(barks)", "p(meows)"])
  content = (tmp_path / "out.csv").read_bytes()
  assert content.startswith(mark + header.encode()) and "\nthe café" in content.decode()
  labels(table.encode(encoding), "in.csv", "out.tsv", keep=["text"])
  assert (tmp_path / "out.tsv").read_bytes().startswith(b"text\tprediction\t")


def test_a_value_is_the_expectation(model_of, tmp_path):
  source = write(tmp_path, "pairs.txt", "the cat\tthe dog\nred barn\ta barn\n")
  for result in predict.run(model_of("stsb"), source, str(tmp_path / "out.tsv")):
    assert len(result["probabilities"]) == 6
    expectation = sum(score * p for score, p in enumerate(result["probabilities"].values()))
    assert result["prediction"] == pytest.approx(expectation, abs=1e-4)


def test_multiple_choice(model_of, tmp_path):
  names = "article", "question", "A", "B", "C", "D"
  row = dict(zip(names, ("the cat sat.", "where?", *TEXTS), strict=True))
  source = write(tmp_path, "in.jsonl", json.dumps(row) + "\n")
  (result,) = predict.run(model_of("race-middle"), source, str(tmp_path / "out.tsv"))
  assert list(result["probabilities"]) == ["A", "B", "C", "D"]
  assert result["prediction"] == max(result["probabilities"], key=result["probabilities"].get)


@pytest.mark.parametrize(
  "name, content, message",
  [
    ("in.txt", "cat\tx\ndog\ty\n", "in.txt:1: 2 columns, but without a header .* 1: text"),
    ("in.tsv", "text\tlabel\n", "in.tsv: no rows; the columns should be text"),
    ("in.jsonl", "", "in.jsonl: no rows"),
    ("in.csv", 'text\n" "\n', "in.csv: no rows; the columns should be text"),
  ],
)
def test_bad_input_is_located_and_keeps_the_old_output(
  checkpoint, tmp_path, name, content, message
):
  source, output = write(tmp_path, name, content), write(tmp_path, "out.tsv", "old predictions")
  refused(message, predict.run, checkpoint, source, output, overwrite=True)
  assert open(output, encoding="utf-8").read() == "old predictions"
  assert sorted(os.listdir(tmp_path)) == [name, "out.tsv"]


PROBLEMS = {  # name -> rows of which only the first and the fourth are texts, and what is said
  "in.csv": ('text,n\nthe cat,1\n\n"",2\na dog,3\n\n,\n', ["empty row", "'text' is empty"]),
  "in.txt": ("the cat\n\nx\ty\na dog\n\n\n", ["empty row", "2 columns, but without a header"]),
  "in.jsonl": (
    '{"text": "the cat"}\n\n{"text": 3}\n{"text": "a dog"}\n',
    ["empty row", "should be text, not 3"],
  ),
  "deep.jsonl": (
    '{"text": "the cat"}\n' + "[" * 100_000 + '\n[]\n{"text": "a dog"}\n',
    ["nested too deeply", "should be one JSON object per line"],
  ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_rows_that_cannot_be_used_keep_their_place(labels, tmp_path, name):
  content, problems = PROBLEMS[name]
  with pytest.warns(UserWarning, match=rf"2 of 4 rows have no prediction: .*{name}:\d+: "):
    results = labels(content, name, "out.jsonl")
  alone = labels("the cat\na dog\n", "alone.txt", "alone.tsv")
  for result, expected in zip((results[0], results[3]), alone, strict=True):
    assert result["prediction"] == expected["prediction"] and "problem" not in result
  for result, problem in zip(results[1:3], problems, strict=True):
    assert result["prediction"] is None and problem in result["problem"]
  with pytest.warns(UserWarning):
    labels(content, name, "out.csv")
  header, *lines = cells(tmp_path / "out.csv")
  assert header == ["prediction", "p(barks)", "p(meows)", "problem"]
  assert [line[0] for line in lines] == [result["prediction"] or "" for result in results]
  assert lines[1][:3] == ["", "", ""] and problems[0] in lines[1][3] and lines[0][3] == ""


def test_a_pipe_is_read_once(checkpoint, tmp_path):
  for number, content in enumerate(("the cat\na dog\n", "text\tn\nthe cat\t1\na dog\t2\n")):
    os.mkfifo(tmp_path / f"pipe{number}")
    path = str(tmp_path / f"pipe{number}")
    writer = threading.Thread(target=Path(path).write_text, args=(content,))
    writer.start()
    assert len(predict.run(checkpoint, path, str(tmp_path / f"out{number}.tsv"))) == 2
    writer.join()


def test_a_first_line_without_a_column_name_is_a_row_and_says_so(labels):
  with pytest.warns(
    UserWarning, match=r"names no column of table \(text\), so it is read as a row"
  ):
    assert len(labels("sentence\nthe cat\n", "in.tsv")) == 2
  assert len(labels("{cat} sat\nthe dog\n", "in.txt", "other.tsv")) == 2  # no JSON


def test_an_interrupted_run_keeps_the_old_output(labels, tmp_path, monkeypatch):
  def interrupt(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(Task, "result", interrupt)
  output = write(tmp_path, "out.tsv", "old predictions")
  with pytest.raises(KeyboardInterrupt):
    labels("cat\n", overwrite=True)
  assert open(output, encoding="utf-8").read() == "old predictions"
  assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.tsv"]


@pytest.mark.parametrize(
  "output, message",
  [("in.txt", "is the input"), ("", "is a folder"), ("none/out.tsv", "no such folder")],
)
def test_an_unwritable_output_is_refused(checkpoint, tmp_path, monkeypatch, output, message):
  monkeypatch.setattr(LoadedModel, "predictor", lambda self: pytest.fail)  # refused earlier
  source = write(tmp_path, "in.txt", "the cat\n")
  refused(f"out=.*{message}", predict.run, checkpoint, source, str(tmp_path / output))
  assert open(source, encoding="utf-8").read() == "the cat\n"


def test_the_split_is_the_test_set_in_the_order_of_its_rows(model_of, tmp_path):
  (tmp_path / "glue" / "RTE").mkdir(parents=True)
  rows = "".join(f"0\t{text}\t.\n" for text in TEXTS)
  source = write(tmp_path, "glue/RTE/test.tsv", f"index\tsentence1\tsentence2\n{rows}")
  results = predict.run(model_of("rte"), output=str(tmp_path / "out.jsonl"), data=str(tmp_path))
  assert results == predict.run(model_of("rte"), source, str(tmp_path / "file.jsonl"))
  # All differ, or their order would not show.
  assert len({result["probabilities"]["entailment"] for result in results}) == len(TEXTS)


def test_the_files_of_the_task_are_not_overwritten(checkpoint, tmp_path, monkeypatch):
  monkeypatch.setattr(LoadedModel, "predictor", lambda _: pytest.fail)
  (tmp_path / "data").mkdir()
  dev = write(tmp_path / "data", "dev.tsv", "text\tlabel\nthe cat\tmeows\n")
  (tmp_path / "link").symlink_to(tmp_path / "data")
  for folder in ("data", "link"):
    split = {"data": str(tmp_path / folder), "split": "dev", "overwrite": True}
    refused("--out=.* is a file of --data; name", predict.run, checkpoint, None, dev, **split)


def test_an_existing_output_is_replaced_only_on_request(labels, tmp_path, monkeypatch):
  output = write(tmp_path, "out.tsv", "mine")
  with monkeypatch.context() as patch:
    patch.setattr(predict, "load_ensemble", lambda *_: pytest.fail())  # refused before any work
    refused("out=.*out.tsv already exists; .*overwrite=True", labels, "the cat\n")
  assert open(output, encoding="utf-8").read() == "mine"
  labels("the cat\n", overwrite=True)
  assert open(output, encoding="utf-8").read().startswith("prediction\t")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
  return write(tmp_path_factory.mktemp("texts"), "in.txt", FORMS["lines.txt"])


def test_probabilities_are_scaled_by_the_temperature_of_the_run(tempered, texts, tmp_path, capsys):
  results = predict.run(tempered, texts, str(tmp_path / "scaled.tsv"))
  assert "scaled by the temperature 1.700, found on 30 dev" in capsys.readouterr().err
  raw = predict.run(tempered, texts, str(tmp_path / "raw.tsv"), calibrate=False)
  assert "temperature" not in capsys.readouterr().err
  expected = scale(probabilities_of(raw), 1.7)
  assert np.abs(expected - probabilities_of(raw)).max() > 1e-3
  np.testing.assert_allclose(probabilities_of(results), expected, atol=1e-6)


def test_the_models_of_folds_are_scaled_by_the_rows_they_held_out(
  finetuned, texts, tmp_path, capsys
):
  """Each by the temperature of all of these rows, before their mean."""
  workdir, rng = tmp_path / "folds", np.random.default_rng(0)
  every, classes, raw = [], [], []
  for fold in range(2):
    folder = f"{workdir}/fold_{fold}"
    shutil.copytree(f"{finetuned.workdir}/seed_{fold}", folder)
    confidence = np.full(300, 0.95)  # too much: 70 % are right
    right = rng.random(300) < 0.7
    every.append(np.stack([confidence, 1 - confidence], axis=-1))
    classes.append(np.where(right, 0, 1))
    write_dev_set(folder, confidence, right, 1.0, f"fold {fold} row")
    alone = predict.run(f"{folder}/best", texts, str(tmp_path / f"{fold}.tsv"), calibrate=False)
    raw.append(probabilities_of(alone))
  temperature = fit_temperature(np.concatenate(every), np.concatenate(classes))
  assert temperature > 2
  capsys.readouterr()
  results = predict.run(str(workdir), texts, str(tmp_path / "out.tsv"))
  said = f"temperature {temperature:.3f}, found on the 600 dev rows of 2 folds, for each model"
  assert said in capsys.readouterr().err
  expected = np.mean([scale(each, temperature) for each in raw], axis=0)
  np.testing.assert_allclose(probabilities_of(results), expected, atol=1e-6)
  message = "precision=0.9 needs the dev set: .* has another dev set"
  refused(message, predict.run, str(workdir), texts, precision=0.9)


def test_the_temperature_of_another_step_is_not_used(checkpoint, texts, tmp_path, capsys):
  predict.run(checkpoint, texts, str(tmp_path / "out.tsv"))
  said = capsys.readouterr().err
  assert "not calibrated: " in said and f"of step 48; give checkpoint={checkpoint}/best" in said
  message = "precision=0.9 needs the dev set: .* of step 48; give"
  refused(message, predict.run, checkpoint, texts, precision=0.9)


def test_an_ensemble_is_the_mean_of_its_seeds(finetuned, texts, tmp_path, capsys):
  def found(checkpoint, name, **options):
    return predict.run(checkpoint, texts, str(tmp_path / name), **options)

  seeds = [f"{finetuned.workdir}/seed_{seed}/best" for seed in (0, 1)]
  alone = [probabilities_of(found(seed, f"{seed[-6]}.tsv", calibrate=False)) for seed in seeds]
  mean = probabilities_of(found(seeds, "mean.tsv", calibrate=False))
  np.testing.assert_allclose(mean, np.mean(alone, axis=0), atol=1e-6)
  capsys.readouterr()
  scaled = found(finetuned.workdir, "workdir.tsv")
  assert found(seeds, "seeds.tsv") == scaled
  assert "on 30 dev rows" in capsys.readouterr().err
  np.testing.assert_array_equal(probabilities_of(scaled).argmax(-1), mean.argmax(-1))


def test_models_that_do_not_fit_together(finetuned, model_of, texts):
  best = f"{finetuned.workdir}/seed_0/best"
  message = "fine-tuned on rte .*; .*seed_0/best on table .classification; columns text"
  refused(message, predict.run, [best, model_of("rte")], texts)
  refused("a language model without a head", predict.run, [best, finetuned.pretrained], texts)


def test_predictions_below_the_threshold_are_withheld(finetuned, texts, tmp_path, capsys):
  best = f"{finetuned.workdir}/seed_0/best"
  plain = predict.run(best, texts, str(tmp_path / "plain.tsv"))
  highest = probabilities_of(plain).max(axis=-1)
  threshold = float(np.sort(highest)[-2])
  results = predict.run(best, texts, str(tmp_path / "some.csv"), threshold=threshold)
  for result, before, confidence in zip(results, plain, highest, strict=True):
    assert result["probabilities"] == before["probabilities"]
    if confidence >= threshold:
      assert result == before
    else:
      problem = f"probability {confidence:.4f} is below the threshold {threshold:.4f}"
      assert (result["prediction"], result["problem"]) == (None, problem)
  assert "2 of 4 predictions are below the threshold" in capsys.readouterr().err
  header, *lines = cells(tmp_path / "some.csv")
  assert header[-1] == "problem"
  assert [line[0] for line in lines] == [result["prediction"] or "" for result in results]
  assert predict.run(best, texts, str(tmp_path / "all.jsonl"), threshold=0.0) == plain


def write_dev_set(folder, confidence, right, temperature, where="x"):
  """Replaces the dev set of a run by one of these confidences, right or not."""
  lines = []
  for number, (p, correct) in enumerate(zip(confidence, right, strict=True)):
    entry = {"where": f"{where} {number}", "text": "x", "label": "barks" if correct else "meows"}
    lines.append(json.dumps(entry | {"probabilities": [p, 1 - p]}) + "\n")
  content = "".join(lines)
  Path(folder, "dev_predictions.jsonl").write_text(content)
  report = read_json(f"{folder}/dev_report.json")
  del report["checksum"]
  report["calibration"]["temperature"] = temperature
  report["predictions_crc32"] = zlib.crc32(content.encode())
  write_json(f"{folder}/dev_report.json", with_checksum(report))


@pytest.fixture
def large_dev_set(finetuned, tmp_path):
  """A copy of a run whose dev set has 400 rows, right where the model is confident; its folder."""
  folder = tmp_path / "run"
  shutil.copytree(f"{finetuned.workdir}/seed_0", folder)
  rng = np.random.default_rng(0)
  confidence = rng.uniform(0.5, 1, 400)
  right = rng.random(400) < np.where(confidence > 0.7, 0.995, 0.6)
  write_dev_set(folder, confidence, right, 2.0)
  confidence = scale(np.stack([confidence, 1 - confidence], axis=-1), 2.0).max(axis=-1)
  return str(folder), confidence, right


def test_a_precision_chooses_the_threshold_on_the_dev_set(large_dev_set, texts, tmp_path, capsys):
  folder, confidence, right = large_dev_set
  expected = choose_threshold(confidence, right, 0.95)
  assert 0.55 < expected.value < 0.7
  results = predict.run(f"{folder}/best", texts, str(tmp_path / "out.tsv"), precision=0.95)
  said = capsys.readouterr().err
  assert f"threshold {expected.value:.4f}: {expected.correct} of {expected.given} dev rows" in said
  highest = probabilities_of(results).max(axis=-1)
  assert [result["prediction"] is None for result in results] == list(highest < expected.value)
  message = "precision=0.999: no threshold is sure to reach it"
  refused(message, predict.run, f"{folder}/best", texts, precision=0.999)


@pytest.mark.parametrize(
  "name, change, message",
  [
    ("dev_report.json", lambda text: text.replace("0.", "1.", 1), "the checksum does not match"),
    ("dev_predictions.jsonl", lambda text: text.replace("barks", "meows", 1), "does not belong to"),
    ("dev_report.json", lambda text: text[:50], r"dev_report\.json: .*; restore it, or delete it"),
  ],
)
def test_a_damaged_dev_set_is_noticed(large_dev_set, texts, name, change, message):
  path = Path(large_dev_set[0], name)
  path.write_text(change(path.read_text()))
  refused(message, predict.run, f"{large_dev_set[0]}/best", texts)


@pytest.mark.parametrize(
  "arguments, message",
  [
    ({"threshold": 0.9, "precision": 0.9}, "threshold=0.9: precision=0.9 chooses one; leave one"),
    ({"threshold": float("nan")}, "threshold=nan: must be between 0 and 1"),
    ({"precision": 1.0}, "precision=1.0: must be between 0 and 1, for example 0.95"),
    ({"output": "labels.xlsx"}, "--out=labels.xlsx: Excel workbooks are not written; name a"),
    ({"output": "labels"}, "--out=labels: the suffix is the format; name a file in .tsv, .csv"),
    ({"keep": ["id"]}, "--keep=id: .*in.txt: no column 'id' .the columns are 'text'"),
  ],
)
def test_flags_that_do_not_fit(checkpoint, texts, arguments, message):
  refused(message, predict.run, checkpoint, texts, **arguments)
  if "keep" in arguments:
    message = "--keep=id copies columns of --input; --data has"
    refused(message, predict.run, checkpoint, data=".", **arguments)


ROWS = [  # id, text, note
  ("7", "the cat", 'she said "hi"'),
  ("", "", "no text"),
  ("9", "a dog", "tab\tand\nline"),
]


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
@pytest.mark.parametrize("keep", [["note", "id"], ["all"]])
def test_kept_columns_stand_beside_their_predictions(labels, tmp_path, suffix, keep):
  table = io.StringIO(newline="")
  csv.writer(table).writerows([("id", "text", "note"), *ROWS])
  output = tmp_path / f"out.{suffix}"
  with pytest.warns(UserWarning, match="1 of 3 rows has no prediction"):
    results = labels(table.getvalue(), "in.csv", output.name, keep=keep)
  names = ["id", "text", "note"] if keep == ["all"] else keep
  if suffix == "jsonl":
    lines = [json.loads(line) for line in open(output, encoding="utf-8")]
    assert lines == results
  else:
    header, *rows = cells(output)
    assert header == [*names, "prediction", "p(barks)", "p(meows)", "problem"]
    lines = [dict(zip(header, row, strict=True)) for row in rows]
  for line, row, label in zip(lines, ROWS, ("meows", "", "barks"), strict=True):
    assert [line[name] for name in names] == [row[("id", "text", "note").index(n)] for n in names]
    assert (line["prediction"] or "") == label


def test_the_reason_of_rows_that_cannot_be_read_is_told(labels):
  fault = r"in\.tsv:2: 3 columns, but the header names 2: text, id \(separated by tabs\)"
  for keep in ((), ("id",), ("all",)):
    refused(fault, labels, "text\tid\nthe\tcat\t1\n", "in.tsv", keep=keep)


def test_kept_cells_without_a_value_or_of_rows_that_cannot_be_read_are_empty(labels, tmp_path):
  content = '{"id": 3, "text": "the cat"}\n{"id"\n{"text": "a dog"}\n'
  content += '{"id": null, "text": "a dog"}\n{"id": NaN, "text": "a dog"}\n'
  with pytest.warns(UserWarning, match="1 of 5 rows"):
    results = labels(content, "in.jsonl", "out.csv", keep=["id"])
  assert [result["id"] for result in results[:4]] == [3, "", "", None]
  assert [row[0] for row in cells(tmp_path / "out.csv")] == ["id", "3", "", "", "", ""]


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".NDJSON", ".TSV"])
@pytest.mark.filterwarnings("ignore:.* is read as ")
def test_the_output_is_an_input(checkpoint, tmp_path, suffix):
  texts = ['the "old" cat', '"the dog"', "cat\tdog"]
  texts += ["the\r\ncat\rsat\n", " , cat;", "#\u2028 cat \x1c"]
  rows = [{"text": text, "id": f"\ufeff{number}"} for number, text in enumerate(texts)]
  source = write(tmp_path, "in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
  output = str(tmp_path / f"out{suffix}")
  results = predict.run(checkpoint, source, output, keep=["text", "id"])
  kept = [{name: row[name] for name in ("text", "id")} for row in readers.Table(output).records()]
  assert kept == rows
  again = predict.run(checkpoint, output, str(tmp_path / "again.tsv"))
  assert [row["prediction"] for row in again] == [row["prediction"] for row in results]


@pytest.mark.parametrize("keep", [["prediction"], ["all"]])
def test_a_kept_column_may_not_be_called_as_one_of_the_output(labels, keep):
  message = "--keep: the output has a column 'prediction' of its own"
  refused(message, labels, "text,prediction\nthe cat,x\n", "in.csv", keep=keep)


def test_a_text_that_the_tokenizer_drops_costs_one_row(labels):
  with pytest.warns(UserWarning, match="1 of 3 rows has no prediction: .*in.txt:2: text field 1"):
    results = labels("the cat\n\u200b\na dog\n")
  assert [result["prediction"] for result in results] == ["meows", None, "barks"]


def test_progress_counts_rows(labels, monkeypatch):
  counts = []
  monkeypatch.setattr(predict.Progress, "update", lambda _, done: counts.append(done))
  labels(FORMS["lines.txt"], batch_size=1)
  assert counts[-1] == 4


@pytest.fixture(scope="module")
def by_language(tmp_path_factory):
  """A folder with dev.csv: rows as the model knows them, wrong labels in German ones."""
  folder, rng = tmp_path_factory.mktemp("rows"), random.Random(1)
  lines = ["text,label,language,id"]
  for number in range(80):
    animal, language = rng.choice(("cat", "dog")), "de" if number % 4 == 0 else "en"
    words = [animal, *rng.choices("the sat on mat and ran to old barn".split(), k=3)]
    label = "meows" if (animal == "cat") != (language == "de") else "barks"
    lines.append(f"{' '.join(words)},{label},{language},{number}")
  (folder / "dev.csv").write_text("\n".join(lines) + "\n")
  return folder


def test_evaluate_gives_the_accuracy_by_another_column(finetuned, by_language, launch):
  data = by_language.parent / "renamed"
  data.mkdir(exist_ok=True)
  (data / "dev.tsv").write_text((by_language / "dev.csv").read_text().replace(",", "\t"))
  arguments = f"{finetuned.workdir}/seed_0/best", str(data)
  code, out, told = launch(
    "evaluate", f"--checkpoint={arguments[0]}", f"--data={data}", "--slices=language"
  )
  assert code == 0, told
  assert re.search(r"^language +rows +accuracy +95 % interval$", out, re.MULTILINE)
  assert re.search(r"^en +60 +9\d\.\d%  [89].*% to [19].*%$", out, re.MULTILINE)
  assert re.search(r"^language \w+ differs most: accuracy ", out, re.MULTILINE)
  refused("none of its 80 values has 10 of", evaluate.run, *arguments, slices="id")
  refused("dev.tsv: no column 'week'", evaluate.run, *arguments, slices="week")
  of_text = f"{finetuned.pretrained}", str(data)
  refused("--slices=week: .*for the labels of a fine", evaluate.run, *of_text, slices="week")


def test_evaluate_scores_what_a_precision_answers(large_dev_set, by_language, launch, tmp_path):
  arguments = f"{large_dev_set[0]}/best", str(by_language / "dev.csv")
  results = predict.run(*arguments, str(tmp_path / "out.jsonl"), keep=["label"], precision=0.95)
  answered = [row for row in results if row["prediction"]]
  assert 0 < len(answered) < len(results) == 80
  right = sum(row["prediction"] == row["label"] for row in answered)
  code, out, told = launch(
    "evaluate", *map("{}={}".format, ("--checkpoint", "--data"), arguments), "--precision=0.95"
  )
  assert code == 0 and "dev rows above it are right; of new rows" in told
  assert f"\nanswered      {len(answered) / 80:.4f}\n" in out
  assert f"\nprecision     {right / len(answered):.4f}\n" in out
  refused(
    "threshold=0.5: precision=0.5 chooses", evaluate.run, *arguments, threshold=0.5, precision=0.5
  )


def test_predict_gives_the_score_by_another_column_and_the_drift(
  finetuned, by_language, model_of, tmp_path, capsys
):
  best, source = f"{finetuned.workdir}/seed_0/best", tmp_path / "in.csv"

  def told(text, checkpoint=best, **options):
    source.write_text(text)
    capsys.readouterr()
    predict.run(checkpoint, str(source), str(tmp_path / "out.csv"), overwrite=True, **options)
    return capsys.readouterr().err

  text = (by_language / "dev.csv").read_text()
  line = told(text, slices="language")
  accuracy = re.search(r"^en +60 +9\d\.\d%  [89].*% to [19].*%$", line, re.MULTILINE)[0]
  assert accuracy in told(text.replace(",meows,", ", Meows,"), slices="language")
  value = int(re.search(r"drift (\d+)%: this share of the rows or more is unlike 30 dev", line)[1])
  assert value < 100 * RELABEL and "nothing to do" in line
  line = told(text.replace("label", "note"), slices="language")
  assert "confidence" in line and "accuracy" not in line
  # An index that pandas wrote is no label.
  pairs = ",sentence1,sentence2,language\n" + "0,the cat sat,the cat,en\n" * 10
  assert "confidence" in told(pairs, model_of("rte"), slices="language")
  # Where a threshold leaves no prediction, there is no score, and nothing is lost.
  assert "No value of language" in told(text, slices="language", threshold=1.0)
  line = told("text\n" + "".join(f"the ship and {n} dogs by the sea\n" for n in range(40)))
  assert "label some, and train again" in line
  assert "drift" not in told("text\nthe cat sat\n")
  refused("in.csv: no column 'week'", told, text, slices="week")
