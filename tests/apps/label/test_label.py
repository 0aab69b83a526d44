"""launch/label.py: from one table to a classifier, what it can promise, and its doubtful labels."""

import copy
import csv
import json
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from refused import refused
from sklearn.feature_extraction.text import TfidfVectorizer

import gpt_jax
from gpt_jax.apps.label import label
from gpt_jax.apps.label.page import about_limits, render
from gpt_jax.apps.label.previous import Previous
from gpt_jax.apps.label.table import read_labeled
from gpt_jax.apps.serve.app import make_app
from gpt_jax.apps.serve.engine import Engine
from gpt_jax.batch import Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data import progress
from gpt_jax.data.file_kinds import write_table
from gpt_jax.files import read_json, upload_folder
from gpt_jax.inference import linear_classifier
from gpt_jax.models.model import ModelConfig
from gpt_jax.programs import evaluate, export, predict
from gpt_jax.tasks.readers import Row
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


def rows_of(path):
  with open(path, newline="") as file:
    return list(csv.DictReader(file))


def test_near_duplicates_are_on_one_side_and_labels_in_every_split(labeled):
  texts = {}
  for split in ("train", "dev", "test"):
    rows = rows_of(f"{labeled.workdir}/data/{split}.csv")
    assert {row["team"] for row in rows} == {*SENTENCES}
    texts[split] = [" ".join(row["text"].casefold().split()) for row in rows]
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
  with open(tickets.path, newline="") as file:
    records = list(csv.reader(file))
  assert all(records[int(row["row"]) - 1][0] == row["text"] for row in suspects)
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
  served = f"launch/serve.py --checkpoint={labeled.result['checkpoint']}"
  assert served in page and served in labeled.told.partition("next:")[2]
  limits = about_limits(labeled.result)
  assert limits in page and limits in labeled.told
  assert "<script" not in page and "//" not in page.replace(labeled.workdir, "")


BETTER = "Is it better than TF-IDF?"
NO_NETWORK = "tfidf(/best)?: a TF-IDF .*: it labels texts .* has no network to generate, embed"


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
  assert "TF-IDF with logistic regression answers in predict, serve" in page
  assert "It has no network: it does not generate or embed" in page
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
  assert "warning: 1 of 10 rows is longer than the context of 64 tokens: " in told
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


@pytest.mark.filterwarnings("ignore:.* are longer than the context")
@pytest.mark.parametrize("name", ["tfidf", "probe/best"])
def test_whatever_is_chosen_answers_in_all_programs(labeled, tmp_path, name):
  folder, source = f"{labeled.workdir}/{name}", f"{labeled.workdir}/data/test.csv"
  texts = [row["text"] for row in rows_of(source)]
  predicted = predict.run(folder, source, str(tmp_path / "labels.csv"))
  expected = [pytest.approx(row["probabilities"], abs=1e-5) for row in predicted]
  model = gpt_jax.load(folder, warm_up=name == "tfidf")
  assert (model.columns, sorted(model.labels)) == (("text",), sorted(SENTENCES))
  assert model.classify(texts) == expected
  assert any(model.truncated(texts)) == (name != "tfidf")  # which has no context
  given = [row["team"] for row in rows_of(source)]
  right = [p["prediction"] == team for p, team in zip(predicted, given, strict=True)]
  measures = evaluate.run(folder, f"{labeled.workdir}/data", "test")
  assert (measures["examples"], measures["accuracy"]) == (len(texts), pytest.approx(np.mean(right)))
  testclient = pytest.importorskip("starlette.testclient")
  engine = Engine(model)
  engine.start()
  http = testclient.TestClient(make_app(engine, "tickets", ["localhost"]), "http://localhost")
  answer = http.post("/classify", json={"texts": texts}).json()["results"]
  refusals = [http.post(path, json={}).json() for path in ("/embed", "/v1/completions")]
  about = http.get("/health").json()
  engine.close()
  assert [row["probabilities"] for row in answer] == expected
  assert about["classifies"] and about["labels"] == list(model.labels)
  if name == "tfidf":
    assert all(re.search(NO_NETWORK, refusal["error"]["message"]) for refusal in refusals)
    assert not about["embeds"] and about["context"] is None


