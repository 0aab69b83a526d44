"""Tasks done by the language model alone, without any training on them (section 5, figure 2 on the
right).

Each becomes the question which continuation of a text is likely. GPT-1 has no token that begins a
text, so the first token of a text is never scored.

Letters: Q questions, C options of each, P tokens of a context, T tokens of an option.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.models.model import Model
from gpt_jax.ops.cross_entropy import CHUNK_ELEMENTS, logits
from gpt_jax.tasks import task
from gpt_jax.tasks.encoding import evenly
from gpt_jax.tasks.metrics import accuracy, matthews
from gpt_jax.tasks.reading import pronouns

SENTIMENT = (" positive", " negative")  # after "very"


MOST_TOKENS = 2**14  # read at once


_SHORTEST = 16  # widths are powers of two from here, so that few shapes need compiling


class Question(NamedTuple):
  """Continuations of one text, to be compared.

  Attributes:
    context: the ids that all options continue; it may be empty.
    options: the ids of each continuation.
    unscored: how many ids at the head of each option are read, but not counted.
    name: "file:line", for messages.
  """

  context: Sequence[int]
  options: Sequence[Sequence[int]]
  unscored: Sequence[int]
  name: str = ""


class Answer(NamedTuple):
  """What is known of an option: the sum of the log-probabilities, in nats, of so many tokens."""

  total: float
  tokens: int

  @property
  def mean(self) -> float:
    return self.total / self.tokens


class Result(NamedTuple):
  """One figure.

  Attributes:
    task: of TASKS.
    rule: how it came about, for the reader.
    metric, value: a number from 0 to 1, or a correlation.
    examples: how many.
    step: of the checkpoint.
  """

  task: str
  rule: str
  metric: str
  value: float
  examples: int
  step: int


class Prepared(NamedTuple):
  """A task's questions, and what their answers say: (rule, metric, value, examples), the result
  to quote first.
  """

  questions: list[Question]
  judge: Callable[[list[list[Answer]]], list[tuple[str, str, float, int]]]


def prepare(
  found: LoadedModel, data_dir: str, names: Sequence[str], examples: int
) -> dict[str, Prepared]:
  """The named tasks' questions, or those of all tasks whose data is there, fit for a model.
  Raises as run does.
  """
  accuracy(np.zeros(1), np.zeros(1))  # what measuring needs is there
  prepared = {}
  for name in names or TASKS:
    if name not in TASKS:
      raise InputError(f"--tasks={name}: must be among {', '.join(TASKS)}")
    try:
      prepared[name] = TASKS[name](data_dir, found.tokenizer, examples)
    except MissingInput as error:
      if names:
        raise
      print(f"left out: {name} ({error})", file=sys.stderr)
      continue
    for question in prepared[name].questions:
      _check(question, found.spec.trunk.context)
  if not prepared:
    raise InputError(
      f"--data_dir={data_dir}: the data of no task is here; these are {', '.join(TASKS)}"
    )
  return prepared


def measure(found: LoadedModel, prepared: dict[str, Prepared], score: Any) -> list[Result]:
  """One checkpoint's results, which are printed too; score is make_scorer's."""
  params = {"trunk": jax.device_put(found.params["trunk"])}
  results = []
  for name, (questions, judge) in prepared.items():
    for rule, metric, value, count in judge(score(params, questions)):
      results.append(Result(name, rule, metric, value, count, found.step))
      print(
        f"step {found.step:<9,} {name:12} {metric:9} {value:7.4f}  {count:5} examples  {rule}",
        flush=True,
      )
  return results


def checkpoints(workdir: str) -> list[str]:
  """The folders of a run's checkpoints, oldest first. Raises MissingInput where there are none."""
  folder = os.path.join(workdir, "checkpoints")
  steps = (
    sorted((name for name in os.listdir(folder) if name.isdigit()), key=int)
    if os.path.isdir(folder)
    else []
  )
  if not steps:
    raise MissingInput(f"{workdir}: no checkpoints/ here; give the workdir of a run")
  return [os.path.join(folder, step) for step in steps]


