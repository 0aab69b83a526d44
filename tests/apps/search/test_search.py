"""Search: nearest texts against a full sort, updated indices, refusals, and retrieval measures."""

import concurrent.futures
import hashlib
import io
import json
import os
import tracemalloc

import numpy as np
import pytest
from in_process import launch
from refused import refused

from gpt_jax.apps.search import index as index_file
from gpt_jax.apps.search import search as search_app
from gpt_jax.apps.search.index import Index, normalized, read_index
from gpt_jax.apps.search.retrieval import measure, read_judged
from gpt_jax.errors import InputError
from gpt_jax.files import with_checksum

TEXTS = ["the cat sat on the mat", "the dog ran to the barn", "the old red barn by the sea"]


def random_index(count=50, width=8):
  vectors = normalized(np.random.default_rng(0).normal(size=(count, width)))
  return Index("", [str(n) for n in range(count)], [f"text {n}" for n in range(count)], vectors)


@pytest.mark.parametrize("limit, at_once", [("_QUERIES", 3), ("_COSINES", 100)])
def test_the_nearest_are_those_of_a_full_sort(monkeypatch, limit, at_once):
  monkeypatch.setattr(index_file, limit, at_once)
  index, queries = random_index(), np.random.default_rng(1).normal(size=(4, 8))
  cosines = normalized(queries) @ index.vectors.T
  numbers, found = index.nearest(queries, 9)
  np.testing.assert_array_equal(numbers, np.argsort(-cosines, axis=1)[:, :9])
  np.testing.assert_allclose(found, -np.sort(-cosines, axis=1)[:, :9], atol=1e-6)
  assert index.nearest(queries, 99)[0].shape == (4, 50)
  twice = index._replace(vectors=np.tile(np.eye(8, dtype=np.float32), (2, 1)))
  first, second = twice.nearest(np.eye(8), 2)[0].T
  np.testing.assert_array_equal(second, first + 8)  # of equal cosines the earlier text
  assert index.nearest(queries[:0], 5)[0].shape == (0, 5)


def test_memory_does_not_grow_with_the_queries():
  index, peaks = random_index(20_000), []
  for count in (256, 2048):
    queries = np.random.default_rng(1).normal(size=(count, 8)).astype(np.float32)
    tracemalloc.start()
    index.nearest(queries, 5)
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
  assert peaks[1] < 2 * peaks[0]


@pytest.fixture
def search(finetuned, tmp_path):
  """search(*flags) -> exit code, output, error, with an index in tmp_path."""

  def run(*flags, checkpoint=finetuned.pretrained, index="index"):
    return launch("search", f"--checkpoint={checkpoint}", f"--index={tmp_path / index}", *flags)

  return run


def write(path, texts):
  path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_an_index_is_brought_up_to_date(search, tmp_path):
  table = tmp_path / "texts.jsonl"
  write(table, TEXTS[:2])
  code, out, err = search(f"--source={table}", f"--query={TEXTS[1]}")
  assert code == 0 and "2 texts, 2 of them embedded now, 0 removed" in err
  first = out.splitlines()[1].split("\t")
  assert first[1:4] == ["1", "1.0000", f"{table}:2"] and first[4] == TEXTS[1]
  before = read_index(str(tmp_path / "index"))
  write(table, [TEXTS[2], TEXTS[1]])
  code, out, err = search(f"--source={table}")
  assert code == 0 and "2 texts, 1 of them embedded now, 1 removed" in err
  after = read_index(str(tmp_path / "index"))
  np.testing.assert_array_equal(after.vectors[1], before.vectors[1])
  assert len(list((tmp_path / "index").iterdir())) == 2  # the old vectors are gone
  (tmp_path / "queries.txt").write_text("\n".join(TEXTS))
  code, out, _ = search(f"--queries={tmp_path / 'queries.txt'}", "--count=1")
  assert code == 0 and len(out.splitlines()) == 4


