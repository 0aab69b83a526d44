"""GLUE submissions: what is written, what is refused, and the score of the paper's numbers."""

import collections
import dataclasses
import functools
import itertools
import os
import random
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from refused import refused

from gpt_jax.apps.paper import comparison, glue
from gpt_jax.apps.paper.glue import TEST_SETS, average, check
from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.errors import InputError
from gpt_jax.inference.intervals import spread
from gpt_jax.programs import predict
from gpt_jax.tasks.task import find

some_are_constant = pytest.mark.filterwarnings("ignore:.*not predicted by any model")
WORDS = "the cat sat on mat and dog ran to old red barn by sea".split()

# Of each test set: its file, and its columns. MRPC's is the only one with labels.
TEST_FILES = {
  "CoLA.tsv": ("CoLA/test.tsv", "index sentence"),
  "SST-2.tsv": ("SST-2/test.tsv", "index sentence"),
  "MRPC.tsv": ("MRPC/msr_paraphrase_test.txt", "Quality #1_ID #2_ID #1_String #2_String"),
  "STS-B.tsv": ("STS-B/test.tsv", "index genre sentence1 sentence2"),
  "QQP.tsv": ("QQP/test.tsv", "id question1 question2"),
  "MNLI-m.tsv": ("MNLI/test_matched.tsv", "index genre sentence1 sentence2"),
  "MNLI-mm.tsv": ("MNLI/test_mismatched.tsv", "index genre sentence1 sentence2"),
  "QNLI.tsv": ("QNLI/test.tsv", "index question sentence"),
  "RTE.tsv": ("RTE/test.tsv", "index sentence1 sentence2"),
  "WNLI.tsv": ("WNLI/test.tsv", "index sentence1 sentence2"),
  "AX.tsv": ("AX/diagnostic.tsv", "index sentence1 sentence2"),
}


@pytest.fixture(scope="module")
def model_of(model_of):
  """Each model once; the tests only read them."""
  return functools.cache(model_of)


def write_test_file(data_dir, file, rows):
  """Random words for every row of a test set, in GLUE's format."""
  rng = random.Random(file)
  name, header = TEST_FILES[file]
  columns = [column.replace("_", " ") for column in header.split()]
  path = Path(data_dir, "glue", name)
  path.parent.mkdir(parents=True, exist_ok=True)
  lines = ["\t".join(columns)]
  for row in range(rows):
    known = {"index": str(row), "id": str(row), "Quality": "0"}
    cells = (known.get(column, " ".join(rng.choices(WORDS, k=4))) for column in columns)
    lines.append("\t".join(cells))
  path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def few(monkeypatch):
  """GLUE with 5 to 15 rows a test set."""
  test_sets = tuple(
    dataclasses.replace(test_set, rows=5 + number) for number, test_set in enumerate(TEST_SETS)
  )
  monkeypatch.setattr(glue, "TEST_SETS", test_sets)
  return {test_set.file: test_set for test_set in test_sets}


@pytest.fixture
def data(few, tmp_path):
  for file, test_set in few.items():
    write_test_file(tmp_path / "data", file, test_set.rows)
  return str(tmp_path / "data")


def columns_of(path):
  """The predictions of each file, whose index is 0, 1, …"""
  columns = {}
  with zipfile.ZipFile(path) as archive:
    for name in archive.namelist():
      header, *lines = archive.read(name).decode().splitlines()
      index, columns[name] = zip(*(line.split("\t") for line in lines), strict=True)
      assert (header, index) == ("index\tprediction", tuple(map(str, range(len(lines)))))
  return columns


