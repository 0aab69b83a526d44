"""Zero-shot task performance of a language model (section 5, figure 2 right).

Each task asks which continuation of a text is most likely. GPT-1 has no start-of-text token, so the
first token of a text is never scored. A masked language model scores it: each token given all
others of its text (Salazar et al. 2020).

Letters: Q questions, C options per question, P context tokens, T option tokens, D width.
"""

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.apps.paper import pronouns
from gpt_jax.apps.study import choice
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import write_json
from gpt_jax.inference.decoding import take_rows
from gpt_jax.inference.masked_lm import MaskedLM
from gpt_jax.inference.scoring import bucket, padded
from gpt_jax.ops.cross_entropy import CHUNK_ELEMENTS, logits, token_log_probs
from gpt_jax.parallel.processes import log
from gpt_jax.programs.outputs import check_out
from gpt_jax.tasks.encoding import Example, describe_truncation, subset
from gpt_jax.tasks.metrics import accuracy, matthews
from gpt_jax.tasks.readers import check_data_dir
from gpt_jax.tasks.task import find

SENTIMENT = (" positive", " negative")  # the words compared after "very"
MAX_BATCH_TOKENS = 2**14
TIE = 1e-5  # nats per token; float32 rounding is a tenth of it


class Question(NamedTuple):
  """Continuations of one text, to be compared."""

  context: Sequence[int]  # the ids that all options continue; may be empty
  options: Sequence[Sequence[int]]  # the ids of each continuation
  unscored: Sequence[int]  # for each option, how many of its first ids are fed but not scored
  location: str = ""  # "file:line", for messages
  target: int = 0  # the correct option; for CoLA 1 if the sentence is acceptable, else 0
  split: str = "dev"  # "train" for the examples that only fit a threshold


class Answer(NamedTuple):
  """An option's summed log-probability in nats, and the number of tokens in the sum."""

  total: float
  tokens: int

  @property
  def mean(self) -> float:
    return self.total / self.tokens


# How predictions were made, in words; a metric, its value (a share or a correlation), and how many
# examples were measured.
Score = tuple[str, str, float, int]


class Result(NamedTuple):
  """A Score with its task (a key of TASKS) and the step of the checkpoint."""

  task: str
  rule: str
  metric: str
  value: float
  examples: int
  step: int


class ZeroShotTask(NamedTuple):
  # (data_dir, tokenizer, examples) -> questions; examples limits their number, 0 = all.
  questions: Callable[[str, Tokenizer, int], list[Question]]
  # (questions, answers to each question's options) -> scores, the one to quote first.
  judge: Callable[[Sequence[Question], Sequence[Sequence[Answer]]], list[Score]]


class Prepared(NamedTuple):
  """A task's questions that a model can score; left_out says which it cannot, "" if none."""

  questions: list[Question]
  left_out: str


def prepare(
  loaded: LoadedModel, data_dir: str, tasks: Sequence[str], examples: int
) -> dict[str, Prepared]:
  """The questions of the named tasks, or of all tasks with data, that fit the model's context.

  Warns of the others, and of contexts that lose their first tokens to leave room for an option.
  """
  accuracy(np.zeros(1), np.zeros(1))  # fail now if scikit-learn is missing
  for name in tasks:
    choice("tasks", name, TASKS)
  prepared = {}
  if loaded.spec.attention == "bidirectional":
    limit = MaskedLM(loaded).room  # special tokens around a text take some of the context
  else:
    limit = loaded.language_model().config.trunk.context
  for name in tasks or TASKS:
    try:
      questions = TASKS[name].questions(data_dir, loaded.tokenizer, examples)
      prepared[name] = _select_scorable(name, questions, limit)
    except MissingInput as error:
      if tasks:
        raise
      log(f"left out: {name} ({error})")
  if not prepared:
    raise InputError(
      f"--data={data_dir}: no task can be evaluated; the tasks are {', '.join(TASKS)}"
    )
  return prepared


