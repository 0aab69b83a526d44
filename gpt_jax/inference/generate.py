"""Texts that a language model continues; stream.py adds the tokens."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.errors import InputError
from gpt_jax.inference.beam import check_search, complete
from gpt_jax.inference.stream import Sampling, Text, continue_texts
from gpt_jax.inference.text_answers import answer_to
from gpt_jax.models.decoding_weights import keep_weights
from gpt_jax.models.model import Model
from gpt_jax.tasks.answers.text import encode_prompt, spell

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
    prompts: texts, none of them empty: the model needs a token to begin with.
    sampling: of every text, but that text number i, from 0, has the seed + i.
    num_samples: texts for each prompt.
    weights: the type that products read, one of decoding_weights.KINDS; bfloat16 and int8 are
      faster, and their logits less exact.
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
  steps: int = 4,
  weights: str = "float32",
) -> Iterator[tuple[int, str]]:
  """The texts of `continuations` in pieces, as they are written: the number of a text, and a piece.

  The texts come one after the other: pieces of a later one wait. So does the last word of a text,
  which its next token may change.

  Args:
    steps: tokens at a time.
  """
  texts = _begin(loaded, prompts, sampling, num_samples)
  model = loaded.generator()
  params = keep_weights(model, loaded.params, weights)

  # A generator of its own: what is above it raises when `write` is called, not at the first piece.
  def pieces():
    writers = [Writer(loaded, text) for text in texts]
    current = 0
    for _ in continue_texts(model, params, texts, steps):
      while current < len(texts):
        if piece := writers[current].update():
          yield current, piece
        if not texts[current].done:
          break
        current += 1

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
  if not 0 <= settings.seed < 2**31:
    raise InputError(f"seed={settings.seed}: must be from 0 to 2^31 - 1")
  if num_samples < 1:
    raise InputError(f"num_samples={num_samples}: must be at least 1")
  if not prompts:
    raise InputError("no prompt: give one with prompt=TEXT, or a file with one a line")
  answers, tokenizer = loaded.is_text_to_text, loaded.tokenizer
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
    if texts[-1].source:
      _check_fits(texts[-1], number, loaded.spec.trunk.context)
  return texts


def _check_fits(text: Text, number: int, context: int) -> None:
  """Raises InputError if a source, or what is to be written, is longer than the context."""
  if len(text.source) > context:
    raise InputError(
      f"prompt {number}: {len(text.source)} tokens with the one that ends it, and the encoder's "
      f"context is {context}; give a shorter prompt"
    )
  if text.sampling.max_tokens >= context:
    raise InputError(
      f"max_tokens={text.sampling.max_tokens}: the decoder's context is {context}, so it writes "
      f"at most {context - 1}; give a smaller number"
    )


def find_stop(text: str, stops: Iterable[str]) -> int | None:
  """Where the first of the stop texts begins, if one of them is in the text."""
  return min((text.find(stop) for stop in stops if stop in text), default=None)


class Writer:
  """The text of a prompt and its tokens, as far as the next token cannot change it."""

  def __init__(self, loaded: LoadedModel, text: Text):
    self._loaded, self._text, self._written = loaded, text, 0

  def update(self) -> str:
    """The text that became final since the last call; all the rest once the text is done."""
    text = self._text
    whole = _written(self._loaded, text)
    if not text.done:
      # The last word may go on, and its last character may lack bytes.
      whole = _LAST_WORD.sub("", whole)
    new = whole[self._written :]
    # It can be shorter than before: the regular expression takes the last word back.
    self._written = max(self._written, len(whole))
    return new


def sample(
  model: Model,
  params: Any,
  prompts: Sequence[Sequence[int]],
  seeds: Sequence[int],
  max_tokens: int,
  *,
  temperature: float = 1.0,
  top_k: int = 0,
  top_p: float = 1.0,
) -> list[list[int]]:
  """The `max_tokens` ids that follow each prompt, among those that the model predicts.

  See stream.Stream, which adds them. A text depends on its seed and on no other text.
  """
  settings = Sampling(max_tokens, temperature, top_k, top_p)
  texts = []
  for prompt, seed in zip(prompts, seeds, strict=True):
    texts.append(Text(prompt, dataclasses.replace(settings, seed=seed)))
  complete(model, params, texts)
  return [text.added_ids for text in texts]
