"""launch/label.py on tables with few labels, and with none."""

import csv

import numpy as np
import pytest

import gpt_jax
from gpt_jax.files import read_json

TEXTS = {"bug": "the mat broke in {n} parts", "praise": "the dog ran {n} miles, well done"}


def write(path, rows, **layout):
  with path.open("w", newline="", encoding=layout.pop("encoding", "utf-8")) as file:
    csv.writer(file, **layout).writerows(rows)
  return str(path)


@pytest.mark.filterwarnings("ignore:.* is read as")
def test_eight_labels_a_class_are_enough(pretrained, launch, tmp_path):
  """The model is chosen by five folds, as two dev rows cannot say which is better."""
  rng = np.random.default_rng(1)
  rows = []
  for label in ("bug", "praise") * 8:  # by chance, so that the models differ
    words = rng.permutation(["cat", "sat", "barn", "ran", "old", "red", "sea", "mat", "dog"])
    rows.append((" ".join(words[:4]), label))
  table = write(tmp_path / "few.csv", [("text", "label"), *rows], delimiter=";")
  workdir = f"{tmp_path}/run"
  code, _, told = launch("label", table, f"--checkpoint={pretrained}", f"--workdir={workdir}")
  assert code == 0 and "Fine-tuning was skipped, as 16 rows are few" in told
  assert "TF-IDF with logistic regression: on 12 rows\n" in told
  with open(f"{workdir}/suspects.csv", encoding="utf-8") as file:
    assert file.readline() == "row;line;text;given;suggested;p(given);p(suggested)\n"
  result = read_json(f"{workdir}/result.json")
  with open(f"{workdir}/report.html") as file:
    page = file.read()
  assert "the test rows are among those that chose" in page and "had no part" not in page
  worst, best = sorted(result["judges"].values())
  assert worst < best
  assert result["judges"][result["chosen"]] == best
  assert f"in five folds is right in {best:.1%} of the rows" in told
  seven = write(tmp_path / "seven.csv", [("text", "label"), *rows[1:]])
  code, _, told = launch("label", seven, f"--checkpoint={pretrained}", f"--workdir={workdir}-7")
  assert code == 2 and "8 usable rows with 1 label of 8 rows or more in column" in told


@pytest.mark.filterwarnings("ignore:.* is read as")
def test_a_label_of_near_duplicates_is_not_judged(pretrained, launch, tmp_path):
  """They share a fold, so that no judge has seen the label. Rows are those of a spreadsheet."""
  rows = [(f"disk of server {n} is nearly full, please free some space", "disk") for n in range(8)]
  rng = np.random.default_rng(1)
  for words, label in (
    ("mat broke bolt nail wood glue saw tape screw", "bug"),
    ("dog ran well fine hat bone cat good walk", "pet"),
  ):
    rows += [(" ".join(rng.permutation(words.split())[:4]), label) for _ in range(14)]
  path = tmp_path / "few.csv"
  path.write_text("sep=;\ntext;label\n" + "".join(f"{text};{label}\n" for text, label in rows))
  workdir = f"{tmp_path}/run"
  code, _, told = launch("label", str(path), f"--checkpoint={pretrained}", f"--workdir={workdir}")
  assert code == 0, told
  assert " has no row with the label 'disk': its rows are few, or near-dup" in told
  with open(f"{workdir}/suspects.csv", newline="") as file:
    suspects = list(csv.DictReader(file, delimiter=";"))
  assert [row["given"] for row in suspects[-8:]] == ["disk"] * 8
  result = read_json(f"{workdir}/result.json")
  assert result["suspects"] < 8
  assert max(result["judges"].values()) > 28 / 36  # of the 28 rows of other labels
  for row in suspects:  # a spreadsheet hides the first line
    assert rows[int(row["row"]) - 2][0] == rows[int(row["line"]) - 3][0] == row["text"]


