"""The report: values against the files of real runs, hostile and damaged files, and a browser."""

import contextlib
import html
import html.parser
import itertools
import json
import re
import shutil
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from refused import refused
from simulated_runs import task_run, write_labels

from gpt_jax.apps.report import chart, plot, report
from gpt_jax.apps.report.answers import answers
from gpt_jax.apps.report.page import commands, ending
from gpt_jax.apps.report.record import Record, find_runs
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import Windows, WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.files import with_checksum
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.memory import Forecast
from gpt_jax.programs import finetune, pretrain
from gpt_jax.programs import finetune_evaluations as evaluations
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.tasks.several import SeveralTasks
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training import run as training
from gpt_jax.training.hooks import Hook
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.run_log import Baselines, curve, write_end, write_plan

HOSTILE = (
  """</script><script>alert("1")</script> {{ 7 * 7 }} '"> <img src=x onerror=alert(2)> \u202e🙂"""
)
PAIR = ["barks", "meows"]
SIZES = {"context": 32, "layers": 1, "width": 16, "heads": 2}


class Page(html.parser.HTMLParser):
  """A page's start tags with their attributes, its links, and its text without the style."""

  def __init__(self, path):
    super().__init__()
    self.source = path.read_text(encoding="utf-8")
    self.tags, self.links, self.parts, self.inside, self.paragraphs = [], [], [], "", []
    self.feed(self.source)
    self.text = " ".join("".join(self.parts).split())

  def handle_starttag(self, tag, attributes):
    self.inside = tag
    self.tags.append((tag, tuple(sorted(name for name, _ in attributes))))
    self.links += [value for name, value in attributes if name == "href"]
    self.parts.append(" ")

  def handle_endtag(self, tag):
    self.inside = ""

  def handle_data(self, data):
    if self.inside != "style":
      self.parts.append(data)
      self.paragraphs.append(data.strip())

  def facts(self):
    """The answers, by question."""
    pattern = r'<h3>(.*?\?)</h3><p class="verdict">(.*?)</p>'
    return dict(re.findall(pattern, self.source))


CONFIG = pretrain.PretrainConfig(
  TransformerConfig(**SIZES),
  data=WindowsConfig(batch_size=8, length=16),
  train=TrainConfig(steps=6, log_every=1, evaluate_every=2),
)


@pytest.fixture(scope="module")
def interrupted(prepared, tmp_path_factory):
  """A run of six steps that Ctrl-C ended after four: its workdir, a copy, and its page.

  `pretrained` goes on with it; the copy stays.
  """
  workdir = tmp_path_factory.mktemp("report") / "run"
  stopping = KeyboardInterrupt()

  def stop(moment):
    raise stopping

  real = training.make_hooks
  last = Hook(stop, lambda step: step == 4)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "argv", ["launch/pretrain.py", f"--workdir={workdir}", "--a=b c"])
    patch.setattr(training, "make_hooks", lambda *rest: [*real(*rest), last])
    patch.setattr(training, "_PATIENCE", 60.0)  # matplotlib may be imported first
    with pytest.raises(KeyboardInterrupt) as raised:
      pretrain.run(CONFIG, prepared, str(workdir), on_end=[report.write_report])
    assert raised.value is stopping
  copy = shutil.copytree(workdir, workdir.parent / "copy")
  return SimpleNamespace(workdir=workdir, copy=copy, page=Page(workdir / "report.html"))


@pytest.fixture(scope="module")
def pretrained(interrupted, prepared):
  """The folder of a real run of six steps, which went on after four."""
  pretrain.run(CONFIG, prepared, str(interrupted.workdir), on_end=[report.write_report])
  return interrupted.workdir


def reported(folder):
  """The page of a run, written anew."""
  return Page(Path(report.run([str(folder)])))


@contextlib.contextmanager
def edited(path):
  """The JSON object of a file, which is written as it is left."""
  content = json.loads(path.read_text())
  yield content
  path.write_text(json.dumps(content))


def reporting(folder):
  """A block that ends as a run in the folder does."""
  return training.ending([lambda: report.write_report(str(folder))])


@pytest.fixture
def make_folder(make_run, tiny_tokenizer, tmp_path):
  """make_folder(name, entries, **plan): a run without checkpoints, with such a log."""

  def make(name, entries=(), **plan):
    spec = ModelConfig(TransformerConfig(tiny_tokenizer.vocab_size, **SIZES))
    folder = tmp_path / name
    make_run(folder, spec, steps=())
    lines = [json.dumps({"step": step, "time": float(step), **rest}) for step, rest in entries]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "plan.json").write_text(json.dumps({"total_steps": 100, **plan}))
    return folder

  return make


