"""Answers on a run: did it learn, when did it stop improving, what does it get wrong, what next.

The numbers say how much it learned (Level) and where it was going (Course); all answers follow from
these two, and what to do next from one diagnosis, so that no answer contradicts another.
"""

import enum
import math
from statistics import fmean
from typing import NamedTuple

import numpy as np

from gpt_jax.apps.report.chart import short
from gpt_jax.apps.report.record import DOUBTFUL, Labels, MultiLabels, Record
from gpt_jax.errors import counted
from gpt_jax.inference.intervals import paired_interval

MANY_DOUBTFUL = 0.02  # share of the labels from which on they should be corrected first
# Accuracy below which doubts are often errors of the model: of 1,500 labels of TREC, of
# which 65 were made wrong, models right in 74 % doubted 303, and 56 of these were the wrong ones.
SURE_JUDGE = 0.9
_NOTICEABLE = 0.01  # relative change that counts as one
_CLEAR = 0.05  # relative gain over a model that has learned nothing
_SMALL_DEV_SET = 100  # examples, of which chance is right in 40 to 60 % of two labels
_IMBALANCED = 0.75  # share of the commonest label
_WHOLE_TEXT = 0.9  # share of the training text that counts as all of it
_FEW = 5  # examples of a label that say little about it
_WEIGHTS = "--config.class_weights=balanced counts rare labels as much as the commonest one."
_ANY_VOCABULARY = 30.0  # nats: no model has e^30 tokens, so a larger loss is that of no language


class Answer(NamedTuple):
  """An answer: the numbers behind a verdict of one to three words."""

  question: str
  verdict: str
  text: str
  tone: str = "plain"  # or "bad", or "good"


class Level(enum.Enum):
  """How much more the best model knows than one that has learned nothing, as a verdict."""

  UNKNOWN = "Not known"
  NO = "No"
  UNCLEAR = "Not clearly"  # it may be chance
  LITTLE = "Hardly"
  YES = "Yes"


class Course(NamedTuple):
  """Where the evaluations, or without them the training loss, were going."""

  kind: str  # "diverged", "unknown", "improving", "flat" or "worse"
  verdict: str  # since when
  text: str


def answers(run: Record) -> list[Answer]:
  """The answers, each from the numbers that the run has."""
  level, reached = _text_level(run) if run.task is None else _task_level(run)
  course = _course(run, level)
  tone = "bad" if course.kind in ("diverged", "worse") else "plain"
  return [
    Answer("Did it learn?", *_learned(run, level, reached, course)),
    Answer("When did it stop improving?", course.verdict, course.text, tone),
    Answer("What does it get wrong?", *_gets_wrong(run, level, course)),
    Answer("What to do next?", *_diagnose(run, level, course)),
  ]


