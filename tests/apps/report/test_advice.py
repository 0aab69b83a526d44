"""The answers of a run's page: what an experienced person would say of simulated runs."""

import dataclasses
import functools
import re

import pytest
from simulated_runs import TABLE, task_run, text_run

from gpt_jax.apps.report.answers import answers
from gpt_jax.apps.report.record import Record
from gpt_jax.objectives.contrastive import NeighborSpans
from gpt_jax.objectives.masked import Masked
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.tasks.tagged_files import TaggedFiles
from gpt_jax.tasks.task import BuiltinTask

FALLS = [5.2, 3.5, 2.6, 2.2, 2.05, 2.02, 2.01, 2.0, 2.0, 2.0]
FLAT = [3.6, 2.5, 2.1, 2.06, 2.05]
LEARNS = [0.69, 0.4, 0.25, 0.15, 0.1, 0.08, 0.07, 0.07]
STUCK = [6.5, 5.0, 4.86, 4.85, 4.86, 4.85, 4.85, 4.86, 4.85, 4.85, 4.86, 4.85]
HELD_OUT_STUCK = [4.87, 4.86, 4.86, 4.86]
CONTRASTIVE = {"objective": NeighborSpans(span=8)}
CONTRASTIVE["plan"] = {"unigram_entropy": None, "held_out_entropy": None}
FEW_TEXTS = {**CONTRASTIVE, "plan": {**CONTRASTIVE["plan"], "held_out_rows": 3}}
REFUSED = "step 610: 10 updates in a row had a non-finite loss or gradient (loss nan, …"
GOOD = [[180, 20], [15, 185]]
CHANCE = [[110, 90], [106, 94]]
ONE_LABEL = [[200, 0], [200, 0]]
LUCKY = [0.5, 0.49, 0.5, 0.51, 0.5, 0.5, 0.49, 0.51, 0.5, 0.66, 0.5]
THREE = dataclasses.replace(TABLE, labels=("a", "b", "c"))
FOLD = dataclasses.replace(TABLE, folds=5, fold=2)
NUMBERS = dataclasses.replace(
  TABLE, labels=(), kind="regression", metric="r2", mean=3.0, deviation=1.0
)
TOPICS = dataclasses.replace(TABLE, kind="multi_label", metric="micro_f1")
TAGS = TaggedFiles(labels=("B-PER", "I-PER", "O"))


def text(loss=FALLS, valid=FLAT, **options):
  return functools.partial(text_run, loss=loss, valid=valid, **options)


def masked(loss, valid, **curves):
  plan = {"token_metric": "masked_loss"}
  return text(loss, valid, objective=Masked(), plan=plan, curves=curves)


def task(loss=LEARNS, *, of=TABLE, **dev):
  """`dev` is the metrics, the first one primary."""
  return functools.partial(task_run, dev=dev, loss=loss, task=of)


def classifier(*accuracies, loss=LEARNS, dev_loss=(), right=GOOD, **options):
  dev = {"accuracy": accuracies, "loss": dev_loss} if dev_loss else {"accuracy": accuracies}
  return functools.partial(task_run, dev=dev, loss=loss, confusion=right, **options)


def at_chance(*accuracies, loss=(0.7, 0.69, 0.69), right=CHANCE, **options):
  return classifier(*accuracies or (0.5, 0.51, 0.5), loss=loss, right=right, **options)