@pytest.fixture
def seed(finetuned, tmp_path):
  """A copy of a fine-tuned run's folder without its checkpoints."""
  ignore = shutil.ignore_patterns("checkpoints", "tensorboard", "*.html", "dev_*")
  return shutil.copytree(f"{finetuned.workdir}/seed_0", tmp_path / "seed_0", ignore=ignore)


ROWS = [
  ("the cat sat", "meows", (0.05, 0.95)),
  ("the dog ran", "barks", (0.9, 0.1)),
  ("a dog, for sure", "meows", (0.97, 0.03)),
  ("the old dog", "barks", (0.4, 0.6)),
  ("cat on a mat", "meows", (0.8, 0.2)),
  ("dog", "barks", (0.7, 0.3)),
]


# Runs.


def test_pretraining_ends_with_a_report(pretrained, prepared):
  page = Page(pretrained / "report.html")
  for split, name in (("train", "training"), ("valid", "held-out")):
    unigram = TokenFile(prepared, split).unigram_entropy
    assert f"unigram entropy {unigram:.2f} of the {name} text" in page.text
  commands = re.findall(r'aria-label="Command"><code>(.*?)</code>', page.source)
  assert commands[0] == f"python launch/generate.py --checkpoint={pretrained}/best --prompt=TEXT"
  assert "--config=finetune:TASK" in commands[1]  # as it is in a clone and where it is installed
  assert "6 of 6 planned" in page.text and "finished, 6 steps" in page.text
  # In rows: those of short documents are padded, so that tokens would count too many passes.
  passes = 6 * 8 / Windows(TokenFile(prepared, "train"), CONFIG.data).spans_per_epoch
  assert f"Epochs {passes:.2f} of {passes:.2f} planned" in page.text
  for name in ("loss", "valid_loss"):
    assert chart.short(curve(str(pretrained), name)[1][-1]) in page.paragraphs
  best = min(curve(str(pretrained), "valid_loss")[1])
  assert f"{best:.3f}" in page.text
  questions = "Did it learn? When did it stop improving? What does it get wrong? What to do next?"
  assert " ".join(page.facts()) == questions


def test_the_config_is_shown_against_its_defaults(pretrained, seed):
  page = Page(pretrained / "report.html")
  changed = page.source.partition("Fields that differ")[2].partition("</table>")[0]
  rows = dict(re.findall(r"<code>(.*?)</code>.*?<td><b>(.*?)</b>", changed))
  assert rows["data.batch_size"] == "8" and rows["train.steps"] == "6"
  assert rows["trunk.width"] == "16" and "optim.learning_rate" not in rows
  assert "optim.learning_rate" in page.text  # among all fields
  with edited(seed / "config.json") as saved:  # a method is shown by its fields
    saved["config"]["methods"] = [{"type": "adapter", "rank": 2}]
  rows = re.findall(r"<code>(adapter.*?)</code>.*?<td><b>(.*?)</b>", reported(seed).source)
  assert rows == [("adapter.type", "Adapter"), ("adapter.rank", "2")]


def test_several_seeds_are_compared_by_mean_and_deviation(finetuned, tmp_path):
  out = tmp_path / "page.html"
  report.run([finetuned.workdir], str(out))
  best = [result["best"]["dev_loss"] for result in finetuned.results]
  expected = f"{statistics.mean(best):.3f} ± {chart.short(statistics.stdev(best))}"
  text = Page(out).text
  assert expected in text and "2 seeds" in text
  assert re.search(r"train\.seed 0 1", text)  # the only field in which they differ
  # Fine-tuning has written the same, which fetches nothing.
  page = Page(Path(finetuned.workdir) / "report.html")
  assert text == page.text and "default-src 'none'" in page.source
  assert not re.search(r"https?:|//\w|\bsrc=|@import|\burl\(|<script|<link", page.source)


def test_different_runs_are_compared_by_their_fields(make_folder, pretrained, tmp_path):
  other = make_folder("other", [(1, {"loss": 5.0}), (2, {"loss": 4.0})])
  report.run([str(pretrained), str(other)], str(tmp_path / "both.html"))
  text = Page(tmp_path / "both.html").text
  assert re.search(r"data\.batch_size 8 2 ", text) and "2 runs" in text