def test_what_needs_a_network_is_refused_at_once(labeled, tmp_path, launch, monkeypatch):
  monkeypatch.setattr(linear_classifier, "load_tfidf", lambda _: pytest.fail())  # by its name
  folder, data = f"{labeled.workdir}/tfidf", f"{labeled.workdir}/data"
  for program, *flags in (
    ("generate", "--prompt=the barn"),
    ("generate", "--fill=the [MASK]"),
    ("visualize", "--text=the barn", f"--out={tmp_path}/page.html"),
    ("finetune", "--config=finetune:table", f"--data={data}", f"--workdir={tmp_path}/run"),
    ("serve", "--port=0", f"--adapter=a={folder}"),
  ):
    if program == "serve":
      monkeypatch.undo()
    code, out, told = launch(program, f"--checkpoint={folder}/best", *flags)
    assert (code, out) == (2, "") and re.fullmatch(f"error: .*{NO_NETWORK}.*\n", told), told


def test_tfidf_and_a_network_predict_together(labeled, tmp_path):
  folders = [f"{labeled.workdir}/{name}" for name in ("tfidf", "probe/best")]
  source, output = f"{labeled.workdir}/data/test.csv", str(tmp_path / "labels.csv")
  options = {"calibrate": False, "overwrite": True}
  alone = [predict.run(folder, source, output, **options) for folder in folders]
  together = predict.run(folders, source, output, **options)
  for first, second, mean in zip(*alone, together, strict=True):
    for team, probability in mean["probabilities"].items():
      both = first["probabilities"][team], second["probabilities"][team]
      assert probability == pytest.approx(np.mean(both), abs=1e-6)


def test_the_probe_is_a_function_too(labeled, tmp_path):
  """Of a causal model, whose padding the mean must not read."""
  folder, texts = f"{labeled.workdir}/probe/best", ["the red barn", "no door for cat number 7"]
  export.run(folder, str(tmp_path / "out"), "stablehlo")
  model = gpt_jax.load(folder)
  encoded = model.loaded.encode(model.loaded.task, model._examples(texts)[1])
  ids = np.full((2, 40), 3, np.int32)
  for row in range(2):
    ids[row, : encoded.lengths[row, 0]] = encoded.sequence(row, 0)
  function = jax.export.deserialize((tmp_path / "out" / "model.stablehlo").read_bytes())
  found = np.asarray(jax.nn.softmax(function.call(ids)))
  for row, answer in zip(found, model.classify(texts), strict=True):
    assert row == pytest.approx(list(answer.values()), abs=1e-5)


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


def test_rows_with_one_of_two_texts_are_used_and_spellings_are_one(
  tmp_path, tiny_tokenizer, capsys
):
  rows = [("the cat", "", "bug"), ("", "the dog", " Bug"), ("\u200b", "a mat", "bug")]
  rows += [("", " ", "bug")]
  rows += [("a", "b", ("bug", "login")[n % 2]) for n in range(100)]
  with open(tmp_path / "a.csv", "w") as file:
    write_table(file, [["subject", "body", "team"], *rows], ";")
  asked = Previous("", "", ("subject,body",), "team")
  arguments = str(tmp_path / "a.csv"), asked, tiny_tokenizer
  with pytest.warns(UserWarning, match=r"merge_labels=false.*: 'bug' .52. and ' Bug' .1."):
    table = read_labeled(*arguments)
  assert table.labels == ("bug", "login") and len(table.rows) == 103 and table.skipped == 1
  assert [row.texts for row in table.rows[:3]] == [row[:2] for row in rows[:3]]
  assert table.locations is table.locations and table.classes is table.classes  # asked by row
  assert "1 row cannot be used: " in capsys.readouterr().err and table.task().merge_labels
  task = table.task().build("")
  assert task.example(Row(("", "the dog"), " LOGIN", "x:1")).label == (0.0, 1.0)
  with pytest.warns(UserWarning, match="count as different"):
    apart = read_labeled(*arguments, merge_labels=False)
  assert apart.skipped == 2 and not apart.task().merge_labels  # " Bug" is rare


