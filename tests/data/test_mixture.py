"""Mixtures: each source has its share of every batch, and its rows in their own order."""

import dataclasses

import numpy as np
import pytest
from refused import refused
from token_files import numbered, write

from gpt_jax.data.mixture import MixedText, MixedWindows, interleave, mixture_shares
from gpt_jax.data.sentence_windows import PairWindows
from gpt_jax.data.windows import Windows, WindowsConfig

CONFIG = WindowsConfig(batch_size=8, length=16)
SIZES = {"a": (40, 100, 257), "b": (33, 18), "c": (70, 50, 64)}
SHARES = (0.55, 0.05, 0.4)


@pytest.fixture
def files(tmp_path):
  return [write(tmp_path, numbered(sizes), split=name) for name, sizes in SIZES.items()]


def mixed(files, config=CONFIG, shares=SHARES, **settings):
  windows = [Windows(file, config, seed=number, **settings) for number, file in enumerate(files)]
  return MixedWindows(windows, shares), windows


@pytest.mark.parametrize("shares", [SHARES, (0.5, 0.5), (0.999, 0.001), (1 / 3,) * 3, (1.0,)])
def test_each_row_is_the_next_of_its_source(shares):
  """Against counting; in any stretch of rows the first source has its share to within one."""
  source, index = interleave(np.arange(5000), shares)
  counts = np.zeros(len(shares), int)
  for number, at in zip(source, index, strict=True):
    assert at == counts[number]
    counts[number] += 1
  np.testing.assert_allclose(counts, 5000 * np.array(shares), atol=len(shares))
  for size in (8, 100, 1000):
    first = np.convolve(source == 0, np.ones(size, int), "valid")
    assert np.abs(first - size * shares[0]).max() <= 1
  numbers = 2**38 + np.arange(1000)  # far into a run
  source, index = interleave(numbers, shares)
  np.testing.assert_allclose(np.bincount(source), 1000 * np.array(shares), atol=3)
  np.testing.assert_allclose(index / numbers, np.array(shares)[source], rtol=2e-5)


def test_a_source_gives_the_rows_that_it_gives_alone(files):
  """All of them, in their order, with their noise."""
  mixture, windows = mixed(files)
  every = np.arange(8)
  rows = np.concatenate([mixture(step) for step in range(40)])
  noise = np.concatenate([mixture.draw(step, every)("x", (3,)) for step in range(40)])
  source, _ = interleave(np.arange(320), SHARES)
  for number, alone in enumerate(windows):
    its_rows, its_noise = rows[source == number], noise[source == number]
    steps = range(-(-len(its_rows) // 8))
    expected = np.concatenate([alone(step) for step in steps])
    drawn = np.concatenate([alone.draw(step, every)("x", (3,)) for step in steps])
    np.testing.assert_array_equal(its_rows, expected[: len(its_rows)])
    np.testing.assert_array_equal(its_noise, drawn[: len(its_noise)])
  assert mixture.steps_per_epoch == -(-sum(alone.spans_per_epoch for alone in windows) // 8)


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("copies", [0, 2])
def test_hosts_read_the_rows_of_the_whole_batch(files, hosts, copies):
  """Each in an order of steps of its own."""
  whole, _ = mixed(files, copies=copies)
  for host, rows in enumerate(np.split(np.arange(8), hosts)):
    share, _ = mixed(files, copies=copies)
    for step in np.random.default_rng(host).permutation(30).tolist():
      np.testing.assert_array_equal(share(step, rows), whole(step)[rows])
      noise = whole.draw(step, np.arange(8))("mask", (16,))
      np.testing.assert_array_equal(share.draw(step, rows)("mask", (16,)), noise[rows])


def test_pairs_of_sentences_stay_within_their_source(tmp_path):
  """Rows of another kind, which draw from their own source."""
  files = []
  for number, sizes in enumerate(SIZES.values()):
    file = write(tmp_path, [ids + 1000 * number for ids in numbered(sizes)], 4000, str(number))
    file.sentences = np.unique(np.concatenate([file.offsets, np.arange(0, file.n_tokens, 5)]))
    files.append(file)
  mixture = MixedWindows([PairWindows(file, CONFIG) for file in files], SHARES)
  source, _ = interleave(np.arange(80), SHARES)
  for row, number in zip(np.concatenate([*map(mixture, range(10))]), source, strict=True):
    assert set(row[row >= 0] // 1000) == {number}


def test_shares(files):
  sizes = np.array([sum(sizes) for sizes in SIZES.values()])
  np.testing.assert_allclose(mixture_shares(files, CONFIG), sizes / sizes.sum())
  flatter = mixture_shares(files, dataclasses.replace(CONFIG, temperature=2.0))
  np.testing.assert_allclose(flatter, np.sqrt(sizes) / np.sqrt(sizes).sum())
  weighted = dataclasses.replace(CONFIG, weights=(9, 4, 1), temperature=2.0)
  np.testing.assert_allclose(mixture_shares(files, weighted), np.array([3, 2, 1]) / 6)
  equal = mixture_shares(files, dataclasses.replace(CONFIG, temperature=1e9))
  np.testing.assert_allclose(equal, 1 / 3, rtol=1e-6)


def test_a_mixed_text(files):
  text = MixedText(files, SHARES)
  assert text.n_tokens == sum(map(sum, SIZES.values()))
  assert text.unigram_entropy == pytest.approx(
    sum(share * file.unigram_entropy for share, file in zip(SHARES, files, strict=True))
  )
  assert text.digest != MixedText(files[::-1], SHARES[::-1]).digest
  assert text.digest == MixedText(files, (0.2, 0.3, 0.5)).digest


@pytest.mark.parametrize(
  "weights, message",
  [
    ((0.5, 0.5), r"data\.weights=0\.5,0\.5: 2 weights for 3 texts"),
    ((1, 0, 1), r"data\.weights=1,0,1: each must be above 0; leave out"),
    ((1, -2, 1), r"data\.weights=1,-2,1: each must be above 0; leave out"),
  ],
)
def test_wrong_weights(files, weights, message):
  refused(message, mixture_shares, files, dataclasses.replace(CONFIG, weights=weights))