def test_labels_errors_and_calibration_are_shown_of_a_run_that_stopped_early(seed):
  write_labels(seed, PAIR, ROWS)
  with edited(seed / "plan.json") as plan:
    plan["total_steps"] = 1000
  page = reported(seed)
  assert "stopped early, at step 48 of 1,000" in page.text and "still running" not in page.text
  assert "to the planned end" not in page.text
  assert page.facts()["What does it get wrong?"] == "3 of 6 examples"
  texts = [text for text, _, _ in ROWS]
  errors = [paragraph for paragraph in page.paragraphs if paragraph in texts]
  assert errors == ["a dog, for sure", "cat on a mat", "the old dog"]  # the most confident first
  assert re.search(r"meows barks meows 1 2 barks 1 2", page.text)  # as in the table of labels
  assert "8.1 points as trained, 3.4 after" in page.text and "62.5%" in page.text
  assert "commonest label for all of them gives 50.0%" in page.text


def test_bleu_is_of_a_hundred_already(tmp_path):
  page = reported(task_run(tmp_path / "run", {"bleu": [0.5, 24.2]}, task=PairsTask()))
  assert "step bleu 200 0.5 400 24.2" in page.text and "bleu is 24.2" in page.text


def test_several_tasks_have_their_scores_in_percent_and_a_folder_each(tmp_path):
  task = SeveralTasks((BuiltinTask("ewt-tags"), BuiltinTask("trec")))
  dev = {"mean": [0.3, 0.5], "ewt-tags_loss": [2.2, 1.6], "ewt-tags_accuracy": [0.4, 0.6]}
  dev |= {"trec_loss": [1.7, 1.2], "trec_degenerate": [1.0, 1.0], "trec_accuracy": [0.2, 0.41]}
  page = reported(task_run(tmp_path / "run", dev, task=task))
  assert "step mean ewt-tags_accuracy trec_accuracy 200 30 40 20 400 50 60 41" in page.text
  (tmp_path / "run" / "checkpoints" / "400").mkdir(parents=True)
  assert commands(Record(str(tmp_path / "run"))) == []  # before the run has ended
  (tmp_path / "run" / "tasks" / "ewt-tags").mkdir(parents=True)
  told = commands(Record(str(tmp_path / "run")))
  assert len(told) == 2 and all("/run/tasks/ewt-tags --" in each for each in told)


def test_folds_are_the_runs_of_a_folder(tmp_path):
  folders = [tmp_path / f"fold_{number}" for number in (0, 1, 10)]
  for folder in folders:
    task_run(folder, {"accuracy": [0.5, 0.6]})
  assert find_runs([str(tmp_path)]) == list(map(str, folders))


def test_what_cannot_be_sampled_is_only_warned_of(seed, pretrained, tmp_path):
  out = str(tmp_path / "page.html")
  with pytest.warns(UserWarning, match="seed_0: has no checkpoint to run"):
    report.run([str(seed), str(pretrained)], out, samples=True)

  def refuse(folder):
    raise InputError("it does not generate")

  with pytest.MonkeyPatch.context() as patch, pytest.warns(UserWarning, match="not generate"):
    patch.setattr(report, "_samples", refuse)
    report.run([str(pretrained)], out, samples=True)
  assert "6 of 6 planned" in Page(tmp_path / "page.html").text


def test_the_papers_result_stands_beside_its_tasks(make_run, finetuned, tmp_path):
  from gpt_jax.checkpoints.run_folder import claim
  from gpt_jax.data.tokenizers.base import load_tokenizer
  from gpt_jax.programs.finetune import FinetuneConfig

  tokenizer = load_tokenizer(f"{finetuned.pretrained}/tokenizer")
  claim(str(tmp_path / "rte"), FinetuneConfig(task=BuiltinTask("rte")), tokenizer, {})
  entry = {"step": 1, "time": 1.0, "dev_accuracy": 0.531}
  (tmp_path / "rte" / "metrics.jsonl").write_text(json.dumps(entry))
  text = Page(Path(report.run([str(tmp_path / "rte")]))).text
  assert "table 2" in text and "test set 56.0" in text and "Multi-task BiLSTM + Attn" in text


