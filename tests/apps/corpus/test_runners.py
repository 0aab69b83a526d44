"""prepare --runner: the files of the single-machine path, byte for byte; restarts; mistakes."""

import gzip
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from refused import refused

from gpt_jax.apps.corpus import corpus as programs
from gpt_jax.apps.corpus.corpus import BeamPasses, CorpusConfig, run
from gpt_jax.apps.corpus.removal import Removing
from gpt_jax.data import pieces, word_counts
from gpt_jax.data.pieces import Corpus
from gpt_jax.data.sources import text as text_source
from gpt_jax.data.sources.source import Source

pytest.importorskip("apache_beam")
ROOT = Path(__file__).parents[3]
ROW = "nobody had told the keeper of the lantern that the grey ship would sail before the storm"


def contents(folder: Path) -> dict[str, bytes]:
  return {
    str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
  }


@pytest.fixture(scope="module", autouse=True)
def small_pieces():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(pieces, "PIECE_SIZE", 3000)
    patch.setattr(text_source, "BLOCK_SIZE", 3000)
    yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Text files, one long, and JSON lines, with duplicates and a row; the tests only read them."""
  tmp_path = tmp_path_factory.mktemp("beam")
  rng = random.Random(0)
  words = [f"{a}{b}{c}" for a in "bdfg" for b in "aeio" for c in ("la", "men", "tor", "sk", "rin")]

  def prose(count):
    return " ".join(word + ". " * (rng.random() < 0.1) for word in rng.choices(words, k=count))

  folder = tmp_path / "corpus"
  folder.mkdir()
  texts = [prose(rng.randint(100, 400)) for _ in range(12)]
  (folder / "long.txt").write_text(prose(3000))
  (folder / "short.txt").write_text(f"{texts[1]} {ROW} {texts[2]}")
  (folder / "zzz.txt").write_text(texts[4])
  rows = [*texts, "", texts[3], texts[5].replace("bala", "balata")]
  (folder / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
  with gzip.open(folder / "more.txt.gz", "wt") as file:
    file.write(prose(700))
  (tmp_path / "rows.txt").write_text(ROW.title())
  return folder


@pytest.fixture
def own_corpus(corpus, tmp_path):
  """A copy that a test may change."""
  shutil.copytree(corpus.parent, tmp_path, dirs_exist_ok=True)
  return tmp_path / "corpus"


def settings(corpus, **changes) -> CorpusConfig:
  defaults = {"source": str(corpus), "vocab_size": 320, "valid_share": 0.2}
  return CorpusConfig(**defaults | changes)


def everything(corpus):
  return {
    "deduplicate": "near",
    "decontaminate": str(corpus.parent / "rows.txt"),
    "sentences": True,
    "vocabulary_share": 0.7,
    "shard_tokens": 1,
  }


@pytest.fixture(scope="module")
def local(corpus, tmp_path_factory):
  """The files without a runner, of `everything`."""
  out = tmp_path_factory.mktemp("local") / "out"
  run(settings(corpus, **everything(corpus)), str(out))
  return contents(out)


def test_the_files_are_those_without_a_runner(corpus, local, tmp_path, monkeypatch):
  changes = everything(corpus)
  run(settings(corpus, runner="direct", **changes), str(tmp_path / "beam"))
  assert local == contents(tmp_path / "beam")
  assert len(local["removed.jsonl"].splitlines()) == 4
  # With a bound on words that is reached in the middle, and nothing removed.
  monkeypatch.setattr(word_counts.WordCounts.__init__, "__defaults__", (300,))
  run(settings(corpus), str(tmp_path / "local2"))
  run(settings(corpus, runner="direct"), str(tmp_path / "beam2"))
  assert contents(tmp_path / "local2") == contents(tmp_path / "beam2")
  # A single document.
  run(settings(corpus / "long.txt"), str(tmp_path / "local3"))
  run(settings(corpus / "long.txt", runner="direct"), str(tmp_path / "beam3"))
  assert contents(tmp_path / "local3") == contents(tmp_path / "beam3")


@pytest.mark.parametrize("stop_in", ["prints", "tokens"])
def test_what_a_killed_run_finished_is_not_done_again(
  corpus, local, tmp_path, monkeypatch, stop_in
):
  changes = everything(corpus) | {"runner": "direct"}
  out = tmp_path / "out"
  program = f"""
import os, sys
from gpt_jax.data import pieces
from gpt_jax.data.sources import text
from gpt_jax.apps.corpus import corpus
pieces.PIECE_SIZE = text.BLOCK_SIZE = 3000
def local(runner, options, function, tasks):
  for task in tasks:
    if "{stop_in}" in task.path and "rows.jsonl" in task.corpus.sources[0].name:
      os._exit(9)
    function(task)
