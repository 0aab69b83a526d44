"""Answers on a run: did it learn, when did it stop improving, what does it get wrong, what next."""

import math
from typing import NamedTuple

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
  """An answer.

  Attributes:
    question: as a reader asks it.
    verdict: one to three words.
    text: a sentence or two with the numbers behind it.
    tone: "good", "bad" or "plain"; "good" is a difference that a test on the same examples shows,
      or for text a clear one from the unigram entropy.
  """

  question: str
  verdict: str
  text: str
  tone: str


def answers(run: Record) -> list[Answer]:
  """The answers, each from the numbers that the run has."""
  learned, stopped, wrong = _learned(run), _stopped_improving(run), _gets_wrong(run)
  return [learned, stopped, wrong, _next(run, learned, stopped)]


# ------------------------------------------------------------------------------------ Did it learn


def _learned(run: Record) -> Answer:
  question = "Did it learn?"
  verdict = _learned_labels(run) if run.task is not None else _learned_text(run)
  if not run.refused:
    return Answer(question, *verdict)
  name, text, tone = verdict
  count = sum(number for _, number in run.refused)
  text += f" {counted(int(count), 'update')} refused: loss or gradient was not finite."
  return Answer(question, name, text, tone)


def _learned_text(run: Record) -> tuple[str, str, str]:
  loss = run.best.get(f"valid_{run.token_metric}")
  of = "held-out loss"
  evaluations = run.points(f"valid_{run.token_metric}")
  if not isinstance(loss, (int, float)) and evaluations:
    loss = min(value for _, value in evaluations)
  reported = run.points(run.token_metric)
  if not isinstance(loss, (int, float)) and reported:
    loss, of = reported[-1][1], "training loss"
  if not isinstance(loss, (int, float)):
    if run.steps_done:
      return "No", "No loss that was logged is a finite number: the run diverged.", "bad"
    return "Not known", "The run has logged nothing yet.", "plain"
  unigram, whose = run.unigram_entropy, "training"
  if of == "held-out loss" and run.held_out_entropy:
    unigram, whose = run.held_out_entropy, "held-out"
  reached = f"The {of} reached {format_metric('loss', loss)} nats"
  if unigram is not None:
    reached += " per token"
  if unigram is not None and loss < _ANY_VOCABULARY:
    reached += f" (perplexity {short(_perplexity(loss))})"
  if unigram is None:
    first = reported[0][1] if reported else loss
    text = f"{reached}; the first report was {first:.3f}."
    return ("Yes", text, "good") if loss < 0.9 * first else ("Not known", text, "plain")
  gain = unigram - loss
  if gain <= 0:
    text = f"{reached}. Knowing only how frequent each token of the {whose} text is gives "
    text += f"{unigram:.3f}, "
    if loss > 3 * unigram:
      return "No, it diverged", text + "so the run diverged: lower optim.learning_rate.", "bad"
    text += "so the model has not learned to use context"
    if not _is_finished(run):
      return "Not yet", f"{text} by step {run.steps_done:,}.", "plain"
    return "No", text + ".", "bad"
  text = f"{reached}, {gain:.3f} below the {unigram:.3f} of word frequencies alone "
  text += f"(the unigram entropy of the {whose} text)."
  if gain > 0.05 * unigram:
    return "Yes", text, "good"
  return "Hardly" if _is_finished(run) else "A little so far", text, "plain"


def _learned_labels(run: Record) -> tuple[str, str, str]:
  labels = run.labels
  if labels is None:
    value = run.best.get(run.metric)
    if not isinstance(value, (int, float)):
      return "Not known", "The run has no evaluation.", "plain"
    name = _title(run.metric)
    text = f"Its best {name} is {format_metric(run.metric, value)}"
    if run.best.get("dev_degenerate"):
      return "No", f"{text}, with the same prediction for every example.", "bad"
    if (compared := _gain_over_constant(run)) is not None:
      gain, comparison = compared
      if gain <= 0:
        return "No", f"{text}. {comparison}", "bad"
      return "Yes" if gain > 0.05 else "Hardly", f"{text}. {comparison}", "plain"
    text += ". The folder has no dev_report.json, so the share of the commonest label is not known."
    return "Not known", text, "plain"
  gain = labels.accuracy - labels.majority
  low, high = _interval_over_majority(labels)
  text = (
    f"It labels {labels.accuracy:.1%} of {labels.n:,} dev examples correctly (macro-F1 "
    f"{labels.macro_f1:.2f}); the commonest label for all of them gives {labels.majority:.1%}."
  )
  if low > 0:
    return "Yes", text, "good"
  if gain > 0:
    text += f" That may be chance: the difference is {100 * low:+.1f} to {100 * high:+.1f} points "
    text += "with 95 % confidence (McNemar’s exact test)."
    return "Not clearly", text, "plain"
  return "No", text, "bad"


