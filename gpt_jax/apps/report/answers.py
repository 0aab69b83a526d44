"""Answers on a run: did it learn, when did it stop improving, what does it get wrong, what next."""

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
_NOTICEABLE = 0.01  # relative change of an evaluation that counts as one
_ANY_VOCABULARY = 30.0  # nats: no model has e^30 tokens, so a larger loss is that of no language


class Answer(NamedTuple):
  """An answer: the numbers behind a verdict of one to three words."""

  question: str
  verdict: str
  text: str
  # "plain", "bad", or "good": a difference that a test on the same examples shows, or for text a
  # clear one from the unigram entropy.
  tone: str = "plain"


def answers(run: Record) -> list[Answer]:
  """The answers, each from the numbers that the run has."""
  verdict, text, *tone = _learned_labels(run) if run.task is not None else _learned_text(run)
  if run.refused:
    count = sum(number for _, number in run.refused)
    text += f" {counted(int(count), 'update')} refused: loss or gradient was not finite."
  learned = Answer("Did it learn?", verdict, text, *tone)
  stopped = Answer("When did it stop improving?", *_stopped_improving(run))
  wrong = Answer("What does it get wrong?", *_gets_wrong(run, learned))
  return [learned, stopped, wrong, Answer("What to do next?", *_next(run, learned, stopped))]


# Each function below returns an Answer without its question, and without its tone if that is plain.


def _learned_text(run: Record) -> tuple[str, ...]:
  evaluation = f"valid_{run.token_metric}"
  loss = run.best.get(evaluation, min(run.values(evaluation), default=None))
  reported, of = run.points(run.token_metric), "held-out loss"
  if loss is None and reported:
    loss, of = reported[-1][1], "training loss"
  if loss is None:
    if run.steps_done:
      return "No", "No loss that was logged is a finite number: the run diverged.", "bad"
    return "Not known", "The run has logged nothing yet."
  unigram, whose = run.unigram_entropy, "training"
  if of == "held-out loss" and run.held_out_entropy:
    unigram, whose = run.held_out_entropy, "held-out"
  reached = f"The {of} reached {format_metric('loss', loss)} nats"
  if unigram is None:
    first = reported[0][1] if reported else loss
    text = f"{reached}; the first report was {first:.3f}."
    return ("Yes", text, "good") if loss < 0.9 * first else ("Not known", text)
  reached += " per token"
  if loss < _ANY_VOCABULARY:
    reached += f" (perplexity {short(_perplexity(loss))})"
  gain = unigram - loss
  if gain > 0:
    text = f"{reached}, {gain:.3f} below the {unigram:.3f} of word frequencies alone "
    text += f"(the unigram entropy of the {whose} text)."
    if gain > 0.05 * unigram:
      return "Yes", text, "good"
    return "Hardly" if run.is_finished else "A little so far", text
  text = f"{reached}. Knowing only how frequent each token of the {whose} text is gives "
  text += f"{unigram:.3f}, "
  if loss > 3 * unigram:
    return "No, it diverged", text + "so the run diverged: lower optim.learning_rate.", "bad"
  text += "so the model has not learned to use context"
  if run.is_finished:
    return "No", text + ".", "bad"
  return "Not yet", f"{text} by step {run.steps_done:,}."


def _learned_labels(run: Record) -> tuple[str, ...]:
  labels = run.labels
  if labels is None:
    return _learned_task(run)
  # 95 % interval of the accuracy minus the commonest label's, on the same examples.
  counts, right = list(map(sum, labels.confusion)), np.diag(labels.confusion)
  commonest = np.argmax(counts)
  gained, lost = right.sum() - right[commonest], counts[commonest] - right[commonest]
  low, high = paired_interval(int(gained), int(lost), max(sum(counts), 1))
  text = f"It labels {labels.accuracy:.1%} of {labels.n:,} dev examples correctly (macro-F1 "
  text += f"{labels.macro_f1:.2f}); the commonest label for all of them gives "
  text += f"{labels.majority:.1%}."
  if low > 0:
    return "Yes", text, "good"
  if labels.accuracy > labels.majority:
    text += f" That may be chance: the difference is {100 * low:+.1f} to {100 * high:+.1f} points "
    return "Not clearly", text + "with 95 % confidence (McNemar’s exact test)."
  return "No", text, "bad"