def _diagnose(run: Record, level: Level, course: Course) -> tuple[str, str]:
  """What the run needs most: the first of these that is true, and what to do about it."""
  train, objective, labels = run.config.train, run.config.objective, run.labels
  if course.kind == "diverged":
    advice = "A lower optim.learning_rate (a third of this one) or a longer warm-up, in a new "
    advice += "folder; best/ has the best checkpoint." if level is Level.YES else "folder."
    return ("Change the learning rate" if run.is_over else "Start again"), advice
  length = "train.epochs" if train and train.epochs else "train.steps"
  change = "another optim.learning_rate (a third, or three times this one)"
  if run.task is not None:
    change += f", more {length}, or a checkpoint that was pre-trained for longer."
  elif objective and run.unigram_entropy and objective.attention == "bidirectional":
    change += ", a longer warm-up, or several times as many steps: masked models learn late."
  else:
    change += " or a longer warm-up, in a new folder."
  # Post-norm models stay at the unigram entropy for ever after too high a rate.
  is_late = run.task is None and 2 * run.steps_done > (run.total_steps or 0)
  if not run.is_over and level is Level.NO and course.kind == "flat" and is_late:
    return "Start again", f"Try {change}"
  if not run.is_over:
    return "Let it go on", "The same command goes on with this run."
  if labels and labels.majority == 1:
    advice = "All dev examples have one label: evaluate on rows of every label. For a table "
    return "Another dev set", f"{advice}config.task.dev_share=0.1 or --folds=5 holds out such rows."
  if labels and level is Level.YES and labels.accuracy >= SURE_JUDGE:
    if run.n_doubtful >= max(1, MANY_DOUBTFUL * labels.n):
      return "Correct the labels first", _about_doubtful(run)
  if course.kind in ("improving", "unknown"):
    advice = f"A higher {length} goes on with this run."
    if run.task is not None:
      advice = f"More {length}, in a new folder."
    if _open_warmup(run):
      advice += " Or a shorter warm-up, in a new folder: this run never had its full learning rate."
    if run.task is not None and level in (Level.NO, Level.UNCLEAR):
      advice += f" If it stays at chance, try {change}"
    return "Train longer", advice
  if labels and level is Level.UNCLEAR and labels.n < _SMALL_DEV_SET:
    advice = "More labeled rows to evaluate on. Of a table --folds=5 evaluates on each row, by a "
    return "A larger dev set", f"{advice}model that was not trained on it."
  if level in (Level.YES, Level.UNKNOWN):
    of_kind = _diagnose_text if run.task is None else _diagnose_task
    return of_kind(run, level, course)
  if run.task is not None and run.from_scratch:
    advice = "It began from random weights: fine-tune a pre-trained checkpoint, or label many more "
    return "Start pre-trained", f"{advice}rows."
  if labels and labels.majority > _IMBALANCED:
    return "Weigh the classes", f"{_WEIGHTS} Else try {change}"
  return "Change the learning rate", f"Try {change}"


def _about_doubtful(run: Record) -> str:
  text = f"{counted(run.n_doubtful, 'label')} of the dev set may be wrong; the list below has the "
  return f"{text}worst. launch/label.py looks through the training rows too."


def _diagnose_text(run: Record, level: Level, course: Course) -> tuple[str, str]:
  if course.kind == "worse" or _gap(run)[1]:
    advice = "More text, a smaller model or more dropout; the best checkpoint is kept in best/."
    return "More text", advice
  if level is Level.UNKNOWN:
    advice = "Its loss alone does not say what it is good for: fine-tune it on a task."
    return "Evaluate it", advice
  lower = "a larger model, more text, or both"
  read = run.steps_done / run.steps_per_epoch if run.steps_per_epoch else 1.0
  if read < _WHOLE_TEXT:
    lower = (
      f"a larger model, or a longer run in a new folder: {100 * read:.2g}% of the text was read"
    )
  advice = f"The commands are below. More steps of this run will not do. For a lower loss: {lower}."
  return "Use it", advice


def _diagnose_task(run: Record, level: Level, course: Course) -> tuple[str, str]:
  better = "Better: more labeled rows, or a trunk that has been pre-trained on more text."
  overfits = course.kind == "worse" or _rising_loss(run)
  if overfits and not run.is_finished:
    return "Label more", f"Patience ended it in time; best/ has the best. {better}"
  if overfits:
    advice = "Fewer train.epochs or --config.patience=3 end training in time."
    return "Stop earlier, label more", f"{advice} {better}"
  for name, row in run.labels.per_class.items() if run.labels else ():
    if row["support"] >= _FEW and not row["recall"]:
      return "Weigh the classes", f"“{clip(name)}” is never found. {_WEIGHTS}"
  if run.n_doubtful:
    return "Check the labels", _about_doubtful(run)
  if run.wrong or (run.multi and run.multi.shown_errors()):
    advice = "Read the errors below, then label more rows of the kinds that are confused."
    if run.labels:
      advice += " predict --precision=0.95 answers only where it can promise so much."
    return "Read the errors", advice
  if level is Level.UNKNOWN:
    advice = "launch/evaluate.py scores it; compare that with a simple baseline on the same rows."
    return "Evaluate it", advice
  if run.labels:
    better = "No dev row is wrong: a larger or harder dev set would show what it cannot do."
  return "Use it", f"launch/predict.py answers new rows. {better}"


