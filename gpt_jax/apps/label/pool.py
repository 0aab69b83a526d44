"""The rows of a table without labels to label next: rows that the model is unsure of, and that
differ from one another (BADGE, Ash et al. 2020), those first whose label has few rows so far.
"""

import io
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt_jax.apps.label.table import Labeled
from gpt_jax.apps.study import Study
from gpt_jax.data.file_kinds import write_table
from gpt_jax.errors import InputError
from gpt_jax.files import exists, read_json, write_json
from gpt_jax.inference.linear_classifier import Linear, fit_linear
from gpt_jax.programs.outputs import is_same_file
from gpt_jax.tasks.readers import Row

_POOL = "pool.csv"
_WRITTEN = "work/pool.json"  # the CRC-32 of pool.csv as it was written
SEEDS = 5
_HELD_OUT = 0.3  # of the labeled rows, in a simulation
_ROUNDS = 3  # of it, each with twice the labels of the one before


def choose(
  features: np.ndarray, probabilities: np.ndarray, counts: np.ndarray, count: int, seed: int
) -> np.ndarray:
  """Numbers of `count` rows in the order to label them, int [count].

  A row stands for the gradient of its loss if the model's guess were right, an outer product of
  what it got wrong and the features. Rows are drawn as by k-means++: with a probability in
  proportion to the squared distance from the nearest one that was drawn, here over the root of
  the number of labels that the guessed class has.

  Args:
    features: [M, F].
    probabilities: of the model, [M, K].
    counts: how many labels each class has, [K].
  """
  rng, count = np.random.default_rng(seed), min(count, len(features))
  guesses = probabilities.argmax(axis=1)
  errors = probabilities - np.eye(probabilities.shape[1])[guesses]
  scaled = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 1e-6)
  norms = (errors**2).sum(axis=1) * (scaled**2).sum(axis=1)
  # A class without labels yet counts as one with a single label.
  coldness = 1 / np.sqrt(1 + counts[guesses])
  chosen = [int((norms * coldness).argmax())]
  distances = np.full(len(features), np.inf)
  while len(chosen) < count:
    last = chosen[-1]
    # Of outer products the inner product is that of both factors.
    products = (errors @ errors[last]) * (scaled @ scaled[last])
    to_last = np.maximum(norms + norms[last] - 2 * products, 0.0)
    distances = np.minimum(distances, to_last)
    distances[chosen] = 0.0
    weights = distances * coldness
    if not weights.any():  # all others are equal to one that was drawn
      others = np.setdiff1d(np.arange(len(features)), chosen)
      return np.array([*chosen, *rng.permutation(others)[: count - len(chosen)]])
    chosen.append(int(rng.choice(len(features), p=weights / weights.sum())))
  return np.array(chosen)


def simulate(
  features: np.ndarray,
  classes: np.ndarray,
  groups: np.ndarray,
  num_classes: int,
  inverse_penalty: float,
) -> dict[str, Any]:
  """The benefit that choosing would have had on rows with labels, beside rows at random.

  `groups`, int [N], are of near-duplicates, which are held out together.

  Returns:
    "labels": of each round; "chosen" and "random": accuracies on held-out rows, a list of rounds
    for each seed; "gain": the mean difference, and "deviation", its standard deviation over the
    seeds. {} if too few rows are not held out, as where most are near-duplicates of one another.
  """
  first = max(2 * num_classes, len(classes) // 2 ** (_ROUNDS + 2), 10)
  splits = [_split(groups, seed) for seed in range(SEEDS)]
  room = min(len(rest) for rest, _ in splits)
  # A round that takes all rows has nothing to choose.
  labels = [first * 2**n for n in range(1, _ROUNDS + 1) if first * 2**n < room]
  if not labels:
    return {}

  def fit(known: np.ndarray) -> Linear:
    return fit_linear(features[known], classes[known], num_classes, inverse_penalty)

  def chosen(known: np.ndarray, others: np.ndarray, count: int, seed: int) -> np.ndarray:
    counts = np.bincount(classes[known], minlength=num_classes)
    of_others = features[others]
    return others[choose(of_others, fit(known)(of_others), counts, count, seed)]

  def at_random(known: np.ndarray, others: np.ndarray, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, len(known)])
    return rng.permutation(others)[:count]

  def curve(pick: Callable[..., np.ndarray], seed: int) -> list[float]:
    rest, held_out = splits[seed]
    known, of_rounds = rest[:first], []  # the same rows for both
    for total in labels:
      others = np.setdiff1d(rest, known, assume_unique=True)
      known = np.concatenate([known, pick(known, others, total - len(known), seed)])
      right = fit(known)(features[held_out]).argmax(axis=1) == classes[held_out]
      of_rounds.append(float(right.mean()))
    return of_rounds

  accuracies = {
    name: [curve(pick, seed) for seed in range(SEEDS)]
    for name, pick in (("chosen", chosen), ("random", at_random))
  }
  gains = np.mean(accuracies["chosen"], axis=1) - np.mean(accuracies["random"], axis=1)
  measured = {"gain": float(gains.mean()), "deviation": float(gains.std(ddof=1))}
  return {"labels": labels, **accuracies, **measured}


