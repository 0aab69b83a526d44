"""Predictions: all input and output formats, in order, equal to those of the evaluation."""

import csv
import io
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.config import from_json
from gpt_jax.errors import InputError
from gpt_jax.inference.evaluate import task_measures
from gpt_jax.models.predictor import make_predictor
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs import predict
from gpt_jax.tasks import readers
from gpt_jax.tasks.task import Task

TEXTS = ["the cat sat", "a dog ran", "old dog on the mat", "cat"]


@pytest.fixture(scope="module")
def checkpoint(finetuned):
  return f"{finetuned.workdir}/seed_0"


@pytest.fixture(scope="module")
def expected(checkpoint):
  """Prediction and probabilities of TEXTS, by the model itself, one text at a time."""
  loaded = load_model(checkpoint)
  task = from_json(loaded.meta["task"]).build("")
  predictor = make_predictor(loaded.model, make_mesh(MeshConfig()))
  encode = [
    task.encode([task.example(readers.Row((text,), None, ""))], loaded.tokenizer, 64)
    for text in TEXTS
  ]
  return np.concatenate([predictor(loaded.params, each, 1) for each in encode])


def write(folder, name, content):
  path = folder / name
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return str(path)


FORMS = {
  "header.tsv": "id\ttext\tlabel\n"
  + "".join(f"{n}\t{text}\tmeows\n" for n, text in enumerate(TEXTS)),
  "lines.txt": "".join(text + "\r\n" for text in TEXTS),
  "quoted.csv": "label,text\n" + "".join(f'x,"{text}"\n' for text in TEXTS),
  "objects.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in TEXTS),
}


@pytest.mark.parametrize(
  "name, standard_input",
  # Standard input is never read as CSV.
  [
    (name, piped)
    for name in FORMS
    for piped in (False, True)
    if not (piped and name.endswith(".csv"))
  ],
)
def test_every_input_format(checkpoint, expected, tmp_path, monkeypatch, name, standard_input):
  source = write(tmp_path, name, FORMS[name])
  if standard_input:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(FORMS[name].encode())))
    readers._read_standard_input.cache_clear()
    source = "-"
  results = predict.run(checkpoint, source, str(tmp_path / "out.tsv"))
  readers._read_standard_input.cache_clear()
  assert [list(result["probabilities"]) for result in results] == [["barks", "meows"]] * 4
  np.testing.assert_allclose(
    [list(result["probabilities"].values()) for result in results], expected, atol=1e-5
  )
  assert [result["prediction"] for result in results] == ["meows", "barks", "barks", "meows"]


def test_output_as_tsv_csv_and_jsonl(checkpoint, tmp_path, capsys):
  source = write(tmp_path, "in.txt", FORMS["lines.txt"])
  results = predict.run(checkpoint, source, str(tmp_path / "out.jsonl"), batch_size=2)
  assert [json.loads(line) for line in open(tmp_path / "out.jsonl", encoding="utf-8")] == results
  assert all(abs(sum(result["probabilities"].values()) - 1) < 1e-6 for result in results)
  predict.run(checkpoint, source)
  header, *lines = csv.reader(io.StringIO(capsys.readouterr().out), delimiter="\t")
  assert header == ["prediction", "p(barks)", "p(meows)"]
  assert [line[0] for line in lines] == [result["prediction"] for result in results]
  printed = np.array([[float(cell) for cell in line[1:]] for line in lines])
  np.testing.assert_allclose(
    printed, [list(result["probabilities"].values()) for result in results], atol=2e-6
  )
  assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.jsonl"]
  predict.run(checkpoint, source, str(tmp_path / "out.csv"))
  assert list(csv.reader(open(tmp_path / "out.csv", encoding="utf-8"))) == [header, *lines]


