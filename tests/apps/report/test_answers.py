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


def text(loss, valid=(), **options):
  return functools.partial(text_run, loss=loss, valid=valid, **options)


def task(*dev, loss=(0.69, 0.4, 0.25, 0.15, 0.1, 0.08, 0.07, 0.07), **options):
  """Each of `dev` is a name and values."""
  metrics = {name: values for name, *values in dev}
  return functools.partial(task_run, dev=metrics, loss=loss, **options)


FALLS = [5.2, 3.5, 2.6, 2.2, 2.05, 2.02, 2.01, 2.0, 2.0, 2.0]
FLAT = [3.6, 2.5, 2.1, 2.06, 2.05]
STUCK = [6.5, 5.0, 4.86, 4.85, 4.86, 4.85, 4.85, 4.86, 4.85, 4.85, 4.86, 4.85]
NO_PAIRS = {"objective": NeighborSpans(span=8), "plan": {"unigram_entropy": None}}
NO_PAIRS["plan"]["held_out_entropy"] = None
MASKED = {"objective": Masked(), "plan": {"token_metric": "masked_loss"}}
REFUSED = "step 610: 10 updates in a row had a non-finite loss or gradient (loss nan, …"
GOOD = [[180, 20], [15, 185]]
CHANCE = [[110, 90], [106, 94]]
LUCKY = [0.5, 0.49, 0.5, 0.51, 0.5, 0.5, 0.49, 0.51, 0.5]
THREE = dataclasses.replace(TABLE, labels=("a", "b", "c"))
NUMBERS = dataclasses.replace(
  TABLE, labels=(), kind="regression", metric="r2", mean=3.0, deviation=1.0
)
TOPICS = dataclasses.replace(TABLE, kind="multi_label", metric="micro_f1")
TAGS = TaggedFiles(labels=("B-PER", "I-PER", "O"))

