"""The answers that a text-to-text model writes, up to the end token."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.config import Config, register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.inference.beam import beam_search, check_search
from gpt_jax.inference.stream import Sampling, Text, by_length, continue_texts
from gpt_jax.models.model import Model, ModelConfig, generator
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


@register("text_predictor")
@dataclasses.dataclass(frozen=True)
class TextPredictor(Config):
  """How the answers of a task that writes text are predicted; see LabelPredictor."""

  def make(self, task: Any, spec: ModelConfig, mesh: Any, tokenizer: Any) -> Callable[..., Any]:
    return _make_writer(task, generator(spec), tokenizer)

  def of_loaded(self, loaded: LoadedModel, task: Any) -> Callable[..., Any]:
    write = _make_writer(task, loaded.generator(), loaded.tokenizer)
    return functools.partial(write, jax.device_put(loaded.params))


def _make_writer(task: Any, model: Model, tokenizer: Tokenizer) -> Callable[..., list[str | None]]:
  """The predictions of a text-to-text model: what it writes, as the task's `read` gives it."""
  check_search(task.beams, task.length_penalty)

  def predict(
    params: Any, encoded: EncodedText, batch_size: int, done: Callable[[int], None] = lambda _: None
  ) -> list[str | None]:
    del batch_size
    if task.beams > 1:
      search = task.beams, task.length_penalty
      answers = searched_answers(model, params, encoded, tokenizer, *search, done)
    else:
      answers = written_answers(model, params, encoded, tokenizer, done)
    return task.read(answers, encoded.words)

  return predict