def _learned_task(run: Record) -> tuple[str, ...]:
  """Of a task without a report on each label: the best model beside a constant answer."""
  best, gain = run.best, None
  if run.metric not in best:
    return "Not known", "The run has no evaluation."
  text = f"Its best {_title(run.metric)} is {format_metric(run.metric, best[run.metric])}"
  if best.get("dev_degenerate"):
    return "No", f"{text}, with the same prediction for every example.", "bad"
  if "dev_rmse" in best and "dev_baseline_rmse" in best:
    value, constant = best["dev_rmse"], best["dev_baseline_rmse"]
    gain = 1 - value / max(constant, 1e-300)
    text += f". Its root mean squared error is {short(value)}; always answering the mean of the "
    text += f"training set gives {short(constant)}."
  elif "dev_micro_f1" in best and "dev_baseline_micro_f1" in best:
    gain = best["dev_micro_f1"] - best["dev_baseline_micro_f1"]
    text += ". Giving each example the same commonest labels has a micro f1 of "
    text += f"{best['dev_baseline_micro_f1']:.1%}."
  if gain is not None:
    return ("No", text, "bad") if gain <= 0 else ("Yes" if gain > 0.05 else "Hardly", text)
  text += ". The folder has no dev_report.json, so the share of the commonest label is not known."
  return "Not known", text


def _stopped_improving(run: Record) -> tuple[str, ...]:
  metric = "valid_loss" if run.task is None and run.points("valid_loss") else run.metric
  sign = -1.0 if metric.endswith(("_loss", "_perplexity", "_bits_per_byte")) else 1.0
  points, name = run.points(metric), "held-out loss" if metric == "valid_loss" else _title(metric)
  if len(points) < 2:
    return _by_training_loss(run)
  best_step, best = max(points, key=lambda point: sign * point[1])
  first, (last_step, last) = points[0][1], points[-1]
  # A gain within two hundredths of all that was gained, or a standard error, does not count as one.
  close = max(0.02 * abs(best - first), 1e-9)
  chance = ""
  if run.labels is not None and metric == "dev_accuracy":
    error = math.sqrt(max(best * (1 - best), 0.0) / max(run.labels.n, 1))
    if error > close:
      close, chance = error, f" (within a standard error of {100 * error:.1f} points)"
  near_step, near = next(point for point in points if sign * (best - point[1]) <= close)
  shown, shown_last = format_metric(metric, best), format_metric(metric, last)
  if best_step == points[0][0]:
    text = f"No evaluation was better than the first, at step {best_step:,}: {name} {shown} then, "
    return f"By step {best_step:,}", f"{text}{shown_last} at the end.", "bad"
  if near_step == last_step:
    before_step, before = points[-2]
    change = f"from {format_metric(metric, before)} at step {before_step:,} to {shown} at step "
    more = "more steps should help." if run.is_finished else "let it go on."
    text = f"The {name} was still improving at the end, {change}{last_step:,}: {more}"
    return "Not yet", text
  text = f"The {name} was best at step {best_step:,} of {last_step:,} ({shown})"
  rising_loss = _rising_loss(run)
  if sign * (best - last) > max(_NOTICEABLE * abs(best), close):
    text += f"; it has got worse since, to {shown_last}{rising_loss}: the model overfits, and the "
    return f"At step {best_step:,}", f"{text}best checkpoint is better than the last.", "bad"
  if rising_loss:
    rising_loss += ": the model overfits, and is too sure of its errors"
  if near_step == best_step:
    return f"At step {best_step:,}", f"{text}{rising_loss}."
  text = f"The {name} went from {format_metric(metric, near)} at step {near_step:,} to its best, "
  text += f"{shown} at step {best_step:,} of {last_step:,}: hardly a change{chance}{rising_loss}."
  return f"Hardly since step {near_step:,}", text


def _rising_loss(run: Record) -> str:
  """Clause about a classifier's dev loss that rises; else ""."""
  points = run.points("dev_loss")
  if len(points) < 3 or run.task is None:
    return ""
  step, lowest = min(points, key=lambda point: point[1])
  if points[-1][1] < 1.1 * lowest:
    return ""
  text = f"; the dev loss was lowest at step {step:,} and has risen from {short(lowest)} to "
  return f"{text}{short(points[-1][1])} since"


def _by_training_loss(run: Record) -> tuple[str, ...]:
  values = run.values("loss")
  if len(values) < 4:
    text = "Too few evaluations and reports to say; lower train.evaluate_every or train.log_every."
    return "Not known", text
  quarter = len(values) // 4
  earlier, later = fmean(values[-2 * quarter : -quarter]), fmean(values[-quarter:])
  text = f"With fewer than two evaluations only the training loss can say: {earlier:.3f} in the "
  text += f"third quarter of the run, {later:.3f} in the last. Lower train.evaluate_every to see."
  improves = later < earlier * (1 - _NOTICEABLE)
  return "Not yet" if improves else "Before the last quarter", text