def _interval_over_majority(labels: Labels) -> tuple[float, float]:
  """95 % interval of the accuracy minus the commonest label's, on the same examples."""
  counts = list(map(sum, labels.confusion))
  commonest = max(range(len(counts)), key=counts.__getitem__)
  right = [labels.confusion[n][n] for n in range(len(counts))]
  gained, lost = sum(right) - right[commonest], counts[commonest] - right[commonest]
  return paired_interval(gained, lost, max(sum(counts), 1))


def _gain_over_constant(run: Record) -> tuple[float, str] | None:
  """How much better than a constant answer the best model is, as a share of its error or of 1, and
  the comparison; None for tasks that do not report one.
  """
  value, constant = run.best.get("dev_rmse"), run.best.get("dev_baseline_rmse")
  if isinstance(value, (int, float)) and isinstance(constant, (int, float)):
    text = (
      f"Its root mean squared error is {short(value)}; always answering the mean of the training "
    )
    return 1 - value / max(constant, 1e-300), text + f"set gives {short(constant)}."
  value, constant = run.best.get("dev_micro_f1"), run.best.get("dev_baseline_micro_f1")
  if isinstance(value, (int, float)) and isinstance(constant, (int, float)):
    text = "Giving each example the same commonest labels has a micro f1 of "
    return value - constant, text + f"{constant:.1%}."
  return None


# ---------------------------------------------------------------------- When did it stop improving


def _stopped_improving(run: Record) -> Answer:
  question = "When did it stop improving?"
  sign = 1.0 if run.higher_is_better else -1.0
  points, name = run.points(run.metric), _title(run.metric)
  metric = run.metric
  if run.task is None and run.points("valid_loss"):
    points, name, metric, sign = run.points("valid_loss"), "held-out loss", "valid_loss", -1.0
  if len(points) < 2:
    return _by_training_loss(run, question)
  best_step, best = max(points, key=lambda point: sign * point[1])
  first, (last_step, last) = points[0][1], points[-1]
  gained = sign * (best - first)
  # A gain within two hundredths of all that was gained, or a standard error, does not count as one.
  close = max(0.02 * abs(gained), 1e-9)
  chance = ""
  if run.labels is not None and metric == "dev_accuracy":
    error = math.sqrt(max(best * (1 - best), 0.0) / max(run.labels.n, 1))
    if error > close:
      close, chance = error, f" (within a standard error of {100 * error:.1f} points)"
  near_step = next(step for step, value in points if sign * (best - value) <= close)
  shown = format_metric(metric, best)
  if best_step == points[0][0]:
    text = f"No evaluation was better than the first, at step {best_step:,}: {name} {shown} then, "
    text += f"{format_metric(metric, last)} at the end."
    return Answer(question, f"By step {best_step:,}", text, "bad")
  if best_step == last_step and near_step == last_step:
    before_step, before = points[-2]
    change = f"from {format_metric(metric, before)} at step {before_step:,} to {shown} at step "
    more = "more steps should help." if _is_finished(run) else "let it go on."
    text = f"The {name} was still improving at the end, {change}{last_step:,}: {more}"
    return Answer(question, "Not yet", text, "plain")
  text = f"The {name} was best at step {best_step:,} of {last_step:,} ({shown})"
  rising_loss = _rising_loss(run)
  loss = sign * (best - last)
  if loss > max(_NOTICEABLE * abs(best), close):
    text += f"; it has got worse since, to {format_metric(metric, last)}{rising_loss}: the "
    text += "model overfits, and the best checkpoint is better than the last."
    return Answer(question, f"At step {best_step:,}", text, "bad")
  if rising_loss:
    rising_loss += ": the model overfits, and is too sure of its errors"
  if near_step == best_step:
    return Answer(question, f"At step {best_step:,}", f"{text}{rising_loss}.", "plain")
  near = format_metric(metric, dict(points)[near_step])
  text = f"The {name} went from {near} at step {near_step:,} to its best, {shown} at step "
  text += f"{best_step:,} of {last_step:,}: hardly a change{chance}{rising_loss}."
  return Answer(question, f"Hardly since step {near_step:,}", text, "plain")


def _rising_loss(run: Record) -> str:
  """Clause about a classifier's dev loss that rises while its metric does not fall; else ""."""
  points = run.points("dev_loss")
  if len(points) < 3 or run.task is None:
    return ""
  step, lowest = min(points, key=lambda point: point[1])
  if points[-1][1] < 1.1 * lowest:
    return ""
  return (
    f"; the dev loss was lowest at step {step:,} and has risen from {lowest:.2f} to "
    f"{points[-1][1]:.2f} since"
  )