def test_a_submission_has_what_the_models_predict(model_of, few, data, tmp_path):
  models = {name: model_of(name) for name in ("cola", "stsb", "mnli")}
  out = str(tmp_path / "submission.zip")
  with pytest.warns(UserWarning, match="not predicted") as caught:
    sources = glue.run(list(models.values()), data, out)
  columns = columns_of(out)
  sizes = {name: len(column) for name, column in columns.items()}
  assert sizes == {name: few[name].rows for name in TEST_FILES}
  predicted = {"CoLA.tsv": "cola", "STS-B.tsv": "stsb", "MNLI-m.tsv": "mnli"}
  predicted |= {"MNLI-mm.tsv": "mnli-mismatched", "AX.tsv": "mnli-diagnostic"}
  for file, task in predicted.items():
    model = models.get(task) or model_of(task)  # of MNLI, the same parameters
    results = predict.run(model, output=str(tmp_path / f"{file}.jsonl"), data=data)
    expected = [result["prediction"] for result in results]
    if file == "CoLA.tsv":
      expected = [str(["unacceptable", "acceptable"].index(label)) for label in expected]
    if file == "STS-B.tsv":
      np.testing.assert_allclose(np.array(columns[file], float), expected, atol=1.1e-4)
    else:
      assert list(columns[file]) == expected and len(set(expected)) > 1
    assert sources[file] == models[task.partition("-")[0]]

  (text,) = [str(each.message) for each in caught if each.category is UserWarning]
  for file in set(TEST_FILES) - set(predicted):
    assert set(columns[file]) == {few[file].constant}
    assert sources[file] == f"constant: no checkpoint of {few[file].task}"
    assert f"{file} ({sources[file]})" in text
  assert not any(file in text for file in predicted)
  names = {"data", "submission.zip", *(f"{file}.jsonl" for file in predicted)}
  assert {*os.listdir(tmp_path)} == names


def test_cut_rows_and_a_missing_diagnostic_set_are_named_in_warnings(model_of, data, tmp_path):
  path, out = Path(data, "glue", "CoLA", "test.tsv"), str(tmp_path / "submission.zip")
  path.write_text(path.read_text().replace("\n1\t", "\n1\t" + "the cat " * 40))
  os.remove(f"{data}/glue/AX/diagnostic.tsv")
  not_predicted = r"not predicted.* AX\.tsv \(constant: no .*/AX/diagnostic\.tsv\)"
  with (
    pytest.warns(UserWarning, match="^CoLA.tsv: 1 of 5 rows is longer than the context of 64"),
    pytest.warns(UserWarning, match=not_predicted),
  ):
    sources = glue.run([model_of("cola"), model_of("mnli")], data, out)
  assert sources["AX.tsv"] == f"constant: no {data}/glue/AX/diagnostic.tsv"
  assert set(columns_of(out)["AX.tsv"]) == {"entailment"}


def test_all_are_predicted_without_a_warning(model_of, data, tmp_path):
  tasks = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
  with warnings.catch_warnings():
    warnings.filterwarnings("error", ".*not predicted")
    sources = glue.run([model_of(task) for task in tasks], data, str(tmp_path / "submission.zip"))
  assert not any("constant" in source for source in sources.values())


LABELLED = {
  "cola": ("CoLA/dev.tsv", "x\t{}\t\tA."),
  "sst2": ("SST-2/dev.tsv", "sentence\tlabel\nA.\t{}"),
  "mrpc": ("MRPC/msr_paraphrase_test.txt", "Quality\t#1 String\t#2 String\n{}\tA.\tB."),
  "stsb": ("STS-B/dev.tsv", "sentence1\tsentence2\tscore\nA.\tB.\t{}"),
  "qqp": ("QQP/dev.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tA.\tB.\t{}"),
  "mnli": ("MNLI/dev_matched.tsv", "sentence1\tsentence2\tgold_label\nA.\tB.\t{}"),
  "mnli-mismatched": ("MNLI/dev_mismatched.tsv", "sentence1\tsentence2\tgold_label\nA.\tB.\t{}"),
  "mnli-diagnostic": ("MNLI/dev_matched.tsv", "sentence1\tsentence2\tgold_label\nA.\tB.\t{}"),
  "qnli": ("QNLI/dev.tsv", "question\tsentence\tlabel\nA.\tB.\t{}"),
  "rte": ("RTE/dev.tsv", "sentence1\tsentence2\tlabel\nA.\tB.\t{}"),
  "wnli": ("WNLI/dev.tsv", "sentence1\tsentence2\tlabel\nA.\tB.\t{}"),
}