def test_a_text_without_a_token_is_left_out_and_named(search, tmp_path):
  table = tmp_path / "texts.jsonl"
  write(table, [TEXTS[0], "\u200b", "half \ud800", TEXTS[1]])
  code, out, err = search(f"--source={table}", "--query=the\tcat\n")
  assert code == 0 and f"2 texts without a token left out: {table}:2, {table}:3\n" in err
  header, *answers = out.splitlines()
  assert sorted(line.split("\t")[3] for line in answers) == [f"{table}:1", f"{table}:4"]
  assert all(line.startswith("the cat\t") for line in answers)


def test_an_index_that_was_interrupted_goes_on(search, tmp_path, monkeypatch):
  monkeypatch.setattr(index_file, "_SAVED", 1)
  table = tmp_path / "texts.jsonl"
  write(table, TEXTS)
  embed = search_app._embed

  def interrupted(model, texts):
    if texts == [TEXTS[2]]:
      raise InputError("interrupted")
    return embed(model, texts)

  monkeypatch.setattr(search_app, "_embed", interrupted)
  assert search(f"--source={table}")[0] == 2
  monkeypatch.setattr(search_app, "_embed", embed)
  assert "3 texts, 1 of them embedded now" in search(f"--source={table}")[2]


def small_index(word="a", count=3):
  texts = [f"{word} {n}" for n in range(count)]
  vectors = normalized(np.random.default_rng(ord(word)).normal(size=(count, 4)))
  return Index("model", texts, texts, vectors)


def test_a_first_write_that_was_killed_goes_on(tmp_path):
  """Whatever it left; a file of the user's is none of that, and stays."""
  index_file.write_index(str(tmp_path), small_index())
  [vectors] = tmp_path.glob("vectors-*.npy")
  for left in (vectors.name, f"{vectors.name}.partial-7", "index.json.partial-7"):
    folder = tmp_path / left.replace(".", "-")
    folder.mkdir()
    (folder / left).write_bytes(b"x")
    assert read_index(str(folder)) is None
    index_file.write_index(str(folder), small_index())
    assert read_index(str(folder)).texts == small_index().texts
  for own in ("vectors-mine.npy", "vectors-0123456789abcdef.npy"):
    np.save(tmp_path / own, np.eye(2, dtype=np.float32))
    index_file.write_index(str(tmp_path), small_index("b"))
    assert (tmp_path / own).exists()
  assert not vectors.exists()


def test_readers_and_writers_of_an_index_do_not_disturb_each_other(tmp_path):
  expected = {word: small_index(word) for word in "ab"}
  index_file.write_index(str(tmp_path), expected["a"])

  def write_often(word):
    for _ in range(50):
      index_file.write_index(str(tmp_path), expected[word])

  with concurrent.futures.ThreadPoolExecutor() as pool:
    writers = [pool.submit(write_often, "a")]
    while not all(writer.done() for writer in writers):
      found = read_index(str(tmp_path))
      np.testing.assert_array_equal(found.vectors, expected[found.texts[0][0]].vectors)
      index_file.write_index(str(tmp_path), expected["b"])
    [writer.result() for writer in writers]
  assert len(list(tmp_path.iterdir())) == 2


def header_of(shape):
  file = io.BytesIO()
  header = {"descr": "<f4", "fortran_order": False, "shape": shape}
  np.lib.format.write_array_header_1_0(file, header)
  return file.getvalue()


@pytest.mark.attack
@pytest.mark.parametrize(
  "change",
  [
    {"texts": ["a 0", "a 1", "b 2"]},
    {"texts": ["a 2", "a 1", "a 0"]},
    {"places": ["a 2", "a 1", "a 0"]},
    {"vectors": "../x.npy"},
    # With a checksum of their own:
    {"texts": [1, 2, 3], "checksum": None},
    {"texts": {"a": 1, "b": 2, "c": 3}, "checksum": None},
    {"places": None, "checksum": None},
    {"model": 3, "checksum": None},
    {"more": 3, "checksum": None},
  ],
)
def test_changed_rows_of_an_index_are_noticed(tmp_path, change):
  index_file.write_index(str(tmp_path), small_index())
  path = tmp_path / "index.json"
  tree = json.loads(path.read_text()) | change
  if "checksum" in change:
    del tree["checksum"]
    tree = with_checksum(tree)
  path.write_text(json.dumps(tree))
  refused("index.json: cannot be read .*; remove the folder", read_index, str(tmp_path))


