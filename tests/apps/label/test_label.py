"""launch/label.py: from one table to a classifier, what it can promise, and its doubtful labels."""

import copy
import csv
import json
import random
import re
import shutil
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from refused import refused
from sklearn.feature_extraction.text import TfidfVectorizer

import gpt_jax
from gpt_jax.apps.label import label
from gpt_jax.apps.label.page import render
from gpt_jax.batch import Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data import progress
from gpt_jax.files import read_json, upload_folder
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import export, predict
from gpt_jax.training.run_log import curve

SENTENCES = {
  "billing": (0.4, ("the red barn was sold twice for {n}", "the barn has a wrong price of {n}")),
  "login": (0.2, ("the old cat sat on door {n}", "no door for cat number {n}")),
  "bug": (0.15, ("the mat broke in {n} parts", "mat {n} and the mat by it broke")),
  "praise": (0.1, ("the dog ran {n} miles, well done", "a good dog, {n} times good")),
  "cancel": (0.08, ("the sea took {n} ships away", "end the sea trip of {n} days")),
  "other": (0.07, ("the house and {n} trees", "{n} trees by the house")),
}
FILLERS = ('it was "urgent"', "on\nMonday", "🙂 thanks", "again, and again", "", "", "since noon")
ROWS, WRONG = 360, 0.05


def normalized(text):
  return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@pytest.fixture(scope="module")
def tickets(tmp_path_factory):
  """A folder with tickets.csv. Attributes: path, folder, wrong (line -> whether its label is)."""
  folder, rng = tmp_path_factory.mktemp("tickets"), random.Random(3)
  labels = list(SENTENCES)
  rows, wrong = [], []
  while len(rows) < ROWS:
    if rows and rng.random() < 0.04:  # a near-duplicate
      number = rng.randrange(len(rows))
      text, given = rows[number]
      rows.append((f"{text.upper()} !", given))
      wrong.append(wrong[number])
      continue
    true = rng.choices(labels, [share for share, _ in SENTENCES.values()])[0]
    parts = [rng.choice(SENTENCES[true][1]).format(n=rng.randint(2, 99)), *rng.sample(FILLERS, 3)]
    rng.shuffle(parts)
    is_wrong = rng.random() < WRONG
    given = rng.choice([name for name in labels if name != true]) if is_wrong else true
    rows.append((" ".join(filter(None, parts)), given))
    wrong.append(is_wrong)
  rows[7], rows[9] = ("", rows[7][1]), (rows[9][0], "")  # empty cells
  path = folder / "tickets.csv"
  lines = {}
  with path.open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    line = 2
    writer.writerow(["text", "team", "id"])
    for number, (text, given) in enumerate(rows):
      lines[str(line)] = wrong[number]
      writer.writerow([text, given, number])
      line += 1 + text.count("\n")
  return SimpleNamespace(folder=folder, path=str(path), wrong=lines)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, make_run, tiny_tokenizer):
  """A checkpoint with random parameters."""
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=64, layers=1, width=32, heads=2)
  return make_run(tmp_path_factory.mktemp("pretrained") / "run", ModelConfig(trunk))


@pytest.fixture(scope="module")
def run_label(tickets, pretrained, launch):
  """run_label(workdir, *flags) -> (what the command says, its result.json without checksum)."""

  def run(workdir, *flags):
    common = f"--checkpoint={pretrained}", f"--workdir={workdir}", "--label=team"
    code, _, told = launch("label", tickets.path, *common, *flags)
    assert code == 0, told
    result = read_json(f"{workdir}/result.json")
    del result["checksum"]
    return told, result

  return run


@pytest.fixture(scope="module")
def labeled(tickets, run_label):
  """A finished run. Attributes: workdir, result, told (standard error)."""
  workdir = str(tickets.folder / "run")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(progress, "FIRST", 0.05)
    patch.setattr(progress, "LATER", 0.05)
    told, result = run_label(workdir, "--precision=0.8", "--skip_finetuning=false")
  return SimpleNamespace(workdir=workdir, result=result, told=told)


@pytest.fixture
def untuned(labeled, tmp_path):
  """A copy of the workdir as it is before fine-tuning."""
  ignore = shutil.ignore_patterns("finetuned*", "re*")
  return shutil.copytree(labeled.workdir, tmp_path / "run", ignore=ignore)