@pytest.mark.filterwarnings("ignore:.* is read as")
def test_labels_are_guessed_by_their_names(pretrained, launch, tmp_path):
  texts = [text.format(n=n) for text in TEXTS.values() for n in range(4)]
  rows = [(f"t{n}", text) for n, text in enumerate(texts)] + [("t9", " "), ("t8", "\u200b")]
  table = write(tmp_path / "none.csv", [("id", "text"), *rows], delimiter=";", encoding="utf-8-sig")
  given = table, f"--checkpoint={pretrained}", f"--workdir={tmp_path}/run"
  code, _, told = launch("label", *given, "--labels=a broken mat,a good dog,the sea")
  path = f"{tmp_path}/run/guesses.csv"
  assert "2 rows cannot be used" in told and "run was not trained to compare texts" in told
  assert code == 0 and f"{path}: 8 rows with the label whose name is nearest: a broken" in told
  assert (
    f"launch/label.py --input={path} --text=text --label=label --checkpoint={pretrained}" in told
  )
  with open(path, newline="", encoding="utf-8") as file:
    assert (
      file.read(1) == "\ufeff"
    )  # as the table begins, or a spreadsheet would take it for another
    guesses = list(csv.DictReader(file, delimiter=";"))
  margins = [float(row["margin"]) for row in guesses]
  assert margins == sorted(margins) and {(row["id"], row["text"]) for row in guesses} == {*rows[:8]}
  names = ["a broken mat", "a good dog", "the sea"]
  model = gpt_jax.load(str(pretrained))
  of_texts, of_names = model.embed([row["text"] for row in guesses]), model.embed(names)
  lengths = np.linalg.norm(of_texts, axis=1)[:, None] * np.linalg.norm(of_names, axis=1)
  cosines = of_texts @ of_names.T / lengths
  assert [row["label"] for row in guesses] == [names[n] for n in cosines.argmax(axis=1)]
  best, second = np.sort(cosines, axis=1)[:, ::-1][:, :2].T
  np.testing.assert_allclose(margins, best - second, atol=1e-3)
  code, _, told = launch("label", *given, "--labels=a,b")
  assert code == 2 and "guesses.csv: is there already, perhaps with your corrections" in told


@pytest.mark.filterwarnings("ignore:.* is read as")
@pytest.mark.parametrize(
  "name, content, names",
  [
    ("a.csv", "text,note,note\na,b,c\nd,e,f\n", ["text", "note", "note.1"]),
    ("a.jsonl", '{"text": "a"}\n{"text": "b", "note": "c"}\n', ["text", "note"]),
  ],
)
def test_guesses_keep_all_columns(pretrained, launch, tmp_path, name, content, names):
  (tmp_path / name).write_text(content)
  given = f"--checkpoint={pretrained}", f"--workdir={tmp_path}/run", "--labels=a mat,a dog"
  code, _, told = launch("label", str(tmp_path / name), *given, "--text=text")
  assert code == 0, told
  with open(tmp_path / "run" / "guesses.csv", newline="") as file:
    guesses = list(csv.reader(file))
  assert guesses[0] == [*names, "label", "margin"]
  cells = {cell for row in guesses[1:] for cell in row[: len(names)]}
  assert cells >= ({*"abcdef"} if name == "a.csv" else {"a", "b", "c", ""})


def test_a_warning_comes_once(pretrained, launch, tmp_path):
  rows = [(f"the cat sat on {n} mats", n // 2) for n in range(120)]
  table = write(tmp_path / "numbers.csv", [("text", "label"), *rows])
  with pytest.warns(UserWarning, match="60 different numbers, each of which counts") as warned:
    launch("label", table, f"--checkpoint={pretrained}", f"--workdir={tmp_path}/run")
  assert len(warned) == 1


@pytest.mark.parametrize(
  "flags, message",
  [
    (["--labels=a"], "--labels=a: should be two or more different names"),
    (["--labels=a", "--labels=b,a"], "--labels=a,b,a: should be two or more different names"),
    (["--labels=a,b", "--pool=x.csv"], "is for a table without labels; leave --pool out"),
    (["--labels=a,b", "--precision=0.9"], "for a table without labels; leave --precision out"),
    (
      ["--labels=a,margin", "--text=x"],
      "none.csv has a column 'margin'; rename it, or leave --lab",
    ),
    (["--labels=a,b"], "which of its columns have the text? --text=NAME says it; they are id, x"),
    (["--labels=a,b", "--text=y"], "no column 'y'"),
    (["--labels=a,b", "--text=id", "--checkpoint="], "missing --checkpoint"),
  ],
)
def test_a_wrong_command_for_guesses_is_one_line(launch, tmp_path, flags, message):
  header = ("id", "x", "margin") if "margin" in flags[0] else ("id", "x")
  table = write(tmp_path / "none.csv", [header, ("1", "the cat", "")[: len(header)]])
  given = f"--checkpoint={tmp_path}", f"--workdir={tmp_path}/run"
  if "--checkpoint=" in flags:
    given, flags = given[1:], flags[:-1]
  code, _, told = launch("label", table, *given, *flags)
  assert code == 2 and message in told and told.count("\n") == 1
