"""Texts that a model writes: continuations of prompts, and the answers of a text-to-text model."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.config import Config, register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.inference.beam import check_search, complete
from gpt_jax.inference.stream import Sampling, Text, continue_texts
from gpt_jax.models.decoding_weights import keep_weights
from gpt_jax.models.model import Model, ModelConfig, generator
from gpt_jax.tasks.answers.text import EncodedText, decode_answer, encode_prompt, spell
from gpt_jax.tasks.formats import END, START

# With the space before it; of a script without spaces, the last characters.
_LAST_WORD = re.compile(r"\s*\S{0,20}\Z")


def continuations(
  loaded: LoadedModel,
  prompts: Sequence[str],
  sampling: Sampling,
  num_samples: int = 1,
  weights: str = "float32",
  beams: int = 1,
  length_penalty: float = 1.0,
) -> list[str]:
  """Each prompt with its continuation, or its continuations one after the other.

  A text ends before the tokenizer's end token (GPT-2's <|endoftext|>), if the model writes it, or
  at max_tokens. Of a text-to-text model there is only what it writes: a prompt is its input, and
  may have "<sentinel_0>" where it is to fill something in.

  Args:
    loaded: a trained model; the head of a fine-tuned one is ignored.
    sampling: of every text, but that text number i, from 0, has the seed + i.
    weights: the type that products read, one of decoding_weights.KINDS.
    beams, length_penalty: of a search for the most likely text, see beam_search; 1: it is sampled.
  """
  check_search(beams, length_penalty)
  texts = _begin(loaded, prompts, sampling, num_samples)
  model = loaded.generator()
  complete(model, keep_weights(model, loaded.params, weights), texts, beams, length_penalty)
  return [_written(loaded, text) for text in texts]


def write(
  loaded: LoadedModel,
  prompts: Sequence[str],
  sampling: Sampling,
  num_samples: int = 1,
  weights: str = "float32",
) -> Iterator[tuple[int, str]]:
  """The texts of `continuations` in pieces, as they are written: the number of a text, and a piece.

  The texts come one after the other: pieces of a later one wait. So does the last word of a text,
  which its next token may change.
  """
  texts = _begin(loaded, prompts, sampling, num_samples)
  model = loaded.generator()
  params = keep_weights(model, loaded.params, weights)

  # A generator of its own: what is above it raises when `write` is called, not at the first piece.
  def pieces():
    current, written = 0, 0  # number of a text, and its characters that were given
    for _ in continue_texts(model, params, texts, steps=4):
      while current < len(texts):
        text = texts[current]
        whole = _written(loaded, text)
        if not text.done:
          # The last word may go on, and its last character may lack bytes.
          whole = _LAST_WORD.sub("", whole)
        if len(whole) > written:  # it can be shorter: _LAST_WORD takes the last word back
          yield current, whole[written:]
          written = len(whole)
        if not text.done:
          break
        current, written = current + 1, 0

  return pieces()


def _written(loaded: LoadedModel, text: Text) -> str:
  """The prompt with its continuation, or what a text-to-text model wrote; without the end token."""
  ids = [token.id for token in text.added if token.id not in text.ends]
  if loaded.is_text_to_text:
    return spell(ids, loaded.tokenizer)
  return loaded.tokenizer.decode([*text.prompt, *ids])


def _begin(
  loaded: LoadedModel, prompts: Sequence[str], settings: Sampling, num_samples: int
) -> list[Text]:
  """The texts to continue; number i has the seed of the settings + i."""
  for allowed, message in (
    (0 <= settings.seed < 2**31, f"seed={settings.seed}: must be from 0 to 2^31 - 1"),
    (num_samples >= 1, f"num_samples={num_samples}: must be at least 1"),
    (prompts, "no prompt: give one with prompt=TEXT, or a file with one a line"),
  ):
    if not allowed:
      raise InputError(message)
  answers, tokenizer, context = loaded.is_text_to_text, loaded.tokenizer, loaded.spec.trunk.context
  texts: list[Text] = []
  if answers:
    encoded = [encode_prompt(prompt, tokenizer) for prompt in prompts]
  else:
    encoded = tokenizer.encode_many(list(prompts))
  for number, ids in enumerate(encoded, 1):
    if len(ids) == (1 if answers else 0):  # the end alone
      raise InputError(
        f"prompt {number} is empty: the model needs a token to begin with; give a word"
      )
    for _ in range(num_samples):
      sampling = dataclasses.replace(settings, seed=settings.seed + len(texts))
      if answers:
        texts.append(answer_to(ids.tolist(), loaded.spec, tokenizer, sampling))
      else:
        ends = () if settings.ignore_eos else loaded.ends
        texts.append(Text(ids.tolist(), sampling, ends=ends))
    length = len(texts[-1].source)
    if length > context:
      raise InputError(
        f"prompt {number}: {length} tokens with the one that ends it, and the encoder's context is "
        f"{context}; give a shorter prompt"
      )
    if length and settings.max_tokens >= context:
      raise InputError(
        f"max_tokens={settings.max_tokens}: the decoder's context is {context}, so it writes at "
        f"most {context - 1}; give a smaller number"
      )
  return texts


def find_stop(text: str, stops: Iterable[str]) -> int | None:
  """Where the first of the stop texts begins, if one of them is in the text."""
  return min((text.find(stop) for stop in stops if stop in text), default=None)


def answer_to(
  ids: Sequence[int], spec: ModelConfig, tokenizer: Tokenizer, sampling: Sampling
) -> Text:
  """The Text that holds an answer to ids with their end: a decoder's own, or a continuation."""
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
  beams: int = 1,
  length_penalty: float = 1.0,
) -> list[str | None]:
  """Decodes an answer to every example of TextTask.encode; None: the answer has no end.

  sampling: by default greedy; example n has the seed that is n higher. beams, length_penalty,
    done: see beam.complete.
  """
  texts = []
  for n in range(len(encoded)):
    # An answer that goes on beyond its room is none.
    own = dataclasses.replace(sampling, max_tokens=encoded.room(n), seed=sampling.seed + n)
    texts.append(answer_to(encoded.source(n).tolist(), model.config, tokenizer, own))
  complete(model, params, texts, beams, length_penalty, done)
  return [decode_answer(text.added_ids, tokenizer) for text in texts]


@register("text_predictor")
@dataclasses.dataclass(frozen=True)
class TextPredictor(Config):
  """How the answers of a task that writes text are predicted; see LabelPredictor."""

  def make(self, task: Any, spec: ModelConfig, mesh: Any, tokenizer: Any) -> Callable[..., Any]:
    """Its predictions are the texts that the model writes, as the task's `read` gives them."""
    beams, length_penalty = task.search
    check_search(beams, length_penalty)
    model = generator(spec)

    def predict(
      params: Any,
      encoded: EncodedText,
      batch_size: int,
      done: Callable[[int], None] = lambda _: None,
    ) -> list[str | None]:
      search = {"beams": beams, "length_penalty": length_penalty}
      answers = written_answers(model, params, encoded, tokenizer, done, **search)
      return task.read(answers, encoded.words)

    return predict

  def of_loaded(self, loaded: LoadedModel, task: Any) -> Callable[..., Any]:
    write = self.make(task, loaded.spec, None, loaded.tokenizer)
    return functools.partial(write, jax.device_put(loaded.params))
