"""What a text-to-text model writes for labeled examples: greedy decoding, up to the end."""

from typing import Any

from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.inference.generate import sample
from gpt_jax.models.model import Model
from gpt_jax.tasks.text_to_text import EncodedText, TextTask, decode_answer


def greedy_answers(
  model: Model, params: Any, encoded: EncodedText, tokenizer: Tokenizer
) -> list[str | None]:
  """The most likely token after each other, for every example; None: a text without an end.

  Args:
    model: from models.model.generator.
    params: on the device.
    encoded: from TextTask.encode; its answers are not read.
    tokenizer: of the model.
  """
  prompts = [encoded.source(n).tolist() for n in range(len(encoded))]
  seeds = [0] * len(prompts)  # not used: nothing is drawn
  # No label is longer; a text that goes on is none.
  added = sample(model, params, prompts, seeds, encoded.longest, temperature=0.0)
  return [decode_answer(ids, tokenizer) for ids in added]


def text_measures(
  task: TextTask, model: Model, params: Any, encoded: EncodedText, tokenizer: Tokenizer
) -> dict[str, float]:
  """The metrics of labeled examples, and the share of outputs that are a label; see TextTask.score.

  The other arguments are those of greedy_answers.
  """
  outputs = greedy_answers(model, params, encoded, tokenizer)
  return task.score(task.read(outputs, encoded.words), encoded.labels)
