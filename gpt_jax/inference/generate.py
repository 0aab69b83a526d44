"""Texts that a language model continues; stream.py adds the tokens."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.tokenizers.openai_files import END_OF_TEXT
from gpt_jax.errors import InputError
from gpt_jax.inference.beam import beam_search
from gpt_jax.inference.stream import Sampling, Text, by_length, continue_texts
from gpt_jax.models.model import Model
from gpt_jax.tasks.text_to_text import END, decode_answer, encode_prompt, spell

_MOST_BEAMS = 256
# With the space before it; of a script without spaces, the last characters.
_LAST_WORD = re.compile(r"\s*\S{0,20}\Z")


def continuations(
  loaded: LoadedModel,
  prompts: Sequence[str],
  max_tokens: int = 100,
  temperature: float = 1.0,
  top_k: int = 0,
  top_p: float = 1.0,
  seed: int = 0,
  num_samples: int = 1,
) -> list[str]:
  """Each prompt with its continuation, or its continuations one after the other.

  Of a text-to-text model, only what it writes: its prompts may have "<sentinel_0>" where it is to
  fill something in.

  Args:
    loaded: a trained model; the head of a fine-tuned one is ignored.
    prompts: texts, none of them empty: the model needs a token to begin with.
    max_tokens: tokens to add to each prompt.
    temperature: 1 samples from the model, lower values favor likely tokens, 0 is greedy.
    top_k: sample among the k most likely tokens; 0: among all.
    top_p: sample among the fewest tokens whose probabilities add up to this.
    seed: text number i, from 0, uses seed + i, whatever the other texts are.
    num_samples: texts for each prompt.

  Raises:
    InputError: an empty prompt, a value that is not allowed, or a bidirectional model.
  """
  settings = Sampling(max_tokens, temperature, top_k, top_p, seed)
  texts = _begin(loaded, prompts, settings, num_samples)
  model, params = loaded.generator(), jax.device_put(loaded.params)
  for _ in continue_texts(model, params, by_length(texts)):
    pass
  return [_written(loaded, text) for text in texts]


def write(
  loaded: LoadedModel,
  prompts: Sequence[str],
  max_tokens: int = 100,
  temperature: float = 1.0,
  top_k: int = 0,
  top_p: float = 1.0,
  seed: int = 0,
  num_samples: int = 1,
  steps: int = 4,
) -> Iterator[tuple[int, str]]:
  """The texts of `continuations` in pieces, as they are written: the number of a text, and a piece.

  The texts come one after the other: pieces of a later one wait. So does the last word of a text,
  which its next token may change.

  Args:
    steps: tokens at a time.

  Raises:
    InputError: as continuations, before the first piece.
  """
  settings = Sampling(max_tokens, temperature, top_k, top_p, seed)
  texts = _begin(loaded, prompts, settings, num_samples)
  model, params = loaded.generator(), jax.device_put(loaded.params)
  if loaded.is_text_to_text:
    return _whole_texts(loaded, continue_texts(model, params, texts, steps), texts)

  def pieces():
    writers = [Writer(loaded.tokenizer, text) for text in texts]
    current = 0
    for _ in continue_texts(model, params, texts, steps):
      while current < len(texts):
        if piece := writers[current].update():
          yield current, piece
        if not texts[current].done:
          break
        current += 1

  return pieces()


def search(
  loaded: LoadedModel,
  prompts: Sequence[str],
  max_tokens: int = 100,
  beams: int = 4,
  length_penalty: float = 1.0,
) -> list[str]:
  """Each prompt with the most likely continuation that beam search finds; see inference.beam.

  Released GPT-2 vocabularies have a token that ends a text; without it all texts have max_tokens.

  Raises:
    InputError: an empty prompt, a value that is not allowed, a prompt that with max_tokens does not
      fit into the context, or a model that is not causal.
  """
  if not 1 <= beams <= _MOST_BEAMS:
    raise InputError(f"--beams={beams}: must be from 1 to {_MOST_BEAMS}")
  if not abs(length_penalty) < float("inf"):
    raise InputError(f"--length_penalty={length_penalty}: must be a number")
  pieces = getattr(loaded.tokenizer, "pieces", ())
  end = pieces.index(END_OF_TEXT) if END_OF_TEXT in pieces else None
  answers = loaded.is_text_to_text
  if answers:
    end = loaded.tokenizer.special[END]
  model, params = loaded.generator(), jax.device_put(loaded.params)
  texts = []
  for text in _begin(loaded, prompts, Sampling(max_tokens), 1):
    ids = beam_search(model, params, text.prompt, beams, max_tokens, length_penalty, end)[0].ids
    ids = [i for i in ids if i != end]
    if answers:
      texts.append(spell(ids, loaded.tokenizer))
    else:
      texts.append(loaded.tokenizer.decode([*text.prompt, *ids]))
  return texts


def _begin(
  loaded: LoadedModel, prompts: Sequence[str], settings: Sampling, num_samples: int
) -> list[Text]:
  """The texts to continue; number i has the seed of the settings + i.

  Raises:
    InputError: no prompt, or a value that is not allowed.
  """
  _check(prompts, settings, num_samples)
  texts: list[Text] = []
  if loaded.is_text_to_text:
    encoded = [encode_prompt(prompt, loaded.tokenizer) for prompt in prompts]
  else:
    encoded = loaded.tokenizer.encode_many(list(prompts))
  for number, ids in enumerate(encoded, 1):
    if not len(ids):
      raise InputError(
        f"prompt {number} is empty: the model needs a token to begin with; give a word"
      )
    for _ in range(num_samples):
      sampling = dataclasses.replace(settings, seed=settings.seed + len(texts))
      texts.append(Text(ids.tolist(), sampling))
  return texts


def _written(loaded: LoadedModel, text: Text) -> str:
  """The prompt and its continuation; of a text-to-text model what it wrote, up to the end."""
  if not loaded.is_text_to_text:
    return loaded.tokenizer.decode(text.ids)
  ids = [token.id for token in text.added]
  answer = decode_answer(ids, loaded.tokenizer)
  return spell(ids, loaded.tokenizer) if answer is None else answer


def _whole_texts(
  loaded: LoadedModel, steps: Iterator[Any], texts: Sequence[Text]
) -> Iterator[tuple[int, str]]:
  """The number of a text, and all of it once it is done, in order; see write."""
  current = 0
  for _ in steps:
    while current < len(texts) and texts[current].done:
      yield current, _written(loaded, texts[current])
      current += 1


class Writer:
  """The text of a prompt and its tokens, as far as the next token cannot change it."""

  def __init__(self, tokenizer: Tokenizer, text: Text):
    self._tokenizer, self._text, self._written = tokenizer, text, 0

  def update(self) -> str:
    """What can be written since the last call; of a text that is done, all the rest."""
    text = self._text
    whole = self._tokenizer.decode(text.ids)
    if not text.done:
      # The last word may go on, and its last character may lack bytes.
      whole = _LAST_WORD.sub("", whole)
    new = whole[self._written :]
    self._written = max(self._written, len(whole))
    return new


def _check(prompts: Sequence[str], settings: Sampling, num_samples: int) -> None:
  s = settings
  for name, value, allowed, wanted in (
    ("max_tokens", s.max_tokens, s.max_tokens >= 1, "at least 1"),
    ("temperature", s.temperature, 0 <= s.temperature < float("inf"), "at least 0"),
    ("top_k", s.top_k, s.top_k >= 0, "at least 0"),
    ("top_p", s.top_p, 0 < s.top_p <= 1, "above 0 and at most 1"),
    ("seed", s.seed, 0 <= s.seed < 2**31, "from 0 to 2^31 - 1"),
    ("num_samples", num_samples, num_samples >= 1, "at least 1"),
  ):
    if not allowed:
      raise InputError(f"--{name}={value}: must be {wanted}")
  if not prompts:
    raise InputError("no prompt: give one with --prompt=TEXT, or a file with one a line")


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
  """The `max_tokens` ids that follow each prompt; never special tokens or padding rows.

  See stream.Stream, which adds them. A text depends on its seed and on no other text.
  """
  settings = Sampling(max_tokens, temperature, top_k, top_p)
  texts = []
  for prompt, seed in zip(prompts, seeds, strict=True):
    texts.append(Text(prompt, dataclasses.replace(settings, seed=seed)))
  for _ in continue_texts(model, params, by_length(texts)):
    pass
  return [[token.id for token in text.added] for text in texts]