# Facts.


def _text_level(run: Record) -> tuple[Level, str]:
  evaluation = f"valid_{run.token_metric}"
  loss = run.best.get(evaluation, min(run.values(evaluation), default=None))
  reported, whose = run.values(run.token_metric), "held-out"
  if loss is None and reported:
    loss, whose = reported[-1], "training"
  if loss is None and run.series(run.token_metric)[0]:
    return Level.NO, "No loss that was logged is a finite number."
  if loss is None:
    return Level.UNKNOWN, "The run has logged nothing yet."
  reached = f"The {whose} loss reached {format_metric('loss', loss)} nats"
  bound, what = _baseline(run, whose)
  if bound is None:
    first = reported[0] if reported else loss
    level = Level.YES if loss < 0.9 * first else Level.UNKNOWN
    return level, f"{reached}; the first report was {first:.3f}."
  if run.unigram_entropy is not None:
    reached += " per token"
    if loss < _ANY_VOCABULARY:
      reached += f" (perplexity {short(math.exp(loss))})"
  gain = bound - loss
  side = "below" if gain > 0 else "above"
  text = f"{reached}, {format_metric('loss', abs(gain))} {side} the {bound:.3f} of {what}."
  if gain > _NOTICEABLE * bound:
    return Level.YES if gain > _CLEAR * bound else Level.LITTLE, text
  return Level.NO, f"{text} So the model has not learned more by step {run.steps_done:,}."


def _baseline(run: Record, whose: str) -> tuple[float | None, str]:
  """The loss, if it is known, of a model that has learned nothing else."""
  if run.unigram_entropy is None:
    return run.chance(whose == "held-out"), "chance, where the vectors of all texts are alike"
  text = "held-out" if whose == "held-out" and run.held_out_entropy else "training"
  bound = run.held_out_entropy if text == "held-out" else run.unigram_entropy
  meaning = f"the unigram entropy of the {text} text"
  objective = run.config.objective  # None: config.json cannot be read
  if objective and objective.word_share(run.config.data.length) < 1:
    meaning += " times the share of words among the targets"
  return bound, f"word frequencies alone ({meaning})"


def _task_level(run: Record) -> tuple[Level, str]:
  """The best model beside a constant answer or, where that is not known, its first evaluation."""
  if run.labels is not None:
    return _labels_level(run, run.labels)
  best, metric, values = run.best, run.metric, run.values(run.metric)
  reached = best.get(metric, max(values, default=None))
  if reached is None:
    return Level.UNKNOWN, "The run has no evaluation."
  text = f"Its best {_title(metric)} is {format_metric(metric, reached)}"
  if best.get("dev_degenerate"):
    return Level.NO, f"{text}, with the same prediction for every example."
  if "dev_rmse" in best and "dev_baseline_rmse" in best:
    value, constant = best["dev_rmse"], best["dev_baseline_rmse"]
    gain = 1 - value / max(constant, 1e-300)
    text += f". Its root mean squared error is {short(value)}; always answering the mean of the "
    text += f"training set gives {short(constant)}."
  elif "dev_micro_f1" in best and "dev_baseline_micro_f1" in best:
    gain = best["dev_micro_f1"] - best["dev_baseline_micro_f1"]
    text += ". Giving each example the same commonest labels has a micro f1 of "
    text += f"{best['dev_baseline_micro_f1']:.1%}."
  else:
    first = values[0] if values else reached
    text += f"; the first evaluation had {format_metric(metric, first)}."
    if percent_of(metric) * reached < 100 * _NOTICEABLE:
      return Level.NO, text
    if reached > 1.1 * first:
      return Level.YES, text
    return Level.UNKNOWN, f"{text} What a constant answer has is not known."
  if gain > _CLEAR:
    return Level.YES, text
  return Level.LITTLE if gain > 0 else Level.NO, text