def measure(loaded: LoadedModel, prepared: dict[str, Prepared]) -> list[Result]:
  """Evaluates one checkpoint; prints and returns the results."""
  results, answer = [], make_answers(loaded)
  for name, (questions, _) in prepared.items():
    for rule, metric, value, count in TASKS[name].judge(questions, answer(questions)):
      results.append(Result(name, rule, metric, value, count, loaded.step))
      line = f"step {loaded.step:<9,} {name:12} {metric:9} {value:7.4f}  {count:5} examples  {rule}"
      print(line, flush=True)
  return results


def checkpoints(workdir: str) -> list[str]:
  """The checkpoint folders of a run, oldest first. Raises MissingInput if there are none."""
  folder = os.path.join(workdir, "checkpoints")
  names = os.listdir(folder) if os.path.isdir(folder) else []
  steps = sorted((name for name in names if name.isdigit()), key=int)
  if not steps:
    raise MissingInput(f"{workdir}: no checkpoints/ here; give the workdir of a run")
  return [os.path.join(folder, step) for step in steps]


def make_answers(loaded: LoadedModel) -> Callable[[Sequence[Question]], list[list[Answer]]]:
  """Builds questions -> the answers of every question's options."""
  if loaded.spec.attention == "bidirectional":
    return functools.partial(_masked_answers, MaskedLM(loaded))
  params = {"trunk": jax.device_put(loaded.params["trunk"])}
  return functools.partial(score, loaded.language_model(), params)


def _masked_answers(model: MaskedLM, questions: Sequence[Question]) -> list[list[Answer]]:
  """The pseudo-log-probabilities of the scored tokens, each given all others."""
  texts, first = [], []
  for question in questions:
    context = _cut_context(question, model.room)
    for option, skip in zip(question.options, question.unscored, strict=True):
      texts.append(np.array([*context, *option], np.int32))
      first.append(len(context) + skip)
  # All options of all questions at once: batches are filled across questions.
  scored = iter(model.score(texts, first=first))
  answers = []
  for question in questions:
    log_probs = [next(scored)[0] for _ in question.options]
    answers.append([Answer(float(x.sum(dtype=np.float64)), len(x)) for x in log_probs])
  return answers


def score(model: Any, params: Any, questions: Sequence[Question]) -> list[list[Answer]]:
  """The answers of every question's options by a causal model, which reads each context once."""
  limit, cut = model.config.trunk.context, []
  members: dict[tuple[int, int, int], list[int]] = {}  # P, C, T -> numbers of questions
  for i, question in enumerate(questions):
    context, unscored = _cut_context(question, limit), question.unscored
    if not len(context):  # with nothing before it, an option's first token cannot be predicted
      unscored = [max(1, skip) for skip in unscored]
    cut.append(question._replace(context=context, unscored=unscored))
    longest = max(map(len, question.options))
    shape = bucket(len(context), limit), len(question.options), bucket(longest, limit)
    members.setdefault(shape, []).append(i)
  state = jax.eval_shape(lambda params: model.apply({"params": params}, 1, method="start"), params)
  row_elements = sum(x.size for x in jax.tree.leaves(state))
  answers: list[list[Answer]] = [[] for _ in questions]
  for (P, C, T), numbers in sorted(members.items()):
    # So many questions that their tokens and cached states are in memory at once.
    by_state = 2 * CHUNK_ELEMENTS // (C * row_elements)
    by_tokens = MAX_BATCH_TOKENS // max(P, C * T)
    Q = min(len(numbers), max(1, min(by_state, by_tokens)))
    for first in range(0, len(numbers), Q):
      batch = numbers[first : first + Q]  # perhaps fewer; the arrays are padded
      contexts = padded([cut[i].context for i in batch], (Q, P))
      lengths = np.zeros(Q, np.int32)
      lengths[: len(batch)] = [len(cut[i].context) for i in batch]
      of_all = padded([option for i in batch for option in cut[i].options], (Q * C, T))
      scored = _log_probs(model, params, contexts, lengths, of_all.reshape(Q, C, T))
      for i, of_question in zip(batch, np.asarray(scored, np.float64), strict=False):
        _, options, unscored, *_ = cut[i]
        for option, skip, row in zip(options, unscored, of_question, strict=True):
          total = float(row[skip : len(option)].sum())
          answers[i].append(Answer(total, max(0, len(option) - skip)))
  return answers