# The answers, "|" between them, are each a verdict, then words of it; those after a ! must not be
# there.
RUNS = {
  "resumed once, learned, then flat": (
    text(plan={"starts": [{"step": 0, "time": 0.0}, {"step": 500, "time": 900.0}]}),
    "Yes; reached 2.050; 2.800 below the 4.850; !diverged",
    "Hardly since step 800; from 2.060 at step 800 to its best, 2.050 at step 1,000 of 1,000",
    "As unsure as among 8 tokens; does not memorize | Use it; larger model; !Train longer",
  ),
  "a quarter of the text read": (
    text(plan={"rows_per_epoch": 512_000}),
    "Yes | Hardly since step 800 | As unsure as among 8 tokens",
    "Use it; longer run; new folder; 25% of the text; !more text",
  ),
  "the text read twice": (
    text(plan={"rows_per_epoch": 64_000}),
    "Yes | Hardly since step 800 | As unsure as among 8 tokens | Use it; more text; !longer run",
  ),
  "still falling": (
    text([5.2, 4.3, 3.6, 3.2, 2.8, 2.6, 2.4, 2.3], [4.0, 3.2, 2.7, 2.3]),
    "Yes | Not yet; more steps; !let it go on | As unsure as among 10 tokens",
    "Train longer; train.steps; goes on with this run; !new folder",
  ),
  "short, ended in its warm-up": (
    text([6.55, 5.52, 4.67], [4.2], steps=150, warmup=2000),
    "Yes; reached 4.200 | Not yet; warm-up of 2,000; still rising",
    "As unsure as among 67 tokens; !memoriz",
    "Train longer; warm-up; train.steps; !Use it; !will not do",
  ),
  "ended in its warm-up, nothing learned": (
    text([9.01, 9.0, 8.99], [8.99, 8.99, 8.98], steps=150, warmup=2000),
    "Not yet; 4.850; !diverged | Not yet; warm-up | Nearly everything",
    "Train longer; warm-up; !third",
  ),
  "a single report": (
    text([4.5], [3.9], steps=20, warmup=2),
    "Yes | Not known; train.log_every | As unsure as among 49 tokens; !memoriz",
    "Train longer; !Use it",
  ),
  "falling from far above": (
    text([95, 70, 50, 38], [60, 36], steps=100, warmup=5),
    "Not yet; has not learned more by step 100; !diverged | Not yet | Nearly everything",
    "Train longer; train.steps; !learning_rate",
  ),
  "above the entropy of the held-out text, below that of the training text": (
    text([3.9] * 8, [3.8] * 4, plan={"unigram_entropy": 4.0, "held_out_entropy": 3.75}),
    "No; 0.050 above the 3.750; of the held-out text | It has not begun; of the held-out text",
    "Nearly everything | Change the learning rate",
  ),
  "of an earlier version, without the entropy of the held-out text": (
    text([3.9] * 8, [3.8] * 4, plan={"unigram_entropy": 4.01, "held_out_entropy": None}),
    "Yes; of the training text | At step 250 | As unsure as among 45 tokens | Use it",
  ),
  "stuck at the unigram entropy": (
    text(STUCK, HELD_OUT_STUCK),
    "No; has not learned more | It has not begun; unigram entropy; !overfit; !the first",
    "Nearly everything | Change the learning rate; third; warm-up; !Train longer; !pre-trained",
  ),
  "hardly below the entropy": (
    text([5.2, 4.8, 4.75, 4.74, 4.74, 4.74, 4.73, 4.73], [4.74, 4.73, 4.73, 4.73]),
    "Hardly; below | At step 500 | As unsure as among 113 tokens",
    "Change the learning rate; !Use it",
  ),
  "diverged": (
    text([6, 80, 300, 500, 700, 900], [500, 700, 900]),
    "No, it diverged; lower optim.learning_rate | At step 167; diverged; !overfit",
    "Nearly everything | Change the learning rate; lower; !three times; !Train longer",
  ),
  "no loss is a number": (
    text([None] * 5, [None, None]),
    "No, it diverged; finite | Not known; diverged; !evaluate_every | Not measured",
    "Change the learning rate; lower; !three times",
  ),
  "learned, then diverged": (
    text([5, 3, 2.5, 2.4, 6.5, 7.2, 7.5, 7.4], [2.9, 2.5, 6.8, 7.4]),
    "Until it diverged; reached 2.500 | At step 500; diverged; !overfit",
    "Nearly everything; !memoriz",
    "Change the learning rate; lower; best/; !More text; !three times",
  ),
  "learned, then no numbers": (
    text([5, 3, 2.5, 2.4, None, None], [2.9, 2.5, None]),
    "Until it diverged | At step 667; diverged; !more steps",
    "As unsure as among 12 tokens; !memoriz | Change the learning rate; lower; best/",
  ),
  "ended by refused updates": (
    text(FALLS[:6], FLAT[:2], done=600, ended=False, plan={"ended": "error", "error": REFUSED}),
    "Until it diverged | At step 600; !go on | As unsure as among 12 tokens",
    "Start again; lower; new folder; !Let it go on",
  ),
  "killed, still falling": (
    text([5.2, 4.3, 3.6, 3.2], [4.0, 3.2], done=400, ended=False),
    "Yes | Not yet; let it go on; !more steps | As unsure as among 25 tokens",
    "Let it go on; same command",
  ),
  "killed, just below the entropy": (
    text([6.2, 5.0, 4.75], [4.7], done=300, ended=False),
    "A little so far | Not yet | As unsure as among 110 tokens | Let it go on",
  ),
  "killed before the first report": (
    text([], (), done=1, ended=False),
    "Not known; logged nothing | Not known | Not measured | Let it go on",
  ),
  "killed early, at the entropy": (
    text(STUCK[:6], HELD_OUT_STUCK[:2], done=300, ended=False),
    "Not yet; by step 300 | Not yet | Nearly everything | Let it go on",
  ),
  "killed late, at the entropy since long": (
    text(STUCK, HELD_OUT_STUCK[:3], done=700, ended=False),
    "Not yet; by step 700 | It has not begun | Nearly everything | Start again; third; warm-up",
  ),
  "memorizes, so that held-out loss rises": (
    text([4, 3, 2.2, 1.6, 1.1, 0.8, 0.6, 0.5], [3.2, 2.9, 3.2, 3.9]),
    "Yes | At step 500; got worse; overfits; !diverged | Unseen text; memorized",
    "More text; dropout; best/; !Use it",
  ),
  "memorizes, held-out loss flat": (
    text([4, 3.2, 2.6, 2.2, 1.9, 1.7, 1.6, 1.5], [3.0, 2.91, 2.9, 2.9]),
    "Yes | At step 750 | Unseen text; memorized | More text; !Use it",
  ),
  "held-out loss below training loss": (
    text([5.2, 3.9, 3.0, 2.7, 2.62, 2.6, 2.6, 2.6], [2.6, 2.25, 2.2, 2.2]),
    "Yes | At step 750 | As unsure as among 9 tokens; !memoriz | Use it",
  ),
  "evaluated at the end alone, still falling": (
    text([5.2, 4.6, 4.1, 3.7, 3.3, 3.0, 2.8, 2.6, 2.4, 2.3, 2.2, 2.1], [2.1]),
    "Yes | Not yet; training loss; train.evaluate_every | As unsure as among 8 tokens",
    "Train longer",
  ),
  "evaluated at the end alone, flat": (
    text(FALLS + [2.0] * 6, [2.0]),
    "Yes | Before the last quarter | As unsure as among 7.4 tokens | Use it",
  ),
  "masked tokens": (
    masked(
      [5.9, 4.5, 3.9, 3.8, 3.75, 3.7],
      [4.6, 3.9, 3.75, 3.74],
      masked_loss=[5.2, 3.8, 3.2, 3.1, 3.05, 3.0],
      valid_masked_loss=[3.9, 3.2, 3.05, 3.04],
    ),
    "Yes; reached 3.040 nats per token | Hardly since step 750 | As unsure as among 21 tokens",
    "Use it",
  ),
  "masked tokens, at the entropy": (
    masked(STUCK, HELD_OUT_STUCK, masked_loss=STUCK, valid_masked_loss=HELD_OUT_STUCK),
    "No | It has not begun | Nearly everything",
    "Change the learning rate; warm-up; times as many steps",
  ),
  "a mixture of sources": (
    text(curves={"valid_novels_loss": [3.5, 2.4, 2.0, 1.9, 1.9], "valid_wiki_loss": [3.7, 2.6]}),
    "Yes | Hardly since step 800 | As unsure as among 8 tokens | Use it",
  ),
  "contrastive": (
    text([4.9, 3.0, 1.5, 0.9, 0.82, 0.8, 0.8, 0.8], [2.0, 1.0, 0.9, 0.9], **CONTRASTIVE),
    "Yes; chance; 5.541; !perplexity | At step 750 | Not in this page; !tokens",
    "Use it; !larger vocabulary",
  ),
  "contrastive, three held-out texts": (  # chance is log(5) of these, and log(255) of a batch
    text([5.55] + [5.54] * 5, [1.61] * 3, **FEW_TEXTS),
    "No; chance; 1.609 | It has not begun; chance | Not in this page | Change the learning rate",
  ),
  "contrastive, vectors all alike": (
    text([5.55] + [5.54] * 5, [5.54] * 3, **CONTRASTIVE),
    "No; chance | It has not begun; chance | Not in this page | Change the learning rate; !Use it",
  ),
  "falls by less than the page shows": (
    text([2.993] * 6, [2.9933, 2.9931]),
    "Yes | Hardly since step 500; !improving | As unsure as among 20 tokens",
    "Use it; !Train longer",
  ),
  "goes on from a checkpoint, flat at once": (
    text([2.02, 2.01, 2.0, 2.0, 2.0, 2.0], [2.0, 2.002, 2.001, 2.001]),
    "Yes | At step 250; !worse | As unsure as among 7 tokens | Use it; !dropout",
  ),
  # One label.
  "a classifier": (
    classifier(0.85, 0.9, 0.912, 0.91, dev_loss=[0.4, 0.3, 0.27, 0.28]),
    "Yes; 91.2%; commonest label | Hardly since step 200; standard error | 35 of 400 examples",
    "Read the errors; --precision",
  ),
  "a dev set of one label": (
    classifier(0.85, 0.9, 0.9, right=[[0, 0], [4, 36]]),
    "Not known; one label; 100.0% | At step 267 | 4 of 40 examples",
    "Another dev set; dev_share; !learning_rate; !pre-trained",
  ),
  "distillation of a fold": (
    classifier(0.85, 0.9, 0.912, 0.91, loss=[3, 2, 1.5, 1.2, 1.1], methods=["distill"], task=FOLD),
    "Yes | Hardly since step 200 | 35 of 400 examples | Read the errors",
  ),
  "a classifier that still improves": (
    classifier(0.6, 0.7, 0.8, 0.912),
    "Yes | Not yet; more steps | 35 of 400 examples | Train longer; train.epochs; new folder",
  ),
  "at chance after 20 steps": (
    at_chance(0.5, 0.51, dev_loss=[0.7, 0.72], loss=[0.71, 0.7], steps=20, warmup=2),
    "Not clearly; 51.0% of 400; chance | It has not begun; !overfit; !Not known",
    "196 of 400 examples; !Read these rows",
    "Change the learning rate; pre-trained; train.epochs; !patience; !earlier; !Fewer",
  ),
  "at chance, from random weights": (
    at_chance(pretrained="none"),
    "Not clearly | It has not begun | 196 of 400 examples",
    "Start pre-trained; random weights; checkpoint; !earlier",
  ),
  "at chance, nothing of the checkpoint transferred": (
    at_chance(config={"transfer_layers": -1}),
    "Not clearly | It has not begun | 196 of 400 examples | Start pre-trained; random weights",
  ),
  "at chance, killed": (
    at_chance(0.5, 0.51, 0.5, 0.5, right=None, examples=400, done=300, ended=False),
    "Not known | Hardly since step 75; !overfits; !got worse | Not yet known",
    "Let it go on; same command",
  ),
  "at chance, ended in its warm-up": (
    at_chance(0.5, 0.51, steps=40, warmup=100),
    "Not clearly | Not yet; warm-up | 196 of 400 examples | Train longer; warm-up; train.epochs",
  ),
  "at chance, the luckiest of ten evaluations": (
    at_chance(*LUCKY, right=[[36, 14], [20, 30]]),
    "Not clearly; best of 11 evaluations | It has not begun; !overfits | 34 of 100 examples",
    "Change the learning rate; !dev set; !earlier",
  ),
  "one label for all": (
    at_chance(0.5, 0.5, 0.5, right=ONE_LABEL, sure=0.999),
    "No; 50.0% | It has not begun | 200 of 400 examples; !labels look wrong",
    "Change the learning rate; pre-trained; !Correct; !Check the",
  ),
  "95 % have one label, and all get it": (
    at_chance(0.95, 0.95, 0.95, loss=[0.3, 0.2, 0.2], right=[[380, 0], [20, 0]], sure=0.999),
    "No; 95.0% | It has not begun | 20 of 400 examples; !look wrong",
    "Weigh the classes; class_weights=balanced; !Correct",
  ),
  "a label that is never found": (
    classifier(0.85, 0.92, 0.926, right=[[280, 5, 0], [10, 90, 0], [8, 7, 0]], task=THREE),
    "Yes | Hardly since step 267 | 30 of 400 examples; “c”: 0% of its 15",
    "Weigh the classes; “c”; class_weights=balanced",
  ),
  "a classifier that overfits": (
    classifier(0.85, 0.912, 0.86, 0.8, dev_loss=[0.4, 0.3, 0.6, 1.0]),
    "Yes | At step 200; overfits; lowest at step 200 and has risen from 0.3 to 1 since; !hardly",
    "35 of 400 examples | Stop earlier, label more; patience=3; train.epochs",
  ),
  "a fall that may be chance": (
    classifier(0.8, 0.9, 0.87, 0.85, right=[[45, 5], [5, 45]]),
    "Yes | At step 200; !overfits | 10 of 100 examples | Read the errors",
  ),
  "dev loss rises, accuracy does not fall": (
    classifier(0.85, 0.912, 0.91, 0.91, dev_loss=[0.4, 0.3, 0.5, 0.7]),
    "Yes | At step 200; too sure of its errors | 35 of 400 examples | Stop earlier, label more",
  ),
  "stopped by patience": (
    classifier(0.85, 0.912, 0.86, 0.84, 0.83, config={"patience": 3}, steps=1000, done=300),
    "Yes | At step 120; !go on | 35 of 400 examples",
    "Label more; in time; !patience=3; !Fewer; !go on",
  ),
  "many doubtful labels": (
    classifier(0.93, 0.95, 0.952, right=[[190, 10], [9, 191]], sure=0.9999),
    "Yes | Hardly since step 267 | 19 of 400 examples; 19 labels look wrong; !Caution",
    "Correct the labels first; 19 labels",
  ),
  "one doubtful label": (
    classifier(0.98, 1.0, 0.998, right=[[200, 0], [1, 199]], sure=0.9999),
    "Yes | At step 267 | 1 of 400 examples; 1 label looks wrong",
    "Check the labels; 1 label of; !first",
  ),
  "doubts of a model that is no sure judge": (
    classifier(0.7, 0.75, 0.752, right=[[150, 50], [49, 151]], sure=0.9999),
    "Yes | Hardly since step 267 | 99 of 400 examples; Caution | Check the labels; !first",
  ),
  "a tiny dev set": (
    classifier(0.58, 0.75, 0.75, right=[[5, 1], [2, 4]]),
    "Not clearly; chance | It has not begun; more than chance | 3 of 12 examples",
    "A larger dev set; folds; !earlier; !learning_rate",
  ),
  "a small dev set, all right, though its loss rises": (
    classifier(0.9, 1.0, 1.0, dev_loss=[0.01, 0.011, 0.013], right=[[10, 0], [0, 10]]),
    "Yes | At step 267; !overfit | Nothing; All 20 | Use it; dev set; !errors below; !earlier",
  ),
  "one epoch, its loss still falling": (
    classifier(0.912, loss=[0.7, 0.6, 0.5, 0.4]),
    "Yes | Not yet; training loss | 35 of 400 examples | Train longer; train.epochs",
  ),
  "a classifier that diverged": (
    classifier(0.52, 0.5, 0.5, loss=[0.7, 0.9, 3.0, 8.0, 12.0, 12.5], right=ONE_LABEL),
    "No, it diverged | At step 67; diverged; !overfit | 200 of 400 examples",
    "Change the learning rate; lower; !three times",
  ),
  "a classifier, killed half way": (
    classifier(0.7, 0.8, loss=[0.7, 0.5, 0.4, 0.35], right=None, done=160, ended=False),
    "Yes | Not yet; let it go on | Not yet known; at the end | Let it go on",
  ),
  # Other answers.
  "regression": (
    task(
      [1, 0.7, 0.4, 0.2, 0.2, 0.2],
      of=NUMBERS,
      r2=[0.3, 0.6, 0.8, 0.802],
      rmse=[0.84, 0.63, 0.45, 0.448],
      mae=[0.7, 0.5, 0.3, 0.3],
      baseline_rmse=[1.0] * 4,
    ),
    "Yes; 0.448; mean of the training set | Hardly since step 300 | By 0.3 on average",
    "Use it; predict; !errors below; !--precision",
  ),
  "regression no better than the mean": (
    task(
      [1.02, 1.0, 1.0, 1.0],
      of=NUMBERS,
      r2=[-0.02, -0.01, -0.01],
      rmse=[1.01, 1.005, 1.005],
      mae=[0.8] * 3,
      baseline_rmse=[1.0] * 3,
    ),
    "No | It has not begun | By 0.8 on average | Change the learning rate; pre-trained",
  ),
  "several labels": (
    task(of=TOPICS, micro_f1=[0.6, 0.8, 0.83, 0.83], baseline_micro_f1=[0.4] * 4),
    "Yes; same commonest labels | At step 300 | Not in this page",
    "Use it; !--precision; !errors below",
  ),
  "several labels, no better than the commonest": (
    task([0.7, 0.7, 0.7], of=TOPICS, micro_f1=[0.4] * 3, baseline_micro_f1=[0.4] * 3),
    "No | It has not begun | Not in this page | Change the learning rate",
  ),
  "tags": (
    task(of=TAGS, span_f1=[0.3, 0.7, 0.85, 0.86], accuracy=[0.8, 0.9, 0.95, 0.95]),
    "Yes; 86.0%; 30.0%; !dev_report; !commonest label | Hardly since step 300",
    "Not in this page; launch/evaluate.py | Use it",
  ),
  "tags, no span found": (
    task([0.7] * 3, of=TAGS, span_f1=[0.0] * 3, accuracy=[0.8] * 3, degenerate=[1] * 3),
    "No; same prediction | It has not begun | Not in this page",
    "Change the learning rate; pre-trained",
  ),
  "translation": (
    task([5, 3, 2, 1.8, 1.7], of=PairsTask(), bleu=[3.0, 15.0, 24.0, 24.2], chrf=[20, 40, 50, 50]),
    "Yes; bleu is 24.2; first evaluation; !dev_report; !commonest | Hardly since step 300",
    "Not in this page; launch/predict.py | Use it; !errors below; !--precision",
  ),
  "translation, no word of it right": (
    task([6, 5.5, 5.5, 5.5], of=PairsTask(), bleu=[0.1, 0.2, 0.2], chrf=[5, 6, 6]),
    "No; bleu is 0.2 | It has not begun | Not in this page",
    "Change the learning rate; train.epochs",
  ),
  "no better than its first evaluation, no baseline": (
    task(of=BuiltinTask("rte"), accuracy=[0.7, 0.7, 0.69, 0.7]),
    "Not known; constant answer has is not known | At step 100 | Not in this page",
    "Evaluate it; launch/evaluate.py; !Use it",
  ),
}


@pytest.mark.parametrize("name", RUNS)
def test_answers_are_those_of_an_experienced_person(name, tmp_path):
  make, *expected = RUNS[name]
  given = answers(Record(str(make(tmp_path / "run"))))
  for answer, wanted in zip(given, " | ".join(expected).split(" | "), strict=True):
    verdict, *words = wanted.split("; ")
    assert verdict == answer.verdict, answer
    said = f"{answer.verdict}: {answer.text}".casefold()
    for word in words:
      there = word.removeprefix("!").casefold() in said
      assert there != word.startswith("!"), (word, answer)
    assert not re.search(r"\b(nan|inf|none)\b", said), answer
  is_bad = re.match("No$|No,|Until", given[0].verdict)
  assert given[0].tone == ("good" if given[0].verdict == "Yes" else "bad" if is_bad else "plain")
  verdicts = [answer.verdict for answer in given]
  assert not ("Not known" in verdicts and "Use it" in verdicts)