def _labels_level(run: Record, labels: Labels) -> tuple[Level, str]:
  # The interval of the accuracy minus the commonest label's, on the same examples. The checkpoint
  # is the best of several evaluations: for the luckiest of them all to be chance in 5 %
  # (Bonferroni), each has its share of that.
  tries = max(1, len(run.values(run.metric)))
  counts, right = list(map(sum, labels.confusion)), np.diag(labels.confusion)
  commonest = np.argmax(counts)
  gained, lost = right.sum() - right[commonest], counts[commonest] - right[commonest]
  differing = int(gained), int(lost), max(sum(counts), 1)
  low, high = paired_interval(*differing, confidence=1 - 0.05 / tries)
  text = f"It labels {labels.accuracy:.1%} of {labels.n:,} dev examples correctly (macro-F1 "
  text += f"{labels.macro_f1:.2f}); the commonest label for all of them gives "
  text += f"{labels.majority:.1%}."
  if labels.majority == 1:
    return Level.UNKNOWN, f"{text} They all have one label, so this shows nothing that was learned."
  if low > 0:
    return Level.YES, text
  if labels.accuracy > labels.majority:
    text += f" That may be chance: the difference is {100 * low:+.1f} to {100 * high:+.1f} points "
    text += "with 95 % confidence (McNemar’s exact test"
    text += f", of the best of {tries:,} evaluations)." if tries > 1 else ")."
    return Level.UNCLEAR, text
  return Level.NO, text


def _course(run: Record, level: Level) -> Course:
  if diverged := _divergence(run):
    return diverged
  if run.is_over and (warmup := _open_warmup(run)):
    text = f"The learning rate was still rising: the run ended at step {run.steps_done:,}, within "
    return Course("improving", "Not yet", f"{text}its warm-up of {warmup:,.0f} updates.")
  course = _evaluated_course(run)
  if level not in (Level.NO, Level.UNCLEAR) or course.kind not in ("flat", "worse"):
    return course
  what = _baseline(run, "held-out")[1] if run.task is None else "a constant answer"
  text = f"No evaluation is better than {what}"
  text += ", by more than chance." if level is Level.UNCLEAR else "."
  return Course("flat", "It has not begun", text)


def _evaluated_course(run: Record) -> Course:
  metric = "valid_loss" if run.task is None and run.points("valid_loss") else run.metric
  sign = -1.0 if metric.endswith(("_loss", "_perplexity", "_bits_per_byte")) else 1.0
  points, name = run.points(metric), "held-out loss" if metric == "valid_loss" else _title(metric)
  if len(points) < 2:
    return _training_course(run)
  best_step, best = max(points, key=lambda point: sign * point[1])
  first, (last_step, last) = points[0][1], points[-1]
  # A gain within two hundredths of all that was gained, a thousandth of the best value, or a
  # standard error, does not count as one.
  error, chance = 0.0, ""
  count = run.labels.n if run.labels else run.examples("dev")
  if count and metric == "dev_accuracy":
    error = math.sqrt(max(best * (1 - best), 0.0) / count)
  close = max(0.02 * abs(best - first), 1e-3 * abs(best), 1e-9)
  if error > close:
    close, chance = error, f" (within a standard error of {100 * error:.1f} points)"
  near_step, near = next(point for point in points if sign * (best - point[1]) <= close)
  shown = format_metric(metric, best)
  if near_step == last_step:
    before_step, before = points[-2]
    change = f"from {format_metric(metric, before)} at step {before_step:,} to {shown} at step "
    more = "more steps should help." if run.is_over else "let it go on."
    text = f"The {name} was still improving at the end, {change}{last_step:,}: {more}"
    return Course("improving", "Not yet", text)
  text = f"The {name} was best at step {best_step:,} of {last_step:,} ({shown})"
  rising_loss = _rising_loss(run)
  if sign * (best - last) > max(_NOTICEABLE * abs(best), 2 * error, close):
    text += f"; it has got worse since, to {format_metric(metric, last)}{rising_loss}: the model "
    text += "overfits, and the best checkpoint is better than the last."
    return Course("worse", f"At step {best_step:,}", text)
  if rising_loss:
    rising_loss += ": the model overfits, and is too sure of its errors"
  if near_step == best_step:
    return Course("flat", f"At step {best_step:,}", f"{text}{rising_loss}.")
  text = f"The {name} went from {format_metric(metric, near)} at step {near_step:,} to its best, "
  text += f"{shown} at step {best_step:,} of {last_step:,}: hardly a change{chance}{rising_loss}."
  return Course("flat", f"Hardly since step {near_step:,}", text)