def make_scorer(model: Model) -> Callable[[Any, Sequence[Question]], list[list[Answer]]]:
  """(params, questions) -> the answers of every question's options; each context is read once for
  all of its options.

  A context that leaves no room for its longest option loses its head.

  Args:
    model: a causal language model.
  """
  trunk = model.config.trunk
  limit, vocab_size = trunk.context, trunk.vocab_size

  def extend(params, ids, places, valid, state):
    return model.apply({"params": params}, ids, places, valid, state, method="extend")

  @jax.jit
  def log_probabilities(params, contexts, begins, options):
    """Contexts [Q, P], of begins [Q] ids each, and options [Q, C, T] -> [Q, C, T]."""
    questions, choices, width = options.shape
    state = model.apply({"params": params}, questions, method="start")
    places = jnp.broadcast_to(jnp.arange(contexts.shape[1])[None], contexts.shape)
    hidden, table, state = extend(params, contexts, places, places < begins[:, None], state)
    last = jnp.take_along_axis(
      hidden, jnp.maximum(begins - 1, 0)[:, None, None], axis=1
    )  # [Q, 1, D]

    state, last, begins = jax.tree.map(
      lambda x: jnp.repeat(x, choices, axis=0), (state, last, begins)
    )
    options = options.reshape(-1, width)
    # What stands behind an option's end is read too, and by nobody after it; nor does an option's
    # last id need a place.
    places = jnp.minimum(begins[:, None] + jnp.arange(width - 1)[None], limit - 1)
    hidden, table, _ = extend(params, options[:, :-1], places, jnp.ones(places.shape, bool), state)

    def of_option(hidden, ids):
      scores = logits(hidden, table, vocab_size)
      right = jnp.take_along_axis(scores, ids[:, None], axis=-1)[:, 0]
      return right - jax.nn.logsumexp(scores, axis=-1)

    together = max(1, CHUNK_ELEMENTS // (width * table.shape[0]))
    hidden = jnp.concatenate([last, hidden], axis=1)
    found = jax.lax.map(lambda both: of_option(*both), (hidden, options), batch_size=together)
    return found.reshape(questions, choices, width)

  def score(params, questions):
    rows = [_fitted(question, limit) for question in questions]
    shapes = [
      (_width(len(row.context)), len(row.options), _width(max(map(len, row.options))))
      for row in rows
    ]  # P, C, T
    state = jax.eval_shape(
      lambda params: model.apply({"params": params}, 1, method="start"), params
    )
    row_elements = sum(x.size for x in jax.tree.leaves(state))  # what is kept of one row
    answers: list[Any] = [None] * len(rows)
    for shape in sorted(set(shapes)):
      members = [i for i, other in enumerate(shapes) if other == shape]
      width, choices, longest = min(shape[0], limit), shape[1], min(shape[2], limit)
      tokens = max(width, choices * longest)
      most = min(2 * CHUNK_ELEMENTS // (choices * row_elements), MOST_TOKENS // tokens)
      size = max(1, min(len(members), most))
      for first in range(0, len(members), size):
        batch = members[first : first + size]
        contexts, begins = np.zeros((size, width), np.int32), np.zeros(size, np.int32)
        options = np.zeros((size, choices, longest), np.int32)
        for n, i in enumerate(batch):
          begins[n] = len(rows[i].context)
          contexts[n, : begins[n]] = rows[i].context
          for c, option in enumerate(rows[i].options):
            options[n, c, : len(option)] = option
        found = np.asarray(log_probabilities(params, contexts, begins, options), np.float64)
        for n, i in enumerate(batch):
          counted = zip(found[n], rows[i].options, rows[i].unscored, strict=True)
          answers[i] = [
            Answer(float(x[skip : len(o)].sum()), max(0, len(o) - skip)) for x, o, skip in counted
          ]
    return answers

  return score


def _check(question: Question, limit: int) -> None:
  """Raises InputError for an option that is longer than the context, or has nothing to score."""
  longest = max(map(len, question.options))
  if longest > limit:
    raise InputError(f"{question.name}: {longest} tokens to score; the model's context is {limit}")
  first = 0 if len(question.context) else 1
  if any(
    len(option) <= max(first, skip)
    for option, skip in zip(question.options, question.unscored, strict=True)
  ):
    raise InputError(
      f"{question.name}: no token to score; the first token of a text has nothing before it"
    )


def _fitted(question: Question, limit: int) -> Question:
  context = question.context[
    max(0, len(question.context) + max(map(len, question.options)) - limit) :
  ]
  # With nothing before it, an option's first token cannot be predicted.
  unscored = question.unscored if len(context) else [max(1, skip) for skip in question.unscored]
  return question._replace(context=context, unscored=unscored)


def _width(length: int) -> int:
  return max(_SHORTEST, 1 << (length - 1).bit_length()) if length else _SHORTEST


def cola(data_dir: str, tokenizer: Tokenizer, examples: int) -> Prepared:
  """Acceptable where the mean log-probability of the sentence's tokens is above a threshold.

  The paper does not say how it set that; given are the threshold that is best on the training set,
  the dev set's median, and the one that is best on the dev set itself, which nobody can know
  beforehand.
  """
  found = task.find("cola")
  splits = {split: evenly(found.examples(data_dir, split), examples) for split in ("train", "dev")}
  rows = [example for split in splits.values() for example in split]
  texts = tokenizer.encode_many([row.sequences[0][0] for row in rows])
  questions = [
    Question(ids[:1], (ids[1:],), (0,), row.location) for row, ids in zip(rows, texts, strict=True)
  ]
  truth = {
    split: np.array([np.argmax(example.label) for example in each])
    for split, each in splits.items()
  }

  def judge(answers):
    means = np.array([options[0].mean for options in answers])
    train, dev = np.split(means, [len(truth["train"])])
    thresholds = {
      "threshold fitted on train": best_threshold(truth["train"], train),
      "threshold at the dev set's median": float(np.median(dev)),
      "ORACLE: threshold fitted on dev": best_threshold(truth["dev"], dev),
    }
    measured = {
      rule: matthews(truth["dev"], (dev > threshold).astype(int))
      for rule, threshold in thresholds.items()
    }
    rules = {
      rule: f"mean log-probability above {threshold:.3f}, {rule}"
      for rule, threshold in thresholds.items()
    }
    return [(rules[rule], "matthews", value, len(dev)) for rule, value in measured.items()]

  return Prepared(questions, judge)


def best_threshold(truth: np.ndarray, scores: np.ndarray) -> float:
  """The threshold on scores [N], above which 1 is predicted, whose Matthews correlation with
  truth [N] is highest.
  """
  order = np.argsort(-scores, kind="stable")
  ranked, ordered = truth[order].astype(np.float64), scores[order]
  true, false = (
    np.cumsum(ranked),
    np.cumsum(1 - ranked),
  )  # of the predictions of 1, where so many are made
  positives, negatives = true[-1], false[-1]
  made = true + false
  below = np.maximum((made * (len(scores) - made)) * positives * negatives, 1e-9)
  correlation = (true * (negatives - false) - false * (positives - true)) / np.sqrt(below)
  correlation = np.where(
    np.append(ordered[1:] != ordered[:-1], True), correlation, -np.inf
  )  # equals go together
  best = int(np.argmax(correlation))
  return float((ordered[best] + np.append(ordered, ordered[-1] - 1)[best + 1]) / 2)


def _question(
  tokenizer: Tokenizer, name: str, texts: Sequence[str], heads: Sequence[str]
) -> Question:
  """Texts that are compared, each scored behind its own head, which it begins with.

  Where a head ends within a token of the text, the token is scored. What all texts have in common
  is read once.
  """
  C = len(texts)
  ids = [each.tolist() for each in tokenizer.encode_many([*texts, *heads])]
  begins = [_common(ids[c], ids[C + c]) for c in range(C)]
  shared = min(*begins, *(_common(ids[0], other) for other in ids[1:C]))
  return Question(
    ids[0][:shared], [ids[c][shared:] for c in range(C)], [begin - shared for begin in begins], name
  )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
  """How many ids two sequences have in common, from the first on."""
  return next(
    (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
  )


def sst2(data_dir: str, tokenizer: Tokenizer, examples: int) -> Prepared:
  """ "very" is appended; positive or negative, which is the likelier next word?"""
  found = task.find("sst2")
  rows = evenly(found.examples(data_dir, "dev"), examples)
  heads = [f"{row.sequences[0][0].rstrip()} very" for row in rows]
  questions = [
    _question(tokenizer, row.location, [head + word for word in SENTIMENT], [head] * 2)
    for row, head in zip(rows, heads, strict=True)
  ]
  pieces = [len(option) for option in questions[0].options]
  rule = f"likelier after 'very': {' or '.join(word.strip() for word in SENTIMENT)}"
  if set(pieces) != {1}:
    rule += f" (words of {pieces[0]} and {pieces[1]} tokens in this vocabulary: means are compared)"
  truth = np.array([1 - np.argmax(row.label) for row in rows])  # the task's outcome 1 is positive
  return Prepared(questions, _best_option(rule, truth))


def _race(name: str) -> Callable[[str, Tokenizer, int], Prepared]:
  def prepare(data_dir: str, tokenizer: Tokenizer, examples: int) -> Prepared:
    """The option with the highest mean log-probability of its tokens, given document and
    question.
    """
    rows = evenly(task.find(name).examples(data_dir, "dev"), examples)
    questions = []
    for row in rows:
      texts, heads = ([" ".join(fields[:end]) for fields in row.sequences] for end in (None, -1))
      questions.append(_question(tokenizer, row.location, texts, heads))
    truth = np.array([np.argmax(row.label) for row in rows])
    return Prepared(questions, _best_option("highest mean log-probability of an option", truth))

  return prepare


def _resolution(name: str) -> Callable[[str, Tokenizer, int], Prepared]:
  def prepare(data_dir: str, tokenizer: Tokenizer, examples: int) -> Prepared:
    """The candidate in the pronoun's place after which the rest of the sentence is likelier."""
    rows = evenly(pronouns.read(data_dir, name), examples)
    questions = []
    for row in rows:
      heads = [row.before + candidate for candidate in row.candidates]
      questions.append(
        _question(tokenizer, row.location, [head + row.after for head in heads], heads)
      )
    rule = "highest mean log-probability of what follows a candidate"
    return Prepared(questions, _best_option(rule, np.array([row.answer for row in rows])))

  return prepare


TASKS = {
  "cola": cola,
  "sst2": sst2,
  **{name: _race(name) for name in ("race", "race-middle", "race-high")},
  **{name: _resolution(name) for name in pronouns.FILES},
}


def _best_option(
  rule: str, truth: np.ndarray
) -> Callable[[list[list[Answer]]], list[tuple[str, str, float, int]]]:
  def judge(answers):
    # Of equals the last: in the published wsc273.txt the right candidate is always the first.
    means = [[answer.mean for answer in options] for options in answers]
    chosen = np.array([len(each) - 1 - np.argmax(each[::-1]) for each in means])
    return [(rule, "accuracy", accuracy(truth, chosen), len(truth))]

  return judge