@functools.partial(jax.jit, static_argnums=0)
def _log_probs(model, params, contexts, lengths, options):
  """Contexts [Q, P], of lengths [Q] without padding, and options [Q, C, T] -> [Q, C, T]."""
  trunk = model.config.trunk
  questions, choices, width = options.shape

  def extend(ids, positions, valid, state):
    return model.apply({"params": params}, ids, positions, valid, state, method="extend")

  state = model.apply({"params": params}, questions, method="start")
  positions = jnp.broadcast_to(jnp.arange(contexts.shape[1])[None], contexts.shape)
  hidden, table, state = extend(contexts, positions, positions < lengths[:, None], state)
  last_index = jnp.maximum(lengths - 1, 0)[:, None, None]
  last = jnp.take_along_axis(hidden, last_index, axis=1)  # [Q, 1, D]

  by_option = jnp.repeat(jnp.arange(questions), choices)
  state, last, lengths = take_rows((state, last, lengths), by_option, questions)
  options = options.reshape(-1, width)  # [Q * C, T]
  # The last token of an option predicts nothing, so it is not fed. Padding is fed too: causal
  # attention hides it from the option, and its outputs are discarded.
  positions = jnp.minimum(lengths[:, None] + jnp.arange(width - 1)[None], trunk.context - 1)
  hidden, table, _ = extend(options[:, :-1], positions, jnp.ones(positions.shape, bool), state)
  hidden = jnp.concatenate([last, hidden], axis=1)  # [Q * C, T, D]

  def option_log_probs(hidden_and_ids):
    hidden, ids = hidden_and_ids
    return token_log_probs(logits(hidden, table, trunk.vocab_size), ids)

  # In chunks of options, so that the logits of few of them are in memory at once.
  chunk = max(1, CHUNK_ELEMENTS // (width * table.shape[0]))
  values = jax.lax.map(option_log_probs, (hidden, options), batch_size=chunk)
  return values.reshape(questions, choices, width)


def _cut_context(question: Question, limit: int) -> Sequence[int]:
  """The context without the first tokens that leave no room for the longest option."""
  overflow = len(question.context) + max(map(len, question.options)) - limit
  return question.context[max(0, overflow) :]


def _select_scorable(task: str, questions: list[Question], limit: int) -> Prepared:
  """Leaves out questions that cannot be scored. Raises MissingInput if none of a split is left."""
  kept, problems = [], []
  for question in questions:
    if problem := _problem(question, limit):
      problems.append(f"{question.location}: {problem}")
    else:
      kept.append(question)
  lengths = [len(question.context) + max(map(len, question.options)) for question in kept]
  if cut := describe_truncation(np.minimum(lengths, limit), np.array(lengths), limit):
    warnings.warn(f"{task}: {cut}", stacklevel=3)
  if not problems:
    return Prepared(questions, "")
  if missing := {question.split for question in questions} - {question.split for question in kept}:
    raise MissingInput(f"{task}: no {min(missing)} question can be scored; {problems[0]}")
  left_out = f"{len(problems)} of {len(questions)} questions left out; the first is {problems[0]}"
  warnings.warn(f"{task}: {left_out}", stacklevel=3)
  return Prepared(kept, left_out)


def _problem(question: Question, limit: int) -> str:
  """Why a question cannot be scored, "" if it can."""
  longest = max(map(len, question.options))
  if longest > limit:
    return f"{longest} tokens to score; the model's context is {limit}"
  first = 0 if len(question.context) else 1
  for option, skip in zip(question.options, question.unscored, strict=True):
    if len(option) <= max(first, skip):
      return "no token to score; the first token of a text has nothing before it"
  return ""


def _cola_questions(data_dir: str, tokenizer: Tokenizer, examples: int) -> list[Question]:
  """Whole sentences, of the training set too, to fit a threshold."""
  questions, cola = [], find("cola")
  for split in ("train", "dev"):
    rows = cola.subset(cola.examples(data_dir, split), examples)
    texts = tokenizer.encode_many([row.sequences[0][0] for row in rows])
    for row, ids in zip(rows, texts, strict=True):
      questions.append(Question([], (ids.tolist(),), (0,), row.location, _label(row), split))
  return questions


def _judge_cola(questions: Sequence[Question], answers: Sequence[Sequence[Answer]]) -> list[Score]:
  """Acceptable if the mean log-probability of the sentence's tokens is above a threshold.

  The paper does not say how it chose the threshold. We report three: the best on the training set,
  the dev set's median, and the best on the dev set itself (an oracle).
  """
  means = np.array([options[0].mean for options in answers])
  targets = np.array([question.target for question in questions])
  is_dev = np.array([question.split == "dev" for question in questions])
  dev, dev_targets = means[is_dev], targets[is_dev]
  thresholds = {
    "threshold fitted on train": best_threshold(targets[~is_dev], means[~is_dev]),
    "threshold at the dev set's median": float(np.median(dev)),
    "ORACLE: threshold fitted on dev": best_threshold(dev_targets, dev),
  }
  scores: list[Score] = []
  for origin, threshold in thresholds.items():
    rule = f"mean log-probability above {threshold:.3f}, {origin}"
    value = matthews(dev_targets, (dev > threshold).astype(int))
    scores.append((rule, "matthews", value, len(dev)))
  return scores


def best_threshold(truth: np.ndarray, scores: np.ndarray) -> float:
  """The threshold of scores [N] with the highest Matthews correlation of what is above it and the
  truth [N], 0 or 1.
  """
  order = np.argsort(-scores, kind="stable")
  ranked, ordered = truth[order].astype(np.float64), scores[order]
  # Entry n: the true and false positives if the n + 1 highest scores are predicted as 1.
  true, false = np.cumsum(ranked), np.cumsum(1 - ranked)
  positives, negatives = true[-1], false[-1]
  made = true + false
  below = np.maximum((made * (len(scores) - made)) * positives * negatives, 1e-9)
  correlation = (true * (negatives - false) - false * (positives - true)) / np.sqrt(below)
  # No threshold separates equal scores.
  separable = np.append(ordered[1:] != ordered[:-1], True)
  best = int(np.argmax(np.where(separable, correlation, -np.inf)))
  return float((ordered[best] + np.append(ordered, ordered[-1] - 1)[best + 1]) / 2)


def _compare_texts(
  tokenizer: Tokenizer, location: str, texts: Sequence[str], heads: Sequence[str], target: int
) -> Question:
  """A question that compares texts, each scored from the end of its head, which it begins with.

  If a head ends within a token of the text, that token is scored. The longest common prefix of all
  texts becomes the context, which is read once.
  """
  C = len(texts)
  ids = [encoded.tolist() for encoded in tokenizer.encode_many([*texts, *heads])]
  begins = [len(os.path.commonprefix([ids[c], ids[C + c]])) for c in range(C)]
  shared = min(*begins, len(os.path.commonprefix(ids[:C])))
  options = [ids[c][shared:] for c in range(C)]
  unscored = [begin - shared for begin in begins]
  return Question(ids[0][:shared], options, unscored, location, target)


def _sst2_questions(data_dir: str, tokenizer: Tokenizer, examples: int) -> list[Question]:
  """Appends "very" to the sentence; compares "positive" and "negative" as the next word."""
  questions, sst2 = [], find("sst2")
  for row in sst2.subset(sst2.examples(data_dir, "dev"), examples):
    head = f"{row.sequences[0][0].rstrip()} very"
    texts = [head + word for word in SENTIMENT]
    target = 1 - _label(row)  # the task's label 1 is positive, SENTIMENT's first word
    questions.append(_compare_texts(tokenizer, row.location, texts, [head] * 2, target))
  return questions


def _judge_sst2(questions: Sequence[Question], answers: Sequence[Sequence[Answer]]) -> list[Score]:
  rule = f"likelier after 'very': {' or '.join(word.strip() for word in SENTIMENT)}"
  pieces = [len(option) for option in questions[0].options]
  if set(pieces) != {1}:
    rule += f" (words of {pieces[0]} and {pieces[1]} tokens in this vocabulary: means are compared)"
  return _accuracy_of_best(rule, questions, answers)


def _race_questions(
  name: str, data_dir: str, tokenizer: Tokenizer, examples: int
) -> list[Question]:
  """Compares the options, given document and question."""
  questions, race = [], find(name)
  for row in race.subset(race.examples(data_dir, "dev"), examples):
    texts = list(map(" ".join, row.sequences))
    heads = [" ".join(fields[:-1]) for fields in row.sequences]
    questions.append(_compare_texts(tokenizer, row.location, texts, heads, _label(row)))
  return questions


def _pronoun_questions(
  name: str, data_dir: str, tokenizer: Tokenizer, examples: int
) -> list[Question]:
  """Replaces the pronoun by each candidate; compares the rest of the sentence."""
  questions = []
  as_hashed = lambda row: Example(((row.before, *row.candidates, row.after),), None, "")
  for row in subset(pronouns.read(data_dir, name), examples, as_hashed=as_hashed):
    heads = [row.before + candidate for candidate in row.candidates]
    texts = [head + row.after for head in heads]
    questions.append(_compare_texts(tokenizer, row.location, texts, heads, row.answer))
  return questions


def _label(example: Example) -> int:
  assert example.label is not None
  return int(np.argmax(example.label))


def _accuracy_of_best(
  rule: str, questions: Sequence[Question], answers: Sequence[Sequence[Answer]]
) -> list[Score]:
  """Predicts the option with the highest mean log-probability, the last one of a tie.

  Means that differ by less than TIE are a tie: which of them is higher depends on the shape of the
  batch, by rounding. The last one, because in the published wsc273.txt the first candidate is
  always right.
  """
  chosen = []
  for options in answers:
    means = np.array([option.mean for option in options])
    chosen.append(int(np.flatnonzero(means > means.max() - TIE)[-1]))
  targets = np.array([question.target for question in questions])
  return [(rule, "accuracy", accuracy(targets, np.array(chosen)), len(targets))]


TASKS = {
  "cola": ZeroShotTask(_cola_questions, _judge_cola),
  "sst2": ZeroShotTask(_sst2_questions, _judge_sst2),
}
_judge_race = functools.partial(_accuracy_of_best, "highest mean log-probability of an option")
for _name in ("race", "race-middle", "race-high"):
  TASKS[_name] = ZeroShotTask(functools.partial(_race_questions, _name), _judge_race)
_judge_pronouns = functools.partial(
  _accuracy_of_best, "highest mean log-probability of what follows a candidate"
)
for _name in pronouns.FILES:
  TASKS[_name] = ZeroShotTask(functools.partial(_pronoun_questions, _name), _judge_pronouns)


def run(
  checkpoint: str,
  data: str,
  tasks: Sequence[str] = (),
  *,
  history: bool = False,
  examples: int = 0,
  out: str = "",
  overwrite: bool = False,
) -> list[Result]:
  """Evaluates one checkpoint, or every checkpoint of a run, and prints a line per result.

  Questions longer than the model's context are left out with a warning.

  Args:
    checkpoint: see load_model; of a fine-tuned model the trunk is used, of a masked language model
      the pseudo-log-likelihood.
    data: folder that contains glue/, race/ and winograd/.
    tasks: of cola, sst2, race, race-middle, race-high, dprd, wsc273; by default all with data.
    history: evaluate every checkpoint of the run, oldest first (config.train.milestone= keeps
      more).
    examples: at most this many per task and split, of each class its share; 0: all.
    out: JSON file for the results, written after every checkpoint.
    overwrite: replace an existing output.
  """
  if out:
    check_out(out, overwrite)
  check_data_dir(data)
  paths = checkpoints(checkpoint) if history else [checkpoint]
  loaded = load_model(paths[0], check=LoadedModel.check_scores)
  prepared = prepare(loaded, data, tasks, examples)
  results = []
  for path in paths:
    loaded = loaded if path == paths[0] else load_model(path)
    results += measure(loaded, prepared)
    if out:
      write_json(out, [result._asdict() for result in results])
  return results