def _by_training_loss(run: Record, question: str) -> Answer:
  """For a run with fewer than two evaluations."""
  points = run.points("loss")
  if len(points) < 4:
    text = "Too few evaluations and reports to say; lower train.evaluate_every or train.log_every."
    return Answer(question, "Not known", text, "plain")
  quarter = max(1, len(points) // 4)
  earlier = _mean([value for _, value in points[-2 * quarter : -quarter]])
  later = _mean([value for _, value in points[-quarter:]])
  text = f"With fewer than two evaluations only the training loss can say: {earlier:.3f} in the "
  text += f"third quarter of the run, {later:.3f} in the last. Lower train.evaluate_every to see."
  if later < earlier * (1 - _NOTICEABLE):
    return Answer(question, "Not yet", text, "plain")
  return Answer(question, "Before the last quarter", text, "plain")


# ------------------------------------------------------------------------- What does it get wrong


def _gets_wrong(run: Record) -> Answer:
  question = "What does it get wrong?"
  if run.labels is not None:
    return Answer(question, *_wrong_labels(run, run.labels))
  if run.multi is not None and run.multi.errors:
    return Answer(question, *_wrong_multi_labels(run.multi))
  if "dev_baseline_micro_f1" in run.best:
    text = "launch/evaluate.py prints the precision and recall of each label."
    return Answer(question, "Not in this page", text, "plain")
  if "dev_baseline_rmse" in run.best:
    error = short(run.best.get("dev_mae", math.nan))
    text = f"Its numbers are wrong by {error} on average. launch/predict.py gives each."
    return Answer(question, f"By {error} on average", text, "plain")
  if run.task is not None:
    text = "The folder has no dev_report.json, which fine-tuning of a classification task writes; "
    return Answer(question, "Not known", text + "older runs and other tasks have none.", "plain")
  held_out, training = run.points(f"valid_{run.token_metric}"), run.points(run.token_metric)
  if not held_out:
    return Answer(question, "Not known", "The run has no evaluation on held-out text.", "plain")
  step, loss = held_out[-1]
  if run.unigram_entropy is None:  # as of a contrastive run
    text = f"It predicts no tokens; its loss on held-out text is {loss:.3f} nats."
    return Answer(question, "Not known", text, "plain")
  bound = max(run.held_out_entropy or run.unigram_entropy, 1.0)
  if loss >= bound and not _learned(run).tone == "good":
    text = "It predicts no better than the frequencies of tokens do."
    return Answer(question, "Nearly everything", text, "bad")
  perplexity = f"{_perplexity(loss):,.0f}" if loss > 2 else f"{_perplexity(loss):.1f}"
  text = "On held-out text it is as unsure of the next token as if it chose among about "
  text += f"{perplexity} equally likely ones."
  near = [value for at, value in training if at <= step][-3:]
  if not near:
    return Answer(question, "Not known", text, "plain")
  gap = loss - _mean(near)
  if gap > 0.1 * loss:
    text += f" Held-out loss is {gap:.2f} nats above the training loss: it has memorized some of "
    return Answer(question, "Unseen text", text + "the training text.", "bad")
  text += f" Held-out and training loss are {abs(gap):.2f} nats apart: it does not memorize."
  return Answer(question, f"As unsure as among {perplexity} tokens", text, "plain")


def _wrong_labels(run: Record, labels: Labels) -> tuple[str, str, str]:
  pairs = confusions(labels)
  errors = sum(count for count, _, _ in pairs)
  if not errors:
    return "Nothing", f"All {labels.n:,} dev examples are labeled correctly.", "good"
  count, label, predicted = pairs[0]
  text = f"Most often “{clip(label)}” is taken for “{clip(predicted)}” "
  text += f"({counted(count, 'time')})"
  seen = [name for name in labels.names if labels.per_class[name]["support"] > 0]
  weakest = min(seen, key=lambda name: labels.per_class[name]["recall"])
  row = labels.per_class[weakest]
  text += f"; the label found least is “{clip(weakest)}”: {row['recall']:.0%} of its "
  text += f"{row['support']:,.0f}."
  if run.wrong and run.wrong[0].confidence > 0.9:
    worst = run.wrong[0]
    text += f" Its most confident error is {clip(worst.where)}, at {worst.confidence:.0%}."
  text += f" {mislabeled(run)}" if run.wrong else ""
  return f"{errors:,} of {labels.n:,} examples", text, "plain"


def _wrong_multi_labels(labels: MultiLabels) -> tuple[str, str, str]:
  missed = {name: errors.missed for name, errors in labels.errors.items()}
  given = {name: errors.given for name, errors in labels.errors.items()}
  total = sum(missed.values()) + sum(given.values())
  if not total:
    return "Nothing", f"All {labels.n:,} dev examples have just the labels they should.", "good"
  texts = []
  for counts, what in ((missed, "missed"), (given, "given wrongly")):
    most = max(counts, key=lambda name: counts[name])
    if count := counts[most]:
      texts.append(f"“{clip(most)}” is {what} most often ({counted(count, 'time')})")
  weakest = min(labels.per_class, key=lambda name: labels.per_class[name]["f1"])
  row = labels.per_class[weakest]
  text = f"{'; '.join(texts)}. The lowest F1 is that of “{clip(weakest)}”: {row['f1']:.2f}, with "
  text += f"{counted(int(row['support']), 'example')}."
  return f"{counted(total, 'label')} in {counted(labels.n, 'example')}", text, "plain"


def mislabeled(run: Record) -> str:
  """Whether labels look wrong, by the calibrated probability that the model gives them."""
  if run.n_doubtful:
    rows = "label looks" if run.n_doubtful == 1 else "labels look"
    text = (
      f"{run.n_doubtful:,} {rows} wrong, if the model is not too sure of itself: it gives each "
    )
    text += f"less than {DOUBTFUL:.0%}. Read these rows first."
    if run.labels is not None and run.labels.accuracy < SURE_JUDGE:
      text += f" Caution: right in {run.labels.accuracy:.0%} of the rows, it is no sure judge."
    return text
  if not run.wrong:
    return ""
  lowest = min(row.chance for row in run.wrong)
  return (
    f"No label looks wrong: the model gives each at least {lowest:.1%}, so its errors are more "
    "likely its own."
  )


# -------------------------------------------------------------------------------------- What next


def _next(run: Record, learned: Answer, stopped: Answer) -> Answer:
  """The first step that the numbers suggest."""
  question = "What to do next?"
  if not _is_finished(run) and not run.result:
    if learned.tone == "bad" and run.refused:
      text = "Lower optim.learning_rate, in a new folder: this run cannot recover by itself."
      return Answer(question, "Start again", text, "plain")
    return Answer(question, "Let it go on", "The same command goes on with this run.", "plain")
  if learned.tone == "bad":
    text = "Another optim.learning_rate (a third, or three times this one) or a longer warm-up"
    text += "; then a checkpoint that was pre-trained for longer." if run.task else "."
    return Answer(question, "Change the learning rate", text, "plain")
  if run.task is None:
    return _next_of_text(run, question, stopped)
  labels, doubtful = run.labels, run.n_doubtful
  if labels and labels.accuracy >= SURE_JUDGE and doubtful >= max(1, MANY_DOUBTFUL * labels.n):
    return Answer(question, "Correct the labels first", _doubtful_labels(run), "plain")
  if stopped.verdict == "Not yet":
    return Answer(question, "Train longer", "More train.epochs, in a new folder.", "plain")
  if stopped.tone == "bad" or "overfits" in stopped.text:
    text = "Fewer train.epochs or --config.patience=3 end training in time. Better: more labeled "
    text += "rows, or a trunk that has been pre-trained on more text."
    if run.config.train and run.data.get("pretrained") == "none":
      text += " This run began without a pre-trained one."
    return Answer(question, "Stop earlier, label more", text, "plain")
  if run.n_doubtful:
    return Answer(question, "Check the labels", _doubtful_labels(run), "plain")
  text = "Read the errors below, then label more rows of the kinds that are confused. predict "
  text += "--precision=0.95 answers only where it can promise so much."
  return Answer(question, "Read the errors", text, "plain")


def _doubtful_labels(run: Record) -> str:
  text = f"{counted(run.n_doubtful, 'label')} of the dev set may be wrong; the list below has the "
  text += "worst. launch/label.py looks through the training rows too."
  return text


def _next_of_text(run: Record, question: str, stopped: Answer) -> Answer:
  if stopped.verdict == "Not yet":
    text = "A higher train.steps goes on with this run."
    return Answer(question, "Train longer", text, "plain")
  if stopped.tone == "bad":
    text = "More text, a smaller model or more dropout; the best checkpoint is kept in best/."
    return Answer(question, "More text", text, "plain")
  text = "The commands are below. For a lower loss: "
  text += "a larger model, more text, or both; more steps of this run will not do."
  return Answer(question, "Use it", text, "plain")


def confusions(labels: Labels) -> list[tuple[int, str, str]]:
  """(count, true label, predicted label) of every kind of error, the commonest first."""
  pairs = []
  for label, row in zip(labels.names, labels.confusion, strict=True):
    for predicted, count in zip(labels.names, row, strict=True):
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


def _is_finished(run: Record) -> bool:
  return run.total_steps is None or run.steps_done >= run.total_steps


def _title(metric: str) -> str:
  return metric.removeprefix("dev_").removeprefix("valid_").replace("_", " ")


def _perplexity(loss: float) -> float:
  return math.exp(min(loss, 700.0))


def _mean(values: list[float]) -> float:
  return sum(values) / len(values)


def clip(text: str, most: int = 60) -> str:
  return text if len(text) <= most else f"{text[: most - 1]}…"
