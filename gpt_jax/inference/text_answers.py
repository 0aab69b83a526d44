"""Answers of a text-to-text model, by greedy decoding up to the end token."""

from collections.abc import Callable, Sequence
from typing import Any

from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.inference.stream import Sampling, Text, by_length, continue_texts
from gpt_jax.models.model import Model, ModelConfig
from gpt_jax.tasks.answers.text import END, START, EncodedText, TextTask, decode_answer


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
    return Text(ids, sampling, end=special[END])
  return Text([special[START]], sampling, source=ids, end=special[END])


def greedy_answers(
  model: Model,
  params: Any,
  encoded: EncodedText,
  tokenizer: Tokenizer,
  done: Callable[[int], None] = lambda _: None,
) -> list[str | None]:
  """Decodes an answer to every example greedily; None: the answer has no end.

  Args:
    model: from models.model.generator.
    params: on the device.
    encoded: from TextTask.encode; its answers are not read.
    tokenizer: of the model.
    done: is called with the number of finished texts as it grows.
  """
  # No label is longer; a text that goes on is none.
  sampling = Sampling(encoded.longest, temperature=0.0)
  sources = [encoded.source(n).tolist() for n in range(len(encoded))]
  texts = [answer_to(source, model.config, tokenizer, sampling) for source in sources]
  finished = 0
  for continued in continue_texts(model, params, by_length(texts)):
    finished += sum(text.done for text in continued)
    done(finished)
  return [decode_answer([token.id for token in text.added], tokenizer) for text in texts]


def text_measures(
  task: TextTask, model: Model, params: Any, encoded: EncodedText, tokenizer: Tokenizer
) -> dict[str, float]:
  """The metrics of labeled examples, and the share of outputs that are a label; see TextTask.score.

  The other arguments are those of greedy_answers.
  """
  outputs = greedy_answers(model, params, encoded, tokenizer)
  return task.score(task.read(outputs, encoded.words), encoded.labels)
