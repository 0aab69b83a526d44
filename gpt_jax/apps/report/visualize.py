"""Writes an HTML page with token probabilities, attention, and a fine-tuned model's labels."""

import base64
import dataclasses
import functools
import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.apps.study import open_page
from gpt_jax.batch import Rows
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.errors import InputError, counted
from gpt_jax.files import exists, size
from gpt_jax.inference.calibration import scale
from gpt_jax.inference.dev_report import temperature_of
from gpt_jax.inference.scoring import bucket, check_length
from gpt_jax.models.model import Model
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.readers import Row, Table, read_lines, usable
from gpt_jax.tasks.task import Task

TOP_CANDIDATES = 5


def run(
  checkpoint: str, out: str = "", texts: Sequence[str] = (), source: str = ""
) -> dict[str, Any]:
  """Writes a self-contained HTML page and returns the values in it.

  Args:
    checkpoint: see load_model; a language model reads each text as it is, a fine-tuned one in its
      task's format.
    out: self-contained HTML page to write; by default page.html in the run's folder, or for a model
      that is no run in this one. An existing page of this program is replaced, any other file is
      not.
    texts: text to show; for a task of several columns, these separated by tabs.
    source: file with one more text per line, or - for stdin; for a fine-tuned model rows, as for
      predict.

  Returns:
    {"model": …, "texts": […]}. A text has `sequences` of its task, each with its `tokens`, their
    `logp` (natural logarithm), `rank` and `best`, the top candidates at their positions, where the
    first entry is None; and `classes`: `labels` and `probabilities` [prefixes, K], or None.
  """
  if not texts and not source:
    raise InputError("no text: give one with --text=TEXT, or a file of texts with --input=FILE")
  loaded = load_model(checkpoint, check=LoadedModel.language_model)
  is_run = exists(os.path.join(loaded.folder, "checkpoints"))
  out = out or os.path.join(loaded.folder if is_run else "", "page.html")
  task = loaded.label_task() if loaded.task else None
  if task and not task.labels:
    advice = "the page shows probabilities of labels; give the model that it was fine-tuned from"
    raise InputError(f"{checkpoint}: a regression model gives numbers, and {advice}")
  rows = [*_typed_rows(texts, task), *(_file_rows(source, task) if source else ())]
  if not rows:
    raise InputError(f"--input={source}: the file has no texts")
  # Before computing, so that an unwritable path fails early.
  with open_page(out, "visualize") as file:
    contents = _describe_rows(loaded, task, rows) if task else _describe_texts(loaded, rows)
    # The folder of the run and what follows it, without those that the run lies in.
    parts = checkpoint.rstrip("/").split("/")
    known = {"best": 2}.get(parts[-1], 3 if parts[-2:-1] == ["checkpoints"] else 1)
    trunk = loaded.spec.trunk
    model = {
      "checkpoint": "/".join(parts[-known:]),
      "step": loaded.step,
      "task": task and task.name,
      "parameters": trunk.parameter_count(),
      "vocabulary": trunk.vocab_size,
      "choices": loaded.model.num_tokens,
      "context": trunk.context,
      "layers": trunk.layers if trunk.heads else 0,  # an LSTM has no heads
      "heads": trunk.heads,
    }
    page = {"model": model, "texts": contents}
    # "<" would end the script element, so it is escaped, as is non-ASCII.
    data = json.dumps(page, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    html = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    file.write(html.replace("{{script}}", script).replace("{{data}}", data))
  print(f"wrote {out}: {counted(len(rows), 'text')}, {size(out) / 1e6:.2f} MB")
  return page


def _typed_rows(texts: Sequence[str], task: Task | None) -> Iterator[Row]:
  for number, text in enumerate(texts, 1):
    # Python represents undecodable bytes of the command line as lone surrogates.
    if any("\ud800" <= character <= "\udfff" for character in text):
      raise InputError(f"text {number}: not UTF-8")
    cells = tuple(text.split("\t")) if task else (text,)
    if task and len(cells) != len(task.columns):
      given, wanted = counted(len(cells), "column"), f"{len(task.columns)}, separated by tabs"
      fault = f"{given}; the task {task.name} reads {wanted}: {', '.join(task.columns)}"
      raise InputError(f"text {number}: {fault}")
    yield Row(cells, None, f"text {number}")


def _file_rows(source: str, task: Task | None) -> Iterator[Row]:
  if task:
    table, columns = Table.with_texts(source, task.columns)
    yield from usable(table.rows(columns))
    return
  for number, line in read_lines(source):
    yield Row((line,), None, f"{source}:{number}")


def _describe_texts(loaded: LoadedModel, rows: list[Row]) -> list[dict[str, Any]]:
  """The page's entries for the texts of a language model, which has no rule to truncate them."""
  encoded = loaded.tokenizer.encode_many([row.texts[0] for row in rows])
  context = loaded.spec.trunk.context
  for row, ids in zip(rows, encoded, strict=True):
    check_length(ids, row.location, context, context)
  params, entries = jax.device_put(loaded.params), []
  for row, ids in zip(rows, encoded, strict=True):
    sequences = [_describe_sequence(loaded, params, ids)]
    entries.append({"text": row.texts[0], "note": "", "sequences": sequences, "classes": None})
  return entries


def _describe_rows(loaded: LoadedModel, task: Task, rows: list[Row]) -> list[dict[str, Any]]:
  """The page's entries for the rows of a fine-tuned model's task."""
  encoded = loaded.encode(task, [task.example(row) for row in rows])
  if loaded.format.of_window is not loaded.format and encoded.fields.shape[1] > 1:
    first = np.flatnonzero(encoded.kept[:, 1].any(-1))[0]  # that has a second window
    windows = f"is read in windows of {encoded.context} tokens, and the page shows one"
    raise InputError(f"{rows[first].location}: {windows}; give a part of the text")
  notes = [_truncation_note(encoded, n) for n in range(len(rows))]
  params, entries = jax.device_put(loaded.params), []
  for n, classes in enumerate(_describe_classes(loaded, task, encoded)):
    all_ids = [encoded.sequence(n, c) for c in range(encoded.fields.shape[1])]
    sequences = [_describe_sequence(loaded, params, ids) for ids in all_ids]
    text = " | ".join(rows[n].texts)
    entries.append({"text": text, "note": notes[n], "sequences": sequences, "classes": classes})
  return entries


def _truncation_note(encoded: Encoded, n: int) -> str:
  """Warns about a text that is truncated, as fine-tuning and predict do; "" if it fits."""
  # The second order of a pair has the same texts.
  are_same = len({tuple(sorted(texts)) for texts in encoded.fields[n].tolist()}) == 1
  counted = slice(0, 1 if are_same else None)
  kept = encoded.kept[n, counted].sum()
  total = sum(len(encoded.texts[text]) for text in encoded.fields[n, counted].flat)
  if kept == total:
    return ""
  context = f"truncated to the context of {encoded.context}"
  note = f"{context}, as in fine-tuning: {kept} of {total} tokens"
  warnings.warn(f"{encoded.locations[n]}: {note}", stacklevel=2)
  return note


def _describe_sequence(loaded: LoadedModel, params: Any, ids: np.ndarray) -> dict[str, Any]:
  """The probabilities of a sequence's tokens, the top candidates, and the attention."""
  length, context = len(ids), loaded.spec.trunk.context
  padded = np.zeros(bucket(length, context), np.int32)
  padded[:length] = ids
  model = loaded.language_model()
  measured, attention = jax.device_get(read(model, params, padded, loaded.model.num_tokens))
  logp, rank, best, best_logp = (x[: length - 1] for x in measured)
  spell = loaded.tokenizer.spelling
  special = [i for _, i in loaded.tokenizer.special.items()]
  candidates = []
  for best_ids, best_logps in zip(best.tolist(), best_logp.tolist(), strict=True):
    pairs = zip(best_ids, best_logps, strict=True)
    candidates.append([[spell(i), float(f"{math.exp(p):.3g}")] for i, p in pairs])
  mean = float(logp.mean(dtype=np.float64)) if length > 1 else None
  return {
    "tokens": [spell(i) for i in ids.tolist()],
    "special": np.flatnonzero(np.isin(ids, special)).tolist(),
    "lines": np.flatnonzero(ids == loaded.tokenizer.line_id).tolist(),
    "logp": [None, *(round(p, 4) for p in logp.tolist())],
    "rank": [None, *rank.tolist()],
    "best": [None, *candidates],
    "mean": mean,
    "perplexity": None if mean is None else math.exp(min(-mean, 700.0)),
    "attention": None if attention is None else quantize(attention[:, :, :length, :length]),
  }


@functools.partial(jax.jit, static_argnames=("model", "num_tokens"))
def read(model: Model, params: Any, ids: jax.Array, num_tokens: int):
  """Predictions and attention at every position of a text; ids are int32 [T].

  For positions 1 to T - 1 the token's log-probability [T - 1], its rank from 1 [T - 1], and the ids
  and log-probabilities of the top candidates [T - 1, 5]; attention [layers, H, T, T] or None.
  """
  rows = Rows(ids[None], jnp.arange(len(ids))[None])
  (hidden, table, *_), kept = model.apply(
    {"params": params}, rows, method="states", mutable="intermediates"
  )
  scores = jax.nn.log_softmax(logits(hidden[0, :-1], table, num_tokens))
  right = jnp.take_along_axis(scores, ids[1:, None], axis=-1)
  best_logp, best = jax.lax.top_k(scores, TOP_CANDIDATES)
  measured = right[:, 0], 1 + (scores > right).sum(-1), best, best_logp
  return measured, attention_maps(kept["intermediates"]["trunk"])[:, 0] if kept else None


def attention_maps(intermediates: Any) -> jax.Array:
  """Attention probabilities before dropout, float32 [layers, B, H, T, T], of the trunk's
  "intermediates" of an apply(…, mutable="intermediates").
  """
  maps = []
  for i in range(len(intermediates)):
    # Blocks of queries, each over its own prefix of keys (ops/attention_plain.py).
    blocks = intermediates[f"block_{i}"]["attention"]["probabilities"]
    length = blocks[-1].shape[-1]
    padded = [jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, length - x.shape[-1]))) for x in blocks]
    queries = jnp.concatenate(padded, axis=2)
    # A shared block has those of all layers, one after the other.
    maps += jnp.split(queries, queries.shape[2] // length, axis=2)
  return jnp.stack(maps)


def quantize(attention: np.ndarray) -> str:
  """Packs the lower triangles of [layers, H, T, T], row by row, as base64 of bytes 255 sqrt(p).

  The error of p is at most 0.004; small weights do not become zero. With 12 x 12 heads, 50 tokens
  take 0.2 MB of the page and 512 take 25 MB.
  """
  lower = np.tril_indices(attention.shape[-1])
  packed = np.rint(255 * np.sqrt(attention[:, :, *lower])).astype(np.uint8)
  return base64.b64encode(packed.tobytes()).decode()


def _describe_classes(loaded: LoadedModel, task: Task, encoded: Encoded) -> list[dict[str, Any]]:
  """Label probabilities after 1, 2, … tokens of the last column, or of all options."""
  prefixes, counts = _prefixes(task, encoded)
  probabilities = scale(loaded.predictor()(prefixes, 32), temperature_of(loaded) or 1.0)
  by_text = np.split(probabilities, np.cumsum(counts)[:-1])
  classes: list[dict[str, Any]] = []
  for n, (count, values) in enumerate(zip(counts, by_text, strict=True)):
    tokens = None
    if task.pooling != "per_choice":
      ids = encoded.texts[encoded.fields[n, 0, -1]][:count]
      tokens = list(map(loaded.tokenizer.spelling, ids.tolist())) or [""]  # an empty column
    values = np.round(values.astype(np.float64), 5).tolist()
    classes.append({"labels": list(task.labels), "tokens": tokens, "probabilities": values})
  return classes


def _prefixes(task: Task, encoded: Encoded) -> tuple[Encoded, list[int]]:
  """All examples with 1, 2, … tokens of their growing fields, and how many prefixes each has."""
  _, sequences, fields = encoded.fields.shape
  growing = np.zeros((sequences, fields), bool)
  growing[:, -1] = True
  if task.pooling == "sum":
    growing[1:] = growing[1:, ::-1]  # the second order of similarity begins with the last column
  kept, counts = [], []
  for lengths in encoded.kept:
    counts.append(max(1, int(lengths[growing].max())))  # of an empty last column
    for n in range(1, counts[-1] + 1):
      kept.append(np.where(growing, np.minimum(lengths, n), lengths))
  repeated: dict[str, Any] = {}
  for name in ("fields", "labels", "locations"):
    repeated[name] = np.repeat(getattr(encoded, name), counts, axis=0)
  return dataclasses.replace(encoded, kept=np.stack(kept), **repeated), counts