def test_a_small_table_of_many_known_labels_is_read(tmp_path, tiny_tokenizer):
  names = [f"intent {n}" for n in range(25)]
  old = [Row((f"the cat {n}",), names[n % 25], f"old.csv:{n}") for n in range(200)]
  path = tmp_path / "week.csv"
  week = [f"the dog {n},{names[n % 25]}\n" for n in range(30)]
  path.write_text("text,intent\n" + "".join(week))
  previous = Previous("w", "", ("text",), "intent", (*names,), rows={"train": old})
  assert len(read_labeled(str(path), previous, tiny_tokenizer).rows) == 230
  path.write_text("text,intent\n" + "".join(week).replace("intent", "ticket"))
  refused("25 different values in 30 rows", read_labeled, str(path), previous, tiny_tokenizer)


@pytest.mark.parametrize(
  "change, message",
  [
    ({}, "which of its columns is the label\\? --label=NAME says it; they are text, team, id"),
    ({"label": "teem"}, "no column 'teem'"),
    ({"label": "team", "texts": ("body",)}, "no column 'body'"),
    ({"label": "team", "texts": ("a", "b", "c")}, "one or two columns, not 3"),
    ({"label": "team", "texts": ("team",)}, "--text=team and --label=team: should be different"),
    ({"label": "id"}, "'id' has 360 different values in 360 rows: is it the label. Likelier: 'tea"),
    ({"label": "team", "texts": ("text,id,a",)}, "--text=text,id,a: one or two columns, not 3"),
    ({"label": "team", "precision": 95.0}, "--precision=95.0: must be between 0 and 1"),
    ({"label": "team", "epochs": -1}, "--epochs=-1: must be a number above 0, or 0 for no limit"),
    ({"label": "team", "minutes": -0.5}, "--minutes=-0.5: must be a number above 0, or 0"),
  ],
)
def test_a_wrong_command_is_one_line(tickets, pretrained, tmp_path, change, message):
  refused(message, label.run, tickets.path, pretrained, str(tmp_path / "new"), **change)
  assert not (tmp_path / "new").exists()


def test_the_folder_of_all_models_names_the_one_that_predicts(labeled):
  chosen = f"{labeled.workdir}/{labeled.result['chosen']}/best"
  refused(f"give its model that predicts, {chosen}$", gpt_jax.load, labeled.workdir)
  previous = {"workdir": "new", "previous": f"{labeled.workdir}/tfidf"}
  refused(f"holds no finished run .*; give {labeled.workdir}$", label.run, "x.csv", "", **previous)


def test_models_are_refused_where_they_are_damaged_or_of_no_use(labeled, tickets, tmp_path):
  probe, out = f"{labeled.workdir}/probe/best", str(tmp_path / "out")
  refused("one token of the last layer.* reads more", export.run, probe, out, "hf")
  folder = str(tmp_path / "tfidf")
  shutil.copytree(f"{labeled.workdir}/tfidf", folder)
  refused("format=npz: cannot hold .*tfidf; use onnx$", export.run, folder, out, "npz")
  assert not (tmp_path / "out").exists()
  attack = {"attack": "fgm", "radius": ["0.5"]}
  refused(NO_NETWORK, evaluate.run, folder, f"{labeled.workdir}/data", **attack)
  refused("weights=int8: .*tfidf has no such", evaluate.run, folder, folder, weights="int8")
  sliced = {"weights": "int8", "slices": "lang"}
  refused("threshold, precision and beams out", evaluate.run, folder, folder, **sliced)
  content = bytearray((tmp_path / "tfidf" / "classifier.npz").read_bytes())
  content[len(content) // 2] ^= 1
  (tmp_path / "tfidf" / "classifier.npz").write_bytes(content)
  refused("classifier.npz: damaged", predict.run, folder, tickets.path, f"{tmp_path}/labels.csv")


@pytest.fixture(scope="module")
def next_week(labeled, tickets):
  """A table of new rows. Attributes: path, relabeled, repeats (of test rows), fresh (texts)."""
  old = {split: rows_of(f"{labeled.workdir}/data/{split}.csv") for split in ("train", "test")}
  relabeled, *near = old["test"][:4]
  repeats = [f"{row['text'].upper()} ?" for row in near]
  fresh = [
    (text.format(n=number), label)
    for label, (_, texts) in SENTENCES.items()
    for text in texts
    for number in range(500, 505)
  ]
  refunds = [(f"{n} pieces of silver back to the man", "refund") for n in range(300, 320)]
  rows = [(row["text"], row["team"]) for row in old["train"][:30]]  # an export has old rows, too
  rows += [(relabeled["text"], "other" if relabeled["team"] != "other" else "bug")]
  rows += list(zip(repeats, (row["team"] for row in near), strict=True)) + fresh + refunds
  rows += [("a word of its own", "rare")] * 3
  path = tickets.folder / "next_week.csv"
  with path.open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["text", "team", "lang"])
    for n, (text, team) in enumerate(rows):  # " Cancel" is "cancel"
      writer.writerow([text, team.replace("cancel", " Cancel"), "de" if n % 3 else "en"])
  return SimpleNamespace(path=str(path), relabeled=rows[30], repeats=repeats, fresh=fresh)


