"""launch/label.py on tables with few labels, and with none."""

import csv

import numpy as np
import pytest

import gpt_jax
from gpt_jax.files import read_json
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig

TEXTS = {"bug": "the mat broke in {n} parts", "praise": "the dog ran {n} miles, well done"}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, make_run, tiny_tokenizer):
  """A checkpoint with random parameters."""
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=64, layers=1, width=32, heads=2)
  return make_run(tmp_path_factory.mktemp("pretrained") / "run", ModelConfig(trunk))


def write(path, rows):
  with path.open("w", newline="") as file:
    csv.writer(file).writerows(rows)
  return str(path)


def test_eight_labels_a_class_are_enough(pretrained, launch, tmp_path):
  """The model is chosen by five folds, as two dev rows cannot say which is better."""
  rng = np.random.default_rng(1)
  rows = []
  for label in ("bug", "praise") * 8:  # by chance, so that the models differ
    words = rng.permutation(["cat", "sat", "barn", "ran", "old", "red", "sea", "mat", "dog"])
    rows.append((" ".join(words[:4]), label))
  table = write(tmp_path / "few.csv", [("text", "label"), *rows])
  workdir = f"{tmp_path}/run"
  code, _, told = launch("label", table, f"--checkpoint={pretrained}", f"--workdir={workdir}")
  assert code == 0 and "Fine-tuning was skipped, as 16 rows are few" in told
  result = read_json(f"{workdir}/result.json")
  with open(f"{workdir}/report.html") as file:
    page = file.read()
  assert "the test rows are among those that chose" in page and "had no part" not in page
  worst, best = sorted(result["judges"].values())
  assert worst < best
  assert result["judges"][result["chosen"]] == best
  assert f"in five folds is right in {best:.1%} of all rows" in told
  seven = write(tmp_path / "seven.csv", [("text", "label"), *rows[1:]])
  code, _, told = launch("label", seven, f"--checkpoint={pretrained}", f"--workdir={workdir}-7")
  assert code == 2 and "labels of 8 rows or more in column 'label'; 16 rows and 2" in told


def test_labels_are_guessed_by_their_names(pretrained, launch, tmp_path):
  texts = [text.format(n=n) for text in TEXTS.values() for n in range(4)]
  rows = [(f"t{n}", text) for n, text in enumerate(texts)] + [("t9", " "), ("t8", "\u200b")]
  table = write(tmp_path / "none.csv", [("id", "text"), *rows])
  given = table, f"--checkpoint={pretrained}", f"--workdir={tmp_path}/run"
  code, _, told = launch("label", *given, "--labels=a broken mat,a good dog,the sea")
  path = f"{tmp_path}/run/guesses.csv"
  assert "2 rows cannot be used" in told
  assert code == 0 and f"{path}: 8 rows with the label whose name is nearest: a broken" in told
  assert (
    f"launch/label.py --input={path} --text=text --label=label --checkpoint={pretrained}" in told
  )
  with open(path, newline="") as file:
    guesses = list(csv.DictReader(file))
  margins = [float(row["margin"]) for row in guesses]
  assert margins == sorted(margins) and {row["text"] for row in guesses} == {*texts}
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


@pytest.mark.parametrize(
  "flags, message",
  [
    (["--labels=a"], "--labels=a: should be two or more different names"),
    (["--labels=a", "--labels=b,a"], "--labels=a,b,a: should be two or more different names"),
    (["--labels=a,b", "--pool=x.csv"], "is for a table without labels; leave --pool out"),
    (["--labels=a,b", "--precision=0.9"], "for a table without labels; leave --precision out"),
    (["--labels=a,b"], "which of its columns have the text? --text=NAME says it; they are id, x"),
    (["--labels=a,b", "--text=y"], "no column 'y'"),
    (["--labels=a,b", "--text=id", "--checkpoint="], "missing --checkpoint"),
  ],
)
def test_a_wrong_command_for_guesses_is_one_line(launch, tmp_path, flags, message):
  table = write(tmp_path / "none.csv", [("id", "x"), ("1", "the cat")])
  given = f"--checkpoint={tmp_path}", f"--workdir={tmp_path}/run"
  if "--checkpoint=" in flags:
    given, flags = given[1:], flags[:-1]
  code, _, told = launch("label", table, *given, *flags)
  assert code == 2 and message in told and told.count("\n") == 1