def test_predictions_are_those_of_the_evaluation(finetuned, checkpoint, tmp_path):
  results = predict.run(
    checkpoint, f"{finetuned.data_dir}/dev.tsv", str(tmp_path / "out.tsv"), batch_size=8
  )
  task = finetuned.config.task.build(finetuned.data_dir)
  labels = np.array([example.label for example in task.examples(finetuned.data_dir, "dev")])
  measures = task_measures(
    task, np.array([list(result["probabilities"].values()) for result in results]), labels
  )
  assert {f"dev_{name}": pytest.approx(value, abs=1e-5) for name, value in measures.items()} == (
    finetuned.results[0]["dev"]
  )


def test_a_value_is_the_expectation(model_of, tmp_path):
  source = write(tmp_path, "pairs.txt", "the cat\tthe dog\nred barn\ta barn\n")
  for result in predict.run(model_of("stsb"), source, str(tmp_path / "out.tsv")):
    assert len(result["probabilities"]) == 6
    expectation = sum(score * p for score, p in enumerate(result["probabilities"].values()))
    assert result["prediction"] == pytest.approx(expectation, abs=1e-4)


def test_multiple_choice(model_of, tmp_path):
  columns = dict(
    zip(
      ("article", "question", "A", "B", "C", "D"), ["the cat sat.", "where?", *TEXTS], strict=True
    )
  )
  source = write(tmp_path, "in.jsonl", json.dumps(columns) + "\n")
  (result,) = predict.run(model_of("race-middle"), source, str(tmp_path / "out.tsv"))
  assert list(result["probabilities"]) == ["A", "B", "C", "D"]
  assert result["prediction"] == max(result["probabilities"], key=result["probabilities"].get)


@pytest.mark.parametrize(
  "name, content, message",
  [
    (
      "in.txt",
      "cat\tx\ndog\ty\n",
      "in.txt:1: 2 columns, but without a header line there should be 1: text",
    ),
    ("in.tsv", "id\ttext\n1\n2\n", "in.tsv:2: 1 columns, but the header names 2"),
    ("in.tsv", "text\ttext\na\tb\n", "in.tsv:1: two columns named 'text'; rename one of them"),
    ("in.csv", "id,words\n1,cat\n", "in.csv:2: no column 'text'; the columns are 'id', 'words'"),
    ("in.jsonl", '{"txt": "cat"}\n{"txt": "dog"}\n', "in.jsonl:1: no column 'text'"),
    ("in.csv", 'text\ncat\n"a" b\n', "in.csv:3: not CSV"),
    ("in.txt", "", "in.txt: empty"),
    ("in.tsv", "text\tlabel\n", "in.tsv: no rows; the columns should be text"),
    ("in.csv", "", "in.csv: empty"),
    ("in.jsonl", "", "in.jsonl: no rows"),
    ("in.txt", b"the cat\nth\xe9 dog\n", r"in.txt:2: not UTF-8 \(byte 0xe9\)"),
    ("in.csv", 'text\n" "\n', "in.csv: no rows; the columns should be text"),
  ],
)
def test_bad_input_is_located_and_keeps_the_old_output(
  checkpoint, tmp_path, name, content, message
):
  source, output = write(tmp_path, name, content), write(tmp_path, "out.tsv", "old predictions")
  with pytest.raises(InputError, match=message):
    predict.run(checkpoint, source, output, overwrite=True)
  assert open(output, encoding="utf-8").read() == "old predictions"
  assert sorted(os.listdir(tmp_path)) == [name, "out.tsv"]