@pytest.mark.attack
@pytest.mark.parametrize(
  "vectors",
  [
    np.ones(3),
    np.ones((3, 4, 1)),
    np.ones((3, 4)),
    np.full((3, 4), np.nan, np.float32),
    np.full((3, 4), 50, np.float32),
    np.zeros((2, 4), np.float32),
    b"",
    b"\x93NUMPY\x01\x00\x04\x00(((\n",
    header_of((3 * 10**12, 4)),
    None,
  ],
  ids=str,
)
def test_other_vectors_of_an_index_are_noticed(tmp_path, vectors):
  index_file.write_index(str(tmp_path), small_index())
  [path] = tmp_path.glob("vectors-*.npy")
  path.unlink()
  if vectors is None:
    os.mkfifo(path)
  elif isinstance(vectors, bytes):
    path.write_bytes(vectors)
  else:
    name = f"vectors-{hashlib.sha256(vectors.tobytes()).hexdigest()[:16]}.npy"
    np.save(tmp_path / name, vectors)
    tree = json.loads((tmp_path / "index.json").read_text()) | {"vectors": name}
    del tree["checksum"]
    (tmp_path / "index.json").write_text(json.dumps(with_checksum(tree)))
  refused("index.json: cannot be read .*; remove the folder", read_index, str(tmp_path))


def test_an_index_of_an_earlier_version_is_read(tmp_path):
  index_file.write_index(str(tmp_path), small_index())
  path = tmp_path / "index.json"
  tree = json.loads(path.read_text())
  del tree["checksum"]
  path.write_text(json.dumps(tree))
  assert read_index(str(tmp_path)).texts == small_index().texts
  with pytest.raises(InputError, match="vectors of 4 numbers, where the model's have 5; remove"):
    read_index(str(tmp_path)).nearest(np.ones((1, 5)), 1)


def test_a_place_of_any_name_is_one_cell(capsys):
  place = "d/\udcff\t\n\u2028é.txt:1"
  search_app.show(["q"], [[{"place": place, "cosine": 1.0, "text": "half \ud800"}]])
  out = capsys.readouterr().out
  assert out.splitlines()[1] == "q\t1\t1.0000\td/\\udcff\\t\\n\\u2028é.txt:1\thalf \\ud800"


def test_what_is_refused(search, finetuned, tmp_path):
  table = tmp_path / "texts.jsonl"
  write(table, TEXTS)
  refused = lambda *flags, **options: search(*flags, **options)[::2]
  assert refused("--query=x")[0] == 2 and "--source=FILES makes it" in refused("--query=x")[1]
  assert "give at least one of them" in refused()[1]
  assert "--count=0: must be 1 or more" in refused(f"--source={table}", "--count=0")[1]
  assert search(f"--source={table}")[0] == 0
  other = f"{finetuned.workdir}/seed_0"
  assert "was made with another model" in refused("--query=x", checkpoint=other)[1]
  assert "is something else than an index" in refused(f"--source={table}", index=".")[1]
  assert "is something else" in refused(f"--source={table}", index="texts.jsonl")[1]
  assert "cannot be made (Not a dir" in refused(f"--source={table}", index="texts.jsonl/a")[1]
  judged = launch("search", f"--checkpoint={other}", "--judged=x", "--query=x")
  assert "--judged: has its own texts; leave" in judged[2]
  [vectors] = (tmp_path / "index").glob("*.npy")
  vectors.write_bytes(b"")
  code, said = refused("--query=x")
  assert code == 2 and "remove the folder to make it anew" in said
  (tmp_path / "none.txt").write_text("\n")
  assert "has no query" in refused(f"--queries={tmp_path / 'none.txt'}")[1]


