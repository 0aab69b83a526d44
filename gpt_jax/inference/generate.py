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
  """Each prompt with its continuation, as the vocabulary spells them.

  Args:
    loaded: a trained model; of a fine-tuned one the trunk is used.
    prompts: texts. GPT-1 has no token that begins a text, so none may be empty.
    max_tokens: to add to each prompt.
    temperature: 1 samples from the model, below 1 prefers its favorites, 0 takes the most likely
      token.
    top_k: samples among the k most likely tokens; 0: among all.
    top_p: samples among the fewest tokens whose probabilities add up to this.
    seed: prompt number i, from 0, is continued by seed + i, whatever the other prompts are.

  Raises:
    InputError: an empty prompt, or a value that is not allowed.
  """
  _check(prompts, max_tokens, temperature, top_k, top_p, seed)
  encoded = loaded.tokenizer.encode_many(list(prompts))
  for number, ids in enumerate(encoded, 1):
    if not len(ids):
      raise InputError(
        f"prompt {number} is empty: GPT-1 has no token that begins a text; give at least one word"
      )
  model, params = loaded.language_model(), jax.device_put(loaded.params)
  texts = []
  for first in range(0, len(encoded), _BATCH):
    batch = [ids.tolist() for ids in encoded[first : first + _BATCH]]
    seeds = [seed + first + i for i in range(len(batch))]
    added = sample(
      model, params, batch, seeds, max_tokens, temperature=temperature, top_k=top_k, top_p=top_p
    )
    texts += [
      loaded.tokenizer.decode([*before, *after]) for before, after in zip(batch, added, strict=True)
    ]
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
  """The `max_tokens` ids that follow each prompt; special and unused rows of the table are never
  among them.

  A text that has filled the context goes on from its last half, read again from position 0, as does
  a prompt that is longer than the context has room for. Sampling adds temperature x Gumbel noise to
  the logits and takes the largest; the noise of a prompt's n-th token depends on its seed and n
  only, so that no prompt's text depends on the others.
  """
  context = model.config.trunk.context
  texts = [list(map(int, prompt)) for prompt in prompts]
  missing = np.full(len(texts), max_tokens)
  while missing.any():
    # A row reads what it has, or its last half, and then is given tokens until the context is full.
    read = [text if len(text) < context else text[-(context // 2) :] for text in texts]
    lengths = np.array([len(ids) for ids in read])
    counts = np.minimum(missing, context - lengths)
    width = bucket(int(lengths.max()), context)
    rows = np.zeros((len(texts), width), np.int32)
    for row, ids in zip(rows, read, strict=True):
      row[: len(ids)] = ids
    noise = np.array(seeds, np.uint32), max_tokens - missing
    added = _fill(
      model, params, rows, lengths, counts, noise, temperature, top_k=top_k, top_p=top_p
    )
    for text, ids, count in zip(texts, np.asarray(added).tolist(), counts, strict=True):
      text += ids[:count]
    missing -= counts
  return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


@functools.partial(jax.jit, static_argnames=("model", "top_k", "top_p"))
def _fill(model, params, rows, lengths, counts, noise, temperature, *, top_k, top_p):
  """Reads rows [B, P] of the given lengths [B] at once, then adds counts [B] tokens one by one:
  [B, context].
  """
  batch, width = rows.shape
  seeds, offsets = noise
  vocab_size = model.num_tokens

  def extend(ids, positions, valid, state):
    return model.apply({"params": params}, ids, positions, valid, state, method="extend")

  def choose(hidden, table, number):
    scores = logits(hidden, table, vocab_size)[:, :vocab_size]
    gumbel = jax.vmap(
      lambda seed, n: jax.random.gumbel(jax.random.fold_in(jax.random.key(seed), n), (vocab_size,))
    )
    scores = keep_likely(scores, temperature, top_k, top_p)
    return jnp.argmax(scores + temperature * gumbel(seeds, offsets + number), axis=-1).astype(
      jnp.int32
    )

  def add(carry):
    number, ids, state, added = carry
    # Finished rows keep running beside the others; their output is discarded.
    positions = jnp.minimum(lengths + number - 1, model.config.trunk.context - 1)
    hidden, table, state = extend(
      ids[:, None], positions[:, None], (number < counts)[:, None], state
    )
    ids = choose(hidden[:, 0], table, number)
    return number + 1, ids, state, added.at[:, number].set(ids)

  positions = jnp.broadcast_to(jnp.arange(width), rows.shape)
  state = model.apply({"params": params}, batch, method="start")
  hidden, table, state = extend(rows, positions, positions < lengths[:, None], state)
  ids = choose(hidden[jnp.arange(batch), lengths - 1], table, 0)
  added = jnp.zeros((batch, model.config.trunk.context), jnp.int32).at[:, 0].set(ids)
  return jax.lax.while_loop(
    lambda carry: carry[0] < counts.max(), add, (jnp.int32(1), ids, state, added)
  )[3]


def keep_likely(scores: jax.Array, temperature: float, top_k: int, top_p: float) -> jax.Array:
  """Scores [B, V] with -inf for all but the k most likely tokens, and of these all but the
  nucleus of share p.
  """
  if not top_k and top_p == 1:
    return scores
  best, _ = jax.lax.top_k(scores, min(top_k, scores.shape[-1]) or scores.shape[-1])
  shares = jax.nn.softmax(best / jnp.maximum(temperature, 1e-6))
  inside = jnp.cumsum(shares, -1) - shares < top_p
  least = jnp.where(inside, best, jnp.inf).min(-1, keepdims=True)
  return jnp.where(scores >= least, scores, -jnp.inf)
