"""Search: nearest texts against a full sort, and refusals."""

import json
import tracemalloc

import numpy as np
import pytest
from in_process import launch

from gpt_jax.apps.search import search as search_app

TEXTS = ["the cat sat on the mat", "the dog ran to the barn", "the old red barn by the sea"]


def unit(vectors):
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("limit, at_once", [("_QUERIES", 3), ("_COSINES", 100)])
def test_the_nearest_are_those_of_a_full_sort(monkeypatch, limit, at_once):
  monkeypatch.setattr(search_app, limit, at_once)
  rng = np.random.default_rng(0)
  vectors, queries = rng.normal(size=(50, 8)), rng.normal(size=(4, 8))
  cosines = unit(queries) @ unit(vectors).T
  numbers, found = search_app.nearest(vectors, queries, 9)
  np.testing.assert_array_equal(numbers, np.argsort(-cosines, axis=1)[:, :9])
  np.testing.assert_allclose(found, -np.sort(-cosines, axis=1)[:, :9], atol=1e-6)
  assert search_app.nearest(vectors, queries, 99)[0].shape == (4, 50)
  first, second = search_app.nearest(np.tile(np.eye(8), (2, 1)), np.eye(8), 2)[0].T
  np.testing.assert_array_equal(second, first + 8)  # of equal cosines the earlier text


def test_memory_does_not_grow_with_the_queries():
  rng, peaks = np.random.default_rng(0), []
  vectors = rng.normal(size=(20_000, 8)).astype(np.float32)
  for count in (256, 2048):
    queries = rng.normal(size=(count, 8)).astype(np.float32)
    tracemalloc.start()
    search_app.nearest(vectors, queries, 5)
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
  assert peaks[1] < 2 * peaks[0]


@pytest.fixture
def search(finetuned):
  """search(*flags) -> exit code, output, error."""
  return lambda *flags: launch("search", f"--checkpoint={finetuned.pretrained}", *flags)


def write(path, texts):
  path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_the_nearest_texts_to_each_query(search, tmp_path):
  table = tmp_path / "texts.jsonl"
  write(table, TEXTS)
  code, out, _ = search(f"--source={table}", f"--query={TEXTS[1]}")
  first = out.splitlines()[1].split("\t")
  assert code == 0 and first[1:] == ["1", "1.0000", f"{table}:2", TEXTS[1]]
  (tmp_path / "queries.txt").write_text("\n".join(TEXTS))
  code, out, _ = search(f"--source={table}", f"--queries={tmp_path / 'queries.txt'}", "--count=1")
  assert code == 0 and len(out.splitlines()) == 4


def test_a_text_without_a_token_is_left_out_and_named(search, tmp_path):
  table = tmp_path / "texts.jsonl"
  write(table, [TEXTS[0], "\u200b", "half \ud800", TEXTS[1]])
  code, out, err = search(f"--source={table}", "--query=the\tcat\n")
  assert code == 0 and f"2 texts without a token left out: {table}:2, {table}:3\n" in err
  header, *answers = out.splitlines()
  assert sorted(line.split("\t")[3] for line in answers) == [f"{table}:1", f"{table}:4"]
  assert all(line.startswith("the cat\t") for line in answers)


def test_a_place_of_any_name_is_one_cell(capsys):
  place = "d/\udcff\t\n\u2028é.txt:1"
  search_app.show(["q"], [[{"place": place, "cosine": 1.0, "text": "half \ud800"}]])
  out = capsys.readouterr().out
  assert out.splitlines()[1] == "q\t1\t1.0000\td/\\udcff\\t\\n\\u2028é.txt:1\thalf \\ud800"


def test_what_is_refused(search, tmp_path):
  table = tmp_path / "texts.jsonl"
  write(table, TEXTS)
  refused = lambda *flags: search(*flags)[::2]
  assert refused("--query=x")[0] == 2 and "--source" in refused("--query=x")[1]
  assert "give at least one of them" in refused(f"--source={table}")[1]
  assert "--count=0: must be 1 or more" in refused(f"--source={table}", "--query=x", "--count=0")[1]
  assert "query='': has no token" in refused(f"--source={table}", "--query=")[1]
  write(table, [" "])
  assert "has no text" in refused(f"--source={table}", "--query=x")[1]
  (tmp_path / "none.txt").write_text("\n")
  assert "has no query" in refused(f"--source={table}", f"--queries={tmp_path / 'none.txt'}")[1]