def test_the_measures_are_scikit_learns():
  metrics = pytest.importorskip("sklearn.metrics")
  rng = np.random.default_rng(0)
  ids = [f"d{n}" for n in range(30)]
  for _ in range(20):
    gains, scores = rng.integers(0, 4, 30), rng.permutation(30)
    relevance = {"q": dict(zip(ids, gains.tolist(), strict=True))}
    ranked = [ids[n] for n in np.argsort(-scores)]
    measured = measure({"q": ranked}, relevance)
    assert measured["ndcg@10"] == pytest.approx(metrics.ndcg_score([gains], [scores], k=10))
    first_ten = np.argsort(-scores)[:10]
    relevant = gains[first_ten] > 0
    precision = metrics.average_precision_score(relevant, scores[first_ten])
    share = relevant.sum() / (gains > 0).sum()
    assert measured["map@10"] == pytest.approx(precision * share)
    assert measured["mrr@10"] == pytest.approx(1 / (1 + relevant.argmax()) if relevant.any() else 0)
    assert measured["recall@100"] == 1
    # A judgment below 0 is as 0.
    below = {"q": {text: gain or -1 for text, gain in relevance["q"].items()}}
    assert measure({"q": ranked}, below) == measured


def test_judged_queries(finetuned, tmp_path):
  """Each query is one of the texts, so that it is found first."""
  rows = [{"_id": f"d{n}", "title": None, "text": text} for n, text in enumerate([*TEXTS, " "])]
  rows.insert(0, {"_id": "q1", "text": TEXTS[1]})  # a query
  (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
  queries = [{"_id": f"q{n}", "text": text} for n, text in enumerate(TEXTS)]
  (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
  qrels = tmp_path / "qrels" / "test.tsv"
  qrels.parent.mkdir()
  qrels.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(3)))
  assert read_judged(str(tmp_path), "test").corpus["d1"] == TEXTS[1]
  command = ["search", f"--checkpoint={finetuned.pretrained}", f"--judged={tmp_path}"]

  def measured(*flags):
    code, out, _ = launch(*command, *flags)
    assert code == 0
    return dict(line.split("\t") for line in out.splitlines())

  names = ["ndcg@10", "map@10", "mrr@10", "recall@100"]
  assert measured("--ignore_identical_ids") == dict.fromkeys(names, "1.0000")
  # Of the two texts with the highest score the last id comes first, in trec_eval as here.
  assert measured()["mrr@10"] == f"{(1 + 1 / 2 + 1) / 3:.4f}"
  qrels.write_text("\ufeffq0\td0\t1\r\nq0\td1\t-1\r\n")  # without names of columns
  assert measured() == dict.fromkeys(names, "1.0000")
  queries.append({"_id": "q3", "text": "\u200b"})
  (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
  qrels.write_text("q0\td0\t1\nq3\td1\t1\n")
  assert measured() == dict.fromkeys(names, "0.5000")
  for judgment in ("q0\td9\t1", "q0\td1\t²", f"q0\td1\t{10**400}"):
    qrels.write_text(f"query-id\tcorpus-id\tscore\n\n{judgment}\n")
    code, _, err = launch(*command)
    assert code == 2 and f"{qrels}:3: should have the id of a query" in err
  assert "qrels/dev.tsv: cannot be read" in launch(*command, "--split=dev")[2]
  for line, message in [("[" * 100_000, "should be {"), (json.dumps(rows[0]), "has the _id of an")]:
    (tmp_path / "corpus.jsonl").write_text(f"{json.dumps(rows[0])}\n{line}\n")
    assert f"corpus.jsonl:2: {message}" in launch(*command)[2]
  (tmp_path / "corpus.jsonl").write_text("")
  assert "corpus.jsonl: is empty" in launch(*command)[2]
  (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "d0", "text": " "}))
  qrels.write_text("q0\td0\t1\n")
  assert "no text has a word to search by" in launch(*command)[2]