def _gets_wrong(run: Record, learned: Answer) -> tuple[str, ...]:
  if run.labels is not None:
    return _wrong_labels(run, run.labels)
  if run.multi is not None and run.multi.errors:
    return _wrong_multi_labels(run.multi)
  if "dev_baseline_micro_f1" in run.best:
    return "Not in this page", "launch/evaluate.py prints the precision and recall of each label."
  if "dev_baseline_rmse" in run.best:
    by = f"{short(run.best.get('dev_mae', math.nan))} on average"
    return f"By {by}", f"Its numbers are wrong by {by}. launch/predict.py gives each."
  if run.task is not None:
    text = "The folder has no dev_report.json, which fine-tuning of a classification task writes; "
    return "Not known", text + "older runs and other tasks have none."
  held_out, training = run.points(f"valid_{run.token_metric}"), run.points(run.token_metric)
  if not held_out:
    return "Not known", "The run has no evaluation on held-out text."
  step, loss = held_out[-1]
  if run.unigram_entropy is None:  # as of a contrastive run
    text = f"It predicts no tokens; its loss on held-out text is {loss:.3f} nats."
    return "Not known", text
  bound = max(run.held_out_entropy or run.unigram_entropy, 1.0)
  if loss >= bound and learned.tone != "good":
    text = "It predicts no better than the frequencies of tokens do."
    return "Nearly everything", text, "bad"
  perplexity = f"{_perplexity(loss):,.0f}" if loss > 2 else f"{_perplexity(loss):.1f}"
  text = "On held-out text it is as unsure of the next token as if it chose among about "
  text += f"{perplexity} equally likely ones."
  near = [value for at, value in training if at <= step][-3:]
  if not near:
    return "Not known", text
  gap = loss - fmean(near)
  if gap > 0.1 * loss:
    text += f" Held-out loss is {gap:.2f} nats above the training loss: it has memorized some of "
    return "Unseen text", text + "the training text.", "bad"
  text += f" Held-out and training loss are {abs(gap):.2f} nats apart: it does not memorize."
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


def _next(run: Record, learned: Answer, stopped: Answer) -> tuple[str, str]:
  if not run.is_finished and not run.result:
    if learned.tone == "bad" and run.refused:
      text = "Lower optim.learning_rate, in a new folder: this run cannot recover by itself."
      return "Start again", text
    return "Let it go on", "The same command goes on with this run."
  if learned.tone == "bad":
    text = "Another optim.learning_rate (a third, or three times this one) or a longer warm-up"
    text += "; then a checkpoint that was pre-trained for longer." if run.task else "."
    return "Change the learning rate", text
  if run.task is None:
    if stopped.verdict == "Not yet":
      return "Train longer", "A higher train.steps goes on with this run."
    if stopped.tone == "bad":
      text = "More text, a smaller model or more dropout; the best checkpoint is kept in best/."
      return "More text", text
    text = "The commands are below. For a lower loss: a larger model, more text, or both; "
    return "Use it", text + "more steps of this run will not do."
  labels, doubtful = run.labels, run.n_doubtful
  of_labels = f"{counted(doubtful, 'label')} of the dev set may be wrong; the list below has the "
  of_labels += "worst. launch/label.py looks through the training rows too."
  if labels and labels.accuracy >= SURE_JUDGE and doubtful >= max(1, MANY_DOUBTFUL * labels.n):
    return "Correct the labels first", of_labels
  if stopped.verdict == "Not yet":
    return "Train longer", "More train.epochs, in a new folder."
  if stopped.tone == "bad" or "overfits" in stopped.text:
    text = "Fewer train.epochs or --config.patience=3 end training in time. Better: more labeled "
    text += "rows, or a trunk that has been pre-trained on more text."
    if run.config.train and run.data.get("pretrained") == "none":
      text += " This run began without a pre-trained one."
    return "Stop earlier, label more", text
  if doubtful:
    return "Check the labels", of_labels
  text = "Read the errors below, then label more rows of the kinds that are confused. predict "
  return "Read the errors", text + "--precision=0.95 answers only where it can promise so much."


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
  if name.startswith("dev_") and abs(value) <= 1 and not is_error(name):
    return f"{value:.1%}"
  return short(value)


def is_error(metric: str) -> bool:
  """Whether a metric is in the units of a regression task, and no share."""
  return metric.endswith(("_rmse", "_mae"))


def _title(metric: str) -> str:
  return metric.removeprefix("dev_").removeprefix("valid_").replace("_", " ")


def _perplexity(loss: float) -> float:
  return math.exp(min(loss, 700.0))


def clip(text: str, most: int = 60) -> str:
  return text if len(text) <= most else f"{text[: most - 1]}…"
