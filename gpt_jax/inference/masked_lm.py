"""A masked language model's tokens at [MASK], and the pseudo-log-likelihood of a text.

Letters: B queries at a time, T tokens of the longest, R rows of the table, V vocabulary.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.errors import InputError
from gpt_jax.inference.scoring import bucket, check_length, padded
from gpt_jax.models.model import Model, ModelConfig, Outputs
from gpt_jax.ops.cross_entropy import logits

_ROWS = (1, 4, 16, 64)  # of a batch
_MASK = r"\[MASK\]|<mask>"  # as BERT and as RoBERTa spell it, for any vocabulary
# Scripts above U+2E80, as Chinese, put no space between words.
_LETTER = r"[^\W_\u2e80-\U0003ffff]"
_IN_A_WORD = re.compile(f"{_LETTER}(?:{_MASK})|(?:{_MASK}){_LETTER}")


class Filling(NamedTuple):
  """A token that may stand at a mask, as the vocabulary spells it, and its probability there."""

  piece: str
  probability: float


class _Query(NamedTuple):
  """Ids [t] of a text with masks, and the position whose token is to be predicted."""

  ids: np.ndarray
  at: int


class MaskedLM:
  """A trunk with its masked-LM head.

  A text is between [CLS] and [SEP] if the last training had them around its rows, as BERT's and
  RoBERTa's objectives and released weights do, and bare if not. It has at most `room` tokens.
  """

  def __init__(self, loaded: LoadedModel):
    spec, special = loaded.spec, loaded.tokenizer.special
    self._model = ModelConfig(spec.trunk, (loaded.masked_head(),), spec.attention).build()
    params = {scope: loaded.params[scope] for scope in ("trunk", "masked")}
    self._params = jax.device_put(params)
    self._tokenizer, self._mask = loaded.tokenizer, special["mask"]
    # Rows of a vocabulary's own [CLS] may never have been trained: the objective `masked` has none.
    trained = {*loaded.meta.get("trained_special", special)} & {*loaded.format.special}
    framed = {"cls", "sep"} <= trained & {*special}
    self._frame = (special["cls"], special["sep"]) if framed else ()
    self._context = spec.trunk.context
    self.room = self._context - len(self._frame)

  def fill(self, texts: Sequence[str], top_k: int) -> list[list[list[Filling]]]:
    """The `top_k` likeliest tokens at each mask of each text, all other masks staying masked."""
    if not 1 <= top_k <= self._tokenizer.vocab_size:
      raise InputError(
        f"top_k={top_k}: must be from 1 to the vocabulary's {self._tokenizer.vocab_size}"
      )
    filled: list[list[list[Filling]]] = []
    queries, places = [], []
    for number, text in enumerate(texts, start=1):
      ids = self._masked_ids(text, f"text {number}")
      positions = np.flatnonzero(ids == self._mask).tolist()
      queries += [self._query(ids, position) for position in positions]
      filled.append([[] for _ in positions])
      places += [(number - 1, mask) for mask in range(len(positions))]
    # Answers come by length, so those of a later text may come first.
    for query, log_probs in self._predict(queries):
      text_number, mask = places[query]
      for i in np.argsort(-log_probs, kind="stable")[:top_k].tolist():
        filling = Filling(self._tokenizer.piece(i), float(np.exp(log_probs[i])))
        filled[text_number][mask].append(filling)
    return filled

  def score(
    self, texts: Sequence[np.ndarray], within_word: bool = True, first: Sequence[int] = ()
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    """log P of each token given all others, in nats, whose sum is the pseudo-log-likelihood, and
    whether it is the likeliest: float32 and bool [t - first] for the ids [t] of each text.

    Args:
      within_word: hide the later tokens of a token's own word, too: a word of several tokens would
        give itself away (Kauf & Ivanova 2023, PLL-word-l2r). False: hide the token alone (Salazar
        et al. 2020, eq. 1).
      first: number of the first token of each text that is scored; (): 0.
    """
    queries, targets = [], []
    begins = first or [0] * len(texts)
    for ids, begin in zip(texts, begins, strict=True):
      starts = self._tokenizer.word_starts(ids) if within_word else np.ones(len(ids), bool)
      for position in range(begin, len(ids)):
        # Up to the next word, or to the end of the text.
        later = np.flatnonzero(starts[position + 1 :])
        end = position + 1 + later[0] if len(later) else len(ids)
        masked = ids.copy()
        masked[position:end] = self._mask
        queries.append(self._query(masked, position))
        targets.append(ids[position])
    log_probs, best = np.zeros(len(queries), np.float32), np.zeros(len(queries), bool)
    for query, values in self._predict(queries):
      log_probs[query], best[query] = values[targets[query]], values.argmax() == targets[query]
    scored, end = [], 0
    for ids, begin in zip(texts, begins, strict=True):
      own = slice(end, end + len(ids) - begin)
      scored.append((log_probs[own], best[own]))
      end = own.stop
    return scored

  def _query(self, ids: np.ndarray, at: int) -> _Query:
    """A text in its frame."""
    if not self._frame:
      return _Query(ids, at)
    return _Query(np.concatenate([self._frame[:1], ids, self._frame[1:]]), at + 1)

  def _masked_ids(self, text: str, name: str) -> np.ndarray:
    """The ids of a text in which masks are spelled, int32 [t]."""
    first, *others = re.split(_MASK, text)
    if not others:
      raise InputError(f"{name}: has no [MASK], which stands for the token to fill in")
    if found := _IN_A_WORD.search(text):
      raise InputError(
        f"{name}: {found[0]!r}: [MASK] stands for a whole token; put a space between"
      )
    spelling = self._tokenizer.spelling(self._mask)
    if spelling in {token.content for token in self._tokenizer.spelled}:
      # A folder of others says which spaces around a mask belong to it.
      ids = self._tokenizer.encode(re.sub(_MASK, spelling, text))
    else:
      # White space before a mask belongs to it, as in RoBERTa's tokenizer.
      parts = [self._tokenizer.encode(first.rstrip())]
      for part in (*map(str.rstrip, others[:-1]), others[-1]):
        # As it follows another text: tokenizers may put a space before a beginning.
        before, both = self._tokenizer.encode_many(["a", f"a{part}"])
        follows = np.array_equal(both[: len(before)], before)
        after = both[len(before) :] if follows else self._tokenizer.encode(part)
        parts += [np.array([self._mask]), after]
      ids = np.concatenate(parts).astype(np.int32)
    check_length(ids, name, self.room, self._context)
    return ids

  def _predict(self, queries: Sequence[_Query]) -> Iterator[tuple[int, np.ndarray]]:
    """The number of each query and log P of all tokens at its position, [V]; short ones first."""
    order = sorted(range(len(queries)), key=lambda number: len(queries[number].ids))
    for begin in range(0, len(order), _ROWS[-1]):
      numbers = order[begin : begin + _ROWS[-1]]
      # Rows and lengths are rounded up, so that few shapes need compiling.
      rows = next(rows for rows in _ROWS if rows >= len(numbers))
      shape = rows, bucket(len(queries[numbers[-1]].ids), self._context)
      texts = [queries[number].ids for number in numbers]
      ids, inside = padded(texts, shape), padded([np.ones(len(text)) for text in texts], shape)
      at = padded([[queries[number].at] for number in numbers], (rows, 1))
      log_probs = np.asarray(_log_probs(self._model, self._params, ids, inside, at))
      yield from zip(numbers, log_probs[:, : self._tokenizer.vocab_size], strict=False)


@functools.partial(jax.jit, static_argnames="model")
def _log_probs(model: Model, params: Any, ids, inside, at) -> jax.Array:
  """log P of all tokens at one position of each row: [B, T], [B, T], [B, 1] -> float32 [B, R]."""
  positions = jnp.broadcast_to(jnp.arange(ids.shape[1])[None], ids.shape)
  predictions = Predictions(at, jnp.ones(at.shape), at)  # only the last is read
  batch = Batch(Rows(ids, positions, inside), predictions=predictions)
  states, ((hidden, bias),) = cast(Outputs, model.apply({"params": params}, batch))
  # The bias as a last column, as the head's loss has it.
  table = jnp.concatenate([states.table, bias[:, None]], axis=-1)
  return jax.nn.log_softmax(logits(hidden[:, 0], table, model.num_tokens))