@pytest.mark.parametrize("test_set", TEST_SETS, ids=lambda test_set: test_set.file)
def test_predictions_are_written_as_the_files_have_labels(test_set, tmp_path):
  name, content = LABELLED[test_set.task]
  path = tmp_path / "glue" / name
  path.parent.mkdir(parents=True)
  labels = test_set.written or ("0.0000", "1.2500", "5.0000")
  assert test_set.constant in (*test_set.written, "2.5")
  for label in labels:
    path.write_text(content.format(label))
    task = find(test_set.task)
    (example,) = task.examples(str(tmp_path), "test" if path.suffix == ".txt" else "dev")
    assert test_set.predictions(task.value(np.array([example.label]))) == [label]
  assert len(labels) == task.num_classes or test_set.file == "STS-B.tsv"
  assert set(test_set.metrics) <= set(task.metrics)


@pytest.mark.parametrize("file", TEST_FILES)
def test_the_official_test_sets_have_these_many_rows(data_root, file):
  (test_set,) = (test_set for test_set in TEST_SETS if test_set.file == file)
  if not (data_root / "glue" / TEST_FILES[file][0]).is_file():
    pytest.skip(f"no {TEST_FILES[file][0]} in {data_root}/glue")
  assert len(find(test_set.task).examples(str(data_root), "test")) == test_set.rows


HEAD = "index\tsentence\n"
EMPTY_CELL = HEAD + "0\tcat\n" * 4 + "4\t \n"


@pytest.mark.parametrize(
  "tasks, change, message",
  [
    (["rte", "cola", "rte"], None, "rte.* and .*rte are both of rte; give one of them"),
    (["mnli", "mnli-mismatched"], None, "are both of mnli; give one of them"),
    (["race-middle"], None, "race-middle, not on a task of GLUE; these are cola, sst2, .*wnli$"),
    (["rte", "cola"], ("CoLA/test.tsv", f"{HEAD}0\tcat\n"), r"\.tsv: 1 row; GLUE's has 5: copy"),
    (["cola", "rte"], ("RTE/test.tsv", None), r"RTE/test\.tsv: No such file"),
    (["mnli"], ("MNLI/test_mismatched.tsv", None), r"MNLI/test_mismatched\.tsv: No such file"),
    (["mnli"], ("AX/diagnostic.tsv", f"{HEAD}0\ta\n"), r"diagnostic\.tsv: no column"),
    (["cola"], ("CoLA/test.tsv", EMPTY_CELL), r"CoLA/test\.tsv:6: column 'sentence' is empty"),
  ],
)
def test_what_is_wrong_is_told_before_the_time_is_spent(
  model_of, data, tmp_path, monkeypatch, tasks, change, message
):
  monkeypatch.setattr(LoadedModel, "predictor", lambda _: pytest.fail)
  if change:
    path = Path(data, "glue", change[0])
    path.unlink() if change[1] is None else path.write_text(change[1])
  models = [model_of(task) for task in tasks]
  refused(message, glue.run, models, data, str(tmp_path / "submission.zip"))
  assert os.listdir(tmp_path) == ["data"]