corpus.make_pipeline = local
corpus.run(corpus.CorpusConfig(**{settings(corpus, **changes).__dict__!r}), {str(out)!r})
"""
  command, here = [sys.executable, "-c", program], {"PYTHONPATH": str(ROOT)}
  killed = subprocess.run(command, env=here, capture_output=True, check=False)
  assert killed.returncode == 9, killed.stderr.decode()
  done = []

  def pipeline(runner, options, function, tasks):
    for task in tasks:
      done.append(Path(task.path).name)
      function(task)

  monkeypatch.setattr(programs, "make_pipeline", pipeline)
  run(settings(corpus, **changes), str(out))
  order = ["prints", "sizes", "words", "tokens"]
  before = tuple(order[: order.index(stop_in)])
  assert not [name for name in done if name.startswith(before)]
  of_stage = [name for name in done if name.startswith(stop_in)]
  # long.txt is finished
  assert of_stage and not any(name.endswith("-000000.jsonl") for name in of_stage)
  assert not [path for path in tmp_path.iterdir() if ".partial" in path.name]
  assert contents(out) == local


def test_a_bad_source_is_one_line_and_leaves_nothing(own_corpus, tmp_path):
  (own_corpus / "rows.jsonl").write_text('{"text": "fine"}\n{"no": 1}\n')
  message, config = r"rows\.jsonl:2: no text in field 'text'", settings(own_corpus, runner="direct")
  refused(message, run, config, str(tmp_path / "out"))
  assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "rows.txt"]


def test_a_fault_of_workers_is_not_kept_when_it_is_mended(own_corpus, tmp_path):
  corpus = own_corpus
  key = {"settings": "same"}
  sources = [Source(str(corpus / "short.txt"), 0)]
  whole = Corpus(sources, "text", np.empty((0, 2), np.int64))
  removing = Removing("none", "", "")

  def sizes(passes):
    return [size for sizes, _ in passes.words(whole, "", 1.0) for size in sizes]

  folder = str(tmp_path / "stages")
  (corpus / "short.txt").rename(corpus / "away.txt")
  refused("short.txt", sizes, BeamPasses(removing, "direct", "", folder, key))
  (corpus / "away.txt").rename(corpus / "short.txt")
  assert sizes(BeamPasses(removing, "direct", "", folder, key))


def test_workers_that_do_not_see_the_folder(corpus, tmp_path, monkeypatch):
  monkeypatch.setattr(programs, "make_pipeline", lambda *_: None)
  message = r"no worker left a result in .*stages, which all of them"
  refused(message, run, settings(corpus, runner="direct"), str(tmp_path / "out"))


@pytest.mark.parametrize(
  "runner, options, missing, fault",
  [
    ("sparks", "", "", "runner"),
    ("direct", "project=x", "", "--beam_options: 'project=x' should be --"),
    ("direct", "--project='x", "", "--beam_options: .*No closing quotation"),
    # Without Google's Beam asks for a bucket without credentials, for minutes.
    ("dataflow", "", "google", r"=dataflow needs .*pip install 'apache-beam\[gcp\]'"),
    ("direct", "", "beam", r"pip install 'gpt_jax\[beam\]'"),
  ],
)
def test_mistakes_and_missing_packages(
  corpus, tmp_path, monkeypatch, runner, options, missing, fault
):
  if missing == "google":
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda name: None)
  if missing == "beam":
    monkeypatch.setitem(sys.modules, "apache_beam", None)
  changes = {"runner": runner, "beam_options": options}
  refused(fault, lambda: run(settings(corpus, **changes), str(tmp_path / "out")))
  assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def job_service(tmp_path_factory):
  """The address of a server for Beam's portable jobs, such as Flink and Spark have."""
  folder = tmp_path_factory.mktemp("job_service")
  command = [
    *(sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main"),
    *(f"--staging_dir={folder}", f"--port_file={folder}/port"),
  ]
  with open(folder / "log", "w") as log:
    server = subprocess.Popen(command, stdout=log, stderr=log)
  try:
    deadline = time.monotonic() + 60
    while not (folder / "port").exists() or not (folder / "port").read_text():
      assert server.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
      time.sleep(0.1)
    yield f"localhost:{(folder / 'port').read_text().strip()}"
  finally:
    server.kill()
    server.wait()


@pytest.mark.parametrize("runner", ["flink", "spark"])
def test_runners_of_clusters_send_their_jobs_to_a_server(
  job_service, corpus, local, tmp_path, runner
):
  """Beam's own, in place of Flink's or Spark's, which are of other languages."""
  changes = everything(corpus)
  options = f"--job_endpoint={job_service} --environment_type=LOOPBACK"
  run(settings(corpus, runner=runner, beam_options=options, **changes), str(tmp_path / runner))
  assert local == contents(tmp_path / runner)