@pytest.fixture(scope="module")
def grown(next_week, labeled, tickets, launch):
  """A run from the finished one. Attributes: workdir, result, told."""
  workdir = str(tickets.folder / "grown")
  flags = f"--from={labeled.workdir}", f"--workdir={workdir}", "--slices=lang"
  code, _, told = launch("label", next_week.path, *flags, "--skip_finetuning")
  assert code == 0, told
  return SimpleNamespace(workdir=workdir, result=read_json(f"{workdir}/result.json"), told=told)


def test_old_rows_stay_in_their_splits_and_new_ones_are_split(grown, labeled, next_week):
  split_of = {}
  for split in ("train", "dev", "test"):
    before = rows_of(f"{labeled.workdir}/data/{split}.csv")
    after = rows_of(f"{grown.workdir}/data/{split}.csv")
    kept, new = after[: len(before)], after[len(before) :]
    assert [row["text"] for row in kept] == [row["text"] for row in before]
    pairs = zip(kept, before, strict=True)
    changed = [(old["text"], new["team"]) for new, old in pairs if new["team"] != old["team"]]
    assert changed == ([next_week.relabeled] if split == "test" else [])
    split_of |= {row["text"]: split for row in new}
    assert {row["lang"] for row in new} == {"de", "en"} and {row["lang"] for row in kept} == {""}
    assert len(new) > 2
  assert {split_of[text] for text in next_week.repeats} == {"test"}
  assert {text for text, _ in next_week.fresh} <= split_of.keys()
  assert len(split_of) == 3 + 60 + 20
  assert "358 rows stay in their splits, 1 with another label; 86 of 117 rows are new" in grown.told
  assert re.search(r"new rows: drift \d+%: .* unlike 358 earlier rows", grown.told)


def test_the_new_model_is_compared_on_the_old_test_rows(grown, labeled):
  labels, previous = sorted(SENTENCES), grown.result["previous"]
  assert grown.result["classes"]["labels"] == [*labels, "refund"] and "'rare' (3)" in grown.told
  truth = [row["team"] for row in rows_of(f"{grown.workdir}/data/test.csv")]
  truth = truth[: labeled.result["rows"]["test"]]
  with np.load(f"{labeled.workdir}/work/{labeled.result['chosen']}.npz") as file:
    theirs = np.array(labels)[file["test"].argmax(axis=-1)] == truth
  with np.load(f"{grown.workdir}/work/{grown.result['chosen']}.npz") as file:
    guesses = file["test"][: len(truth)].argmax(axis=-1)
  ours = np.array([*labels, "refund"])[guesses] == truth
  assert previous["all"]["shares"] == pytest.approx([ours.mean(), theirs.mean()])
  of_label = np.array(truth) == "billing"
  billing = previous["classes"]["billing"]
  assert billing["rows"] == of_label.sum()
  assert billing["difference"] == pytest.approx(ours[of_label].mean() - theirs[of_label].mean())
  low, high = billing["interval"]
  assert low <= billing["difference"] <= high
  assert f"of {labeled.workdir} {ours.mean():.1%} are right" in grown.told
  assert "New labels: refund." in grown.told


