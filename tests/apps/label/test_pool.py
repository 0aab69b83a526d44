"""Rows to label next: the choice against explicit gradients, and what it brings on made-up rows."""

import numpy as np

from gpt_jax.apps.label.pool import about_pool, choose, simulate


def by_explicit_gradients(features, probabilities, counts, count, seed):
  """k-means++ on the outer products themselves."""
  rng = np.random.default_rng(seed)
  scaled = (features - features.mean(axis=0)) / features.std(axis=0)
  guesses = probabilities.argmax(axis=1)
  errors = probabilities.copy()
  errors[np.arange(len(errors)), guesses] -= 1
  gradients = np.einsum("nk,nf->nkf", errors, scaled).reshape(len(features), -1)
  coldness = 1 / np.sqrt(1 + counts[guesses])
  chosen = [int(((gradients**2).sum(axis=1) * coldness).argmax())]
  while len(chosen) < count:
    away = ((gradients[:, None] - gradients[chosen][None]) ** 2).sum(axis=-1).min(axis=1)
    weights = away * coldness
    weights[chosen] = 0
    chosen.append(int(rng.choice(len(features), p=weights / weights.sum())))
  return chosen


def test_the_choice_is_that_of_explicit_gradients():
  rng = np.random.default_rng(0)
  features, counts = rng.normal(size=(40, 5)), np.array([9, 1, 4])
  probabilities = rng.dirichlet(np.ones(3), size=40)
  found = choose(features, probabilities, counts, 12, 3)
  assert found.tolist() == by_explicit_gradients(features, probabilities, counts, 12, 3)
  assert len(set(choose(features, probabilities, counts, 99, 3).tolist())) == 40


def test_equal_rows_come_once_before_any_comes_twice():
  features = np.repeat(np.eye(4), 5, axis=0)
  probabilities = np.full((20, 2), [0.6, 0.4])
  found = choose(features, probabilities, np.array([1, 1]), 20, 0)
  assert sorted((found[:4] // 5).tolist()) == [0, 1, 2, 3]
  assert sorted(found.tolist()) == list(range(20))


def test_the_first_row_is_of_a_class_with_few_labels():
  features = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
  probabilities = np.array([[0.6, 0.4], [0.4, 0.6], [0.9, 0.1], [0.1, 0.9]])
  assert choose(features, probabilities, np.array([50, 1]), 1, 0).tolist() == [1]
  assert choose(features, probabilities, np.array([1, 50]), 1, 0).tolist() == [0]


def test_chosen_rows_find_rare_classes_sooner():
  rng = np.random.default_rng(1)
  classes = rng.choice(6, size=600, p=[0.5, 0.3, 0.1, 0.05, 0.03, 0.02])
  features = 3 * np.eye(6)[classes] + rng.normal(size=(600, 6))
  simulated = simulate(features, classes, np.arange(600), 6, 1.0)
  assert simulated["labels"] == [36, 72, 144]
  assert np.shape(simulated["chosen"]) == np.shape(simulated["random"]) == (5, 3)
  assert simulated["gain"] > 0


def test_a_simulation_ends_before_all_rows_are_taken():
  classes = np.arange(100) % 10
  features = 3 * np.eye(10)[classes] + np.random.default_rng(2).normal(size=(100, 10))
  simulated = simulate(features, classes, np.arange(100), 10, 1.0)
  assert simulated["labels"] == [40]  # 70 rows are not held out


def test_what_is_said_of_a_simulation():
  curve = {"model": "probe", "probe": [0.5, 0.8], "gain": 0.05}
  simulated = {"labels": [20, 40], "gain": 0.0, "deviation": 0.0}
  told = about_pool(simulated, curve, 100)
  assert "so label at random" in told and "now 5.0 and 4.0 points, so label more" in told
  told = about_pool(simulated | {"gain": 0.02}, curve | {"gain": 0.01}, 100)
  assert "so label in this order" in told and told.endswith("so stop.")
  told = about_pool({}, {"model": "probe", "probe": [1.0, 1.0], "gain": 0.0}, 100)
  assert "too few, or too alike" in told and told.endswith("now 0.0 and 0.0 points, so stop.")


def test_near_duplicates_leave_nothing_to_simulate():
  classes, groups = np.arange(100) % 2, np.minimum(np.arange(100), 20)  # 80 rows are one group
  features = np.random.default_rng(3).normal(size=(100, 4))
  assert simulate(features, classes, groups, 2, 1.0) == {}