def test_errors_link_to_the_inspection_page(finetuned, tmp_path):
  folder = shutil.copytree(f"{finetuned.workdir}/seed_0", tmp_path / "run 1")
  write_labels(folder, PAIR, ROWS)
  assert reported(folder).links == []
  report.run([str(folder)], samples=True)
  data = re.search(r'id="data">(.*?)</script>', (folder / "errors.html").read_text())[1]
  page = Page(folder / "report.html")
  assert page.links == ["errors.html"]
  texts = [text["text"] for text in json.loads(data)["texts"]]
  assert texts == ["a dog, for sure", "cat on a mat", "the old dog"]
  (tmp_path / "elsewhere").mkdir()
  elsewhere = tmp_path / "elsewhere" / "page.html"
  report.run([str(folder)], str(elsewhere), samples=True)
  assert Page(elsewhere).links == ["../run%201/errors.html"]
  assert reported(folder).links == []  # of a page that may be of an earlier checkpoint


def test_samples_are_texts_of_the_newest_checkpoint(pretrained, tmp_path):
  report.run([str(pretrained)], str(tmp_path / "page.html"), samples=True)
  text = Page(tmp_path / "page.html").text
  assert text.count("step 6, greedy") == text.count("step 6, temperature 0.8") == 3


def test_samples_along_the_run_stand_in_order_and_many_are_thinned(make_folder):
  folder = make_folder("run", [(5, {"valid_loss": 3.25}), (10, {"valid_loss": 2.5})])
  entries = []
  for step, prompt in itertools.product((5, 10), ("The sea", "")):
    entries.append({"step": step, "prompt": prompt, "text": f"<{prompt}{step}>"})
  (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, entries)) + '\n{"step": 15')
  first, second = reported(folder).text.split("A new line, without a prompt")
  assert "step 5, loss 3.25 The sea<The sea5> step 10, loss 2.50 The sea<The sea10>" in first
  assert "step 5, loss 3.25 <5> step 10, loss 2.50 <10>" in second
  lines = [json.dumps({"step": n, "prompt": "", "text": f"word{n}."}) for n in range(1, 96)]
  (folder / "samples.jsonl").write_text("\n".join(lines))
  text = reported(folder).text
  shown = [int(number) for number in re.findall(r"word(\d+)\.", text)]
  assert (shown[0], shown[-1], len(shown)) == (1, 95, 10) and shown == sorted(shown)
  assert "10 of 95" in text


# Interrupted runs.


def test_an_interrupted_run_says_so_until_it_goes_on(interrupted, pretrained):
  page = interrupted.page
  assert "Interrupted at step 4 of 6 (67%)" in page.text.partition("Did it learn?")[0]
  assert "Its state is saved at step 4." in page.text
  command = f"python launch/pretrain.py --workdir={interrupted.workdir} '--a=b c'"
  assert command in page.paragraphs
  text = Page(pretrained / "report.html").text
  assert "nterrupted" not in text and "--a=b c" not in text and "finished, 6 steps" in text


@pytest.mark.parametrize(
  "error, told",
  [
    (SystemExit(143), "Interrupted at step 4 of 6 (67%). Its state is saved at step 4."),
    (InputError("ten"), "Ended by an error at step 4 of 6 (67%). ten Its state is saved"),
  ],
)
def test_a_run_that_a_signal_or_an_error_ends_names_it(interrupted, tmp_path, error, told):
  """As the end of Ctrl-C, which the fixture sees from the program on."""
  folder = shutil.copytree(interrupted.copy, tmp_path / "run")
  (folder / "report.html").unlink()
  outcome = json.loads((folder / "plan.json").read_text())["outcome"]
  with pytest.raises(type(error)), reporting(folder):
    write_end(str(folder), error, outcome)
    raise error
  assert told in Page(folder / "report.html").text


def test_a_killed_run_within_label_goes_on_with_the_command_of_label(make_folder, monkeypatch):
  folder = make_folder("finetuned", [(4, {"loss": 3.0})])
  monkeypatch.setattr(sys, "argv", ["launch/label.py", "my own.csv", "--workdir=runs/my"])
  write_plan(str(folder), 10, 0, Baselines(), Forecast())
  shown = ending(Record(str(folder)))
  assert shown.command == "python launch/label.py 'my own.csv' --workdir=runs/my"
  assert shown.title == "Stopped or still running at step 4 of 10 (40%)"
  monkeypatch.setattr(sys, "argv", ["my_script.py"])
  write_plan(str(folder), 10, 0, Baselines(), Forecast())
  assert ending(Record(str(folder))).command == ""