# Each answer is its verdict (a regex), then words of it; those after a ! must not be there.
RUNS = {
  # Text.
  "learned, then flat": (
    text(FALLS, FLAT),
    "Yes; reached 2.050; 2.800 below the 4.850; !diverged",
    "Hardly since step 800; from 2.060 at step 800 to its best, 2.050 at step 1,000 of 1,000",
    "As unsure as among 8 tokens; does not memorize",
    "Use it; larger model; !Train longer",
  ),
  "resumed once": (
    text(FALLS, FLAT, plan={"starts": [{"step": 0, "time": 0.0}, {"step": 500, "time": 900.0}]}),
    "Yes",
    "Hardly since step 800",
    "As unsure as among 8 tokens",
    "Use it",
  ),
  "still falling": (
    text([5.2, 4.3, 3.6, 3.2, 2.8, 2.6, 2.4, 2.3], [4.0, 3.2, 2.7, 2.3]),
    "Yes",
    "Not yet; more steps; !let it go on",
    "As unsure as among 10 tokens",
    "Train longer; train.steps; goes on with this run; !new folder",
  ),
  "short, ended in its warm-up": (
    text([6.55, 5.52, 4.67], [4.2], steps=150, warmup=2000),
    "Yes; reached 4.200",
    "Not yet; warm-up of 2,000; still rising",
    "As unsure as among 67 tokens; !memoriz",
    "Train longer; warm-up; train.steps; !Use it; !will not do",
  ),
  "ended in its warm-up, nothing learned": (
    text([9.01, 9.0, 8.99], [8.99, 8.99, 8.98], steps=150, warmup=2000),
    "Not yet; 4.850; !diverged",
    "Not yet; warm-up",
    "Nearly everything",
    "Train longer; warm-up; !third",
  ),
  "short, above the entropy and falling": (
    text([6.6, 5.9, 5.4], [5.2], steps=60, warmup=5),
    "Not yet; has not learned more by step 60",
    "Not yet",
    "Nearly everything",
    "Train longer; train.steps; !learning_rate",
  ),
  "a single report": (
    text([4.5], [3.9], steps=20, warmup=2),
    "Yes",
    "Not known; train.log_every",
    "As unsure as among 49 tokens; !memoriz",
    "Train longer; !Use it",
  ),
  "a single report, above the entropy": (
    text([6.9], [6.3], steps=20, warmup=2),
    "Not yet",
    "Not known",
    "Nearly everything",
    "Train longer; !Use it",
  ),
  "falling from far above": (
    text([95, 70, 50, 38], [60, 36], steps=100, warmup=5),
    "Not yet; !diverged",
    "Not yet",
    "Nearly everything",
    "Train longer",
  ),
  "above the entropy of the held-out text, below that of the training text": (
    text([3.9] * 8, [3.8] * 4, plan={"unigram_entropy": 4.0, "held_out_entropy": 3.75}),
    "No; 0.050 above the 3.750; of the held-out text",
    "It has not begun; of the held-out text",
    "Nearly everything",
    "Change the learning rate",
  ),
  "of an earlier version, without the entropy of the held-out text": (
    text([3.9] * 8, [3.8] * 4, plan={"unigram_entropy": 4.01, "held_out_entropy": None}),
    "Yes; of the training text",
    "At step 250",
    "As unsure as among 45 tokens",
    "Use it",
  ),
  "stuck at the unigram entropy": (
    text(STUCK, [4.87, 4.86, 4.86, 4.86]),
    "No; has not learned more",
    "It has not begun; unigram entropy; !overfit; !the first",
    "Nearly everything",
    "Change the learning rate; third; warm-up; !Train longer; !pre-trained",
  ),
  "stuck far above, by too small a rate": (
    text([9.2, 9.18, 9.17, 9.16, 9.15, 9.15], [9.16, 9.15, 9.15]),
    "No; !diverged",
    "It has not begun",
    "Nearly everything",
    "Change the learning rate; three times",
  ),
  "hardly below the entropy": (
    text([5.2, 4.8, 4.75, 4.74, 4.74, 4.74, 4.73, 4.73], [4.74, 4.73, 4.73, 4.73]),
    "Hardly; below",
    "Hardly since step .*|At step .*",
    "As unsure as .*|Nearly everything",
    "Change the learning rate; !Use it",
  ),
  "diverged": (
    text([6, 80, 300, 500, 700, 900], [500, 700, 900]),
    "No, it diverged; lower optim.learning_rate",
    "At step 167; diverged; !overfit",
    "Nearly everything",
    "Change the learning rate; lower; !three times; !Train longer",
  ),
  "no loss is a number": (
    text([None] * 5, [None, None]),
    "No, it diverged; finite",
    "Not known; diverged; !evaluate_every",
    "Not measured",
    "Change the learning rate; lower; !three times",
  ),
  "learned, then diverged": (
    text([5, 3, 2.5, 2.4, 6.5, 7.2, 7.5, 7.4], [2.9, 2.5, 6.8, 7.4]),
    "Until it diverged; reached 2.500",
    "At step 500; diverged; !overfit",
    "Nearly everything; !memoriz",
    "Change the learning rate; lower; best/; !More text; !three times",
  ),
  "learned, then no numbers": (
    text([5, 3, 2.5, 2.4, None, None], [2.9, 2.5, None]),
    "Until it diverged",
    ".*; diverged; !more steps",
    ".*; !memoriz",
    "Change the learning rate; lower; best/",
  ),
  "ended by refused updates": (
    text(
      [5, 3, 2.5, 2.2, 2.1, 2.0],
      [2.9, 2.3],
      done=600,
      ended=False,
      plan={"ended": "error", "error": REFUSED},
    ),
    "Until it diverged",
    ".*; !go on",
    "As unsure as among 10 tokens",
    "Start again; lower; new folder; !Let it go on",
  ),
  "killed, still falling": (
    text([5.2, 4.3, 3.6, 3.2], [4.0, 3.2], done=400, ended=False),
    "Yes",
    "Not yet; let it go on; !more steps",
    "As unsure as among 25 tokens",
    "Let it go on; same command",
  ),
  "killed, just below the entropy": (
    text([6.2, 5.0, 4.75], [4.7], done=300, ended=False),
    "A little so far",
    "Not yet",
    "As unsure as .*|Nearly everything",
    "Let it go on",
  ),
  "killed before the first report": (
    text([], done=1, ended=False),
    "Not known; logged nothing",
    "Not known",
    "Not measured",
    "Let it go on",
  ),
  "killed early, at the entropy": (
    text(STUCK[:6], [4.87, 4.86], done=300, ended=False),
    "Not yet; by step 300",
    ".*",
    "Nearly everything",
    "Let it go on",
  ),
  "killed late, at the entropy since long": (
    text(STUCK, [4.87, 4.86, 4.86], done=700, ended=False),
    "Not yet; by step 700",
    "It has not begun",
    "Nearly everything",
    "Start again; third; warm-up",
  ),
  "memorizes, so that held-out loss rises": (
    text([4, 3, 2.2, 1.6, 1.1, 0.8, 0.6, 0.5], [3.2, 2.9, 3.2, 3.9]),
    "Yes",
    "At step 500; got worse; overfits; !diverged",
    "Unseen text; memorized",
    "More text; dropout; best/; !Use it",
  ),
  "memorizes, held-out loss flat": (
    text([4, 3.2, 2.6, 2.2, 1.9, 1.7, 1.6, 1.5], [3.0, 2.91, 2.9, 2.9]),
    "Yes",
    "Hardly since .*|At step .*",
    "Unseen text; memorized",
    "More text; !Use it",
  ),
  "held-out loss below training loss": (
    text([5.2, 3.9, 3.0, 2.7, 2.62, 2.6, 2.6, 2.6], [2.6, 2.25, 2.2, 2.2]),
    "Yes",
    "At step 750|Hardly since .*",
    "As unsure as among 9 tokens; !memoriz",
    "Use it",
  ),
  "evaluated at the end alone, still falling": (
    text([5.2, 4.6, 4.1, 3.7, 3.3, 3.0, 2.8, 2.6, 2.4, 2.3, 2.2, 2.1], [2.1]),
    "Yes",
    "Not yet; training loss; train.evaluate_every",
    "As unsure as among 8 tokens",
    "Train longer",
  ),
  "evaluated at the end alone, flat": (
    text(FALLS + [2.0] * 6, [2.0]),
    "Yes",
    "Before the last quarter",
    "As unsure as among 7.4 tokens",
    "Use it",
  ),
  "masked tokens": (
    text(
      [5.9, 4.5, 3.9, 3.8, 3.75, 3.7],
      [4.6, 3.9, 3.75, 3.74],
      curves={
        "masked_loss": [5.2, 3.8, 3.2, 3.1, 3.05, 3.0],
        "valid_masked_loss": [3.9, 3.2, 3.05, 3.04],
      },
      **MASKED,
    ),
    "Yes; reached 3.040 nats per token",
    "Hardly since step 750",
    "As unsure as among 21 tokens",
    "Use it",
  ),
  "masked tokens, at the entropy": (
    text(
      STUCK,
      [4.87, 4.86, 4.86, 4.86],
      curves={"masked_loss": STUCK, "valid_masked_loss": [4.87, 4.86, 4.86, 4.86]},
      **MASKED,
    ),
    "No",
    "It has not begun",
    "Nearly everything",
    "Change the learning rate; warm-up; times as many steps",
  ),
  "a mixture of sources": (
    text(
      FALLS,
      FLAT,
      curves={"valid_novels_loss": [3.5, 2.4, 2.0, 1.9, 1.9], "valid_wiki_loss": [3.7, 2.6, 2.2]},
    ),
    "Yes",
    "Hardly since step 800",
    "As unsure as among 8 tokens",
    "Use it",
  ),
  "contrastive": (
    text([4.9, 3.0, 1.5, 0.9, 0.82, 0.8, 0.8, 0.8], [2.0, 1.0, 0.9, 0.9], **NO_PAIRS),
    "Yes; chance; 5.541; !perplexity",
    "At step 750|Hardly since .*",
    "Not in this page; !tokens",
    "Use it; !larger vocabulary",
  ),
  "contrastive, vectors all alike": (
    text([5.55, 5.54, 5.54, 5.54, 5.54, 5.54], [5.54, 5.54, 5.54], **NO_PAIRS),
    "No; chance",
    "It has not begun; chance",
    "Not in this page",
    "Change the learning rate; !Use it",
  ),
  "goes on from a checkpoint, flat at once": (
    text([2.02, 2.01, 2.0, 2.0, 2.0, 2.0], [2.0, 2.002, 2.001, 2.001]),
    "Yes",
    "At step 250|Hardly since step 250; !worse",
    "As unsure as among 7 tokens",
    "Use it; !dropout",
  ),
  # One label.
  "a classifier": (
    task(("accuracy", 0.85, 0.9, 0.912, 0.91), ("loss", 0.4, 0.3, 0.27, 0.28), confusion=GOOD),
    "Yes; 91.2%; commonest label",
    "Hardly since step .*; standard error",
    "35 of 400 examples",
    "Read the errors; --precision",
  ),
  "a classifier, still improving": (
    task(("accuracy", 0.6, 0.7, 0.8, 0.912), confusion=GOOD),
    "Yes",
    "Not yet; more steps",
    "35 of 400 examples",
    "Train longer; train.epochs; new folder",
  ),
  "a classifier at chance after 20 steps": (
    task(
      ("accuracy", 0.5, 0.51),
      ("loss", 0.7, 0.72),
      loss=[0.71, 0.7],
      confusion=CHANCE,
      steps=20,
      warmup=2,
    ),
    "Not clearly; 51.0% of 400; chance",
    "It has not begun; !overfit; !Not known",
    "196 of 400 examples; !Read these rows",
    "Change the learning rate; pre-trained; train.epochs; !patience; !earlier; !Fewer",
  ),
  "one label for all": (
    task(
      ("accuracy", 0.5, 0.5, 0.5),
      ("degenerate", 1, 1, 1),
      loss=[0.7, 0.69, 0.69],
      confusion=[[200, 0], [200, 0]],
      sure=0.999,
    ),
    "No; 50.0%",
    "It has not begun",
    "200 of 400 examples; !labels look wrong",
    "Change the learning rate; pre-trained; !Correct; !Check the",
  ),
  "at chance, from random weights": (
    task(("accuracy", 0.5, 0.51, 0.5), loss=[0.7, 0.69, 0.69], confusion=CHANCE, pretrained="none"),
    "Not clearly",
    "It has not begun",
    "196 of 400 examples",
    "Start pre-trained; random weights; checkpoint; !earlier",
  ),
  "at chance, nothing of the checkpoint transferred": (
    task(
      ("accuracy", 0.5, 0.51, 0.5),
      loss=[0.7, 0.69, 0.69],
      confusion=CHANCE,
      config={"transfer_layers": -1},
    ),
    "Not clearly",
    "It has not begun",
    "196 of 400 examples",
    "Start pre-trained; random weights",
  ),
  "95 % have one label, and all get it": (
    task(
      ("accuracy", 0.95, 0.95, 0.95),
      loss=[0.3, 0.2, 0.2],
      confusion=[[380, 0], [20, 0]],
      sure=0.999,
    ),
    "No; 95.0%",
    "It has not begun",
    "20 of 400 examples; !look wrong",
    "Weigh the classes; class_weights=balanced; !Correct",
  ),
  "a label that is never found": (
    task(
      ("accuracy", 0.85, 0.92, 0.926, 0.924),
      confusion=[[280, 5, 0], [10, 90, 0], [8, 7, 0]],
      task=THREE,
    ),
    "Yes",
    "Hardly since step 200",
    "30 of 400 examples; “c”: 0% of its 15",
    "Weigh the classes; “c”; class_weights=balanced",
  ),
  "a classifier that overfits": (
    task(("accuracy", 0.85, 0.912, 0.86, 0.8), ("loss", 0.4, 0.3, 0.6, 1.0), confusion=GOOD),
    "Yes",
    "At step 200; overfits; lowest at step 200 and has risen from 0.3 to 1 since; !hardly",
    "35 of 400 examples",
    "Stop earlier, label more; patience=3; train.epochs",
  ),
  "a fall that may be chance": (
    task(("accuracy", 0.8, 0.9, 0.87, 0.85), confusion=[[45, 5], [5, 45]]),
    "Yes",
    "At step 200|Hardly since .*; !overfits",
    "10 of 100 examples",
    "Read the errors",
  ),
  "dev loss rises, accuracy does not fall": (
    task(("accuracy", 0.85, 0.912, 0.91, 0.91), ("loss", 0.4, 0.3, 0.5, 0.7), confusion=GOOD),
    "Yes",
    "At step 200; too sure of its errors",
    "35 of 400 examples",
    "Stop earlier, label more",
  ),
  "stopped by patience": (
    task(
      ("accuracy", 0.85, 0.912, 0.86, 0.84, 0.83),
      ("loss", 0.4, 0.3, 0.5, 0.7, 0.8),
      confusion=GOOD,
      config={"patience": 3},
      steps=1000,
      done=300,
    ),
    "Yes",
    "At step 120; !go on",
    "35 of 400 examples",
    "Label more; in time; !patience=3; !Fewer; !go on",
  ),
  "stopped by patience, a good model": (
    task(
      ("accuracy", 0.85, 0.912, 0.91, 0.91, 0.905),
      confusion=GOOD,
      config={"patience": 3},
      steps=1000,
      done=300,
    ),
    "Yes",
    "At step 120",
    "35 of 400 examples",
    "Read the errors",
  ),
  "many doubtful labels": (
    task(("accuracy", 0.93, 0.95, 0.952), confusion=[[190, 10], [9, 191]], sure=0.9999),
    "Yes",
    ".*",
    "19 of 400 examples; 19 labels look wrong; !Caution",
    "Correct the labels first; 19 labels",
  ),
  "one doubtful label": (
    task(("accuracy", 0.98, 1.0, 0.998), confusion=[[200, 0], [1, 199]], sure=0.9999),
    "Yes",
    ".*",
    "1 of 400 examples; 1 label looks wrong",
    "Check the labels; 1 label of; !first",
  ),
  "doubts of a model that is no sure judge": (
    task(("accuracy", 0.7, 0.75, 0.752), confusion=[[150, 50], [49, 151]], sure=0.9999),
    "Yes",
    ".*",
    "99 of 400 examples; Caution",
    "Check the labels; !first",
  ),
  "at chance but for one lucky evaluation": (
    task(("accuracy", *LUCKY, 0.58, 0.5), loss=[0.7, 0.69, 0.69], confusion=[[30, 20], [22, 28]]),
    "Not clearly; chance",
    "It has not begun; !overfits",
    "42 of 100 examples",
    "Change the learning rate; !dev set; !earlier",
  ),
  "the luckiest of ten evaluations": (
    task(("accuracy", *LUCKY, 0.66, 0.5), loss=[0.7, 0.69, 0.69], confusion=[[36, 14], [20, 30]]),
    "Not clearly; best of 11 evaluations",
    "It has not begun; !overfits",
    "34 of 100 examples",
    "Change the learning rate",
  ),
  "a tiny dev set": (
    task(("accuracy", 0.58, 0.75, 0.75), confusion=[[5, 1], [2, 4]]),
    "Not clearly; chance",
    "It has not begun; more than chance",
    "3 of 12 examples",
    "A larger dev set; folds; !earlier; !learning_rate",
  ),
  "a small dev set, all right": (
    task(("accuracy", 0.9, 1.0, 1.0), confusion=[[10, 0], [0, 10]]),
    "Yes",
    ".*; !overfit",
    "Nothing; All 20",
    "Use it; dev set; !errors below",
  ),
  "all right, though the dev loss rises": (
    task(
      ("accuracy", 0.9, 1.0, 1.0, 1.0),
      ("loss", 0.02, 0.01, 0.011, 0.013),
      confusion=[[200, 0], [0, 200]],
    ),
    "Yes",
    "At step 200; !overfit",
    "Nothing; All 400",
    "Use it; !earlier",
  ),
  "a classifier that ended in its warm-up": (
    task(("accuracy", 0.5, 0.51), loss=[0.7, 0.7], confusion=CHANCE, steps=40, warmup=100),
    "Not clearly",
    "Not yet; warm-up",
    "196 of 400 examples",
    "Train longer; warm-up; train.epochs",
  ),
  "one epoch, its loss still falling": (
    task(("accuracy", 0.912), loss=[0.7, 0.6, 0.5, 0.4], confusion=GOOD),
    "Yes",
    "Not yet; training loss",
    "35 of 400 examples",
    "Train longer; train.epochs",
  ),
  "one epoch, one report": (
    task(("accuracy", 0.912), loss=[0.6], confusion=GOOD),
    "Yes",
    "Not known",
    "35 of 400 examples",
    "Train longer; !Use it",
  ),
  "fine-tuning that diverged": (
    task(
      ("accuracy", 0.52, 0.5, 0.5),
      ("loss", 0.8, 5.0, 9.0),
      loss=[0.7, 0.9, 3.0, 8.0, 12.0, 12.5],
      confusion=[[200, 0], [200, 0]],
    ),
    "No, it diverged",
    ".*; diverged; !overfit",
    "200 of 400 examples",
    "Change the learning rate; lower; !three times",
  ),
  "fine-tuning killed half way": (
    task(("accuracy", 0.7, 0.8), loss=[0.7, 0.5, 0.4, 0.35], done=160, ended=False),
    "Yes|A little so far",
    "Not yet; let it go on",
    "Not yet known; at the end",
    "Let it go on",
  ),
  "distillation": (
    task(
      ("accuracy", 0.85, 0.9, 0.912, 0.91),
      loss=[3.0, 2.0, 1.5, 1.2, 1.1, 1.1],
      confusion=GOOD,
      methods=["distill"],
    ),
    "Yes",
    "Hardly since step .*",
    "35 of 400 examples",
    "Read the errors",
  ),
  "an adapter at chance": (
    task(("accuracy", 0.5, 0.51, 0.5), loss=[0.7] * 4, confusion=CHANCE, methods=["adapter"]),
    "Not clearly",
    "It has not begun",
    "196 of 400 examples",
    "Change the learning rate; three times",
  ),
  "a fold": (
    task(
      ("accuracy", 0.85, 0.9, 0.912, 0.91),
      confusion=GOOD,
      task=dataclasses.replace(TABLE, folds=5, fold=2),
    ),
    "Yes",
    "Hardly since step .*",
    "35 of 400 examples",
    "Read the errors",
  ),
  # Other answers.
  "regression": (
    task(
      ("r2", 0.3, 0.6, 0.8, 0.802),
      ("rmse", 0.84, 0.63, 0.45, 0.448),
      ("mae", 0.7, 0.5, 0.3, 0.3),
      ("baseline_rmse", 1.0, 1.0, 1.0, 1.0),
      loss=[1, 0.7, 0.4, 0.2, 0.2, 0.2],
      task=NUMBERS,
    ),
    "Yes; 0.448; mean of the training set",
    "Hardly since step 300",
    "By 0.3 on average",
    "Use it; predict; !errors below; !--precision",
  ),
  "regression no better than the mean": (
    task(
      ("r2", -0.02, -0.01, -0.01),
      ("rmse", 1.01, 1.005, 1.005),
      ("mae", 0.8, 0.8, 0.8),
      ("baseline_rmse", 1.0, 1.0, 1.0),
      loss=[1.02, 1.0, 1.0, 1.0],
      task=NUMBERS,
    ),
    "No",
    "It has not begun",
    "By 0.8 on average",
    "Change the learning rate; pre-trained",
  ),
  "several labels": (
    task(
      ("micro_f1", 0.6, 0.8, 0.83, 0.83), ("baseline_micro_f1", 0.4, 0.4, 0.4, 0.4), task=TOPICS
    ),
    "Yes; same commonest labels",
    "At step 300|Hardly since .*",
    "Not in this page",
    "Use it; !--precision; !errors below",
  ),
  "several labels, no better than the commonest": (
    task(
      ("micro_f1", 0.4, 0.4, 0.4),
      ("baseline_micro_f1", 0.4, 0.4, 0.4),
      loss=[0.7, 0.7, 0.7],
      task=TOPICS,
    ),
    "No",
    "It has not begun",
    "Not in this page",
    "Change the learning rate",
  ),
  "tags": (
    task(("span_f1", 0.3, 0.7, 0.85, 0.86), ("accuracy", 0.8, 0.9, 0.95, 0.95), task=TAGS),
    "Yes; 86.0%; 30.0%; !dev_report; !commonest label",
    "Hardly since step 300|Not yet",
    "Not in this page; launch/evaluate.py",
    "Use it|Train longer",
  ),
  "tags, no span found": (
    task(
      ("span_f1", 0.0, 0.0, 0.0),
      ("accuracy", 0.8, 0.8, 0.8),
      ("degenerate", 1, 1, 1),
      loss=[0.7, 0.7, 0.7],
      task=TAGS,
    ),
    "No; same prediction",
    "It has not begun",
    "Not in this page",
    "Change the learning rate; pre-trained",
  ),
  "translation": (
    task(
      ("bleu", 3.0, 15.0, 24.0, 24.2),
      ("chrf", 20, 40, 50, 50),
      loss=[5, 3, 2, 1.8, 1.7, 1.7],
      task=PairsTask(),
    ),
    "Yes; bleu is 24.2; first evaluation; !dev_report; !commonest",
    "Hardly since step 300",
    "Not in this page; launch/predict.py",
    "Use it; !errors below; !--precision",
  ),
  "translation, no word of it right": (
    task(("bleu", 0.1, 0.2, 0.2), ("chrf", 5, 6, 6), loss=[6, 5.5, 5.5, 5.5], task=PairsTask()),
    "No; bleu is 0.2",
    "It has not begun|Hardly since step .*",
    "Not in this page",
    "Change the learning rate; train.epochs",
  ),
  "labels written by a text-to-text model": (
    task(("accuracy", 0.52, 0.8, 0.85, 0.85), ("valid", 1, 1, 1, 1), task=BuiltinTask("rte")),
    "Yes; 85.0%; 52.0%",
    "At step 300|Hardly since .*",
    "Not in this page; !older runs",
    "Use it; !errors below",
  ),
  "no better than its first evaluation, no baseline": (
    task(("accuracy", 0.7, 0.7, 0.69, 0.7), task=BuiltinTask("rte")),
    "Not known; constant answer has is not known",
    "At step 100|Hardly since .*",
    "Not in this page",
    "Evaluate it; launch/evaluate.py; !Use it",
  ),
}


@pytest.mark.parametrize("name", RUNS)
def test_answers_are_those_of_an_experienced_person(name, tmp_path):
  make, *expected = RUNS[name]
  given = answers(Record(str(make(tmp_path / "run"))))
  for answer, wanted in zip(given, expected, strict=True):
    verdict, *words = wanted.split("; ")
    assert re.fullmatch(verdict, answer.verdict), (verdict, answer)
    said = f"{answer.verdict}: {answer.text}".casefold()
    for word in words:
      there = word.removeprefix("!").casefold() in said
      assert there != word.startswith("!"), (word, answer)
    assert not re.search(r"\b(nan|inf|none)\b", said), answer
  is_bad = re.match("No$|No,|Until", given[0].verdict)
  assert given[0].tone == ("good" if given[0].verdict == "Yes" else "bad" if is_bad else "plain")
  verdicts = [answer.verdict for answer in given]
  assert not ("Not known" in verdicts and "Use it" in verdicts)
