"""Continues prompts with a checkpoint, or fills in their masks."""

from collections.abc import Iterator, Sequence
from typing import Any

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.errors import InputError
from gpt_jax.inference.generate import continuations, write
from gpt_jax.inference.model import Model
from gpt_jax.inference.stream import Sampling
from gpt_jax.models.decoding_weights import check_kind
from gpt_jax.parallel.processes import log


def run(
  checkpoint: str,
  prompts: Sequence[str],
  max_tokens: int = 100,
  temperature: float = 1.0,
  top_k: int = 0,
  top_p: float = 1.0,
  seed: int = 0,
  ignore_eos: bool = False,
  num_samples: int = 1,
  beams: int = 1,
  length_penalty: float = 1.0,
  weights: str = "float32",
) -> list[str]:
  """Returns each prompt with its continuation.

  Args:
    checkpoint: see load_model; of a fine-tuned model the trunk is used.
    prompts: text to continue; not empty: the model needs a token to begin with.
    max_tokens: number of tokens to add to each prompt.
    temperature: sampling temperature; 0: always the most likely token.
    top_k: sample from the k most likely tokens; 0: from all.
    top_p: sample from the fewest tokens with this total probability.
    seed: random seed of the first text; text i, from 0, uses seed + i.
    ignore_eos: go on behind the token that ends a text.
    num_samples: continuations of each prompt, one after the other.
    beams: above 1: search for a likely continuation with so many candidates, instead of sampling.
    length_penalty: of the search; above 0 favors long texts, where they can end, as with GPT-2's
      vocabulary.
    weights: float32, bfloat16 or int8: type of the weights in products; fewer bits are faster, less
      exact.
  """
  check_kind(weights)  # before a model is loaded
  loaded = load_model(checkpoint, check=LoadedModel.generator)
  sampling = Sampling(max_tokens, temperature, top_k, top_p, seed, ignore_eos)
  if beams == 1:
    _warn_of_length(loaded, max_tokens, "; --stream prints the text while it is written")
  elif top_k or top_p < 1 or num_samples > 1 or temperature not in (0, 1) or seed:
    raise InputError(
      f"--beams={beams}: a search takes the most likely text; leave out temperature, top_k, top_p, "
      "seed and num_samples"
    )
  return continuations(loaded, prompts, sampling, num_samples, weights, beams, length_penalty)


def stream(
  checkpoint: str,
  prompts: Sequence[str],
  num_samples: int = 1,
  weights: str = "float32",
  **sampling: Any,
) -> Iterator[tuple[int, str]]:
  """The texts of `run` as they are written: a text's number and a piece; sampling: see Sampling."""
  check_kind(weights)  # before a model is loaded
  loaded = load_model(checkpoint, check=LoadedModel.generator)
  settings = Sampling(**sampling)
  _warn_of_length(loaded, settings.max_tokens)
  return write(loaded, prompts, settings, num_samples, weights=weights)


def fill(checkpoint: str, texts: Sequence[str], top_k: int = 5) -> list[Any]:
  """For each text and each of its masks, the likeliest tokens; see Model.fill_mask."""
  return Model(load_model(checkpoint, check=LoadedModel.masked_head)).fill_mask(texts, top_k)


def _warn_of_length(loaded: LoadedModel, max_tokens: int, advice: str = "") -> None:
  """Logs what happens to a text that outgrows the context."""
  context = loaded.spec.trunk.context
  if max_tokens > context and not loaded.is_text_to_text:
    log(
      f"max_tokens={max_tokens:,}: the model's context is {context:,} tokens; each time it is full "
      f"the model reads the last {context // 2:,} again and forgets the others{advice}"
    )