def test_the_page_has_the_earlier_model_and_the_slices(grown):
  with open(f"{grown.workdir}/report.html") as file:
    page = file.read()
  assert "<h2>Beside the earlier model</h2>" in page and "<h2>By lang</h2>" in page
  _, verdict, text = card(page, "Is it better than the earlier one?")
  assert "points" in verdict and "New labels: refund." in text
  slices = {entry["slice"]: entry["rows"] for entry in grown.result["slices"]["slices"]}
  assert sum(slices.values()) == grown.result["rows"]["test"] and "(empty)" in slices
  worse = {"rows": 9, "shares": [0.1, 0.9], "difference": -0.8, "interval": [-0.9, -0.5]}
  result = copy.deepcopy(grown.result)
  result["previous"] |= {"all": worse, "classes": {"bug": worse}}
  tone, verdict, text = card(render(result, [], "run"), "Is it better than the earlier one?")
  assert (tone, verdict) == ("bad", "no, 80.0 points worse")
  assert "Better: no label. Worse: bug (-80.0)." in text


def test_finetuning_goes_on_from_the_earlier_model(
  grown, labeled, next_week, monkeypatch, tmp_path
):
  workdir, asked = shutil.copytree(grown.workdir, tmp_path / "run"), []
  monkeypatch.setattr(label.finetune, "run", lambda *given, **_: asked.append(given))
  monkeypatch.setattr(label, "_predict", lambda *_: dict(np.load(f"{workdir}/work/tfidf.npz")))
  settings = {"previous": labeled.workdir, "skip_finetuning": False}
  label.run(next_week.path, "", str(workdir), **settings)
  ((config, _, checkpoint, _),) = asked
  assert config.method("known_labels") and checkpoint == f"{labeled.workdir}/finetuned/best"


@pytest.mark.parametrize(
  "damage, options, message",
  [
    ("rm result.json", {}, "--from=.*: holds no finished run of launch/label.py; its own"),
    ("cut result.json", {}, "result.json: damaged, or of another program"),
    ("cut data/test.csv", {}, "test.csv: damaged, .* unexpected end of data"),
    ("add data/test.csv", {}, "test.csv: damaged, .*should have 5. rows with its labels"),
    ("rm data/dev.csv", {}, "dev.csv: damaged, .* No such file"),
    ("", {"label": "lang"}, "--label=lang: --from=.*run has team; leave --label out"),
    ("", {"texts": ["lang"]}, "--text=lang: --from=.*run has text; leave --text out"),
    ("", {"source": "suspects.csv"}, "no column 'team'"),
    ("", {"source": "data/dev.csv"}, "--from=.*: has all usable rows of the new table already"),
    ("", {"previous": ""}, "missing --checkpoint"),
    ("", {"workdir": ""}, "run/ holds the result of another command"),
    ("", {"slices": "week"}, "no column 'week'"),
  ],
)
def test_an_earlier_run_that_cannot_be_used_is_one_line(
  labeled, next_week, tmp_path, damage, options, message
):
  ignore = shutil.ignore_patterns("finetuned", "work")
  folder = shutil.copytree(labeled.workdir, tmp_path / "run", ignore=ignore)
  how, _, name = damage.partition(" ")
  if how == "rm":
    (folder / name).unlink()
  elif how:
    content = (folder / name).read_bytes()
    cut = content[: content.rindex(b"\n", 0, -20)]
    (folder / name).write_bytes(cut if how == "cut" else content + b"one more,bug\n")
  options = dict(options)
  source = folder / options.pop("source", next_week.path)
  workdir = folder / options.pop("workdir", tmp_path / "new")
  settings = {"previous": str(folder), **options}
  refused(message, label.run, str(source), "", f"{workdir}/", **settings)
