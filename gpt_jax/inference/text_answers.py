"""Predictions of any task; of a text-to-text model what it writes up to the end token."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.inference.beam import beam_search, check_search
from gpt_jax.inference.stream import Sampling, Text, by_length, continue_texts
from gpt_jax.models.model import Model, ModelConfig, generator
from gpt_jax.models.predictor import make_predictor
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.text import EncodedText, decode_answer
from gpt_jax.tasks.formats import END, START


def answer_to(
  ids: Sequence[int], spec: ModelConfig, tokenizer: Tokenizer, sampling: Sampling
) -> Text:
  """The Text that holds an answer: a decoder's own, or a continuation of the input as prefix.

  Args:
    ids: the input with its end.
    spec: of the model.
    tokenizer: of the model.
    sampling: how the answer is written.
  """
  special = tokenizer.special
  if spec.attention == "prefix":
    return Text(ids, sampling, ends=(special[END],))
  return Text([special[START]], sampling, source=ids, ends=(special[END],))


def written_answers(
  model: Model,
  params: Any,
  encoded: EncodedText,
  tokenizer: Tokenizer,
  done: Callable[[int], None] = lambda _: None,
  sampling: Sampling = Sampling(temperature=0),  # noqa: B008  # a constant
) -> list[str | None]:
  """Decodes an answer to every example token by token; None: the answer has no end.

  Args:
    model: from models.model.generator.
    params: on the device.
    encoded: from TextTask.encode; its answers are not read.
    tokenizer: of the model.
    done: is called with the number of finished texts as it grows.
    sampling: by default greedy; example n has the seed that is n higher.
  """
  texts = _texts(model, encoded, tokenizer, sampling)
  finished = 0
  # Sorted for less padding; the answers are read from `texts`, in their own order.
  for continued in continue_texts(model, params, by_length(texts)):
    finished += sum(text.done for text in continued)
    done(finished)
  return [decode_answer(text.added_ids, tokenizer) for text in texts]


def searched_answers(
  model: Model,
  params: Any,
  encoded: EncodedText,
  tokenizer: Tokenizer,
  beams: int,
  length_penalty: float,
  done: Callable[[int], None] = lambda _: None,
) -> list[str | None]:
  """As written_answers, by beam search; see beam.beam_search."""
  answers = []
  for text in _texts(model, encoded, tokenizer, Sampling(temperature=0)):
    options = (beams, text.missing, length_penalty, text.ends, text.source)
    best = beam_search(model, params, text.prompt, *options)[0]
    answers.append(decode_answer(best.ids, tokenizer))
    done(len(answers))
  return answers


def _texts(
  model: Model, encoded: EncodedText, tokenizer: Tokenizer, sampling: Sampling
) -> list[Text]:
  """Each example's input, to be answered; a text that goes on beyond its room is none."""
  texts = []
  for n in range(len(encoded)):
    own = dataclasses.replace(sampling, max_tokens=encoded.room(n), seed=sampling.seed + n)
    texts.append(answer_to(encoded.source(n).tolist(), model.config, tokenizer, own))
  return texts


def make_task_predictor(
  task: LabeledTask, spec: ModelConfig, mesh: Mesh, tokenizer: Tokenizer
) -> Callable[..., Any]:
  """predict(params, examples, batch_size, done) -> predictions of a task of any kind."""
  if task.writes_text:
    return _make_writer(task, generator(spec), tokenizer)
  return make_predictor(spec.build(), mesh)


def task_predictor(loaded: LoadedModel, task: LabeledTask) -> Callable[..., Any]:
  """predict(examples, batch_size, done) -> predictions of a fine-tuned model for its kind of task.

  Keep it: every predictor compiles anew, and has its own copy of the parameters.
  """
  if task.writes_text:
    write = _make_writer(task, loaded.generator(), loaded.tokenizer)
    return functools.partial(write, jax.device_put(loaded.params))
  return loaded.predictor()


def _make_writer(task: Any, model: Model, tokenizer: Tokenizer) -> Callable[..., list[str | None]]:
  """The predictions of a text-to-text model: what it writes, as the task's `read` gives it."""
  beams, length_penalty = task.search
  check_search(beams, length_penalty)

  def predict(
    params: Any, encoded: EncodedText, batch_size: int, done: Callable[[int], None] = lambda _: None
  ) -> list[str | None]:
    del batch_size
    if beams > 1:
      search = beams, length_penalty
      answers = searched_answers(model, params, encoded, tokenizer, *search, done)
    else:
      answers = written_answers(model, params, encoded, tokenizer, done)
    return task.read(answers, encoded.words)

  return predict