def _split(groups: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Rows to choose from, in a random order, and rows that are held out."""
  rng, names = np.random.default_rng(seed), np.unique(groups)
  held_out = np.isin(groups, rng.permutation(names)[: round(_HELD_OUT * len(names))])
  return rng.permutation(np.flatnonzero(~held_out)), np.flatnonzero(held_out)


def about_pool(simulated: dict[str, Any], curve: dict[str, Any], held_out: int) -> str:
  """Two sentences: the gain of choosing in the simulation, and whether to label more.

  The curve is that of measures.measure_curve, measured on `held_out` rows.
  """
  if simulated:
    first, last = simulated["labels"][0], simulated["labels"][-1]
    gain, deviation = 100 * simulated["gain"], 100 * simulated["deviation"]
    verdict = "so label at random" if gain <= deviation / SEEDS**0.5 else "so label in this order"
    about = (
      f"On your labeled rows, with {first:,} to {last:,} labels, chosen rows were worth "
      f"{gain:+.1f} points of accuracy beside as many at random ({SEEDS} seeds, deviation "
      f"{deviation:.1f}), {verdict}."
    )
  else:
    about = "Your labeled rows are too few, or too alike, to try what choosing is worth."
  accuracy = curve[curve["model"]][-1]
  error = 100 * (accuracy * (1 - accuracy) / held_out) ** 0.5
  stop = "label more" if 100 * curve["gain"] > error else "stop"
  return (
    f"{about} Stop where twice the labels promise no more than the standard error on your "
    f"{held_out:,} held-out rows: now {100 * curve['gain']:.1f} and {error:.1f} points, so {stop}."
  )


def check_pool(study: Study, source: str) -> None:
  """Raises InputError if WORKDIR/pool.csv is the pool, or was edited: its labels would be lost."""
  path = study.path(_POOL)
  if not exists(path):
    return
  if is_same_file(path, source):
    raise InputError(f"--pool={source}: would be overwritten; name another file")
  try:
    with open(path, "rb") as file:
      is_ours = zlib.crc32(file.read()) == read_json(study.path(_WRITTEN))
  except (OSError, ValueError):
    is_ours = False
  # Users write labels beside the texts.
  if not is_ours:
    raise InputError(
      f"{path}: was edited since it was written, and would be overwritten; move it elsewhere"
    )


def write_pool(
  study: Study, rows: list[Row], order: np.ndarray, labeled: Labeled, probabilities: np.ndarray
) -> str:
  """Writes WORKDIR/pool.csv, the rows to label next first, with the model's guess; its path."""
  content = io.StringIO()
  table = [["line", "text", "guess", "p(guess)"]]
  for number in order:
    row, best = rows[number], int(probabilities[number].argmax())
    cells = [row.location.rpartition(":")[2], "\n".join(row.texts), labeled.labels[best]]
    table.append([*cells, f"{probabilities[number, best]:.4f}"])
  write_table(content, table, *labeled.csv_layout)
  study.write(_POOL, content.getvalue())
  write_json(study.path(_WRITTEN), zlib.crc32(content.getvalue().encode()))
  return study.path(_POOL)