PROBLEMS = {  # name -> rows of which only the first and the fourth are texts, and what is said
  "in.csv": ('text,n\nthe cat,1\n\n"",2\na dog,3\n\n,\n', ["empty row", "'text' is empty"]),
  "in.tsv": ("text\tn\nthe cat\t1\n\t\n\t2\na dog\t3\n\t\n", ["empty row", "'text' is empty"]),
  "in.txt": ("the cat\n\nx\ty\na dog\n\n\n", ["empty row", "2 columns, but without a header"]),
  "in.jsonl": (
    '{"text": "the cat"}\n\n{"text": 3}\n{"text": "a dog"}\n',
    ["empty row", "should be text, not 3"],
  ),
  "more.jsonl": (
    '{"text": "the cat"}\n{"text"\n{"text": "", "text": "a"}\n{"text": "a dog"}\n',
    ["not JSON", "two entries named 'text'"],
  ),
  "deep.jsonl": (
    '{"text": "the cat"}\n' + "[" * 100_000 + '\n[]\n{"text": "a dog"}\n',
    ["nested too deeply", "should be one JSON object per line"],
  ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_rows_that_cannot_be_used_keep_their_place(checkpoint, tmp_path, name):
  content, problems = PROBLEMS[name]
  source = write(tmp_path, name, content)
  with pytest.warns(UserWarning, match=rf"2 of 4 rows have no prediction: .*{name}:\d+: "):
    results = predict.run(checkpoint, source, str(tmp_path / "out.jsonl"))
  alone = predict.run(
    checkpoint, write(tmp_path, "alone.txt", "the cat\na dog\n"), str(tmp_path / "alone.tsv")
  )
  for result, expected in zip((results[0], results[3]), alone, strict=True):
    assert result["prediction"] == expected["prediction"] and "problem" not in result
  for result, problem in zip(results[1:3], problems, strict=True):
    assert result["prediction"] is None and problem in result["problem"]
  with pytest.warns(UserWarning):
    predict.run(checkpoint, source, str(tmp_path / "out.csv"))
  header, *lines = csv.reader(open(tmp_path / "out.csv", encoding="utf-8"))
  assert header == ["prediction", "p(barks)", "p(meows)", "problem"]
  assert [line[0] for line in lines] == [result["prediction"] or "" for result in results]
  assert lines[1][:3] == ["", "", ""] and problems[0] in lines[1][3] and lines[0][3] == ""


def test_columns_that_are_not_read_may_have_any_name(checkpoint, tmp_path):
  source = write(tmp_path, "in.csv", "n,text,,\n1,the cat,,\n2,a dog,,\n")
  assert len(predict.run(checkpoint, source, str(tmp_path / "out.tsv"))) == 2


def test_a_pipe_is_read_once(checkpoint, tmp_path):
  for number, content in enumerate(("the cat\na dog\n", "text\tn\nthe cat\t1\na dog\t2\n")):
    os.mkfifo(tmp_path / f"pipe{number}")
    path = str(tmp_path / f"pipe{number}")
    writer = threading.Thread(target=Path(path).write_text, args=(content,))
    writer.start()
    assert len(predict.run(checkpoint, path, str(tmp_path / f"out{number}.tsv"))) == 2
    writer.join()


def test_a_first_line_without_a_column_name_is_a_row_and_says_so(checkpoint, tmp_path):
  source = write(tmp_path, "in.tsv", "sentence\nthe cat\n")
  with pytest.warns(
    UserWarning, match=r"names no column of table \(text\), so it is read as a row"
  ):
    assert len(predict.run(checkpoint, source, str(tmp_path / "out.tsv"))) == 2


def test_a_line_that_begins_with_a_brace_is_text(checkpoint, tmp_path):
  source = write(tmp_path, "in.txt", "{cat} sat\nthe dog\n")
  assert len(predict.run(checkpoint, source, str(tmp_path / "out.tsv"))) == 2


def test_an_interrupted_run_keeps_the_old_output(checkpoint, tmp_path, monkeypatch):
  def interrupt(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(Task, "result", interrupt)
  source, output = write(tmp_path, "in.txt", "cat\n"), write(tmp_path, "out.tsv", "old predictions")
  with pytest.raises(KeyboardInterrupt):
    predict.run(checkpoint, source, output, overwrite=True)
  assert open(output, encoding="utf-8").read() == "old predictions"
  assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.tsv"]


@pytest.mark.parametrize(
  "output, message",
  [("in.txt", "is the input"), ("", "is a folder"), ("none/out.tsv", "No such file or directory")],
)
def test_an_unwritable_output_is_refused(checkpoint, tmp_path, monkeypatch, output, message):
  monkeypatch.setattr(LoadedModel, "predictor", lambda self: pytest.fail)  # refused earlier
  source = write(tmp_path, "in.txt", "the cat\n")
  with pytest.raises(InputError, match=f"--output=.*{message}"):
    predict.run(checkpoint, source, str(tmp_path / output))
  assert open(source, encoding="utf-8").read() == "the cat\n"


def test_a_language_model_has_no_labels(finetuned, tmp_path):
  with pytest.raises(InputError, match="a language model without a head; fine-tune it first"):
    predict.run(finetuned.pretrained, write(tmp_path, "in.txt", "cat\n"))


def test_a_split_of_the_task_is_its_file(finetuned, checkpoint, tmp_path):
  for split in ("dev", "train"):
    outputs = [str(tmp_path / f"{split}_{name}.tsv") for name in ("split", "file")]
    results = predict.run(checkpoint, None, outputs[0], data_dir=finetuned.data_dir, split=split)
    assert results == predict.run(checkpoint, f"{finetuned.data_dir}/{split}.tsv", outputs[1])
    assert Path(outputs[0]).read_bytes() == Path(outputs[1]).read_bytes()


def test_the_split_is_the_test_set_in_the_order_of_its_rows(model_of, tmp_path):
  (tmp_path / "glue" / "RTE").mkdir(parents=True)
  source = write(
    tmp_path,
    "glue/RTE/test.tsv",
    "index\tsentence1\tsentence2\n" + "".join(f"0\t{t}\t.\n" for t in TEXTS),
  )
  results = predict.run(model_of("rte"), output=str(tmp_path / "out.jsonl"), data_dir=str(tmp_path))
  assert results == predict.run(model_of("rte"), source, str(tmp_path / "file.jsonl"))
  assert len({result["probabilities"]["entailment"] for result in results}) == len(
    TEXTS
  )  # or their order would not show


def test_the_files_of_the_task_are_not_overwritten(finetuned, checkpoint, tmp_path, monkeypatch):
  monkeypatch.setattr(LoadedModel, "predictor", lambda _: pytest.fail)
  (tmp_path / "data").mkdir()
  dev = write(tmp_path / "data", "dev.tsv", "text\tlabel\nthe cat\tmeows\n")
  (tmp_path / "link").symlink_to(tmp_path / "data")
  for folder in ("data", "link"):
    with pytest.raises(InputError, match="--output=.* is a file of --data_dir; name another file"):
      predict.run(
        checkpoint, None, dev, data_dir=str(tmp_path / folder), split="dev", overwrite=True
      )


@pytest.mark.parametrize(
  "given", [{}, {"source": "x", "data_dir": "y"}, {"source": "x", "data_dir": ""}]
)
def test_either_a_file_or_a_split(checkpoint, given):
  with pytest.raises(InputError, match="give either --input, a file of rows, or --data_dir"):
    predict.run(checkpoint, **given)


def test_an_existing_output_is_replaced_only_on_request(checkpoint, tmp_path, monkeypatch):
  source, output = write(tmp_path, "in.txt", "the cat\n"), write(tmp_path, "out.tsv", "mine")
  with monkeypatch.context() as patch:
    patch.setattr(predict, "load_model", lambda *_: pytest.fail())  # refused before any work
    with pytest.raises(InputError, match="--output=.*out.tsv already exists; .*--overwrite"):
      predict.run(checkpoint, source, output)
  assert open(output, encoding="utf-8").read() == "mine"
  predict.run(checkpoint, source, output, overwrite=True)
  assert open(output, encoding="utf-8").read().startswith("prediction\t")