def test_finetuning_that_is_interrupted_has_a_report(finetuned, tmp_path, monkeypatch):
  def stop(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(evaluations, "make_task_predictor", lambda *_: stop)
  workdir = tmp_path / "run"
  with pytest.raises(KeyboardInterrupt):
    of_task = finetuned.config, finetuned.data_dir, finetuned.pretrained
    finetune.run(*of_task, str(workdir), seeds=2, on_end=[report.write_report])
  text = Page(workdir / "report.html").text
  assert "Interrupted at step 8 of 48 (17%). No state is saved" in text
  assert "the same call of run(…)" in text  # this is no program


def test_an_interruption_does_not_wait_for_the_report(pretrained, monkeypatch, capsys):
  blocked = threading.Event()
  finished = threading.Event()

  def hang(*_):
    blocked.wait(20)
    finished.set()

  monkeypatch.setattr(report, "run", hang)
  monkeypatch.setattr(training, "_PATIENCE", 0.01)
  with pytest.raises(SystemExit), reporting(pretrained):
    raise SystemExit(143)
  assert not finished.is_set()
  blocked.set()


# Answers; see also test_advice.py.


def test_the_entropy_is_no_bound_of_a_loss_of_two_heads(make_folder):
  log = [(50, {"loss": 4.6, "masked_loss": 3.9})]
  run = Record(str(make_folder("run", log, unigram_entropy=4.0, token_metric="masked_loss")))
  assert run.unigram_entropy == 4.0 and run.loss_bounds == {}


def test_a_label_that_looks_wrong_is_named_after_scaling(seed):
  rows = ROWS[:2] * 20 + ROWS  # so that it is better than one label for all
  write_labels(seed, PAIR, rows)  # with a temperature of 1.5
  run = Record(str(seed))
  scaled = np.array([0.97, 0.03]) ** (1 / 1.5)
  assert run.wrong[0].confidence == pytest.approx(scaled[0] / scaled.sum())
  assert "No label looks wrong: the model gives each at least 9.0%" in answers(run)[2].text
  write_labels(seed, PAIR, [*rows, ("woof", "meows", (0.999, 0.001))])
  assert "1 label looks wrong, if" in answers(Record(str(seed)))[2].text


def test_refused_updates_and_the_pause_before_a_resume_are_seen(make_folder):
  entries = [(10, {"loss": 3.0}), (20, {"loss": 2.9, "refused_updates": 3}), (1030, {"loss": 2.0})]
  starts = [{"step": 0, "time": 0.0}, {"step": 20, "time": 1000.0}]
  entries.append((1030, {"valid_loss": 2.1}))
  entropies = {"unigram_entropy": 4.0, "held_out_entropy": 4.001}
  folder = make_folder("run", entries, starts=starts, **entropies)
  page = reported(folder)
  # Two lines that cannot be told apart are one.
  assert page.text.count("unigram entropy 4.00 of the training and held-out text") == 1
  assert "unigram entropy, held-out text 4.001 nats" in page.text
  assert "3 updates refused" in page.text and "updates refused" in page.paragraphs
  assert Record(str(folder)).seconds == 20 + 30 and "Resumed once at step 20" in page.text


# Charts.


def drawn(line, **options):
  """The picture's paths, as the coordinates of their points, and its tick labels."""
  pytest.importorskip("matplotlib")
  svg = chart.draw("Loss", "nats", [line], **options).svg
  paths = [
    re.findall(r"[ML] ([\d.]+) ([\d.]+)", path) for path in re.findall(r' d="(.*?)"', svg, re.S)
  ]
  return svg, [np.array(path, float) for path in paths], re.findall(r"<text.*?>(.*?)<", svg)


def test_a_chart_has_its_points_where_their_values_are():
  line = chart.Line("loss", [0, 50, 100], [3.0, 1.0, 2.0])
  _, paths, _ = drawn(line, y_range=(0.0, 4.0))
  np.testing.assert_allclose(paths[-3], [[48, 48], [198, 128], [348, 88]])  # then the axes
  rows = chart.draw("Loss", "nats", [line]).rows
  assert rows == [["0", "3"], ["50", "1"], ["100", "2"]]


def test_a_gap_interrupts_a_line_and_a_single_point_is_a_dot():
  line = chart.Line("loss", [0, 1, 2, 3], [1.0, None, float("nan"), 2.0])
  svg, _, _ = drawn(line, may_be_log=True)
  assert svg.count("var(--c0)") == 1 and "nan" not in svg
  assert re.search(r'd="M [\d.]+ [\d.]+ \nM [^L]*" style="[^"]*var\(--c0\)', svg)
  assert chart.draw("Loss", "nats", [chart.Line("loss", [1], [None])]) is None
  for style in ("thin", "dots"):
    line = chart.Line("loss", [5], [3.0], style=style)
    svg, _, _ = drawn(line)
    assert len(re.findall(r"<use .*?var\(--c0\)", svg)) == 1
    # And so in the legend.
    shown = "ring" if style == "thin" else "points"
    assert chart.draw("Loss", "nats", [line]).legend[0].style == shown


@pytest.mark.parametrize("low, high", [(0, 1), (1e-9, 3e-9), (-5, 12345678), (2, 2), (0.1, 1e200)])
@pytest.mark.parametrize("may_be_log", [False, True])
def test_ticks_are_few(low, high, may_be_log):
  _, _, ticks = drawn(chart.Line("x", [0, 1], [low, high]), may_be_log=may_be_log)
  assert 4 <= len(ticks) <= 14 and "none" not in ticks


def test_a_page_without_matplotlib_has_its_numbers_and_says_so(pretrained, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  page = Page(Path(report.run([str(pretrained)], str(pretrained / "plain.html"))))
  assert page.text.count("No charts: a chart needs matplotlib: pip install 'gpt_jax[plots]'") == 1
  assert "<details open>" in page.source and "<svg" not in page.source
  assert chart.short(curve(str(pretrained), "loss")[1][-1]) in page.paragraphs


# Hostile and damaged folders.


def test_html_in_a_run_stays_text(seed, tmp_path):
  labels = [f"b {HOSTILE}", f"m {HOSTILE}"]
  pages = []
  for name, names, text in (("plain", ["barks", "meows"], "x"), ("bad " + "<b>", labels, HOSTILE)):
    folder = shutil.copytree(seed, tmp_path / name)
    rows = [(f"{text} {n}", names[0], (0.2, 0.8)) for n in range(3)]
    write_labels(folder, names, rows)
    with edited(folder / "config.json") as saved:
      saved["config"]["task"]["columns"] = [text]
      saved["data"]["train"] = text
    pages.append(reported(folder))
  plain, hostile = pages
  assert hostile.tags == plain.tags
  assert not {"script", "img", "iframe", "link"} & {tag for tag, _ in hostile.tags}
  assert any(f"{HOSTILE} 2" in part for part in hostile.paragraphs)


def test_damaged_files_are_named_and_the_rest_is_shown(seed):
  with open(seed / "metrics.jsonl", "a") as file:
    file.write('{"step": 99, "loss": NaN}\n[1]\n{"loss": 2}\n{"step": "x"}\n{"step": 101, "lo')
  plan = '{"starts": [3, {"step": true}], "total_steps": "many", "unigram_entropy": []}'
  (seed / "dev_report.json").write_text(json.dumps(with_checksum({"labels": ["a"]})))
  (seed / "result.json").write_text("{")
  (seed / "plan.json").write_text(plan)
  page = reported(seed)
  assert "dev_report.json: not as a run writes it" in page.text
  assert "result.json: " in page.text and "Did it learn?" in page.text
  assert not re.search(r"\bnan\b|\bNone\b", page.text)


@pytest.mark.parametrize("name", ["result.json", "dev_report.json", "dev_predictions.jsonl"])
def test_a_changed_number_is_noticed_by_the_checksum(finetuned, tmp_path, name):
  folder = shutil.copytree(f"{finetuned.workdir}/seed_0", tmp_path / "run")
  changed = re.sub(r"0\.\d", "0.7", (folder / name).read_text(), count=1)
  (folder / name).write_text(changed.replace("0.7", "0.3", 1))
  text = reported(folder).text
  assert re.search(rf"{name}: (the checksum does not match|.*does not belong to)", text)


@pytest.mark.parametrize("kind", ["of_the_future", "windows"])
def test_an_unreadable_config_still_gives_curves(make_folder, kind):
  folder = make_folder("run", [(1, {"loss": 5.0}), (2, {"loss": 4.0})])
  with edited(folder / "config.json") as saved:
    saved["config"] = {"type": kind}
  (folder / "plan.json").write_text('{"rows_per_epoch": 96, "total_steps": 2}')
  text = reported(folder).text
  note = "not the config of a run" if kind == "windows" else kind
  assert note in text and "Loss nats" in text


# User errors.


def test_mistakes_are_one_line(pretrained, tmp_path):
  for arguments, message in (
    (([],), "no run: name its folder"),
    (([str(tmp_path / "none")],), "none: no such folder"),
    (([str(tmp_path)],), "config.json: missing; .* is not the folder of a run"),
    (([str(pretrained)] * 2,), "name the page with --out=FILE.html"),
    (([str(pretrained)], "page.pdf"), "--out=page.pdf: the page is HTML; name it page.html"),
    (([str(pretrained)], str(tmp_path / "x" / "page.html")), "page.html: No such file"),
    (([str(pretrained)], "az://bucket/page.html"), "az:// is not supported"),
  ):
    refused(message, report.run, *arguments)
  other = tmp_path / "mine.html"
  other.write_text("<!doctype html><title>mine</title>")
  told = "mine.html already exists and is not a page of this"
  refused(told, report.run, [str(pretrained)], str(other))
  assert other.read_text() == "<!doctype html><title>mine</title>"


def test_a_report_that_cannot_be_written_fails_no_run(pretrained, monkeypatch, capsys):
  def fail(*_):
    raise ZeroDivisionError("of\na bug")

  monkeypatch.setattr(report, "render", fail)
  with pytest.raises(KeyboardInterrupt), reporting(pretrained):
    raise KeyboardInterrupt
  assert capsys.readouterr().err == "no report: ZeroDivisionError: of a bug\n"
  monkeypatch.setitem(sys.modules, "jinja2", None)
  report.write_report(str(pretrained))
  told = "no report: a report needs jinja2: pip install 'gpt_jax[report]'"
  assert capsys.readouterr().err.startswith(told)


# Pictures.


@pytest.fixture
def saved(monkeypatch):
  """The figures that are saved, and what saves them."""
  figure = pytest.importorskip("matplotlib.figure").Figure
  figures, save = [], figure.savefig

  def keep(self, *arguments, **named):
    figures.append(self)
    return save(self, *arguments, **named)

  monkeypatch.setattr(figure, "savefig", keep)
  return figures


@pytest.mark.parametrize(
  "suffix, magic", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_a_plot_is_a_picture_of_its_suffix(finetuned, tmp_path, saved, suffix, magic):
  out = tmp_path / f"curves.{suffix}"
  plot.run([finetuned.workdir], str(out))
  first = out.read_bytes()
  assert first.startswith(magic)
  again = "already exists; name another file, or give overwrite=True"
  refused(again, plot.run, [finetuned.workdir], str(out))
  plot.run([finetuned.workdir], str(out), overwrite=True)
  assert out.read_bytes() == first


def test_a_plot_without_a_name_is_in_the_workdir_of_a_run(finetuned, tmp_path, launch, saved):
  workdir = shutil.copytree(f"{finetuned.workdir}/seed_0", tmp_path / "run")
  for _ in range(2):  # it is replaced
    assert launch("plot", f"--workdir={workdir}") == (0, f"wrote {workdir}/curves.png\n", "")
    assert (workdir / "curves.png").read_bytes().startswith(b"\x89PNG")
  code, _, errors = launch("plot", f"--workdir={workdir}", f"--workdir={finetuned.workdir}")
  assert code == 2 and "name the picture, --out=FILE.png" in errors


def test_a_plot_has_the_mean_over_seeds_and_a_band(finetuned, pretrained, tmp_path, saved):
  plot.run([finetuned.workdir, str(pretrained)], str(tmp_path / "curves.png"))
  loss = saved[0].axes[0]
  curves = [curve(f"{finetuned.workdir}/seed_{n}", "loss")[1] for n in (0, 1)]
  np.testing.assert_allclose(loss.lines[0].get_ydata(), np.mean(curves, axis=0))
  (band,) = loss.collections
  top = band.get_paths()[0].vertices[:, 1].max()
  assert top == pytest.approx((np.mean(curves, 0) + np.std(curves, 0, ddof=1)).max())
  labels = [text.get_text() for text in loss.get_legend().get_texts()]
  assert len(labels) == 4 and labels[-1].startswith("unigram entropy")  # training and held-out


def test_a_plot_says_whose_entropy_a_line_is(make_folder, tmp_path, saved):
  folders = []
  for name, entropy in (("novels", 3.5), ("letters", 3.75)):
    log = [(step, {"loss": loss, "valid_loss": loss}) for step, loss in ((50, 3.9), (100, 3.2))]
    folder = make_folder(name, log, unigram_entropy=4.0, held_out_entropy=entropy)
    with edited(folder / "config.json") as config:
      config["data"]["valid_digest"] = name  # other text, and so no second seed
    folders.append(str(folder))
  plot.run(folders, str(tmp_path / "curves.png"))
  lines = {line.get_label(): line.get_color() for line in saved[0].axes[0].lines}
  for name, entropy in (("novels", "3.50"), ("letters", "3.75")):
    of_run = f"unigram entropy {entropy} of the held-out text of {name}"
    assert lines[of_run] == lines[f"{name}, held-out"]


def test_a_plot_of_nothing_is_refused(make_folder, pretrained, tmp_path, saved):
  empty = make_folder("empty", [(1, {"loss": None})])
  refused("nothing to draw", plot.run, [str(empty)], str(tmp_path / "curves.png"))
  told = r"the name of a picture ends in .png, .svg, .pdf"
  refused(told, plot.run, [str(pretrained)], str(tmp_path / "curves.jpg"))


# In a real browser.


@pytest.fixture(scope="module")
def browse(tmp_path_factory, browser):
  """browse(page, width) -> what a script in the page measures; console errors fail the test."""
  folder = tmp_path_factory.mktemp("browser")
  measure = """<script>
    for (const details of document.querySelectorAll("details")) details.open = true;
    addEventListener("load", () => {
      const wide = [...document.body.querySelectorAll("*")].filter(element =>
        element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".wide"));
      parent.postMessage(JSON.stringify({width: innerWidth, title: document.title,
        scroll: document.documentElement.scrollWidth,
        scripts: document.querySelectorAll("script").length,
        unmarked: [...document.querySelectorAll(".wide")].filter(element =>
          !getComputedStyle(element).backgroundImage.includes("gradient")).length,
        chart: document.querySelector(".chart").getBoundingClientRect().width / innerWidth,
        background: getComputedStyle(document.body).backgroundColor,
        wide: wide.map(element => `${element.tagName} ${element.getAttribute("class")}`)}), "*");
    });
  </script></body>"""
  # A browser's window has a least width; a frame has not.
  frame = """<!doctype html><meta name="color-scheme" content="light dark">
    <script>onmessage = event => document.documentElement.dataset.measured = event.data;</script>
    <iframe src="acted.html" style="width: WIDTHpx; height: 800px; border: 0"></iframe>"""

  def show(page, width, *flags):
    common = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"]
    common += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"]
    command = [browser, *common, "--hide-scrollbars", *flags, "--dump-dom"]
    # As it is, for errors; then with a script, which its policy forbids.
    done = subprocess.run([*command, page.as_uri()], capture_output=True, timeout=120, check=True)
    assert b":CONSOLE" not in done.stderr, done.stderr.decode()
    policy = re.compile(r"<meta http-equiv=.*?>")
    acted = policy.sub("", page.read_text()).replace("</body>", measure)
    (folder / "acted.html").write_text(acted)
    (folder / "frame.html").write_text(frame.replace("WIDTH", str(width)))
    command.append((folder / "frame.html").as_uri())
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    found = re.search(r'data-measured="(.*?)"', done.stdout.decode())
    assert found, done.stdout.decode()
    return json.loads(html.unescape(found[1]))

  return show


def test_a_phone_shows_every_page_without_scrolling_sideways(seed, finetuned, tmp_path, browse):
  write_labels(seed, [f"b {HOSTILE}", "meows" * 12], [("x" * 500, "meows" * 12, (0.9, 0.1))] * 3)
  long = shutil.copytree(seed, tmp_path / ("long-" * 20 + "name"))
  both = tmp_path / "both.html"
  report.run([str(seed), str(long), finetuned.workdir], str(both))
  for page in (Path(report.run([str(seed)])), both):
    shown = browse(page, 390)
    assert shown["width"] == 390 and shown["scroll"] <= 390 and shown["wide"] == [], shown
    assert shown["scripts"] == 1  # ours
    assert shown["unmarked"] == 0  # a table that is cut has a shadow there


def test_a_browser_follows_the_color_scheme(pretrained, browse):
  page = pretrained / "report.html"
  light, dark = (
    browse(page, 1200, f"--blink-settings=preferredColorScheme={scheme}") for scheme in (1, 0)
  )
  assert light["title"] == "run: report" and 0.4 < light["chart"] < 0.5  # also a single chart
  assert [int(value) > 128 for value in re.findall(r"\d+", light["background"])] == [True] * 3
  assert [int(value) > 128 for value in re.findall(r"\d+", dark["background"])] == [False] * 3
