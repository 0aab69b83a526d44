"""The program that shows a model at work: a page of token probabilities, attention, and labels
as a text goes on.
"""

import base64
import contextlib
import dataclasses
import functools
import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Rows
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file
from gpt_jax.inference.attention_maps import attention_maps
from gpt_jax.inference.scoring import bucket
from gpt_jax.models.model import Model
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.programs import predict
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.readers import Row, read_lines
from gpt_jax.tasks.task import Task

FAVORITES = 5
_OURS = (
  b'<meta name="generator" content="gpt_jax visualize">'  # in the first lines of visualize.html
)


def run(checkpoint: str, out: str, texts: Sequence[str] = (), source: str = "") -> dict[str, Any]:
  """Writes one HTML file that needs no other, and returns the values in it.

  Args:
    checkpoint: see load_model. A language model reads a text as it is, a fine-tuned one as its
      task puts it.
    out: the page; replaced where it is one of this program, never where it is another file.
    texts: for a task of several columns, these separated by tabs.
    source: a file of more texts, one a line, or "-" for standard input; for a fine-tuned model
      rows, as in predict.

  Returns:
    {"model": …, "texts": […]}. A text has `sequences` (several where its task makes several), each
    with its `tokens`, their `logp` (natural logarithm) and `rank`, None for the first, and `best`,
    the model's favorites in their place; and `classes`, the `probabilities` [prefixes, K] of
    `labels`, None without a head.

  Raises:
    InputError: no text, one that cannot be read or is longer than the context, a bidirectional
      model, another file in the place of `out`.
  """
  if not texts and not source:
    raise InputError(
      "no text: give one with --text=TEXT, or a file with one a line with --input=FILE"
    )
  found = load_model(checkpoint)
  trunk = found.spec.trunk
  task, language_model = found.task, found.language_model()
  given = [*_typed(texts, task), *(_in_file(source, task) if source else ())]
  if not given:
    raise InputError(f"--input={source}: no texts in it")
  if task:
    encoded = task.encode([task.example(row) for row in given], found.tokenizer, trunk.context)
    sequences = [
      [encoded.sequence(n, c) for c in range(encoded.fields.shape[1])] for n in range(len(encoded))
    ]
    notes = [_what_was_cut(encoded, n) for n in range(len(encoded))]
  else:
    sequences = [[ids] for ids in _whole(found, given)]
    notes = [""] * len(given)
  with _writing(out) as file:  # opened before the time is spent
    params = jax.device_put(found.params)
    values = [[_sequence(found, language_model, params, ids) for ids in each] for each in sequences]
    classes = _classes(found, task, encoded) if task else [None] * len(given)
    page = {
      "model": {
        "checkpoint": checkpoint,
        "step": found.step,
        "task": task and task.name,
        "parameters": trunk.parameter_count(),
        "vocabulary": trunk.vocab_size,
        "choices": found.model.num_tokens,
        "context": trunk.context,
        "layers": getattr(trunk, "layers", 0),  # an LSTM has neither
        "heads": getattr(trunk, "heads", 0),
      },
      "texts": [
        {"text": " | ".join(row.texts), "note": note, "sequences": each, "classes": labels}
        for row, note, each, labels in zip(given, notes, values, classes, strict=True)
      ],
    }
    # A script element ends at "<" only; what is not ASCII is escaped, line separators and the like
    # among it.
    data = json.dumps(page, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    html, script = (
      Path(__file__).with_suffix(end).read_text(encoding="utf-8") for end in (".html", ".js")
    )
    file.write(html.replace("{{script}}", script).replace("{{data}}", data))
  print(f"{out}: {len(given)} text{'s' * (len(given) > 1)}, {os.path.getsize(out) / 1e6:.2f} MB")
  return page


def _typed(texts: Sequence[str], task: Task | None) -> Iterator[Row]:
  for number, text in enumerate(texts, 1):
    if any(
      "\ud800" <= character <= "\udfff" for character in text
    ):  # how Python keeps bytes that are no text
      raise InputError(f"text {number}: not UTF-8")
    cells = tuple(text.split("\t")) if task else (text,)
    if task and len(cells) != len(task.columns):
      raise InputError(
        f"text {number}: {len(cells)} columns; the task {task.name} reads {len(task.columns)}, separated by tabs: "
        f"{', '.join(task.columns)}"
      )
    yield Row(cells, None, f"text {number}")


def _in_file(source: str, task: Task | None) -> Iterator[Row]:
  if task:
    return predict.read_rows(source, task)
  return (Row((line,), None, f"{source}:{number}") for number, line in read_lines(source))


def _whole(found: LoadedModel, given: list[Row]) -> list[np.ndarray]:
  """The ids of texts for a language model, which has no rule by which to cut them."""
  sequences, context = (
    found.tokenizer.encode_many([row.texts[0] for row in given]),
    found.spec.trunk.context,
  )
  for row, ids in zip(given, sequences, strict=True):
    if not len(ids):
      raise InputError(
        f"{row.location}: holds nothing that the tokenizer keeps; give at least one word"
      )
    if len(ids) > context:
      raise InputError(
        f"{row.location}: {len(ids)} tokens, and the model's context is {context}; give a part of it"
      )
  return sequences


def _what_was_cut(encoded: Encoded, n: int) -> str:
  """What a user must know of a text that does not fit: it is cut as in fine-tuning and by
  predict.
  """
  read, whole = (
    encoded.kept[n].sum(),
    sum(len(encoded.texts[text]) for text in encoded.fields[n].flat),
  )
  if read == whole:
    return ""
  note = f"cut to fit the context of {encoded.context}, as in fine-tuning: {read} of {whole} tokens are read"
  warnings.warn(f"{encoded.locations[n]}: {note}", stacklevel=2)
  return note


def _sequence(found: LoadedModel, model: Model, params: Any, ids: np.ndarray) -> dict[str, Any]:
  """How expected each token was, and the attention between them."""
  length, context = len(ids), found.spec.trunk.context
  filled = np.zeros(bucket(length, context), np.int32)
  filled[:length] = ids
  measured, attention = jax.device_get(read(model, params, filled, found.model.num_tokens))
  logp, rank, best, best_logp = (x[: length - 1] for x in measured)
  spell = functools.partial(spelling, found.tokenizer)
  favorites = [
    [[spell(i), float(f"{math.exp(p):.3g}")] for i, p in zip(*each, strict=True)]
    for each in zip(best.tolist(), best_logp.tolist(), strict=True)
  ]
  mean = float(logp.mean(dtype=np.float64)) if length > 1 else None
  return {
    "tokens": [spell(i) for i in ids.tolist()],
    "special": np.flatnonzero(ids >= found.tokenizer.vocab_size).tolist(),
    "lines": np.flatnonzero(ids == found.tokenizer.line_id).tolist(),
    "logp": [None, *(round(p, 4) for p in logp.tolist())],
    "rank": [None, *rank.tolist()],
    "best": [None, *favorites],
    "mean": mean,
    "perplexity": None if mean is None else math.exp(min(-mean, 700.0)),
    "attention": None if attention is None else quantize(attention[:, :, :length, :length]),
  }


@functools.partial(jax.jit, static_argnames=("model", "num_tokens"))
def read(model: Model, params: Any, ids: jax.Array, num_tokens: int):
  """What the model expects at every place of a text, and where it looks; ids are int32 [T].

  Returns:
    For places 1 to T - 1 the log-probability of the token there, its rank from 1, the ids of the
    favorites and their
    log-probabilities: [T - 1], [T - 1], [T - 1, 5], [T - 1, 5]. And attention [layers, H, T, T], or
    None of a trunk that has none.
  """
  places = jnp.arange(len(ids))[None]
  text = Rows(ids[None], places)
  (hidden, table), kept = model.apply(
    {"params": params}, text, method="states", mutable="intermediates"
  )
  scores = jax.nn.log_softmax(logits(hidden[0, :-1], table, num_tokens))
  right = jnp.take_along_axis(scores, ids[1:, None], axis=-1)
  best_logp, best = jax.lax.top_k(scores, FAVORITES)
  measured = right[:, 0], 1 + (scores > right).sum(-1), best, best_logp
  return measured, attention_maps(kept["intermediates"]["trunk"])[:, 0] if kept else None


def quantize(attention: np.ndarray) -> str:
  """The lower triangles of [layers, H, T, T], row by row, as base64 of bytes 255 sqrt(p): p to
  within 0.004.

  The root, since of hundreds of tokens most have a share that a plain byte would round to nothing.
  With 12 x 12 heads 50 tokens take 0.2 MB of the page and 512 take 25.
  """
  below = np.tril_indices(attention.shape[-1])
  return base64.b64encode(
    np.rint(255 * np.sqrt(attention[:, :, *below])).astype(np.uint8).tobytes()
  ).decode()


def spelling(tokenizer: Tokenizer, i: int) -> str:
  """A token as the vocabulary has it, with its mark for a space."""
  return tokenizer.spelling(i)


def _classes(found: LoadedModel, task: Task, encoded: Encoded) -> list[dict[str, Any]]:
  """The probabilities of the labels where the last column (of a choice, every option) is cut
  after 1, 2, … tokens.
  """
  _, sequences, fields = encoded.fields.shape
  growing = np.zeros((sequences, fields), bool)
  growing[:, -1] = True
  if task.pooling == "sum":
    growing[1:] = growing[1:, ::-1]  # similarity's other order begins with the last column
  counts = [int(kept[growing].max()) for kept in encoded.kept]
  prefixes = [
    np.where(growing, np.minimum(kept, n), kept)
    for kept, count in zip(encoded.kept, counts, strict=True)
    for n in range(1, count + 1)
  ]
  repeated = {
    name: np.repeat(getattr(encoded, name), counts, axis=0)
    for name in ("fields", "labels", "locations")
  }
  cut = dataclasses.replace(encoded, kept=np.stack(prefixes), **repeated)
  probabilities = found.predictor()(cut, 32)
  each_text = np.split(probabilities, np.cumsum(counts)[:-1])
  last = (
    []
    if task.pooling == "per_choice"
    else [encoded.texts[text] for text in encoded.fields[:, 0, -1]]
  )
  return [
    {
      "labels": list(task.labels),
      "tokens": [spelling(found.tokenizer, i) for i in last[n][:count].tolist()] if last else None,
      "probabilities": np.round(each.astype(np.float64), 5).tolist(),
    }
    for n, (count, each) in enumerate(zip(counts, each_text, strict=True))
  ]


@contextlib.contextmanager
def _writing(out: str) -> Iterator[TextIO]:
  """The file to write, atomically."""
  try:
    if os.path.isdir(out):
      raise InputError(f"--out={out}: is a folder; name the page to write")
    if os.path.lexists(out) and not (os.path.isfile(out) and _OURS in Path(out).read_bytes()[:500]):
      raise InputError(
        f"--out={out}: is there already and is no page of this program; name another file"
      )
    with atomic_file(out) as file:
      yield file
  except OSError as error:
    raise InputError(f"--out={out}: {error.strerror or error}") from error
