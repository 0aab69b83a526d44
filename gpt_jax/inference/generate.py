"""Sampling text from a language model, keeping its state (keys and values) between tokens."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.errors import InputError
from gpt_jax.inference.scoring import bucket
from gpt_jax.models.model import Model
from gpt_jax.ops.cross_entropy import logits

_BATCH = 16  # prompts at a time; a larger batch gives no more tokens per second


def continuations(
  loaded: LoadedModel,
  prompts: Sequence[str],
  max_tokens: int = 100,
  temperature: float = 1.0,
  top_k: int = 0,
  top_p: float = 1.0,
  seed: int = 0,
) -> list[str]:
  """Each prompt with its continuation.

  Args:
    loaded: a trained model; the head of a fine-tuned one is ignored.
    prompts: texts, none of them empty: the model needs a token to begin with.
    max_tokens: tokens to add to each prompt.
    temperature: 1 samples from the model, lower values favor likely tokens, 0 is greedy.
    top_k: sample among the k most likely tokens; 0: among all.
    top_p: sample among the fewest tokens whose probabilities add up to this.
    seed: prompt number i, from 0, uses seed + i, whatever the other prompts are.

  Raises:
    InputError: an empty prompt, a value that is not allowed, or a model that is not causal.
  """
  _check(prompts, max_tokens, temperature, top_k, top_p, seed)
  encoded = loaded.tokenizer.encode_many(list(prompts))
  for number, ids in enumerate(encoded, 1):
    if not len(ids):
      raise InputError(
        f"prompt {number} is empty: the model needs a token to begin with; give a word"
      )
  model, params = loaded.language_model(), jax.device_put(loaded.params)
  texts = []
  for first in range(0, len(encoded), _BATCH):
    batch = [ids.tolist() for ids in encoded[first : first + _BATCH]]
    seeds = [seed + first + i for i in range(len(batch))]
    continued = sample(
      model, params, batch, seeds, max_tokens, temperature=temperature, top_k=top_k, top_p=top_p
    )
    for prompt, added in zip(batch, continued, strict=True):
      texts.append(loaded.tokenizer.decode([*prompt, *added]))
  return texts


def _check(
  prompts: Sequence[str], max_tokens: int, temperature: float, top_k: int, top_p: float, seed: int
) -> None:
  for name, value, allowed, wanted in (
    ("max_tokens", max_tokens, max_tokens >= 1, "at least 1"),
    ("temperature", temperature, 0 <= temperature < float("inf"), "at least 0"),
    ("top_k", top_k, top_k >= 0, "at least 0"),
    ("top_p", top_p, 0 < top_p <= 1, "above 0 and at most 1"),
    ("seed", seed, 0 <= seed < 2**31, "from 0 to 2^31 - 1"),
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

  When the context is full, the second half is read again from position 0; so is a prompt that is
  too long. Sampling adds temperature x Gumbel noise to the logits and takes the largest. The noise
  of a prompt's n-th token depends on its seed and n only, so texts do not depend on each other.
  """
  context = model.config.trunk.context
  texts = [list(map(int, prompt)) for prompt in prompts]
  missing = np.full(len(texts), max_tokens)
  while missing.any():
    # Read each text, or its second half, then add tokens until the context is full.
    windows = [text if len(text) < context else text[-(context // 2) :] for text in texts]
    lengths = np.array([len(ids) for ids in windows])
    counts = np.minimum(missing, context - lengths)
    rows = np.zeros((len(texts), bucket(int(lengths.max()), context)), np.int32)
    for row, ids in zip(rows, windows, strict=True):
      row[: len(ids)] = ids
    noise = np.array(seeds, np.uint32), max_tokens - missing
    added = _add_tokens(
      model, params, rows, lengths, counts, noise, temperature, top_k=top_k, top_p=top_p
    )
    for text, ids, count in zip(texts, np.asarray(added).tolist(), counts, strict=True):
      text += ids[:count]
    missing -= counts
  return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


@functools.partial(jax.jit, static_argnames=("model", "top_k", "top_p"))
def _add_tokens(model, params, rows, lengths, counts, noise, temperature, *, top_k, top_p):
  """Reads rows [B, P] of lengths [B] in one pass, then adds counts [B] tokens one at a time.

  Returns int32 [B, context]; the first counts of each row are the added tokens.
  """
  batch, width = rows.shape
  seeds, offsets = noise
  vocab_size = model.num_tokens

  def extend(ids, positions, valid, state):
    return model.apply({"params": params}, ids, positions, valid, state, method="extend")

  def noise_of(seed, number):
    key = jax.random.fold_in(jax.random.key(seed), number)
    return jax.random.gumbel(key, (vocab_size,))

  def choose(hidden, table, number):
    scores = logits(hidden, table, vocab_size)[:, :vocab_size]
    scores = keep_likely(scores, temperature, top_k, top_p)
    gumbel = jax.vmap(noise_of)(seeds, offsets + number)
    return jnp.argmax(scores + temperature * gumbel, axis=-1).astype(jnp.int32)

  def unfinished(carry):
    number, *_ = carry
    return number < counts.max()

  def add(carry):
    number, ids, state, added = carry
    # Finished rows keep running beside the others; their output is discarded.
    positions = jnp.minimum(lengths + number - 1, model.config.trunk.context - 1)
    valid = (number < counts)[:, None]
    hidden, table, state = extend(ids[:, None], positions[:, None], valid, state)
    ids = choose(hidden[:, 0], table, number)
    return number + 1, ids, state, added.at[:, number].set(ids)

  positions = jnp.broadcast_to(jnp.arange(width), rows.shape)
  state = model.apply({"params": params}, batch, method="start")
  hidden, table, state = extend(rows, positions, positions < lengths[:, None], state)
  ids = choose(hidden[jnp.arange(batch), lengths - 1], table, 0)
  added = jnp.zeros((batch, model.config.trunk.context), jnp.int32).at[:, 0].set(ids)
  *_, added = jax.lax.while_loop(unfinished, add, (jnp.int32(1), ids, state, added))
  return added


def keep_likely(scores: jax.Array, temperature: float, top_k: int, top_p: float) -> jax.Array:
  """Scores [B, V] with -inf for all but the k most likely tokens and the nucleus of share p."""
  if not top_k and top_p == 1:
    return scores
  best, _ = jax.lax.top_k(scores, min(top_k, scores.shape[-1]) or scores.shape[-1])
  probabilities = jax.nn.softmax(best / jnp.maximum(temperature, 1e-6))
  in_nucleus = jnp.cumsum(probabilities, -1) - probabilities < top_p
  threshold = jnp.where(in_nucleus, best, jnp.inf).min(-1, keepdims=True)
  return jnp.where(scores >= threshold, scores, -jnp.inf)
