"""Texts longer than the context: their windows in batches, and the head on all of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from number_words import Numbers
from test_encoding import words

from gpt_jax.batch import Rows
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.windows import WindowsHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.tasks.encoding import Example, encode, window_begins
from gpt_jax.tasks.formats import GPTFormat, first_field
from gpt_jax.tasks.packing import OrderedBatches, PackedBatches
from gpt_jax.tasks.windows import WindowedFormat

CONTEXT = 32
ROOM = CONTEXT - 2  # start and extract
SIZES = [3, 30, 31, 100, 12, 75, 30, 8]


class Halves(GPTFormat):
  """Leaves half of the room to each of two texts."""

  def truncate(self, lengths, context):
    return np.minimum(lengths, context // 2 - 2)


def examples(sizes, others=()):
  rng = np.random.default_rng(0)
  texts = [(words(rng, size, size), *others) for size in sizes]
  return [Example((text,), (1.0, 0.0), f"file:{n}") for n, text in enumerate(texts)]


def encoded(sizes, stride=0, others=(), format=None):
  format = format or WindowedFormat(GPTFormat(), stride)
  return encode(examples(sizes, others), Numbers(), CONTEXT, None, 2, format)


def windows_of(batch, n, groups=1):
  """The ids of each window of example n, found by their anchors."""
  rows, length = batch.rows.inputs.shape
  first_row = n // (len(batch.labels.anchors) // groups) * (rows // groups)
  windows = []
  for anchor in batch.labels.anchors[n]:
    if anchor < 0:
      continue
    row, last = first_row + anchor // length, anchor % length
    cells = batch.rows.segments[row] == batch.rows.segments[row, last]
    np.testing.assert_array_equal(batch.rows.positions[row, cells], np.arange(cells.sum()))
    windows.append(batch.rows.inputs[row, cells])
  return windows


@pytest.mark.parametrize("stride", [0, 1, 7, 30, 99])
@pytest.mark.parametrize("length", [1, 29, 30, 31, 45, 60, 61, 200])
def test_windows_are_full_and_leave_nothing_out(length, stride):
  begins = window_begins(length, ROOM, stride)
  read = {i for begin in begins for i in range(begin, begin + min(length, ROOM))}
  assert read == set(range(length)) and begins == sorted(set(begins))
  assert len(begins) <= 2 or set(np.diff(begins)[:-1]) == {min(stride or ROOM, ROOM)}


def test_a_report_counts_the_windows_that_there_are():
  """Every other text is cut, in all windows of all examples, however many slots are empty."""
  data = encoded(SIZES, others=(" ".join(["7"] * 40),), format=WindowedFormat(Halves()))
  assert "field 2: truncated in 100.0% of sequences" in data.report()


@pytest.mark.parametrize("stride, others", [(0, ()), (20, ("7 8 9",))])
def test_a_text_has_all_its_windows_in_one_group(stride, others):
  data = encoded(SIZES, stride, others)
  assert "of 1 to" in data.report() and "nothing truncated" in data.report()
  room = ROOM - 4 * len(others)  # the other text and the delimiter
  wanted = set()
  for example in examples(SIZES):
    ids = tuple(map(int, example.sequences[0][0].split()))
    begins = window_begins(len(ids), room, stride)
    wanted.add(tuple(ids[begin : begin + room] for begin in begins))
  batches = PackedBatches(data, 4, seed=0, epochs=1, groups=2)
  seen = set()
  for step in range(2):
    batch = batches(step)
    np.testing.assert_allclose(batch.predictions.weights.sum(), 4, rtol=1e-5)  # 1 an example
    for n in range(4):
      windows = windows_of(batch, n, groups=2)
      if others:
        assert all(ids[-5:-1].tolist() == [1001, 7, 8, 9] for ids in windows)
      seen.add(tuple(tuple(ids[1 : -1 - 4 * len(others)].tolist()) for ids in windows))
  assert seen == wanted


def test_short_texts_are_batched_as_without_windows():
  sizes = [3, 30, 12, 8]
  plain, windowed = (encoded(sizes, format=format) for format in (GPTFormat(), None))
  for one, other in zip(OrderedBatches(plain, 2), OrderedBatches(windowed, 2), strict=True):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_what_is_not_read_is_said():
  whole = encoded([99], format=GPTFormat())
  message = "1 of 1 rows is longer than the context of 32"
  assert whole.truncated.all() and message in whole.truncation
  assert not encoded([99]).truncation
  assert encoded([9], others=(words(np.random.default_rng(0), 99, 99),)).truncated.all()


@pytest.mark.parametrize("size, windows", [(21, 13), (22, 1)])
def test_where_other_texts_leave_no_room_the_first_stays_truncated(size, windows):
  """Three special tokens and 21 others leave 8 of 32, a quarter."""
  crowded = examples([99], (words(np.random.default_rng(0), size, size),))
  data = encode(crowded, Numbers(), CONTEXT, first_field, 2, WindowedFormat(GPTFormat()))
  assert (data.lengths > 0).sum() == windows
  assert data.truncated.all() == (windows == 1) and data.lengths.max() == CONTEXT


TRUNK = TransformerConfig(1000, CONTEXT, layers=1, width=16, heads=2, special_tokens=3)


@functools.partial(jax.jit, static_argnames="model")
def states_of(model, params, ids, segments):
  rows = Rows(ids, jnp.arange(CONTEXT)[None], segments)
  return model.apply({"params": params}, rows, method="states").hidden


def hidden_of(model, params, ids):
  """The hidden states [t, D] of a window by itself in a row."""
  row, inside = np.zeros((2, 1, CONTEXT), np.int32)
  row[0, : len(ids)], inside[0, : len(ids)] = ids, 1
  return np.asarray(states_of(model, params, row, inside))[0, : len(ids)]


@pytest.mark.parametrize(
  "over, pooling", [("mean", "sum"), ("max", "mean"), ("attention", "concat")]
)
def test_the_head_pools_what_it_reads_of_each_window_alone(over, pooling, make_run):
  head = WindowsHead(ClassifyHead(2, pooling), over)
  spec = ModelConfig(TRUNK, (head,))
  params = make_run.params_of(spec, 0)
  names = ["bias", "kernel", *["window_kernel"] * (over == "attention")]
  assert sorted(params["head"]) == names  # the head's own are where they are without windows
  model = spec.build()
  data = encoded([100, 3, 31, 60], stride=20)
  (batch,) = OrderedBatches(data, 4)
  scores = jax.jit(model.apply)({"params": params}, batch).heads[0]
  for n in range(4):
    parts = []
    for ids in windows_of(batch, n):
      hidden = hidden_of(model, params, ids)
      reads = {"sum": hidden[-1], "mean": hidden.mean(0)}
      reads["concat"] = np.concatenate([hidden[-1], hidden.max(0), hidden.mean(0)])
      parts.append(reads[pooling])
    parts = np.stack(parts)
    shares = np.ones(len(parts))
    if over == "attention":
      query = params["head"]["window_kernel"][:, 0]
      shares = np.exp(parts @ query / len(query) ** 0.5)
    pooled = parts.max(0) if over == "max" else shares @ parts / shares.sum()
    expected = pooled @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(scores[n], expected, atol=1e-4)


def test_every_window_has_a_gradient(make_run):
  spec = ModelConfig(TRUNK, (WindowsHead(ClassifyHead(2, dropout=0.0), "attention"),))
  params, model = make_run.params_of(spec, 0), spec.build()
  (batch,) = OrderedBatches(encoded([100], stride=0), 1)

  @jax.jit
  def gradient(params):
    outputs = model.apply({"params": params}, batch)
    return spec.head.loss(outputs.heads[0], outputs.states, batch, 1000).total

  rows = np.abs(jax.grad(gradient)(params)["trunk"]["tokens"]).sum(-1)
  read = np.unique(np.concatenate(windows_of(batch, 0)))
  assert (rows[read] > 0).all()


def test_an_option_is_scored_by_the_windows_with_it(make_run):
  """Against a loop over options and windows, each by itself in a row."""
  head = WindowsHead(ClassifyHead(3, "per_choice", dropout=0.0), "attention")
  spec = ModelConfig(TRUNK, (head,))
  params, model = make_run.params_of(spec, 1), spec.build()
  query = np.linspace(-3, 3, 16, dtype=np.float32)
  params["head"]["window_kernel"] = query[:, None]
  rng = np.random.default_rng(2)
  choices = [[words(rng, size, size) for size in (passage, 4, 1, 6, 15)] for passage in (70, 3)]
  rows = []
  for passage, question, *options in choices:
    sequences = tuple((passage, question, option) for option in options)
    rows.append(Example(sequences, (0.0, 1.0, 0.0), "file:1"))
  data = encode(rows, Numbers(), CONTEXT, first_field, 3, WindowedFormat(GPTFormat()))
  assert not data.truncated.any()
  (batch,) = OrderedBatches(data, 2)
  scores = jax.jit(model.apply)({"params": params}, batch).heads[0]
  for n, texts in enumerate(choices):
    passage, question, *options = (list(map(int, text.split())) for text in texts)
    for k, option in enumerate(options):
      room = CONTEXT - 3 - len(question) - len(option)
      reads = []
      for begin in window_begins(len(passage), room, 0):
        window = passage[begin : begin + room]
        ids = [1000, *window, *question, 1001, *option, 1002]
        reads.append(hidden_of(model, params, ids)[-1])
      shares = np.exp(np.stack(reads) @ query / 16**0.5)
      pooled = shares @ np.stack(reads) / shares.sum()
      expected = pooled @ params["head"]["kernel"] + params["head"]["bias"]
      np.testing.assert_allclose(scores[n, k], expected[0], atol=1e-4)