@some_are_constant
def test_an_output_that_is_there_or_comes_meanwhile_is_kept(model_of, data, tmp_path, monkeypatch):
  out, original, models = tmp_path / "out.zip", glue.check, [model_of("cola")]
  monkeypatch.setattr(glue, "check", lambda path: (original(path), out.write_text("another's")))
  refused("out=.*already exists", glue.run, models, data, str(out))
  monkeypatch.setattr(LoadedModel, "predictor", lambda _: pytest.fail)
  refused("out=.*already exists", glue.run, models, data, str(out))
  refused("out=.*No such file or dir", glue.run, models, data, str(tmp_path / "none" / "new.zip"))
  assert out.read_text() == "another's"
  assert sorted(os.listdir(tmp_path)) == ["data", "out.zip"]


@some_are_constant
def test_no_file_is_left_after_a_kill_or_of_a_model_that_predicts_nothing(
  model_of, few, data, tmp_path, monkeypatch
):
  nan = np.full((few["CoLA.tsv"].rows, 2), np.nan)
  monkeypatch.setattr(LoadedModel, "predictor", lambda _: lambda *_: nan)
  making = [model_of("cola")], data, str(tmp_path / "submission.zip")
  refused("cola predicts nan for cola; its training has diverged", glue.run, *making)

  def interrupt(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(LoadedModel, "predictor", interrupt)
  with pytest.raises(KeyboardInterrupt):
    glue.run(*making)
  assert os.listdir(tmp_path) == ["data"]


@pytest.mark.slow
def test_a_submission_of_full_size(model_of, tmp_path, launch):
  write_test_file(tmp_path, "CoLA.tsv", 1063)
  model, out = model_of("cola"), tmp_path / "submission.zip"
  making = f"--checkpoint={model}", f"--data={tmp_path}", f"--out={out}"
  constant = f"^{out}: not predicted by any model: SST-2.tsv .constant: no checkpoint of"
  with pytest.warns(UserWarning, match=constant):
    code, made, errors = launch("glue", *making)
  assert (code, errors) == (0, "")
  columns = columns_of(out)
  lines = dict(line.split(maxsplit=1) for line in made.splitlines())
  assert lines.keys() == columns.keys() == TEST_FILES.keys()
  counts = sorted(collections.Counter(columns["CoLA.tsv"]).items())
  shares = ", ".join(f"{label} {count / 1063:.1%}" for label, count in counts)
  assert lines["CoLA.tsv"].split("  ", 1)[0] == "1,063" and shares in lines["CoLA.tsv"]
  assert lines["CoLA.tsv"].endswith(f" {model}")
  assert lines["QQP.tsv"].split() == "390,965 0 100.0% constant: no checkpoint of qqp".split()
  code, checked, errors = launch("glue", f"--check={out}")
  assert (code, errors) == (0, "")
  for line, without_source in zip(made.splitlines(), checked.splitlines(), strict=True):
    assert line.startswith(without_source) and line != without_source


def contents_of(few):
  """A submission that is as it should be: name -> content."""
  contents = {}
  for file, test_set in few.items():
    values = itertools.cycle(test_set.written or ("0", "5", "2.5", "3e-2", "4.999"))
    rows = [f"{row}\t{value}\n" for row, value in zip(range(test_set.rows), values, strict=False)]
    contents[file] = "".join(["index\tprediction\n", *rows])
  return contents


def zipped(path, contents):
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in contents.items():
      archive.writestr(name, content)
  return str(path)


def test_check_counts(few, tmp_path):
  clipped = few["STS-B.tsv"].predictions(np.array([-0.1, 5.0000005, 6]))
  assert clipped == ["0.0000", "5.0000", "5.0000"]
  contents = contents_of(few)
  rows = {file: test_set.rows for file, test_set in few.items()}
  counted = check(zipped(tmp_path / "good.zip", contents))
  assert {file: counts.total() for file, counts in counted.items()} == rows
  assert counted["CoLA.tsv"] == {"0": 3, "1": 2}
  assert counted["STS-B.tsv"] == {"0 to 1": 3, "4 to 5": 3, "2 to 3": 2}
  contents["RTE.tsv"] = contents["RTE.tsv"].removesuffix("\n")
  del contents["AX.tsv"], counted["AX.tsv"]
  assert check(zipped(tmp_path / "good.zip", contents)) == counted


BAD = [  # file, what of it is replaced by what, line and message
  ("CoLA.tsv", "0\t0\n", "0\t2\n", "2: prediction '2': should be one of 0, 1"),
  ("RTE.tsv", "1\tnot_entailment\n", "1\t1\n", "3: prediction '1': should be one of entailment"),
  ("AX.tsv", "1\tneutral\n", "1\tnot_entailment\n", "3: prediction 'not_entailment': should be"),
  ("WNLI.tsv", "0\t0\n", "0\t0\r\n", r"2: prediction '0\\r': should be one of 0, 1"),
  ("STS-B.tsv", "1\t5\n", "1\t5.0001\n", "3: prediction '5.0001': should be a number from 0 to 5"),
  ("STS-B.tsv", "1\t5\n", "1\t-0.1\n", "3: prediction '-0.1': should be a number"),
  ("STS-B.tsv", "1\t5\n", "1\tnan\n", "3: prediction 'nan': should be a number"),
  ("STS-B.tsv", "1\t5\n", "1\t0_5\n", "3: prediction '0_5': should be a number"),
  ("STS-B.tsv", "1\t5\n", "1\t\n", "3: prediction '': should be a number"),
  ("QQP.tsv", "1\t1\n", "", "3: index '2'; should be 1"),
  ("QQP.tsv", "1\t1\n2\t0\n", "2\t0\n1\t1\n", "3: index '2'; should be 1"),
  ("QQP.tsv", "1\t1\n", "01\t1\n", "3: index '01'; should be 1"),
  ("MRPC.tsv", "6\t0\n", "", "7: ends after 6 rows; should have 7"),
  ("MRPC.tsv", "6\t0\n", "6\t0\n7\t0\n", "9: ends after 8 rows; should have 7"),
  ("MRPC.tsv", "6\t0\n", "6\t0\n\n", "9: 1 column; should be 2"),
  ("MRPC.tsv", "3\t1\n", "3 1\n", "5: 1 column; should be 2, separated by a tab"),
  ("SST-2.tsv", "index\tprediction\n", "", "1: '0.t0'; should be index and prediction"),
  ("SST-2.tsv", "index\t", "\ufeffindex\t", "1: .*; should be index and prediction, separated by"),
  ("CoLA.tsv", "0\t0\n", "0\t\udcff\n", "2: prediction .*xff.*: should be one of 0, 1"),
]


@pytest.mark.parametrize("file, old, new, message", BAD)
def test_check_names_file_and_line(few, tmp_path, file, old, new, message):
  contents, head, tail = contents_of(few), *f"\n{contents_of(few)[file]}".split(f"\n{old}")
  contents[file] = f"{head}\n{new}{tail}".removeprefix("\n").encode(errors="surrogateescape")
  path = zipped(tmp_path / "bad.zip", contents)
  refused(f"^{path}: {file}:{message}", check, path)


@pytest.mark.parametrize(
  "name, content, message",
  [
    ("CoLA.tsv", "", "CoLA.tsv:1: ''; should be index and prediction"),
    ("glue/", "", "'glue/' is a folder or in one"),
    ("glue/CoLA.tsv", "", "'glue/CoLA.tsv' is a folder or in one"),
    ("__MACOSX/._CoLA.tsv", "", "in one; the files should be at the top level of the zip"),
    ("readme.txt", "", "'readme.txt' does not belong to a submission; .* are CoLA.tsv, .*AX.tsv$"),
    ("cola.tsv", "", "'cola.tsv' does not belong to a submission"),
    *((file, None, f"zip: no {file}; the server needs every") for file in list(TEST_FILES)[:-1]),
  ],
)
def test_all_tasks_and_nothing_else_are_in_it(few, tmp_path, name, content, message):
  contents = {**contents_of(few), name: content}
  if content is None:
    del contents[name]
  refused(message, check, zipped(tmp_path / "bad.zip", contents))


def test_a_file_twice(few, tmp_path):
  path = zipped(tmp_path / "bad.zip", contents_of(few))
  with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
    archive.writestr("CoLA.tsv", contents_of(few)["CoLA.tsv"])
  refused("contains 'CoLA.tsv' 2 times", check, path)


def test_a_damaged_zip_is_bad_input_and_nothing_else(few, tmp_path):
  good = Path(zipped(tmp_path / "good.zip", contents_of(few))).read_bytes()
  path = tmp_path / "damaged.zip"
  rng, count = random.Random(0), 0
  for _ in range(300):
    damaged = bytearray(good)
    for _ in range(rng.randint(1, 3)):
      damaged[rng.randrange(len(good))] = rng.randrange(256)
    path.write_bytes(damaged[: rng.choice((len(good), rng.randrange(len(good))))])
    try:
      check(str(path))
    except InputError as error:
      count += 1
      assert str(path) in str(error)
  assert count > 200


# Radford et al. 2018, tables 2 and 4. Other accuracies, Spearman and WNLI: the same model on GLUE's
# leaderboard.
PAPER = {
  "cola": {"matthews": 45.4},
  "sst2": {"accuracy": 91.3},
  "mrpc": {"f1": 82.3, "accuracy": 75.7},
  "stsb": {"pearson": 82.0, "spearman": 80.0},
  "qqp": {"f1": 70.3, "accuracy": 88.5},
  "mnli": {"accuracy": 82.1},
  "mnli-mismatched": {"accuracy": 81.4},
  "qnli": {"accuracy": 88.1},
  "rte": {"accuracy": 56.0},
  "wnli": {"accuracy": 53.4},
}


def test_the_papers_score():
  assert round(average(PAPER), 1) == 72.8  # table 4
  for task, scores in PAPER.items():  # each task counts alike
    for metric, value in scores.items():
      more = {**PAPER, task: {**scores, metric: value + 9}}
      share = 1 if len(scores) == 1 and not task.startswith("mnli") else 0.5
      assert average(more) == pytest.approx(average(PAPER) + share)
  others = {task: {**scores, "loss": 9.0, "examples": 7} for task, scores in PAPER.items()}
  others["cola"]["accuracy"] = 1.0
  others |= {"mnli-diagnostic": {"accuracy": 1.0}, "race": {"accuracy": 1.0}}
  assert average(others) == average(PAPER)
  some = {**PAPER, "mrpc": {"accuracy": 75.7}}
  del some["wnli"], some["mnli-mismatched"]
  missing = r"missing: mrpc \(f1\), mnli-mismatched \(accuracy\), wnli \(accuracy\)$"
  refused(f"GLUE's score needs all nine tasks; {missing}", average, some)


def test_the_glue_column_of_table_4_is_glues_score():
  """With the paper's numbers as our results."""
  runs = {}
  for task, metrics in PAPER.items():
    spreads = {f"dev_{name}": spread([value / 100])._asdict() for name, value in metrics.items()}
    known = {"metric": next(iter(metrics)), "seeds": [0], "degenerate": [], "note": ""}
    runs[task] = {**known, "best": spreads, "dev": spreads}
  results = {"budget": "paper", "checkpoints": {}, "zero_shot": {}, "left_out": {}}
  results["runs"] = {"full": runs}
  lines = comparison.describe(results).splitlines()
  rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in lines}
  assert rows["**ours**"] == ["45.4", "91.3", "82.3", "82.0", "70.3", "72.8 |"]
  assert rows["difference"] == [*["+0.0"] * 5, "+0.0 |"]
  del runs["wnli"]
  assert "| **ours** | 45.4 | 91.3 | 82.3 | 82.0 | 70.3 |  |" in comparison.describe(results)