def flip_a_bit(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def rows_of(path):
  with open(path, newline="") as file:
    return list(csv.DictReader(file))


def test_near_duplicates_are_on_one_side_and_labels_in_every_split(labeled):
  texts = {}
  for split in ("train", "dev", "test"):
    rows = rows_of(f"{labeled.workdir}/data/{split}.csv")
    assert {row["team"] for row in rows} == {*SENTENCES}
    texts[split] = [normalized(row["text"]) for row in rows]
  assert labeled.result["near_duplicates"] > 5
  every = [text for split in texts.values() for text in split]
  assert len(every) == ROWS - 2 == sum(labeled.result["rows"].values())
  side = np.repeat([0, 1, 2], [len(split) for split in texts.values()])
  vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(4, 4), sublinear_tf=True)
  cosines = (lambda x: (x @ x.T).toarray())(vectors.fit_transform(every))
  near = (cosines >= 0.9 + 1e-3) & (side[:, None] != side)
  assert not near.any()


def test_wrong_labels_come_first(labeled, tickets):
  suspects = rows_of(f"{labeled.workdir}/suspects.csv")
  wrong = [tickets.wrong[row["line"]] for row in suspects]
  assert len(wrong) == ROWS - 2
  assert sum(wrong[: len(wrong) // 10]) >= sum(wrong) / 2


def test_the_page_has_every_section(labeled):
  models = {model["name"]: model["dev"]["accuracy"] for model in labeled.result["models"]}
  assert set(models) == {"tfidf", "probe", "finetuned"}
  assert models[labeled.result["chosen"]] == max(models.values())
  with open(f"{labeled.workdir}/report.html") as file:
    page = file.read()
  for section in ("Models", "Labels", "Threshold", "Doubtful labels", "More labels?"):
    assert f"<h2>{section}</h2>" in page
  assert f"launch/predict.py --checkpoint={labeled.result['checkpoint']} --input=FILE" in page
  assert "<script" not in page and "//" not in page.replace(labeled.workdir, "")


BETTER = "Is it better than TF-IDF?"


def card(page, question):
  """The tone, verdict and text of an answer."""
  head = f"<h3>{re.escape(question)}</h3>"
  pattern = rf'answer (\w+)">{head}<p class="verdict">(.*?)</p><p>(.*?)</p>'
  return re.search(pattern, page).groups()


@pytest.mark.parametrize(
  "difference, interval, tone, verdict",
  [
    (0.06, (0.004, 0.12), "good", "yes, by 6.0 points"),
    (0.06, (-0.02, 0.12), "plain", "not shown: +6.0 points"),
    (0.0, (0.0, 0.0), "plain", "not shown: +0.0 points"),
    (-0.06, (-0.12, -0.01), "bad", "no, 6.0 points worse"),
  ],
)
def test_green_needs_a_test_on_the_same_rows(labeled, difference, interval, tone, verdict):
  compared = {"difference": difference, "interval": interval}
  result = copy.deepcopy(labeled.result) | {"chosen": "finetuned", "beside_commonest": compared}
  result["models"][2]["test"]["beside_tfidf"] = compared
  page = render(result, [], "run")
  assert card(page, BETTER)[:2] == (tone, verdict)
  assert card(page, "How good is it?")[0] == tone


def test_many_doubtful_labels_should_be_corrected_first(labeled):
  result = labeled.result
  with open(f"{labeled.workdir}/report.html") as file:
    _, verdict, text = card(file.read(), "Are the labels right?")
  assert verdict == f"correct {result['suspects']} first" and "Caution" not in text
  assert f"{result['suspects']} of 358 labels" in labeled.told and "Correct these" in labeled.told
  weak = render(result | {"judges": {"tfidf": 0.7, "probe": 0.66}}, [], "run")
  assert "Caution: neither model is a sure judge, right in 70% of the rows at best" in weak
  assert card(weak, "Are the labels right?")[1] == f"{result['suspects']} of 358 are doubtful"
  few = render(result | {"suspects": 7}, [], "run")
  assert card(few, "Are the labels right?")[1] == "7 of 358 are doubtful"


def test_the_page_says_why_a_model_predicts_and_whose_the_curve_is(labeled):
  result = copy.deepcopy(labeled.result)
  for model, right in zip(result["models"], (0.9, 0.7, 0.8), strict=True):
    model["dev"]["accuracy"] = right
  # The choice of TF-IDF is neither praised nor blamed.
  tone, verdict, text = card(render(result | {"chosen": "tfidf"}, [], "run"), BETTER)
  assert (tone, verdict) == ("plain", "no, so TF-IDF predicts")
  assert "TF-IDF is right in 90.0%, the fine-tuned checkpoint in 80.0%. The TF-IDF" in text
  assert "has the highest dev accuracy" in text
  result["models"][1]["dev"]["accuracy"] = 0.9
  result["curve"]["model"] = "tfidf"
  page = render(result | {"chosen": "tfidf"}, [], "run")
  assert "no model has a higher dev accuracy" in page and "has the highest" not in page
  _, _, text = card(page, "Would more labels help?")
  assert text.endswith("That is the curve of the TF-IDF with logistic regression.")
  _, _, text = card(render(result | {"chosen": "finetuned"}, [], "run"), "Would more labels help?")
  assert "the curve of the TF-IDF with logistic regression, not of the fine-tuned" in text
  # Without a threshold no row is above it.
  kept = {"given": 60, "correct": 54, "rows": 60}
  threshold = {"asked": 0.8, "precision": 0.8, "value": 0.0, "dev": kept, "test": kept}
  page = render(labeled.result | {"threshold": threshold}, [], "run")
  _, _, text = card(page, "Can it promise 80% precision?")
  assert text.endswith("rows like these. Of all 60 test rows 90.0% are right.")


def test_scores_and_news_come_while_it_works(labeled):
  places = []
  for title, news in (
    ("TF-IDF with logistic regression", "[^,]+"),
    ("linear probe of the checkpoint", r"reading the texts, [\d,]+ of 358 rows"),
    ("fine-tuned checkpoint", r"[\d,]+ updates"),
  ):
    score = r": [\d.]+% of \d+ dev rows right"
    for line in (rf"{title}(: |, ){news}, \d+ s so far.*", title + score):
      places.append(re.search(f"^{line}$", labeled.told, re.MULTILINE).start())
  assert places == sorted(places)


@pytest.mark.parametrize(
  "lost, flags, tunes",
  [
    (5, (), True),  # McNemar: p = 0.06
    (6, (), False),  # p = 0.03
    (6, ("--skip_finetuning=false",), True),
    (0, ("--skip_finetuning",), False),
  ],
)
def test_finetuning_is_skipped_where_the_probe_excludes_a_gain(
  untuned, run_label, monkeypatch, lost, flags, tunes
):
  """`lost` dev rows are right to TF-IDF and wrong to the probe, and none the other way round."""
  arrays = {}
  for name in ("tfidf", "probe"):
    with np.load(untuned / "work" / f"{name}.npz") as file:
      arrays[name] = dict(file)
  dev = arrays["tfidf"]["dev"].copy()
  truth = [[*sorted(SENTENCES)].index(row["team"]) for row in rows_of(untuned / "data" / "dev.csv")]
  right = np.flatnonzero(dev.argmax(axis=-1) == truth)[:lost]
  dev[right] = np.roll(dev[right], 1, axis=-1)
  np.savez(untuned / "work" / "probe.npz", **arrays["probe"] | {"dev": dev})
  tuned = []
  monkeypatch.setattr(label, "_finetune", lambda *_: tuned.append(1) or arrays["tfidf"])
  told, result = run_label(untuned, *flags)
  assert bool(tuned) == tunes and len(result["models"]) == 2 + tunes
  page = (untuned / "report.html").read_text()
  for text in (told, page):
    assert ("Fine-tuning was skipped" in text) != tunes
    assert ("--skip_finetuning=false runs it" in text) != tunes
  points = f"{100 * lost / len(dev):.1f} points fewer than TF-IDF"
  assert (points in told) == (lost == 6 and not tunes)


def test_rows_of_a_pool_are_ranked(untuned, run_label, tickets, pretrained, tmp_path):
  pool = tmp_path / "pool.csv"
  texts = [f"the dog ran {n} miles" for n in range(9)] + ["the old cat sat " * 40]
  pool.write_text("text\n" + "".join(f"{text}\n" for text in texts))
  told, result = run_label(untuned, f"--pool={pool}", "--pool_rows=4", "--skip_finetuning=true")
  ranked = rows_of(f"{untuned}/pool.csv")
  assert [texts[int(row["line"]) - 2] for row in ranked] == [row["text"] for row in ranked]
  assert len(ranked) == 4 and result["pool"]["rows"] == 10
  assert "the 4 of 10 rows to label next" in told and "so stop." in told
  assert "warning: 1 of 10 rows are longer than the context of 64 tokens: " in told
  arguments = tickets.path, pretrained, untuned
  for given, change, message in [
    (untuned / "pool.csv", "", "pool.csv: would be overwritten; name another file"),
    (pool, "a label", "pool.csv: was edited since it was written, and would be"),
  ]:
    (untuned / "pool.csv").open("a").write(change)
    refused(message, label.run, *arguments, label="team", pool=str(given))


def test_a_pool_without_rows_to_label(tickets, pretrained, tmp_path, capsys):
  table, pool = tmp_path / "tickets.csv", tmp_path / "pool.csv"
  rare = "\nthe ship is late again,rare,900\n"
  table.write_text(Path(tickets.path).read_text().rstrip("\n") + rare)
  known = rows_of(table)[0]["text"]
  with pool.open("w", newline="") as file:
    csv.writer(file).writerows([["text"], [known], [" "], ["\u200b"], ["the ship is late again"]])
  arguments = str(table), pretrained, str(tmp_path / "run")
  message = r"--pool=.*: has no row without a label in the other table; 2 rows can be used"
  refused(message, label.run, *arguments, label="team", pool=str(pool))  # before work
  told = capsys.readouterr().err
  assert "2 rows cannot be used: " in told and f"{pool}:4: the tokenizer drops all" in told
  pool.write_text("words\nthe cat\n")
  message = r"pool\.csv.*: no column 'text'"
  refused(message, label.run, *arguments, label="team", pool=str(pool))
  assert not (tmp_path / "run").exists()


def test_a_time_limit_says_the_same_however_often_it_is_asked(monkeypatch):
  now, told = [0.0], []
  monkeypatch.setattr(label.time, "monotonic", lambda: now[0])
  is_over = label.time_limit(1, SimpleNamespace(update=told.append))
  assert not is_over(1)
  now[0] = 60.0
  assert not is_over(1) and is_over(2) and told == [1, 2]
  assert not label.time_limit(0, SimpleNamespace(update=told.append))(3)


def test_the_probe_is_a_head_on_the_mean_of_each_text(labeled):
  loaded = load_model(f"{labeled.workdir}/probe/best")
  task, tokenizer = loaded.label_task(), loaded.tokenizer
  examples = task.examples(f"{labeled.workdir}/data", "test")[:5]
  encoded = task.encode(examples, tokenizer, loaded.spec.trunk.context)
  packed = loaded.predictor()(encoded, 8)
  trunk, length = ModelConfig(loaded.spec.trunk, (), loaded.spec.attention).build(), 64

  @jax.jit
  def hidden(ids):
    rows = Rows(ids, np.arange(length)[None])
    return trunk.apply({"params": {"trunk": loaded.params["trunk"]}}, rows, method="states").hidden

  for number in range(len(examples)):
    ids = encoded.sequence(number, 0)
    padded = np.zeros((1, length), np.int32)  # of one length, so that it compiles once
    padded[0, : len(ids)] = ids
    states, head = np.asarray(hidden(padded))[0, : len(ids)], loaded.params["head"]
    scores = states.mean(axis=0) @ head["kernel"] + head["bias"]
    powers = np.exp(scores - scores.max())
    np.testing.assert_allclose(packed[number], powers / powers.sum(), atol=1e-5)


@pytest.mark.slow
def test_epochs_and_minutes_limit_finetuning(untuned, run_label, tickets, pretrained):
  limits = "--epochs=1", "--skip_finetuning=false"
  told, result = run_label(untuned, *limits, "--minutes=0.00001")
  assert "step 1: paused; the same command goes on" in told
  assert "not finished" in result["finetuning"] and len(result["models"]) == 3
  _, result = run_label(untuned, *limits)
  steps = read_json(untuned / "finetuned" / "result.json")["steps"]
  assert steps == result["rows"]["train"] // 32 and not result["finetuning"]
  assert curve(str(untuned / "finetuned"), "dev_accuracy")[0] == [1, steps]
  settings = {"label": "team", "epochs": 2, "skip_finetuning": False}
  refused("train.epochs", label.run, tickets.path, pretrained, str(untuned), **settings)


def test_a_precision_that_is_refused_is_not_in_the_command(untuned, run_label):
  for precision, kept in (("0.999", False), ("0.5", True)):
    told, result = run_label(untuned, f"--precision={precision}", "--skip_finetuning")
    assert ("problem" in result["threshold"]) != kept
    page = (untuned / "report.html").read_text()
    for text in (told.partition("next:")[2], page.partition("<h2>Predict</h2>")[2]):
      assert "--checkpoint=" in text and (f"--precision={precision}" in text) == kept
      assert ("--precision" in text) == kept


def test_every_model_predicts_as_it_was_measured(labeled, tmp_path):
  source, threshold = f"{labeled.workdir}/data/test.csv", labeled.result["threshold"]
  given = [row["team"] for row in rows_of(source)]
  folders = ("tfidf", "probe/best", "finetuned/best")
  for folder, model in zip(folders, labeled.result["models"], strict=True):
    output = str(tmp_path / f"{model['name']}.csv")
    predicted = predict.run(f"{labeled.workdir}/{folder}", source, output)
    right = [label == row["prediction"] for label, row in zip(given, predicted, strict=True)]
    assert np.mean(right) == pytest.approx(model["test"]["accuracy"])
  assert threshold["asked"] == 0.8
  options = {"output": str(tmp_path / "sure.csv"), "precision": threshold["precision"]}
  predicted = predict.run(labeled.result["checkpoint"], source, **options)
  assert sum(row["prediction"] is not None for row in predicted) == threshold["test"]["given"]


def test_a_tfidf_classifier_on_a_store_predicts(labeled, gs, tmp_path):
  folder, source = f"{labeled.workdir}/tfidf", f"{labeled.workdir}/data/test.csv"
  upload_folder(folder, f"{gs}/tfidf")
  local = predict.run(folder, source, str(tmp_path / "local.csv"))
  assert predict.run(f"{gs}/tfidf", source, str(tmp_path / "remote.csv")) == local


def test_the_command_again_uses_what_is_there(labeled, tickets, pretrained, monkeypatch):
  settings = {"label": "team", "skip_finetuning": False}
  for step in ("_baseline", "_probe", "_finetune"):
    monkeypatch.setattr(label, step, None)
  again = label.run(tickets.path, pretrained, labeled.workdir, precision=0.8, **settings)
  assert json.loads(json.dumps(again)) == labeled.result


def test_the_workdir_of_something_else_is_refused(labeled, tickets, pretrained, tmp_path):
  other = tmp_path / "tickets.csv"
  other.write_text(open(tickets.path, newline="").read().replace("barn", "shed", 1))
  message = r"the result of another command \(rows: 358, checksum"
  refused(message, label.run, str(other), pretrained, labeled.workdir, label="team")


@pytest.mark.filterwarnings("ignore:.* different numbers")  # of the ids
@pytest.mark.parametrize(
  "change, message",
  [
    ({}, "which of its columns is the label\\? --label=NAME says it; they are text, team, id"),
    ({"label": "teem"}, "no column 'teem'"),
    ({"label": "team", "texts": ("body",)}, "no column 'body'"),
    ({"label": "team", "texts": ("a", "b", "c")}, "one or two columns, not 3"),
    ({"label": "team", "texts": ("team",)}, "--text=team and --label=team: should be different"),
    ({"label": "id"}, "0 usable rows with 0 labels of 10 rows or more in column 'id'"),
    ({"label": "team", "precision": 95.0}, "--precision=95.0: must be between 0 and 1"),
    ({"label": "team", "epochs": -1}, "--epochs=-1: must be a number above 0, or 0 for no limit"),
    ({"label": "team", "minutes": -0.5}, "--minutes=-0.5: must be a number above 0, or 0"),
  ],
)
def test_a_wrong_command_is_one_line(tickets, pretrained, tmp_path, change, message):
  refused(message, label.run, tickets.path, pretrained, str(tmp_path / "new"), **change)
  assert not (tmp_path / "new").exists()


def test_models_are_refused_where_they_are_damaged_or_of_no_use(labeled, tickets, tmp_path):
  probe, out = f"{labeled.workdir}/probe/best", str(tmp_path / "out")
  for format in ("hf", "stablehlo"):
    refused("one token of the last layer.* reads more", export.run, probe, out, format)
  assert not (tmp_path / "out").exists()
  folder = str(tmp_path / "tfidf")
  shutil.copytree(f"{labeled.workdir}/tfidf", folder)
  refused("tfidf: a TF-IDF classifier .*; only predict.run", gpt_jax.load, folder)
  flip_a_bit(tmp_path / "tfidf" / "classifier.npz")
  refused("classifier.npz: damaged", predict.run, folder, tickets.path, f"{tmp_path}/labels.csv")