def _rising_loss(run: Record) -> str:
  """Clause about a classifier's dev loss that rises; else ""."""
  points, is_perfect = run.points("dev_loss"), run.labels and run.labels.accuracy == 1
  if run.task is None or len(points) < 3 or is_perfect:
    return ""
  step, lowest = min(points, key=lambda point: point[1])
  if points[-1][1] < 1.1 * lowest:
    return ""
  text = f"; the dev loss was lowest at step {step:,} and has risen from {short(lowest)} to "
  return f"{text}{short(points[-1][1])} since"


def _training_course(run: Record) -> Course:
  values = run.values("loss")
  if len(values) < 2:
    text = "Too few evaluations and reports to say; lower train.evaluate_every or train.log_every."
    return Course("unknown", "Not known", text)
  part = max(1, len(values) // 4)
  earlier, later = fmean(values[-2 * part : -part]), fmean(values[-part:])
  times = "in the third quarter of the run" if len(values) > 3 else "in the last report but one"
  text = f"With fewer than two evaluations only the training loss can say: {earlier:.3f} {times}, "
  text += f"{later:.3f} in the last. Lower train.evaluate_every to see."
  if later < earlier * (1 - _NOTICEABLE):
    return Course("improving", "Not yet", text)
  return Course("flat", "Before the last quarter", text)


def _divergence(run: Record) -> Course | None:
  """The course of a run that diverged, by its training loss; None: it did not."""
  steps, losses = run.series(run.token_metric)
  points, (bound, _) = run.points(run.token_metric), _baseline(run, "training")
  if not points:
    text = "The training loss was no number from the first report on: the run diverged."
    return Course("diverged", "Not known", text) if steps else None
  values = [loss for _, loss in points]
  # Means of several reports: the loss of a few batches may be high by chance.
  size = -(-len(values) // 8)
  means = [fmean(values[i : i + size]) for i in range(0, len(values), size)]
  has_risen = means[-1] > max(1.25 * min(means), min(means) + 0.5)
  # Not if it is still on its way down from a large one.
  is_high = bound is not None and means[-1] > max(3 * bound, 0.95 * means[0])
  gave_up = losses[-1] is None or "non-finite" in str(run.plan.get("error"))
  if not (has_risen or is_high or gave_up):
    return None
  step, lowest = min(points, key=lambda point: point[1])
  text = f"The training loss was lowest at step {step:,} ({format_metric('loss', lowest)}); then "
  return Course("diverged", f"At step {step:,}", f"{text}the run diverged.")


def _open_warmup(run: Record) -> float:
  """The updates of a warm-up that has not ended; 0 if it has."""
  optim, rates = run.config.optim, run.values("learning_rate")
  if optim is None or not rates or rates[-1] >= (optim.learning_rate or 0.0):
    return 0.0
  warmup = optim.warmup_length(run.total_steps or 0)
  return warmup if run.steps_done <= warmup else 0.0


def _gap(run: Record) -> tuple[float, bool]:
  """Held-out loss per token minus the training loss of the last reports before it, and whether it
  is so large that training text was memorized; not a number if one of them is not known.
  """
  held_out = run.points(f"valid_{run.token_metric}")
  if not held_out or run.unigram_entropy is None:
    return math.nan, False
  step, loss = held_out[-1]
  near = [value for at, value in run.points(run.token_metric) if at <= step][-3:]
  gap = loss - fmean(near) if near else math.nan
  return gap, gap > 0.1 * loss


# Each function below returns an Answer without its question, and without its tone if that is plain.


def _learned(run: Record, level: Level, reached: str, course: Course) -> tuple[str, str, str]:
  verdict, text = level.value, reached
  tone = {Level.YES: "good", Level.NO: "bad"}.get(level, "plain")
  is_early = not run.is_over or course.kind in ("improving", "unknown")
  if course.kind == "diverged":
    verdict, tone = "Until it diverged" if level is Level.YES else "No, it diverged", "bad"
    text += " It diverged: lower optim.learning_rate."
  elif is_early and level in (Level.NO, Level.LITTLE):
    verdict, tone = "Not yet" if level is Level.NO else "A little so far", "plain"
  if run.refused:
    count = sum(number for _, number in run.refused)
    text += f" {counted(int(count), 'update')} refused: loss or gradient was not finite."
  return verdict, text, tone


def _gets_wrong(run: Record, level: Level, course: Course) -> tuple[str, ...]:
  if run.labels is not None:
    return _wrong_labels(run, run.labels)
  if run.multi is not None and run.multi.errors:
    return _wrong_multi_labels(run.multi)
  if "dev_baseline_rmse" in run.best:
    by = f"{short(run.best.get('dev_mae', math.nan))} on average"
    return f"By {by}", f"Its numbers are wrong by {by}. launch/predict.py gives each."
  if run.task is not None and not run.is_over:
    return "Not yet known", "The dev set is looked through at the end of the run."
  if run.task is not None:
    text = "launch/predict.py gives the answers, launch/evaluate.py scores them."
    return "Not in this page", text
  if run.chance() is not None:  # it predicts no tokens
    return "Not in this page", "launch/evaluate.py --task=NAME scores its vectors of texts."
  held_out, (bound, _) = run.values(f"valid_{run.token_metric}"), _baseline(run, "held-out")
  if not held_out:
    return "Not measured", "The run has no evaluation on held-out text."
  loss, has_learned = held_out[-1], level is Level.YES and course.kind != "diverged"
  if loss >= max(bound or 0.0, 1.0) and not has_learned:
    text = "It predicts no better than the frequencies of tokens do."
    return "Nearly everything", text, "bad"
  choices = math.exp(min(loss, _ANY_VOCABULARY))
  perplexity = f"{choices:,.0f}" if loss > 2 else f"{choices:.1f}"
  text = "On held-out text it is as unsure of the next token as if it chose among about "
  text += f"{perplexity} equally likely ones."
  gap, is_large = _gap(run)
  if is_large and has_learned:
    text += f" Held-out loss is {gap:.2f} nats above the training loss: it has memorized some of "
    return "Unseen text", text + "the training text.", "bad"
  if gap >= 0 and has_learned:  # below it, the texts differ, or the reports are of earlier steps
    text += f" Held-out and training loss are {gap:.2f} nats apart: it does not memorize."
  return f"As unsure as among {perplexity} tokens", text


def _wrong_labels(run: Record, labels: Labels) -> tuple[str, ...]:
  pairs = confusions(labels)
  errors = sum(count for count, _, _ in pairs)
  if not errors:
    return "Nothing", f"All {labels.n:,} dev examples are labeled correctly.", "good"
  count, label, predicted = pairs[0]
  text = f"Most often “{clip(label)}” is taken for “{clip(predicted)}” ({counted(count, 'time')})"
  seen = [name for name in labels.labels if labels.per_class[name]["support"] > 0]
  weakest = min(seen, key=lambda name: labels.per_class[name]["recall"])
  row = labels.per_class[weakest]
  text += f"; the label found least is “{clip(weakest)}”: {row['recall']:.0%} of its "
  text += f"{row['support']:,.0f}."
  if run.wrong and run.wrong[0].confidence > 0.9:
    worst = run.wrong[0]
    text += f" Its most confident error is {clip(worst.where)}, at {worst.confidence:.0%}."
  text += f" {mislabeled(run)}" if run.wrong else ""
  return f"{errors:,} of {labels.n:,} examples", text


def _wrong_multi_labels(labels: MultiLabels) -> tuple[str, ...]:
  missed = {name: errors.missed for name, errors in labels.errors.items()}
  given = {name: errors.given for name, errors in labels.errors.items()}
  total = sum(missed.values()) + sum(given.values())
  if not total:
    return "Nothing", f"All {labels.n:,} dev examples have just the labels they should.", "good"
  texts = []
  for counts, what in ((missed, "missed"), (given, "given wrongly")):
    most = max(counts, key=counts.__getitem__)
    if count := counts[most]:
      texts.append(f"“{clip(most)}” is {what} most often ({counted(count, 'time')})")
  weakest = min(labels.per_class, key=lambda name: labels.per_class[name]["f1"])
  row = labels.per_class[weakest]
  text = f"{'; '.join(texts)}. The lowest F1 is that of “{clip(weakest)}”: {row['f1']:.2f}, with "
  text += f"{counted(int(row['support']), 'example')}."
  return f"{counted(total, 'label')} in {counted(labels.n, 'example')}", text


def mislabeled(run: Record) -> str:
  """Whether labels look wrong, by the calibrated probability that the model gives them."""
  if run.labels and _labels_level(run, run.labels)[0] is not Level.YES:
    return "Not clearly better than one label for all, it says nothing about the labels."
  if run.n_doubtful:
    rows = "label looks" if run.n_doubtful == 1 else "labels look"
    text = f"{run.n_doubtful:,} {rows} wrong, if the model is not too sure of itself: it gives each"
    text += f" less than {DOUBTFUL:.0%}. Read these rows first."
    if run.labels is not None and run.labels.accuracy < SURE_JUDGE:
      text += f" Caution: right in {run.labels.accuracy:.0%} of the rows, it is no sure judge."
    return text
  if not run.wrong:
    return ""
  lowest = min(row.chance for row in run.wrong)
  text = f"No label looks wrong: the model gives each at least {lowest:.1%}, so its errors are"
  return f"{text} more likely its own."


def confusions(labels: Labels) -> list[tuple[int, str, str]]:
  """(count, true label, predicted label) of every kind of error, the commonest first."""
  pairs = []
  for label, row in zip(labels.labels, labels.confusion, strict=True):
    for predicted, count in zip(labels.labels, row, strict=True):
      if count and predicted != label:
        pairs.append((count, label, predicted))
  return sorted(pairs, key=lambda pair: -pair[0])


def format_metric(name: str, value: float) -> str:
  """A value as its metric is printed: shares in percent, losses with three decimals."""
  if name.endswith(("loss", "_bits_per_byte", "_r2", "_pearson", "_spearman")):
    return f"{value:.3f}" if abs(value) < 1000 else short(value)
  if name.startswith("dev_") and abs(value) <= 1 and percent_of(name) == 100:
    return f"{value:.1%}"
  return short(value)


def percent_of(metric: str) -> float:
  """What makes percent of a metric; 0: it is in the units of a regression task, and no share."""
  if metric.endswith(("_rmse", "_mae")):
    return 0.0
  return 1.0 if metric.endswith(("_bleu", "_chrf")) else 100.0


def _title(metric: str) -> str:
  return metric.removeprefix("dev_").removeprefix("valid_").replace("_", " ")


def clip(text: str, most: int = 60) -> str:
  return text if len(text) <= most else f"{text[: most - 1]}…"
